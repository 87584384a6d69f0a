"""Samples become pairs: gaps, window edges, restarts, several engines, and counters that never fall."""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_engine import FakeEngine, page_of
from folding import POLICY, PROMISE, Fold, busy
from stepscope.core.estimate import Facts
from stepscope.core.observer import Policy
from stepscope.core.sample import EngineSample, Histogram, Reading
from stepscope.core.snapshot import Accounts, EngineView
from stepscope.core.step_model import StepLaw, WeightBytes
from stepscope.core.window import Pair


def test_the_first_sample_is_a_baseline() -> None:
    """Counters since the engine's start are no difference: nothing is measured yet, tokens in flight are."""
    engine = FakeEngine()
    engine.decode(3600.0, batch=8, itl=0.03, tokens=20_000)
    view = Fold()(engine.reading())
    assert (view.itl_mean_seconds, view.decode_batch_size, view.observations) == (None, None, 0.0)
    assert view.tokens_in_flight == pytest.approx(20_000)
    assert view.accounts == Accounts()


def test_an_engine_that_obeys_the_law_has_no_drift() -> None:
    """Eight requests with 20,000 tokens: 10 ms of weights and 20 ms of KV."""
    view = Fold().all(busy(FakeEngine()))
    assert view.state == "measuring"
    assert view.itl_mean_seconds == pytest.approx(0.030)
    assert view.predicted_itl_seconds == pytest.approx(0.030)
    assert view.drift_ratio == pytest.approx(0.0, abs=1e-9)
    assert (view.decode_batch_size, view.cause) == (8.0, "none")


@pytest.mark.parametrize(("gap", "used"), [(30.0, True), (31.0, True), (32.0, False)])
def test_samples_too_far_apart_are_no_pair(gap: float, used: bool) -> None:
    """The window's length and a little slack; beyond it time is not accounted either."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine))
    before = fold.memories["0"].accounts.judged_seconds
    view = fold(engine.decode(gap, batch=8, itl=0.03, tokens=20_000))
    assert (len(fold.memories["0"].pairs) > 0) is used
    assert view.accounts.judged_seconds - before == pytest.approx(gap if used else 0.0)


def test_a_pair_may_span_three_intervals_where_the_window_is_shorter() -> None:
    """Two failed scrapes in the middle lose nothing."""
    engine = FakeEngine()
    fold = Fold(policy=replace(POLICY, interval_seconds=20.0, window_seconds=30.0))
    fold(engine.reading())
    assert fold(engine.decode(60.0, batch=8, itl=0.03, tokens=20_000)).decode_batch_size == 8.0
    assert fold(engine.decode(64.0, batch=8, itl=0.03, tokens=20_000)).decode_batch_size is None


def test_the_window_is_its_last_seconds() -> None:
    """The pairs that began within it; an old slow phase is out after thirty seconds."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine, 6, itl=0.060))
    views = [fold(engine.decode(5.0, batch=8, itl=0.030, tokens=20_000)) for _ in range(6)]
    assert len(fold.memories["0"].pairs) == 6
    assert views[0].itl_mean_seconds is not None
    assert views[-2].itl_mean_seconds is not None
    assert views[-2].itl_mean_seconds > 0.0301
    assert views[-1].itl_mean_seconds == pytest.approx(0.030, rel=1e-3)


def test_a_window_has_at_least_one_pair() -> None:
    """With samples further apart than its length."""
    fold = Fold(policy=replace(POLICY, interval_seconds=60.0, window_seconds=30.0))
    engine = FakeEngine()
    fold(engine.reading())
    for _ in range(3):
        assert fold(engine.decode(60.0, batch=8, itl=0.03, tokens=20_000)).itl_mean_seconds == pytest.approx(0.03)


def restart_by_process(engine: FakeEngine) -> None:
    engine.process_start = 1.7e9 + 500


def restart_by_counters(engine: FakeEngine) -> None:
    engine.restart()
    engine.process_start = None


def restart_by_model(engine: FakeEngine) -> None:
    engine.model_name = "another"


@pytest.mark.parametrize("restart", [restart_by_process, restart_by_counters, restart_by_model])
def test_a_new_life_begins_with_a_baseline(restart: Any) -> None:
    """By process start, by fallen counters, by another model: counted, nothing negative, the verdict waits."""
    engine, fold = FakeEngine(), Fold(policy=replace(PROMISE, warm_up_seconds=20.0))
    before = fold.all(busy(engine))
    assert before.state == "measuring"
    restart(engine)
    after = fold(engine.wait(5.0))
    assert after.accounts.restarts == 1
    assert (after.itl_mean_seconds, after.observations) == (None, 0.0)
    assert after.accounts.itl_observed_seconds == before.accounts.itl_observed_seconds
    views = [fold(engine.decode(5.0, batch=8, itl=0.03, tokens=20_000)) for _ in range(4)]
    assert [view.state for view in views] == ["warming_up"] * 3 + ["measuring"]
    assert views[-1].accounts.restarts == 1


def test_what_was_usual_outlives_a_restart() -> None:
    """An engine that comes back slower is compared with its old self."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine))
    usual = fold.memories["0"].usual_step.median
    engine.restart()
    fold(engine.wait(5.0))
    assert usual is not None
    assert fold.memories["0"].usual_step.median == usual


def test_a_page_that_stops_naming_its_process_is_no_restart() -> None:
    """Only two different start times are."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine))
    engine.process_start = None
    assert fold(engine.wait(5.0)).accounts.restarts == 0


def test_an_engine_missing_from_a_page_is_remembered() -> None:
    """The sampler forgets it in time; until then it goes on where it was."""
    one, two = FakeEngine("0"), FakeEngine("1")
    fold = Fold()
    fold.page(page_of(one.reading(), two.reading()))
    (alone,) = fold.page(one.decode(5.0, batch=8, itl=0.03, tokens=20_000))
    assert alone.engine == "0"
    two.decode(10.0, batch=4, itl=0.02, tokens=10_000)
    views = fold.page(page_of(one.decode(5.0, batch=8, itl=0.03, tokens=20_000), two.reading()))
    assert [view.engine for view in views] == ["0", "1"]
    assert views[1].itl_mean_seconds == pytest.approx(0.02)


def test_engines_of_one_page_are_judged_apart() -> None:
    """Each has its own tokens, its own step."""
    fast, slow, fold = FakeEngine("0"), FakeEngine("1"), Fold()
    for _ in range(4):
        views = fold.page(
            page_of(
                fast.decode(5.0, batch=8, itl=0.03, tokens=20_000), slow.decode(5.0, batch=8, itl=0.09, tokens=80_000)
            )
        )
    assert [view.predicted_itl_seconds for view in views] == pytest.approx([0.03, 0.09])
    assert [view.cause for view in views] == ["none", "none"]


def test_ranks_in_lockstep_take_the_time_of_the_slowest() -> None:
    """Mixtures with expert parallelism: the rank with 20,000 tokens waits for the one with 80,000."""
    fast, slow = FakeEngine("0"), FakeEngine("1")
    fold = Fold(facts=replace(Fold().facts, lockstep=True))
    for _ in range(4):
        views = fold.page(
            page_of(
                fast.decode(5.0, batch=8, itl=0.09, tokens=20_000), slow.decode(5.0, batch=8, itl=0.09, tokens=80_000)
            )
        )
    assert [view.drift_ratio for view in views] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_invalid_values_are_counted_for_their_engine() -> None:
    """Also those of the first sample."""
    engine, fold = FakeEngine(), Fold()
    engine.invalid = (("0", "kv_usage", 2), ("7", "kv_usage", 5))
    fold(engine.reading())
    engine.invalid = (("0", "kv_usage", 1), ("0", "itl_sum", 1))
    assert fold(engine.wait(5.0)).accounts.invalid_values == (("itl_sum", 1), ("kv_usage", 3))


def last_pair(engine: FakeEngine, fold: Fold, reading: Reading) -> Pair:
    fold(reading)
    return fold.memories[engine.label].pairs[-1]


@pytest.mark.parametrize(("left", "compared"), [(20_016, True), (17_000, True), (12_000, False), (0, False)])
def test_requests_that_were_cancelled_within_a_pair_are_not_held_against_the_engine(
    left: float, compared: bool
) -> None:
    """The steps read 20,000 tokens, the later sample shows what is left: beyond 15 % of a step that says nothing."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine, 1))
    assert last_pair(engine, fold, engine.decode(5.0, batch=8, itl=0.030, tokens=left)).comparable is compared


@pytest.mark.parametrize(("running", "compared"), [(8, True), (7, True), (3, False)])
def test_a_crowd_that_no_gauge_saw_is_not_held_against_the_engine(running: float, compared: bool) -> None:
    """It came and went between two samples: eight decoded per step, and at both ends fewer run."""
    engine, fold = FakeEngine(), Fold()
    engine.decode(5.0, batch=running, itl=0.030, tokens=20_000)
    fold(engine.reading())
    engine.decode(5.0, batch=8, itl=0.030, tokens=20_016)
    engine.running = running
    assert last_pair(engine, fold, engine.reading()).comparable is compared


@pytest.mark.parametrize(("seconds", "compared"), [(5.0, True), (4.5, True), (2.0, False)])
def test_several_api_servers_are_compared_only_while_busy(seconds: float, compared: bool) -> None:
    """Their batch is S/T, which is too small where nobody decoded for a part of the pair."""
    engine, fold = FakeEngine(single_process=False, process_start=None), Fold()
    fold.all(busy(engine, 1))
    engine.decode(seconds, batch=8, itl=0.030, tokens=20_016)
    assert last_pair(engine, fold, engine.wait(5.0 - seconds)).comparable is compared


def test_gauges_that_do_not_move_while_blocks_are_filled_are_frozen() -> None:
    """Each of eight requests fills ten blocks in a pair; at the third such sample nothing is compared any more."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine, 1))
    fold(engine.decode(5.0, batch=8, itl=0.030, tokens=20_016))
    moved = [last_pair(engine, fold, engine.decode(5.0, batch=8, itl=0.030)).gauges_moved for _ in range(4)]
    assert moved == [True, True, False, False]
    assert last_pair(engine, fold, engine.decode(5.0, batch=8, itl=0.030, tokens=20_500)).gauges_moved


def test_frozen_gauges_do_not_make_prompts_of_what_they_hide() -> None:
    """Tokens come and go in the counters alone; that the balance is wrong does not mean that somebody prefills."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine, 1))
    for _ in range(4):
        fold(engine.decode(5.0, batch=8, itl=0.030))
    engine.queries = (engine.queries or 0.0) + 700.0  # somebody's prompt has begun
    pair = last_pair(engine, fold, engine.decode(5.0, batch=8, itl=0.030))
    assert (pair.gauges_moved, pair.prefill_accounted, pair.comparable) == (False, True, False)


def test_slow_steps_are_frozen_once_each_request_filled_a_block() -> None:
    """A step a second: 5 tokens of a block of 16 in each pair, so that the fourth is one too many."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine, 1))
    fold(engine.decode(5.0, batch=4, itl=1.0, tokens=20_016))
    moved = [last_pair(engine, fold, engine.decode(5.0, batch=4, itl=1.0)).gauges_moved for _ in range(4)]
    assert moved == [True, True, True, False]


@pytest.mark.parametrize(("tokens", "hidden"), [(10_000, False), (20_000, True)])
def test_a_long_prompt_at_an_end_of_a_pair_keeps_it_out_of_the_verdict(tokens: float, hidden: bool) -> None:
    """Its chunks take up to 1 or 2 s of 5, nobody knows how much; beyond a third only the prediction stands."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine, 1))
    engine.queries = (engine.queries or 0.0) + tokens
    # The first chunk of it is done, the other requests generate as before, and one of them has finished.
    engine.finished_prompt = (engine.finished_prompt or 0.0) + 1000
    pair = last_pair(engine, fold, engine.decode(5.0, batch=8, itl=0.030, tokens=20_500))
    assert pair.open_prompt_tokens == tokens
    assert (pair.holds_long_prompt, pair.decoding_is_hidden, pair.comparable) == (hidden, hidden, True)


def test_an_engine_that_emptied_within_a_pair_is_not_compared() -> None:
    """Its gaps are real, but the tokens at the end of the pair are those of the void."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine, 3))
    compared = fold.memories["0"].accounts.itl_compared
    engine.decode(5.0, batch=8, itl=0.03)
    engine.running, engine.usage = 0.0, 0.0
    view = fold(engine.reading())
    assert view.itl_mean_seconds == pytest.approx(0.03)
    assert view.accounts.itl_compared == compared


_COUNTERS = (
    "engine_steps",
    "prompt_tokens_computed",
    "prefix_queries",
    "prefix_hits",
    "generation_tokens",
    "finished_prompt_tokens",
    "finished_generation_tokens",
    "preemptions",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "read_bytes",
)


def erratic_readings(seed: int) -> list[Reading]:
    """Pages of an engine whose counters grow, stand, vanish, come back, or fall to anything, each on its own."""
    draw = random.Random(seed)
    chaos = draw.choice([0.0, 0.02, 0.3])  # how often a counter does something odd
    now: dict[str, float] = dict.fromkeys((*_COUNTERS, "itl", "itl_sum", "ttft", "ttft_sum"), 0.0)
    buckets = [0.0, 0.0, 0.0]
    at, start, pages = 0.0, draw.choice([None, 1.0]), []
    for _ in range(draw.randint(2, 15)):
        at += draw.choice([0.0, 1.0, 5.0, 5.0, 5.0, 200.0])
        for name in now:
            now[name] = draw.uniform(0, 100) if draw.random() < chaos else now[name] + draw.choice([0, 1, 7.5, 4000])
        buckets = [draw.uniform(0, 9) if draw.random() < chaos else count + draw.randint(0, 50) for count in buckets]
        if draw.random() < chaos:
            start = draw.choice([None, 1.0, 2.0])
        seen = {name: None if draw.random() < chaos else now[name] for name in _COUNTERS}
        histogram = Histogram(now["itl_sum"], now["itl"], tuple(zip((0.01, 0.1, math.inf), buckets, strict=True)))
        sample = EngineSample(
            model_name="n" if draw.random() < chaos / 2 else "m",
            engine=draw.choice("01"),
            requests_running=draw.choice([None, 0.0, 1.0, 8.0]),
            requests_waiting=draw.choice([None, 0.0, 3.0]),
            kv_usage=draw.choice([None, 0.0, 0.3, draw.random(), 1.0]),
            capacity_label_tokens=draw.choice([None, 1e5, 1e5]),
            block_size=16.0,
            itl_seconds=None if draw.random() < chaos else histogram,
            ttft_seconds=None if draw.random() < chaos else Histogram(now["ttft_sum"], now["ttft"]),
            awake=draw.choice([None, True, True, True, False]),
            **seen,  # type: ignore[arg-type]  # names and types are those of the fields
        )
        invalid = ((sample.engine, "kv_usage", 1),) if draw.random() < chaos else ()
        single = draw.random() < 0.7
        pages.append(Reading(at, (sample,), single_process=single, process_start_seconds=start, invalid_values=invalid))
    return pages


_LAWS = st.sampled_from(
    [
        None,
        StepLaw(WeightBytes(1e10), 1e12, 1e5),
        StepLaw(WeightBytes(1e10), 1e12, None),
        StepLaw(WeightBytes(1e9, 1e8, 8, 2, 4), 1e12, 1e5, 1e-3, 1e-4, None, 1e9, 1e14, source="learned"),
    ]
)


def is_sound(view: EngineView) -> bool:
    """No number of a view is NaN, and none but drift and headroom is negative."""
    may_fall = ("drift_ratio",)
    numbers = [getattr(view, f.name) for f in fields(view) if f.name not in may_fall]
    return all(not isinstance(number, float) or number >= 0.0 for number in numbers)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**40), _LAWS, st.sampled_from([POLICY, PROMISE]))
def test_no_counter_ever_falls_whatever_the_engine_says(seed: int, law: StepLaw | None, policy: Policy) -> None:
    """Random counters with resets, gaps, new processes and models: no crash, no fall, no negative, no NaN."""
    fold = Fold(facts=Facts(law=law), policy=policy)
    last: dict[str, tuple[float, ...]] = {}
    for reading in erratic_readings(seed):
        view = fold(reading)
        assert is_sound(view)
        accounts = view.accounts
        counters = (
            accounts.itl_observed_seconds,
            accounts.itl_expected_seconds,
            accounts.itl_compared,
            accounts.judged_seconds,
            accounts.over_budget_seconds,
            *accounts.state_seconds,
            *accounts.cause_seconds,
            float(accounts.restarts),
        )
        before = last.get(view.engine, (0.0,) * len(counters))
        assert all(now >= then for now, then in zip(counters, before, strict=True))
        last[view.engine] = counters
        for pair in fold.memories[view.engine].pairs:
            assert min(pair.observations, pair.itl_sum_seconds, pair.prefill_tokens, pair.steps or 0.0) >= 0.0
