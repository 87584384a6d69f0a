"""How good predictions are: the figures that fits, calibrations and the accuracy benchmark report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CLOSE = 0.06  # an error that nobody sees: the scatter of one deployment's repeated runs
FAIR = 0.15  # the drift that counts as a finding


@dataclass(frozen=True, slots=True)
class Score:
    """Relative errors (predicted / measured - 1) of n predictions, all as ratios; bias is their mean."""

    n: int
    median_abs_error: float
    p90_abs_error: float
    share_within_6pct: float
    share_within_15pct: float
    bias: float


def score(errors: Sequence[float]) -> Score:
    """Sums up relative errors. Raises ValueError without any."""
    if not errors:
        raise ValueError("no predictions to score")
    sizes = [abs(error) for error in errors]
    return Score(
        n=len(errors),
        median_abs_error=quantile(sizes, 0.5),
        p90_abs_error=quantile(sizes, 0.9),
        share_within_6pct=sum(size <= CLOSE for size in sizes) / len(sizes),
        share_within_15pct=sum(size <= FAIR for size in sizes) / len(sizes),
        bias=sum(errors) / len(errors),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated between neighbours. Needs at least one."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
