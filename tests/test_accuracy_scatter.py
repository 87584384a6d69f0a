"""The scatter of prices around pooled ones is what the series show, and no more."""

from __future__ import annotations

import random

import pytest

from stepscope.core.law_terms import KV, OVERHEAD, SEQUENCE, TERMS

SIZE = len(TERMS)
pytestmark = pytest.mark.usefixtures("benchmarks_importable")


def members(count: int, known: dict[int, float]) -> list[tuple[list[list[float]], list[float]]]:
    """Series that know some prices exactly: overhead of that spread, sequences opposite to it, KV on its own."""
    chance = random.Random(7)
    found = []
    for _ in range(count):
        overhead, kv = chance.gauss(0, 1), chance.gauss(0, 1)
        deviation = {OVERHEAD: overhead, SEQUENCE: -overhead, KV: kv}
        gram = [[1e4 * (i == j and i in known) for j in range(SIZE)] for i in range(SIZE)]
        moment = [1e4 * known.get(i, 0.0) * deviation.get(i, 0.0) for i in range(SIZE)]
        found.append((gram, moment))
    return found


def test_widths_and_correlations_of_what_series_know_are_found() -> None:
    """Forty series: three times the stated spread, a third of it, and two prices that trade against each other."""
    from accuracy_scatter import scatter_of

    found = scatter_of(members(40, {OVERHEAD: 3.0, SEQUENCE: 1.0, KV: 0.3}))
    assert found.width[OVERHEAD] == pytest.approx(3.0, rel=0.25)
    assert found.width[KV] == pytest.approx(0.35, rel=0.35)
    assert found.correlation[SEQUENCE][OVERHEAD] < -0.9
    assert abs(found.correlation[KV][OVERHEAD]) < 0.4


def test_what_no_series_knows_stays_as_stated() -> None:
    """Width 1 and no correlation; the same with no series at all."""
    from accuracy_scatter import scatter_of

    for found in (scatter_of(members(40, {OVERHEAD: 3.0})), scatter_of([])):
        assert found.width[KV] == pytest.approx(1.0)
        assert found.correlation[KV] == pytest.approx((0.0,) * KV)
