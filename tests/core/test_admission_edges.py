"""The context budget at its edges: an engine that stands still, budgets out of reach, what a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_helpers import POLICY, lease, make, refusal
from stepscope.core.admission import GrowingLeaseError
from stepscope.core.leases import EngineTokens


def test_an_engine_that_stands_still_is_tried_with_one_lease() -> None:
    """Hung: that one waits and all others are told. Only waiting for work: its next step shows what it really holds."""
    budget, _ = make()
    budget.observe(EngineTokens(held_tokens=0.0))
    budget.observe(EngineTokens(held_tokens=95_000, stands_still=True))
    assert budget.counts().outside_tokens == 95_000
    trial = lease(budget.acquire(20_000))
    budget.observe(EngineTokens(held_tokens=95_000, stands_still=True))
    assert budget.counts().outside_tokens == 75_000  # at most: whether the trial is among them, nobody knows
    assert refusal(budget.acquire(20_000)).reason == "configured"
    budget.observe(EngineTokens(held_tokens=15_000))
    assert lease(budget.acquire(60_000 - 20_000))
    assert budget.release(trial.lease_id)


def test_a_trial_of_an_engine_that_stands_still_is_never_above_the_budget() -> None:
    """It is the smallest budget that counts, as ever."""
    budget, _ = make()
    budget.observe(EngineTokens(held_tokens=95_000, stands_still=True))
    assert refusal(budget.acquire(100_001)).reason == "configured"


def test_where_waiting_never_helps_there_is_no_time_to_come_back() -> None:
    """Nor a place in line."""
    budget, _ = make()
    for tokens, queue in ((200_000, False), (200_000, True), (60_000, True)):
        said = refusal(budget.acquire(tokens, queue=queue))
        assert (said.fits_when_empty, said.retry_after_seconds, said.ticket) == (False, None, None)


def test_only_an_empty_engine_shows_what_will_never_fit_the_speed() -> None:
    """The speed budget is less with each sequence that runs: under load a refusal is not for ever."""
    budget, _ = make(replace(POLICY, budget_tokens=None))
    budget.observe(EngineTokens(speed_tokens=0.0, memory_tokens=50_000.0, held_tokens=9_000.0))
    said = refusal(budget.acquire(15_000))
    assert (said.reason, said.fits_when_empty, said.retry_after_seconds) == ("speed", True, 1.0)
    assert not refusal(budget.acquire(50_001, class_name="chat")).fits_when_empty  # memory stays as it is
    assert budget.counts().empty_speed_tokens is None
    budget.observe(EngineTokens(speed_tokens=20_000.0, memory_tokens=50_000.0, held_tokens=0.0))
    budget.observe(EngineTokens(speed_tokens=5_000.0, memory_tokens=50_000.0, held_tokens=9_000.0))
    assert refusal(budget.acquire(20_000)).fits_when_empty
    assert not refusal(budget.acquire(20_001)).fits_when_empty
    assert budget.counts().empty_speed_tokens == 20_000
    budget.observe(EngineTokens(speed_tokens=0.0, memory_tokens=50_000.0, held_tokens=0.0))
    assert not refusal(budget.acquire(1)).fits_when_empty
    budget.change(POLICY)  # perhaps with another promise
    assert refusal(budget.acquire(1)).fits_when_empty


def test_free_tokens_are_those_that_are_free_or_unknown() -> None:
    """Too many leases leave tokens; without a budget there is no figure."""
    full, _ = make(replace(POLICY, max_leases=1))
    lease(full.acquire(10_000))
    said = refusal(full.acquire(1))
    assert (said.reason, said.free_tokens) == ("leases", 90_000)
    strict, _ = make(replace(POLICY, budget_tokens=None, admit_unknown=False))
    assert refusal(strict.acquire(1)).free_tokens is None


def test_tokens_and_times_have_the_same_bounds_for_a_new_and_a_renewed_lease() -> None:
    """Positive tokens, and a time that is not over on arrival."""
    budget, _ = make()
    held = lease(budget.acquire(100))
    for wrong in (0, -5):
        with pytest.raises(ValueError, match="tokens must be a positive number"):
            budget.acquire(wrong)
        with pytest.raises(ValueError, match="tokens must be a positive number"):
            budget.renew(held.lease_id, tokens=wrong)
    for call in (lambda: budget.acquire(1, 0.0001), lambda: budget.renew(held.lease_id, ttl_seconds=0.0001)):
        with pytest.raises(ValueError, match=r"ttl_seconds must be at least 0\.1"):
            call()
    with pytest.raises(GrowingLeaseError, match="can only shrink"):
        budget.renew(held.lease_id, tokens=101)
    assert budget.knows(held.lease_id)
    assert not budget.knows("never-given")
