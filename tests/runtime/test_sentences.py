"""What stepscope says in words: each situation has a headline, a reason and an action."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.snapshot import Accounts, Assumed, EngineView, Snapshot
from stepscope.core.step_model import StepTime
from stepscope.metrics import CAUSES, STATES
from stepscope.runtime.sentences import missing, notices, sentence, verdict

STEP = StepTime(0.0, 0.0075, 0.0059, 0.0, 0.0005, 0.012, 0.048)
VIEW = EngineView(
    "m",
    "0",
    0.0,
    "measuring",
    Accounts(),
    cause="none",
    itl_mean_seconds=0.014,
    predicted=STEP,
    drift_ratio=0.01,
    prefill_interference_ratio=0.036,
    tokens_in_flight=80_000.0,
    tokens_per_step=1.0,
    capacity_tokens=377_000.0,
    target_step_seconds=0.018,
    target_itl_seconds=0.02,
    speed_budget_tokens=142_000.0,
    memory_budget_tokens=377_000.0,
)
SNAPSHOT = Snapshot(version="1", revision="r", python_version="3", engine_up=True, engine_ever_up=True, engines=(VIEW,))
SLOW: dict[str, Any] = {"itl_mean_seconds": 0.029, "tokens_in_flight": 282_000.0, "cause": "context"}


def test_fast_enough_says_against_what_and_how_much_more_fits() -> None:
    """The usual day."""
    said = verdict(VIEW)
    assert said.level == "good"
    assert said.headline == "Fast enough: 14.0 ms per token, 71 tokens/s for each user; 50 promised"
    assert said.why == "As fast as the load allows."
    assert said.advice == "Nothing to do. 62,000 more context tokens fit before users drop below 50 tokens/s."


def test_requests_that_wait_while_nobody_runs_are_not_called_idle() -> None:
    """Nothing is claimed of a fault, and nobody is told that all is well."""
    waiting = replace(VIEW, state="idle", cause=None, itl_mean_seconds=None, requests_waiting=3.0)
    said = verdict(waiting)
    assert (said.level, said.headline) == ("warning", "Nobody is served")
    assert said.why == "Nobody is being served, and requests wait: 3."
    assert "it admits nobody" in said.advice
    assert verdict(replace(waiting, requests_waiting=0.0)).headline == "Idle"


def test_a_shared_prefix_is_named_as_the_reason_for_no_verdict() -> None:
    """There is plenty of traffic, and more of it would not help."""
    shared = replace(VIEW, state="too_few_observations", cause=None, drift_ratio=None, shared_prefix_tokens=413_000.0)
    said = verdict(shared)
    assert "Requests share cached prefixes" in said.why
    assert "413,000 more" in said.why
    assert "more traffic" not in said.advice


def test_slow_says_by_how_many_tokens_it_is_over() -> None:
    """Two agents joined."""
    said = verdict(replace(VIEW, **SLOW))
    assert (said.level, said.headline.split(":")[0]) == ("bad", "Slow")
    assert "each step reads 282,000 tokens of KV, which takes 5.9 ms." in said.why
    assert said.why.endswith("The engine itself is as fast as this load allows.")
    assert said.advice.endswith("or add an engine: 140,000 tokens are too many.")


def test_prefill_is_told_as_what_it_adds_to_each_token() -> None:
    """A share of 24% of the whole is 31% on top of the rest."""
    said = verdict(replace(VIEW, cause="prefill", itl_mean_seconds=0.03, prefill_interference_ratio=0.2366))
    assert "they add 31% to each token" in said.why
    assert "--max-num-batched-tokens" in said.advice


def test_prefill_whose_tokens_are_not_counted_yet_is_not_given_a_size() -> None:
    """Prompt tokens are booked when a prompt ends; until then the share is that of the steps before."""
    view = replace(VIEW, state="prefilling", cause="prefill", itl_mean_seconds=0.03, drift_ratio=None)
    assert "how much they add shows when the prompts end" in verdict(view).why
    assert "4%" not in verdict(view).why


def test_prefill_within_the_promise_asks_for_nothing_yet() -> None:
    """No alarm on a green page."""
    said = verdict(replace(VIEW, state="prefilling", cause="prefill", prefill_interference_ratio=0.3))
    assert (said.level, said.headline.split(":")[0]) == ("good", "Fast enough")
    assert said.advice.startswith("Nothing to do yet. If it gets slow: make prompt chunks smaller")


def test_without_a_promise_too_much_load_is_more_than_usual() -> None:
    """There is no promised speed to speak of."""
    view = replace(VIEW, cause="load", target_itl_seconds=None, target_step_seconds=None)
    assert verdict(view).why.startswith("More requests and context than usual: each step reads")
    assert verdict(replace(VIEW, cause="load")).why.startswith("More requests and context than fit at the promised")


def test_an_engine_that_beats_its_prediction_is_not_blamed_by_it() -> None:
    """Weights alone would take too long, says a law that the measurement refutes."""
    step = replace(STEP, weights_seconds=0.04)
    said = verdict(replace(VIEW, cause="objective_unreachable", predicted=step, drift_ratio=-0.6))
    assert (said.level, said.headline.split(":")[0]) == ("good", "Fast enough")
    assert said.why.startswith("Faster than predicted by 60%")
    assert "stepscope calibrate" in said.advice


def test_a_decode_step_above_its_target_is_a_warning_before_users_feel_it() -> None:
    """The promise still holds, the headroom is gone."""
    step = replace(STEP, kv_cache_seconds=0.011)
    said = verdict(replace(VIEW, cause="load", itl_mean_seconds=0.0195, predicted=step))
    assert (said.level, said.headline.split(":")[0]) == ("warning", "At the limit")


def test_drift_that_data_sheets_allow_is_not_called_as_fast_as_the_load_allows() -> None:
    """Slower by half, unexplained by nothing: calibrate to know."""
    said = verdict(replace(VIEW, drift_ratio=0.5))
    assert said.why == "Slower than predicted by 50%, which an uncalibrated prediction alone may account for."
    assert "stepscope calibrate" in said.advice


def test_a_speculative_step_is_told_with_its_tokens_and_the_speed_of_a_user() -> None:
    """An inter-token latency is then the gap between groups of tokens."""
    said = verdict(replace(VIEW, tokens_per_step=2.0, itl_mean_seconds=0.028, target_itl_seconds=0.04))
    assert said.headline == "Fast enough: 28.0 ms per step of 2.0 tokens, 71 tokens/s for each user; 50 promised"


def test_without_a_promise_it_says_what_a_promise_would_show() -> None:
    """Nothing to hold the speed against."""
    view = replace(VIEW, target_itl_seconds=None, target_step_seconds=None, speed_budget_tokens=None)
    assert verdict(view).headline == "As expected: 14.0 ms per token, 71 tokens/s for each user"
    assert "--objective.tokens-per-second" in verdict(view).advice
    assert missing(replace(SNAPSHOT, engines=(view,))) == (
        "a promise to hold the speed against: give --objective.tokens-per-second",
    )


def test_an_engine_that_does_not_answer_is_not_called_fast() -> None:
    """The last verdict is told as the past."""
    said = verdict(VIEW, engine_up=False)
    assert (said.level, said.headline) == ("unknown", "Not known now")
    assert said.why.startswith("When the engine last answered: Fast enough: 14.0 ms")


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_words(state: str) -> None:
    """Whatever is known or not."""
    bare = EngineView("m", "0", 0.0, state, Accounts())
    for view in (bare, replace(VIEW, state=state, cause=None)):
        said = verdict(view)
        assert said.level in ("good", "warning", "bad", "unknown")
        assert said.headline
        assert said.advice
        assert state == "measuring" or sentence(view)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_words_and_only_none_asks_for_nothing(cause: str) -> None:
    """No cause without an action."""
    said = verdict(replace(VIEW, cause=cause, itl_mean_seconds=0.029))
    assert said.why
    assert said.advice.startswith("Nothing to do") == (cause == "none")


def test_notices_tell_a_starting_engine_from_a_lost_one() -> None:
    """One is patience, the other is an incident."""
    down = replace(SNAPSHOT, engine_up=False, last_error="connection refused")
    (lost,) = notices(down)
    (starting,) = notices(replace(down, engine_ever_up=False))
    assert (lost.level, lost.text) == ("bad", "The engine is not answering: connection refused")
    assert (starting.level, starting.text) == ("warning", "The engine has not come up yet: connection refused")
    assert notices(SNAPSHOT) == ()


def test_wrong_configuration_and_foreign_calibration_are_noticed() -> None:
    """Degraded running must not look like running."""
    snapshot = replace(SNAPSHOT, config_errors=("bad key",), assumed=Assumed(calibration_mismatch=True))
    assert [notice.level for notice in notices(snapshot)] == ["bad", "warning"]
    assert "bad key" in notices(snapshot)[0].text


def test_an_unknown_capacity_is_missing_with_its_flag() -> None:
    """The engine does not say, the operator can."""
    view = replace(VIEW, capacity_tokens=None)
    assert missing(replace(SNAPSHOT, engines=(view,))) == ("KV capacity: give --kv.capacity-tokens",)
