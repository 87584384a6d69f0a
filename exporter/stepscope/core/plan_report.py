"""A finished plan as a JSON document, and that document as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.core.plan import Demand, Row, prefill_seconds, row
from stepscope.core.sizing import MOST_REQUESTS, Limit, Sizing, cost_per_million_tokens, peak_concurrency

# core/defaults.py: `reduce_work` times the best time of a ring, per sequence; benchmarks/pool.py fits it.
POOLED_REDUCES = (
    "part of the pooled law: what a ring moves over the link, times a factor fitted on public figures of vLLM at 1 to "
    "8 GPUs; what does not grow with the batch is in the overhead per layer"
)


@dataclass(frozen=True, slots=True)
class Money:
    """Price of one GPU for an hour, and rates (tokens/s) that somebody wants priced."""

    price_per_gpu_hour: float
    currency: str = ""
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Users:
    """How a day's users make a peak: requests each, the share of them in the peak, lengths of the peak in seconds."""

    daily: tuple[float, ...]
    requests_each: float
    peak_share: float
    peak_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found. `sizing`: of the replica that was asked about; `sizes`: at other tensor-parallel sizes too."""

    demand: Demand
    rows: tuple[Row, ...]
    sizing: Sizing
    sizes: tuple[Sizing, ...]
    money: Money | None = None
    users: Users | None = None


def document(plan: Plan) -> dict[str, Any]:
    """The plan as plain values; names carry units, None where something cannot be known."""
    demand, replica, binding = plan.demand, plan.sizing.replica, plan.sizing.binding
    best = min((size for size in plan.sizes if size.gpus is not None), key=lambda size: size.gpus or 0, default=None)
    return {
        "law": {
            "source": replica.law.source,
            "effective_bandwidth_bytes_per_second": replica.law.effective_bandwidth_bytes_per_second,
            "step_overhead_seconds": replica.law.step_overhead_seconds,
            "sequence_cost_seconds": replica.law.sequence_cost_seconds,
            "prefill_cost_seconds_per_token": replica.law.prefill_cost_seconds_per_token,
            "low_factor": replica.law.low_factor,
            "high_factor": replica.law.high_factor,
        },
        "demand": {
            "requests": demand.requests,
            "context_tokens": demand.mean_tokens,
            "prompt_tokens": demand.prompt_tokens,
            "output_tokens": demand.output_tokens,
            "objective_tokens_per_second": demand.objective_tokens_per_second,
            "headroom": demand.headroom,
            "ttft_objective_seconds": demand.ttft_seconds,
            "reserve": demand.reserve,
        },
        "limits": {limit.name: _limit(limit, replica.kv_room_bytes) for limit in plan.sizing.limits},
        "binding": None if binding is None else binding.name,
        "requests": None if binding is None else _requests(binding.requests),
        "concurrency": [_row(found, plan) for found in plan.rows],
        "prefill_seconds": prefill_seconds(replica, demand),
        "prefill_seconds_linear": prefill_seconds(replica, demand, linear=True),
        "sizes": [_size(size, plan) for size in plan.sizes],
        "gpus": None if best is None else best.gpus,
        "cost_per_million_tokens": _costs(plan),
        "currency": plan.money.currency if plan.money else "",
        "peaks": list(_peaks(plan)),
    }


def _requests(count: int) -> int | None:
    return None if count >= MOST_REQUESTS else count


def _limit(limit: Limit, room: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "requests": _requests(limit.requests),
        "low_requests": _requests(limit.low_requests),
        "high_requests": _requests(limit.high_requests),
    }
    if limit.tokens is not None:
        found["tokens"] = limit.tokens
    if limit.name == "memory":
        found["bytes"] = room
    return found


def _row(found: Row, plan: Plan) -> dict[str, Any]:
    objective = plan.demand.objective_tokens_per_second
    speed, rate = found.tokens_per_second_per_user, found.tokens_per_second
    return {
        "requests": found.requests,
        "tokens_in_flight": found.tokens_in_flight,
        "step_seconds": found.step_seconds,
        "step_low_seconds": found.step_low_seconds,
        "step_high_seconds": found.step_high_seconds,
        "memory_seconds": found.memory_seconds,
        "compute_seconds": found.compute_seconds,
        "communication_seconds": found.communication_seconds,
        "bound_by": found.bound_by,
        "prefill_tokens_per_step": found.prefill_tokens_per_step,
        "itl_seconds": found.itl_seconds,
        "tokens_per_second_per_user": speed,
        "tokens_per_second": rate,
        "ttft_seconds": found.ttft_seconds,
        "fits_memory": found.fits_memory,
        "meets_objective": None if objective is None or speed is None else speed >= objective,
        "cost_per_million_tokens": _price(plan, rate, plan.sizing.replica.gpu_count),
    }


def _price(plan: Plan, rate: float | None, gpus: int) -> float | None:
    return cost_per_million_tokens(plan.money.price_per_gpu_hour, gpus, rate) if plan.money and rate else None


def _rate(size: Sizing, demand: Demand, requests: int | None) -> float | None:
    """Generated tokens/s of a replica that serves so many."""
    found = row(size.replica, demand, requests) if requests and requests < MOST_REQUESTS else None
    return None if found is None else found.tokens_per_second


def _full_load(size: Sizing) -> int | None:
    """Requests that fit, whatever their speed."""
    hard = [limit.requests for limit in size.limits if limit.name in ("memory", "max_num_seqs")]
    return min(hard, default=None)


def _size(size: Sizing, plan: Plan) -> dict[str, Any]:
    binding, demand, replica = size.binding, plan.demand, size.replica
    requests = None if binding is None else binding.requests
    rate = _rate(size, demand, requests)
    return {
        "tensor_parallel": replica.gpu_count,
        "requests_per_replica": None if requests is None else _requests(requests),
        "binding": None if binding is None else binding.name,
        "single_stream_tokens_per_second": 1.0 / size.single_stream_seconds if size.single_stream_seconds else None,
        "communication_seconds": replica.communication_seconds(1),
        "communication_at_limit_seconds": replica.communication_seconds(requests or 1),
        "communication_source": _link(size),
        "replicas": size.replicas,
        "gpus": size.gpus,
        "tokens_per_second_per_gpu": None if rate is None else rate / replica.gpu_count,
        "cost_per_million_tokens": _price(plan, rate, replica.gpu_count),
        "why_not": size.why_not,
    }


def _link(size: Sizing) -> str | None:
    if size.replica.gpu_count < 2:
        return None
    collective = size.replica.collective
    if size.replica.reduce_seconds_per_sequence:
        return POOLED_REDUCES
    if collective is None:
        return "not counted apart: in the law's overhead, or not measured for this GPU"
    return f"{collective.all_reduce.name}, {collective.all_reduce.source}"


def _costs(plan: Plan) -> dict[str, Any] | None:
    if plan.money is None:
        return None
    size, gpus = plan.sizing, plan.sizing.replica.gpu_count
    binding = size.binding
    at_limit = _rate(size, plan.demand, None if binding is None else binding.requests)
    promised = plan.demand.objective_tokens_per_second is not None
    return {
        "at_objective": _price(plan, at_limit, gpus) if promised else None,
        "at_full_load": _price(plan, _rate(size, plan.demand, _full_load(size)), gpus),
        "at_tokens_per_second": {f"{rate:g}": _price(plan, rate, gpus) for rate in plan.money.rates},
    }


def _peaks(plan: Plan) -> Iterator[dict[str, Any]]:
    """A row per number of daily users and length of the peak."""
    users, demand, binding = plan.users, plan.demand, plan.sizing.binding
    if users is None or demand.output_tokens is None or binding is None or not 0 < binding.requests < MOST_REQUESTS:
        return
    full = row(plan.sizing.replica, demand, binding.requests)
    if full is None or full.itl_seconds is None or full.ttft_seconds is None:
        return
    request_seconds = full.ttft_seconds + demand.output_tokens * full.itl_seconds
    for daily in users.daily:
        for seconds in users.peak_seconds:
            peak = peak_concurrency(daily, users.requests_each, users.peak_share, seconds, request_seconds)
            replicas = max(1, -int(-peak * (1.0 + demand.reserve) // binding.requests))
            yield {
                "daily_users": daily,
                "peak_seconds": seconds,
                "request_seconds": request_seconds,
                "peak_requests": peak,
                "replicas": replicas,
                "gpus": replicas * plan.sizing.replica.gpu_count,
            }


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
        ("requests", "tokens", "step", "low", "high", "memory", "compute", "ITL", "tokens/s/user", "tokens/s", "TTFT",
         "fits", "cost/M"),
        [
            [_n(r["requests"]), _n(r["tokens_in_flight"]), _ms(r["step_seconds"]), _ms(r["step_low_seconds"]),
             _ms(r["step_high_seconds"]), _ms(r["memory_seconds"]), _ms(r["compute_seconds"]), _ms(r["itl_seconds"]),
             _d(r["tokens_per_second_per_user"]), _n(r["tokens_per_second"]), _s(r["ttft_seconds"]),
             {True: "yes", False: "NO", None: "-"}[r["fits_memory"]], _d(r["cost_per_million_tokens"], 2)]
            for r in report["concurrency"]
        ],
    )  # fmt: skip
    yield (
        "tensor parallel against replicas",
        ("GPUs per replica", "requests each", "binds", "single stream", "all-reduces", "at the limit", "replicas",
         "GPUs", "tokens/s/GPU", "cost/M"),
        [
            [_n(r["tensor_parallel"]), _n(r["requests_per_replica"]), r["binding"] or "-",
             _d(r["single_stream_tokens_per_second"]), _ms(r["communication_seconds"]),
             _ms(r["communication_at_limit_seconds"]), _n(r["replicas"]), r["why_not"] or _n(r["gpus"]),
             _n(r["tokens_per_second_per_gpu"]), _d(r["cost_per_million_tokens"], 2)]
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
