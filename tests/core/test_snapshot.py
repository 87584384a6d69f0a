"""What follows from a view without being stored in it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from stepscope.core.snapshot import Accounts, EngineView, Snapshot
from stepscope.core.step_model import StepTime

VIEW = EngineView("m", "0", 1.0, "measuring", Accounts())
STEP = StepTime(0.01, 0.0, 0.0, 0.0, 0.002, 0.01, 0.01)


def test_headroom_goes_by_the_smallest_budget() -> None:
    """Negative when over; unknown without tokens or without any budget."""
    both = replace(VIEW, tokens_in_flight=900.0, speed_budget_tokens=800.0, memory_budget_tokens=1000.0)
    assert both.token_headroom_tokens == -100.0
    assert replace(both, speed_budget_tokens=None).token_headroom_tokens == 100.0
    assert replace(both, speed_budget_tokens=0.0).token_headroom_tokens == -900.0
    assert replace(both, tokens_in_flight=None).token_headroom_tokens is None
    assert replace(VIEW, tokens_in_flight=900.0).token_headroom_tokens is None


def test_the_predicted_latency_is_unknown_where_its_prefill_part_is() -> None:
    """The decode step stands."""
    assert replace(VIEW, predicted=STEP).predicted_itl_seconds == pytest.approx(0.012)
    assert replace(VIEW, predicted=STEP, prefill_known=False).predicted_itl_seconds is None
    assert VIEW.predicted_itl_seconds is None


def test_a_snapshot_cannot_be_changed() -> None:
    """Readers on other threads keep what they took."""
    with pytest.raises(FrozenInstanceError):
        Snapshot("1", "r", "3").engine_up = True  # type: ignore[misc]  # the point of the test
