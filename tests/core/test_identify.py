"""What points fix is told from what only a prior says."""

from __future__ import annotations

from stepscope.core.identify import known_terms
from stepscope.core.law_terms import KV, OVERHEAD, PREFILL, SEQUENCE, TERMS, Point, quantities

SCALE, KNOWN_TO = 0.02, 0.15


def known(points: list[Point], scale: float = SCALE, counts: list[float] | None = None) -> set[str]:
    rows = [[value / point.itl_seconds for value in quantities(point)] for point in points]
    found = known_terms(rows, counts or [1.0] * len(points), scale, KNOWN_TO)
    assert set(found) == set(TERMS)
    return {name for name, is_known in found.items() if is_known}


def point(n: float, context: float, prompts: float = 0.0) -> Point:
    return Point(n, n * context, prompts, 0.005 + 5e-5 * n + 1e-7 * n * context + 3e-5 * prompts)


VARIED = [point(n, context) for n in (1, 8, 32, 64) for context in (500, 2000, 8000)]


def test_varied_loads_fix_what_they_vary() -> None:
    """Batch and context, but not prompts that nobody sent."""
    found = known(VARIED)
    assert {TERMS[OVERHEAD], TERMS[SEQUENCE], TERMS[KV]} <= found
    assert TERMS[PREFILL] not in found
    assert TERMS[PREFILL] in known([*VARIED, point(8, 2000, 100), point(32, 2000, 300), point(8, 500, 200)])


def test_one_load_fixes_nothing() -> None:
    """However often it is measured."""
    assert known([point(8, 2000)] * 20) == set()


def test_scatter_takes_away_and_weight_gives_back() -> None:
    """Ten times the scatter leaves less known; a hundred times the points bring it back."""
    noisy = known(VARIED, scale=10 * SCALE)
    assert noisy < known(VARIED)
    assert known(VARIED, scale=10 * SCALE, counts=[100.0] * len(VARIED)) == known(VARIED)
