"""Predictions of points a fit did not see, with folds that are the same on every run."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.fit import Prior, fit, relative_error
from stepscope.core.law_terms import Point
from stepscope.core.roof import Compute
from stepscope.core.step_model import WeightBytes

# Park and Miller's generator (CACM 31 (1988) 1192); folds need no more than to be mixed, and the same on every run.
MULTIPLIER, MODULUS = 48271, 2**31 - 1


def folds(points: int, count: int, turn: int = 0) -> list[list[int]]:
    """The indices of `points` rows in `count` folds of about one size; fewer folds where there are fewer rows.

    turn: another number gives other folds, to see how much of a figure is the luck of the split.
    """
    order = list(range(points))
    state = 1 + turn
    for last in range(points - 1, 0, -1):  # Fisher and Yates
        state = state * MULTIPLIER % MODULUS
        chosen = state % (last + 1)
        order[last], order[chosen] = order[chosen], order[last]
    return [order[start::count] for start in range(min(count, points))]


def cross_validate(
    points: Sequence[Point],
    count: int,
    prior: Prior | None = None,
    weights: WeightBytes | None = None,
    turn: int = 0,
    compute: Compute | None = None,
) -> list[float]:
    """Relative error of each point, predicted by a fit of the other folds; empty for fewer than two points."""
    if len(points) < 2:
        return []
    errors = [0.0] * len(points)
    for fold in folds(len(points), count, turn):
        held_out = set(fold)
        seen = [point for index, point in enumerate(points) if index not in held_out]
        law = fit(seen, prior, weights, compute).law
        for index in fold:
            errors[index] = relative_error(law, points[index])
    return errors
