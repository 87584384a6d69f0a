"""The rows of the admission metrics; all empty, and so absent from the page, unless admission is enabled."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.core.leases import ClassCounts
from stepscope.core.snapshot import AdmissionView
from stepscope.metrics import REFUSALS, REJECTIONS, TABLE

Row = tuple[tuple[str, ...], float | None]

_PER_CLASS: dict[str, Callable[[ClassCounts], float]] = {
    "admission_leases": lambda c: float(c.leases),
    "admission_leased_tokens": lambda c: c.tokens,
    "admission_admitted_total": lambda c: float(c.admitted),
    "admission_expired_total": lambda c: float(c.expired),
    "admission_leaked_tokens_total": lambda c: c.leaked_tokens,
}
_PER_REASON: dict[str, Callable[[ClassCounts], tuple[int, ...]]] = {
    "admission_refused_total": lambda c: c.refused,
    "admission_would_refuse_total": lambda c: c.would_refuse,
}


def admission_rows(view: AdmissionView | None) -> dict[str, list[Row]]:
    """metric name -> (label values, value)."""
    if view is None:
        return {metric.name: [] for metric in TABLE if metric.name.startswith("admission_")}
    counts = view.counts
    rows: dict[str, list[Row]] = {
        "admission_enforced": [((), float(not counts.observe_only))],
        "admission_budget_tokens": [((), counts.budget_tokens)],
        "admission_free_tokens": [((), counts.free_tokens)],
        "admission_outside_tokens": [((), counts.outside_tokens)],
        "admission_rejected_requests_total": [
            ((reason,), float(n)) for reason, n in zip(REJECTIONS, view.rejected, strict=True)
        ],
    }
    for name, value in _PER_CLASS.items():
        rows[name] = [((c.name,), value(c)) for c in counts.classes]
    for name, values in _PER_REASON.items():
        rows[name] = [
            ((c.name, reason), float(n)) for c in counts.classes for reason, n in zip(REFUSALS, values(c), strict=True)
        ]
    return rows
