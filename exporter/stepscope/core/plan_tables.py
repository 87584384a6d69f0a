"""The document of a plan as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Table = tuple[str, Sequence[str], list[list[str]]]


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """(title, heads, rows of text) of a document."""
    limits = report["limits"]
    yield (
        "limits of one replica",
        ("limit", "requests", "low", "high", "tokens", "binds"),
        [
            [name, _n(limit["requests"]), _n(limit["low_requests"]), _n(limit["high_requests"]),
             _n(limit.get("tokens")), "<--" if name == report["binding"] else ""]
            for name, limit in limits.items()
        ],
    )  # fmt: skip
    yield (
        "speed by concurrency",
        ("requests", "tokens", "step", "low", "high", "memory", "compute", "ITL", "low", "high", "tokens/s/user",
         "tokens/s", "TTFT", "low", "high", "fits", "cost/M"),
        [
            [_n(r["requests"]), _n(r["tokens_in_flight"]), _ms(r["step_seconds"]), _ms(r["step_low_seconds"]),
             _ms(r["step_high_seconds"]), _ms(r["memory_seconds"]), _ms(r["compute_seconds"]), _ms(r["itl_seconds"]),
             _ms(r["itl_low_seconds"]), _ms(r["itl_high_seconds"]), _d(r["tokens_per_second_per_user"]),
             _n(r["tokens_per_second"]), (">" if r["prompts_queue"] else "") + _s(r["ttft_seconds"]),
             _s(r["ttft_low_seconds"]), _s(r["ttft_high_seconds"]),
             {True: "yes", False: "NO", None: "-"}[r["fits_memory"]], _d(r["cost_per_million_tokens"], 2)]
            for r in report["concurrency"]
        ],
    )  # fmt: skip
    yield (
        "tensor parallel against replicas",
        ("GPUs per replica", "requests each", "binds", "single stream", "all-reduces", "at the limit", "replicas",
         "GPUs", "low", "high", "tokens/s/GPU", "cost/M", "low", "high"),
        [
            [_n(r["tensor_parallel"]), _n(r["requests_per_replica"]), r["binding"] or "-",
             _d(r["single_stream_tokens_per_second"]), _ms(r["communication_seconds"]),
             _ms(r["communication_at_limit_seconds"]), _n(r["replicas"]), _n(r["gpus"]),
             _n(r["gpus_low"]), _n(r["gpus_high"]),
             _n(r["tokens_per_second_per_gpu"]), _d(r["cost_per_million_tokens"], 2),
             _d(r["cost_low_per_million_tokens"], 2), _d(r["cost_high_per_million_tokens"], 2)]
            for r in report["sizes"]
        ],
    )  # fmt: skip
    if report["peaks"]:
        yield (
            "users a day",
            ("daily users", "peak", "requests at once", "replicas", "GPUs"),
            [
                [_n(r["daily_users"]), f"{r['peak_seconds'] / 3600:g} h", _d(r["peak_requests"]), _n(r["replicas"]),
                 _n(r["gpus"])]
                for r in report["peaks"]
            ],
        )  # fmt: skip


def _n(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _d(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.2f} ms"


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
