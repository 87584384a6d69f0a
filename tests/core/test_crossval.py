"""Folds are fair and fixed, and what they judge was not seen."""

from __future__ import annotations

import pytest

from stepscope.core.crossval import cross_validate, folds
from stepscope.core.fit import fit
from stepscope.core.law_terms import Point
from stepscope.core.score import quantile


@pytest.mark.parametrize(("points", "count"), [(20, 5), (7, 3), (3, 5), (1, 2)])
def test_every_row_is_in_one_fold_and_folds_are_of_one_size(points: int, count: int) -> None:
    """With fewer rows than folds each row is its own."""
    made = folds(points, count)
    assert sorted(index for fold in made for index in fold) == list(range(points))
    assert max(map(len, made)) - min(map(len, made)) <= 1
    assert len(made) == min(points, count)


def test_folds_are_mixed_and_always_the_same() -> None:
    """A sweep is sorted by load: neighbours must not share a fold by the rhythm of the file."""
    assert folds(50, 5) == folds(50, 5)
    assert all(len({index % 5 for index in fold}) > 1 for fold in folds(50, 5))


def test_a_point_nothing_like_the_others_is_judged_by_them() -> None:
    """Three times as slow as its load says: its error is what a fit that never saw it makes of it."""
    points = [Point(n, n * 1000.0, 0.0, 0.005 + 5e-5 * n) for n in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160)]
    odd = Point(20, 20_000.0, 0.0, 3 * (0.005 + 5e-5 * 20))
    errors = cross_validate([*points, odd], 5)
    assert errors[-1] == pytest.approx(1 / 3 - 1, abs=0.05)
    assert quantile([abs(error) for error in errors], 0.5) < 0.05
    assert quantile([abs(error) for error in errors], 0.5) >= 0.5 * fit(points).score.median_abs_error


def test_a_single_point_cannot_be_left_out() -> None:
    """There would be nothing to fit."""
    assert cross_validate([Point(1, 1000.0, 0.0, 0.005)], 5) == []
