"""Time and observations are booked per pair, in the right states only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.accounts import UNJUDGED, added, booked
from stepscope.core.sample import EngineSample
from stepscope.core.snapshot import Accounts
from stepscope.core.step_model import StepTime
from stepscope.core.window import Pair
from stepscope.metrics import CAUSES, STATES

S = EngineSample("m", "0")
STEP = StepTime(0.010, 0.0, 0.020, 0.0, 0.002, 0.03, 0.03)  # a decode step of 30 ms, 32 with prefill
PAIR = Pair(S, S, 10.0, 15.0, 100.0, 3.6, 12.0, 8.0, 0.0, True, 0.0, 1.0, STEP, True)
BARE = Pair(S, S, 10.0, 15.0, 0.0, 0.0, None, None, 0.0, True, 0.0)


@pytest.mark.parametrize("state", STATES)
def test_time_is_booked_to_its_state_and_no_other(state: str) -> None:
    """Five seconds, whatever the state."""
    accounts = booked(Accounts(), PAIR, state, None, STEP, None)
    assert dict(zip(STATES, accounts.state_seconds, strict=True)) == {name: 5.0 * (name == state) for name in STATES}
    assert sum(accounts.cause_seconds) == 0.0


@pytest.mark.parametrize("cause", CAUSES)
def test_time_is_booked_to_its_cause_and_no_other(cause: str) -> None:
    """Only while there is one."""
    accounts = booked(Accounts(), PAIR, "measuring", cause, STEP, None)
    assert dict(zip(CAUSES, accounts.cause_seconds, strict=True)) == {name: 5.0 * (name == cause) for name in CAUSES}


@pytest.mark.parametrize("state", STATES)
def test_observations_are_compared_in_state_measuring_only(state: str) -> None:
    """Mean and prediction over the same observations, prefill in both."""
    accounts = booked(Accounts(), PAIR, state, None, STEP, None)
    booked_sums = (accounts.itl_observed_seconds, accounts.itl_expected_seconds, accounts.itl_compared)
    assert booked_sums == (pytest.approx((3.6, 3.2, 100.0)) if state == "measuring" else (0.0, 0.0, 0.0))


def test_observations_that_cannot_be_compared_are_left_out() -> None:
    """Preempted, emptied, not accounted: neither sum moves."""
    accounts = booked(Accounts(), replace(PAIR, comparable=False), "measuring", None, STEP, None)
    assert (accounts.itl_observed_seconds, accounts.itl_expected_seconds, accounts.itl_compared) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("state", STATES)
def test_time_is_judged_wherever_there_is_a_prediction(state: str) -> None:
    """Idle included, except stale, asleep and warming up."""
    accounts = booked(Accounts(), PAIR, state, None, STEP, 0.029)
    expected = 0.0 if state in ("stale", "asleep", "warming_up") else 5.0
    assert (accounts.judged_seconds, accounts.over_budget_seconds) == (expected, expected)
    assert booked(Accounts(), BARE, state, None, None, 0.029).judged_seconds == 0.0


def test_unjudged_states_are_states() -> None:
    """A renamed state would silently be judged."""
    assert set(STATES) > UNJUDGED


@pytest.mark.parametrize(("target", "over"), [(0.0299, 5.0), (0.030, 0.0), (0.031, 0.0), (None, 0.0)])
def test_over_budget_is_the_decode_step_above_a_promised_target(target: float | None, over: float) -> None:
    """Without prefill, and never where nobody promised a speed."""
    accounts = booked(Accounts(), PAIR, "measuring", None, STEP, target)
    assert (accounts.over_budget_seconds, accounts.judged_seconds) == (over, 5.0)


def test_a_pair_without_observations_is_judged_by_the_latest_prediction() -> None:
    """An idle engine meets its target."""
    accounts = booked(Accounts(), BARE, "idle", None, STEP, 0.010)
    assert (accounts.judged_seconds, accounts.over_budget_seconds) == (5.0, 5.0)


def test_pairs_add_up() -> None:
    """Restarts and invalid values are carried along."""
    accounts = Accounts(restarts=3, invalid_values=(("kv_usage", 2),))
    for _ in range(4):
        accounts = booked(accounts, PAIR, "measuring", "none", STEP, 0.02)
    assert accounts.over_budget_seconds == 20.0
    assert accounts.itl_compared == 400.0
    assert (accounts.restarts, accounts.invalid_values) == (3, (("kv_usage", 2),))


def test_invalid_values_are_summed_by_field() -> None:
    """In the order of their names."""
    assert added((("kv_usage", 2),), {"kv_usage": 1, "itl_sum": 4}) == (("itl_sum", 4), ("kv_usage", 3))
    assert added((), {}) == ()
