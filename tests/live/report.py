"""The table of a live run: what the sidecar said beside what the clients saw, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from live.drive import PHASES, Record
from live.engine import Pool
from live.truth import Span, Truth

_HEAD = (
    "phase", "samples", "tokens in flight", "whole blocks", "batch", "mean ITL, ms", "worst: ITL, batch, blocks",
    "states",
)  # fmt: skip


def table(record: Record, found: Sequence[Truth], pool: Pool) -> str:
    """Markdown. Where two numbers stand, the first is the sidecar's and the second the clients'; medians of a phase."""
    rows = [_HEAD, tuple("---" for _ in _HEAD)]
    rows += [_row(phase, [t for t in found if record.phase_of(t.sample.at) == phase], pool) for phase in PHASES]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join(lines)


def held(truth: Truth, pool: Pool) -> float:
    """Tokens in flight as the sidecar says, without the share of the block that nobody can use."""
    return float(truth.view["tokens_in_flight"]) * pool.usable_share


def _row(phase: str, found: Sequence[Truth], pool: Pool) -> tuple[str, ...]:
    itl = [(1e3 * t.view["itl_mean_seconds"], span.times(1e3)) for t in found if (span := t.itl_mean_seconds)]
    batch = [(t.view["decode_batch_size"], span) for t in found if (span := t.batch)]
    tokens = [(held(t, pool), span) for t in found if (span := t.tokens)]
    blocks = [(held(t, pool), span) for t in found if (span := t.held_tokens)]
    return (
        phase,
        str(len(found)),
        _both(tokens, ",.0f"),
        _both(blocks, ",.0f"),
        _both(batch, ".2f"),
        _both(itl, ".2f"),
        ", ".join(_worst(pairs) for pairs in (itl, batch, blocks)),
        ", ".join(dict.fromkeys(t.view["state"] for t in found)),
    )


def _both(pairs: Sequence[tuple[float, Span]], form: str) -> str:
    if not pairs:
        return "-"
    return f"{median(ours for ours, _ in pairs):{form}} / {median(span.best for _, span in pairs):{form}}"


def _worst(pairs: Sequence[tuple[float, Span]]) -> str:
    return f"{max((span.deviation(ours) for ours, span in pairs), key=abs):+.1%}" if pairs else "-"
