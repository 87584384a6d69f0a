"""The compute roof of a fit: past some batch a decode step waits for arithmetic, not for memory.

The law takes the longer of the two, so its prices are no longer one linear problem. For a given share of the peak
FLOP/s they nearly are: a point is either below the knee or beyond it, where the time of the arithmetic stands in for
the reads. The share is therefore tried out, and kept only where points left out are predicted better with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepscope.core.law_terms import KV, KV_CONTEXT, OVERHEAD, SEQUENCE, WEIGHTS

READS = (WEIGHTS, KV, KV_CONTEXT)  # what hides behind the arithmetic beyond the knee
# Shares of peak FLOP/s, from all of it down: matrices of 256 to 512 tokens reach about 0.55 on A100 and 0.69 on H100
# (their times over one token's in Vidur's profiles, arXiv:2405.05465); a step's other work may hide half of that.
LEAST_SHARE, COARSE, FINE = 0.2, 1.2, 1.05
LEAST_POINTS = 3  # on either side of the knee: with fewer any share fits
LEAST_RATIO = 1.1  # of the largest to the smallest batch on a side: less is one batch
STANDARD_ERRORS = 2.0  # by which left-out errors must fall, point by point, so that it is not noise (about 95 %)


@dataclass(frozen=True, slots=True)
class Compute:
    """What arithmetic a token costs and how fast it can be, all GPUs together."""

    active_params: float
    peak_flops: float  # dense FLOP/s at the precision of the weights

    @property
    def seconds_per_token(self) -> float:
        """Least time of one token's arithmetic: two operations per active parameter."""
        return 2.0 * self.active_params / self.peak_flops


@dataclass(frozen=True, slots=True)
class Solution:
    """Prices in the order of TERMS, the prior's strength, and each point's left-out error, its size capped."""

    prices: tuple[float, ...]
    strength: float
    left_out: tuple[float, ...]

    @property
    def leave_one_out(self) -> float:
        """Mean of the left-out errors."""
        return math.fsum(self.left_out) / len(self.left_out)


def are_beyond(
    rows: Sequence[Sequence[float]], prices: Sequence[float], arithmetic: Sequence[float]
) -> tuple[bool, ...]:
    """Which points the arithmetic holds up. rows and arithmetic: in units of each point's measured time."""
    return tuple(
        busy > sum(row[term] * prices[term] for term in READS) for row, busy in zip(rows, arithmetic, strict=True)
    )


def without_reads(row: Sequence[float]) -> list[float]:
    """The row of a point beyond the knee: its reads are free."""
    return [0.0 if term in READS else value for term, value in enumerate(row)]


def has_both_sides(rows: Sequence[Sequence[float]], beyond: Sequence[bool]) -> bool:
    """Whether the points show the knee: enough of them before it and beyond it, of more than one batch on either side.

    One batch alone, however often measured, cannot tell a roof from a cost per sequence.
    """
    for side in (True, False):
        batches = [row[SEQUENCE] / row[OVERHEAD] for row, over in zip(rows, beyond, strict=True) if over is side]
        if len(batches) < LEAST_POINTS or max(batches) < LEAST_RATIO * min(batches):
            return False
    return True


def may_show(rows: Sequence[Sequence[float]], least: Sequence[float], arithmetic: Sequence[float]) -> bool:
    """Whether a knee could be seen at all: at the slowest arithmetic and the fastest reads that are possible."""
    return sum(are_beyond(rows, least, [busy / LEAST_SHARE for busy in arithmetic])) >= LEAST_POINTS


def best(solve: Callable[[float], Solution | None], flat: Solution) -> tuple[Solution, float] | None:
    """The solution with the best share of peak FLOP/s and that share; None where the law without a roof does as well.

    solve: share -> solution, None where the points do not show a knee at it. flat: the solution without a roof.
    """
    found: dict[float, Solution] = {}

    def try_out(shares: Sequence[float]) -> None:
        for share in shares:
            solution = solve(share) if LEAST_SHARE <= share <= 1.0 else None
            if solution is not None:
                found[share] = solution

    steps = math.floor(math.log(1.0 / LEAST_SHARE, COARSE))
    try_out([COARSE**-step for step in range(steps + 1)])
    if not found:
        return None
    middle = min(found, key=lambda share: found[share].leave_one_out)
    reach = math.floor(math.log(COARSE, FINE))
    try_out([middle * FINE**step for step in range(-reach, reach + 1) if step])
    share = min(found, key=lambda share: found[share].leave_one_out)
    gains = [before - after for before, after in zip(flat.left_out, found[share].left_out, strict=True)]
    return (found[share], share) if _is_beyond_noise(gains) else None


def _is_beyond_noise(gains: Sequence[float]) -> bool:
    """Whether the mean gain exceeds its standard error so many times."""
    mean = math.fsum(gains) / len(gains)
    variance = math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
    return mean > STANDARD_ERRORS * math.sqrt(variance / len(gains))
