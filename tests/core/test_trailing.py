"""What has been usual: medians of ten-second slots, for an hour."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.trailing import SLOT_SECONDS, SLOTS, Trailing


def fed(values: list[float], interval: float = 1.0) -> Trailing:
    trailing = Trailing()
    for at, value in enumerate(values):
        trailing = trailing.add(at * interval, value)
    return trailing


def test_before_the_first_value_nothing_is_usual() -> None:
    """None, not 0."""
    assert Trailing().median is None


def test_the_first_slot_stands_alone_until_it_closes() -> None:
    """Its mean so far, so that a fresh engine is judged at once."""
    assert fed([1.0, 3.0]).median == 2.0
    assert fed([1.0] * 10 + [100.0]).median == 1.0


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=80), st.sampled_from([1.0, 5.0, 30.0]))
def test_the_median_is_that_of_the_means_of_closed_slots(values: list[float], interval: float) -> None:
    """A slot begins with its first value and closes with the first value ten seconds later."""
    slots: list[list[float]] = []
    start = 0.0
    for at, value in enumerate(values):
        if not slots or at * interval - start >= SLOT_SECONDS:
            slots.append([])
            start = at * interval
        slots[-1].append(value)
    means = [sum(slot) / len(slot) for slot in slots]
    expected = median(means[:-1]) if len(means) > 1 else means[0]
    assert fed(values, interval).median == pytest.approx(expected)


def test_an_hour_ago_is_forgotten() -> None:
    """And the memory does not grow."""
    trailing = fed([9.0] * SLOTS + [1.0] * (SLOTS + 1), SLOT_SECONDS)
    assert len(trailing.slots) == SLOTS
    assert trailing.median == 1.0


def test_one_outlier_is_not_usual() -> None:
    """A median, not a mean."""
    assert fed([1.0] * 50 + [1000.0] + [1.0] * 50, SLOT_SECONDS).median == 1.0
