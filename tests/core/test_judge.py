"""One engine's window turned into a view: states over time, targets, budgets, hybrids, speculation, what is absent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fake_engine import CAPACITY_TOKENS, LAW, FakeEngine
from folding import POLICY, PROMISE, Fold, busy
from model_configs import load_config
from recorded_pages import agents_join
from stepscope.core.estimate import Facts
from stepscope.core.model_spec import from_hf_config
from stepscope.core.observer import Policy
from stepscope.core.step_model import LoadRange, StepLaw, WeightBytes
from stepscope.engines import read

HYBRID = from_hf_config(load_config("gemma3-tape.json"), name="hybrid")


def test_an_idle_engine_has_a_prediction_and_no_measurement() -> None:
    """Zero tokens in flight, a step of weights alone; nothing measured is published as 0."""
    engine, fold = FakeEngine(), Fold(policy=PROMISE)
    view = fold.all([engine.reading(), engine.wait(5.0)])
    assert view.state == "idle"
    assert view.predicted is not None
    assert view.predicted.decode_seconds == pytest.approx(0.010)
    assert view.tokens_in_flight == 0.0
    absent = (view.itl_mean_seconds, view.measured_step_seconds, view.drift_ratio, view.prefill_interference_ratio)
    assert (*absent, view.decode_batch_size, view.cause, view.itl_median_seconds) == (None,) * 7
    assert view.accounts.judged_seconds == 5.0


def test_an_engine_goes_idle_with_its_last_observation() -> None:
    """The pair in which it emptied still counts as busy; the window's old mean does not linger."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine))
    engine.decode(5.0, batch=8, itl=0.03)
    engine.running, engine.usage = 0.0, 0.0
    assert fold(engine.reading()).state != "idle"
    view = fold(engine.wait(5.0))
    assert (view.state, view.itl_mean_seconds, view.decode_batch_size) == ("idle", None, None)


def test_a_busy_engine_that_does_not_move_is_stale() -> None:
    """After three samples and five seconds; its verdict goes, and its time is not judged."""
    engine, fold = FakeEngine(), Fold(policy=replace(POLICY, interval_seconds=1.0))
    fold.all(busy(engine))
    states, judged = [], []
    for _ in range(7):
        view = fold(engine.wait(1.0))
        states.append(view.state)
        judged.append(view.accounts.judged_seconds)
    assert states == ["measuring"] * 4 + ["stale"] * 3
    assert judged[-1] == judged[3]
    assert (view.drift_ratio, view.cause) == (None, None)
    assert fold(engine.decode(1.0, batch=8, itl=0.03)).state == "measuring"


def test_five_seconds_of_rest_are_not_stale_at_long_intervals() -> None:
    """Three samples are needed too."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine))
    assert [fold(engine.wait(5.0)).state for _ in range(3)] == ["measuring", "measuring", "stale"]


def test_an_open_prompt_is_not_stale() -> None:
    """Nothing decodes and every counter stands, but a prompt is being computed; after half a minute it is dead."""
    engine, fold = FakeEngine(), Fold()
    fold(engine.reading())
    engine.running, engine.queries = 1.0, 6000.0
    views = [fold(engine.wait(5.0)) for _ in range(5)]
    assert all(view.state != "stale" for view in views)
    assert (views[-1].requests_decoding, views[-1].requests_prefilling) == (0.0, 1.0)
    assert [fold(engine.wait(5.0)).state for _ in range(2)][-1] == "stale"


def test_a_sleeping_engine_is_not_judged() -> None:
    """Whatever its gauges say."""
    engine, fold = FakeEngine(awake=False), Fold(policy=PROMISE)
    view = fold.all(busy(engine))
    assert (view.state, view.drift_ratio, view.accounts.judged_seconds) == ("asleep", None, 0.0)


def test_warming_up_waits_for_time_and_observations() -> None:
    """A minute and fifty observations since the first sample of this life."""
    engine, fold = FakeEngine(), Fold(policy=replace(PROMISE, warm_up_seconds=15.0))
    views = [fold(reading) for reading in busy(engine)]
    assert [view.state for view in views] == ["idle", "warming_up", "warming_up", *["measuring"] * 4]
    assert views[2].predicted_itl_seconds == pytest.approx(0.03)
    assert views[2].accounts.judged_seconds == 0.0
    slow, fold = FakeEngine(), Fold()
    fold(slow.reading())
    states = [fold(slow.decode(5.0, batch=1, itl=0.25)).state for _ in range(3)]
    assert states == ["warming_up", "warming_up", "measuring"]


def test_few_observations_are_no_verdict() -> None:
    """Nine gaps in the window."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine))
    for _ in range(6):
        fold(engine.wait(5.0))
    view = fold(engine.decode(4.5, batch=1, itl=0.5))
    assert (view.state, view.drift_ratio) == ("too_few_observations", None)
    assert view.itl_mean_seconds == pytest.approx(0.5)


def test_a_load_beyond_the_calibration_is_out_of_range() -> None:
    """Predicted and measured are published, drift is not. A quarter more than was seen is still within it."""
    law = replace(LAW, valid_range=LoadRange(max_tokens_in_flight=16_100))
    assert Fold(facts=Facts(law=law)).all(busy(FakeEngine())).state == "measuring"
    law = replace(LAW, valid_range=LoadRange(max_tokens_in_flight=15_900))
    view = Fold(facts=Facts(law=law)).all(busy(FakeEngine()))
    assert (view.state, view.drift_ratio) == ("out_of_range", None)
    assert view.predicted_itl_seconds == pytest.approx(0.03)


def test_without_a_law_there_is_no_model() -> None:
    """Measured values are published all the same."""
    view = Fold(facts=Facts()).all(busy(FakeEngine()))
    assert (view.state, view.predicted) == ("no_model", None)
    assert view.itl_mean_seconds == pytest.approx(0.03)
    assert view.tokens_in_flight == pytest.approx(20_000)
    assert view.accounts.judged_seconds == 0.0


def test_without_a_capacity_tokens_are_unknown() -> None:
    """Absent, not 0; the operator's override brings them back."""
    engine = FakeEngine(extra={"capacity_label_tokens": None, "num_blocks": None})
    view = Fold().all(busy(engine))
    assert (view.state, view.tokens_in_flight, view.predicted) == ("no_capacity", None, None)
    override = Facts(law=LAW, capacity_override_tokens=CAPACITY_TOKENS)
    view = Fold(facts=override).all(busy(FakeEngine(extra=engine.extra)))
    assert (view.state, view.capacity_source) == ("measuring", "override")


def test_a_dropped_usage_is_not_a_lost_capacity() -> None:
    """One sample without usage: no tokens now, and no other state."""
    engine, fold = FakeEngine(), Fold()
    fold.all(busy(engine))
    engine.usage = None
    view = fold(engine.decode(5.0, batch=8, itl=0.03))
    assert (view.state, view.tokens_in_flight) == ("measuring", None)


def test_the_objective_gives_two_targets_and_the_budget() -> None:
    """25 tokens a second with headroom 0.9: 36 ms for the step, 40 ms for the mean; 26 ms are left for KV."""
    view = Fold(policy=PROMISE).all(busy(FakeEngine()))
    assert view.target_step_seconds == pytest.approx(0.036)
    assert view.target_itl_seconds == pytest.approx(0.040)
    assert view.speed_budget_tokens == pytest.approx(26_000)
    assert view.memory_budget_tokens == CAPACITY_TOKENS
    assert view.token_headroom_tokens == pytest.approx(6_000)


def test_without_an_objective_only_memory_limits() -> None:
    """No target, no over-budget time, headroom to the capacity."""
    view = Fold().all(busy(FakeEngine(), tokens=90_000, itl=0.1))
    assert (view.target_step_seconds, view.target_itl_seconds, view.speed_budget_tokens) == (None, None, None)
    assert view.token_headroom_tokens == pytest.approx(10_000)
    assert view.accounts.over_budget_seconds == 0.0
    assert view.accounts.judged_seconds > 0.0


def test_over_budget_time_is_booked_while_it_lasts() -> None:
    """40,000 tokens make a step of 50 ms, beyond 36: headroom is negative and the cause is the load."""
    engine, fold = FakeEngine(), Fold(policy=PROMISE)
    before = fold.all(busy(engine))
    view = fold.all(engine.decode(5.0, batch=8, itl=0.05, tokens=40_000) for _ in range(6))
    assert before.accounts.over_budget_seconds == 0.0
    assert view.accounts.over_budget_seconds == pytest.approx(30.0)
    assert view.token_headroom_tokens == pytest.approx(-14_000)
    assert view.cause == "context"  # eight requests with their usual 2,500 tokens would meet it


def test_speculation_is_predicted_by_the_step_and_promised_by_the_token() -> None:
    """Three drafts, two accepted: a step yields three tokens, so it may take three times as long."""
    engine = FakeEngine()
    law = replace(LAW, active_params=1e9, compute_flops_per_second=1e12)  # 2 ms for each position
    fold = Fold(facts=Facts(law=law), policy=PROMISE)
    fold(engine.reading())
    for _ in range(6):
        before = engine.steps
        engine.at -= 5.0
        engine.decode(5.0, batch=8, itl=0.064, tokens=20_000, tokens_per_step=3)
        drafts = (engine.steps - before) * 8
        engine.drafts, engine.drafted, engine.accepted = (
            engine.drafts + drafts,
            engine.drafted + 3 * drafts,
            engine.accepted + 2 * drafts,
        )
        view = fold(engine.wait(5.0))
    assert view.tokens_per_step == pytest.approx(3.0)
    assert view.target_itl_seconds == pytest.approx(0.12)
    assert view.predicted_itl_seconds == pytest.approx(0.064)  # 2 ms x 8 x (1 + 3) positions
    assert view.drift_ratio == pytest.approx(0.0, abs=1e-9)
    # 108 ms may pass; the drafts' 64 ms of compute are met by weights and 54,000 tokens, the rest is KV's alone.
    assert view.target_step_seconds == pytest.approx(0.108)
    assert view.speed_budget_tokens == pytest.approx(98_000)


def test_the_budget_of_a_speculative_step_knows_its_drafts() -> None:
    """The step is predicted above its target, so nothing more fits; a budget of plain steps would promise room."""
    engine = FakeEngine()
    law = replace(LAW, active_params=1e9, compute_flops_per_second=1e12)
    fold = Fold(facts=Facts(law=law), policy=replace(PROMISE, objective_tokens_per_second=20.0))
    fold(engine.reading())
    for _ in range(3):
        steps = round(5.0 / 0.064)
        engine.drafts, engine.drafted = engine.drafts + 8 * steps, engine.drafted + 24 * steps
        view = fold(engine.decode(5.0, batch=8, itl=0.064, tokens=20_000))
    assert view.target_step_seconds == pytest.approx(0.045)
    assert view.predicted is not None
    assert view.predicted.decode_seconds == pytest.approx(0.064)
    assert view.speed_budget_tokens == 0.0
    assert view.token_headroom_tokens == pytest.approx(-20_000)


def test_an_unknown_prefill_cost_leaves_the_decode_step() -> None:
    """Prompt tokens were computed: no predicted mean, no drift, but the step and its target stand."""
    engine = FakeEngine()
    fold = Fold(facts=Facts(law=replace(LAW, prefill_cost_seconds_per_token=None)), policy=PROMISE)
    for reading in busy(engine, 3):
        view = fold(reading)
    assert view.predicted_itl_seconds == pytest.approx(0.03)
    for _ in range(6):
        engine.prompts, engine.queries = engine.prompts + 2000.0, (engine.queries or 0.0) + 2000.0
        view = fold(engine.decode(5.0, batch=8, itl=0.03, tokens=20_000))
    assert view.predicted is not None
    assert view.predicted.decode_seconds == pytest.approx(0.03)
    assert (view.predicted_itl_seconds, view.drift_ratio, view.prefill_known) == (None, None, False)
    assert view.prediction_in_median_bucket is None


def test_a_hybrid_model_is_predicted_in_bytes() -> None:
    """Usage x pool bytes, whatever the tokens; the budget goes by the pool's bytes per token."""
    block = HYBRID.block_bytes(16)
    assert block is not None
    pool = block * CAPACITY_TOKENS / 16
    law = StepLaw(WeightBytes(10e9), 1e12, None, source="file")
    engine, fold = FakeEngine(), Fold(facts=Facts(law=law, model=HYBRID), policy=PROMISE)
    view = fold.all(busy(engine, itl=0.010 + 0.2 * pool / 1e12))
    assert view.predicted is not None
    assert view.predicted.kv_cache_seconds == pytest.approx(0.2 * pool / 1e12)
    assert view.state == "measuring"
    assert view.speed_budget_tokens == pytest.approx((0.036 - 0.010) * 1e12 / (pool / CAPACITY_TOKENS))


def test_the_engine_s_own_count_of_bytes_is_preferred() -> None:
    """It reads 40e9 B a step where the law's weights and KV would be 30e9."""
    engine, fold = FakeEngine(), Fold()
    fold(engine.reading())
    for _ in range(6):
        engine.read_bytes += round(5.0 / 0.04) * 40e9
        view = fold(engine.decode(5.0, batch=8, itl=0.04, tokens=20_000))
    assert view.predicted_itl_seconds == pytest.approx(0.040)
    assert view.drift_ratio == pytest.approx(0.0, abs=1e-6)


def test_prompt_chunks_are_part_of_the_prediction() -> None:
    """20 prompt tokens a step cost 2 ms: no drift, and the measured step is the mean less that."""
    engine, fold = FakeEngine(), Fold()
    fold(engine.reading())
    for _ in range(6):
        engine.prompts, engine.queries = engine.prompts + 20 * 156, (engine.queries or 0.0) + 20 * 156
        view = fold(engine.decode(5.0, batch=8, itl=0.032, tokens=20_000))
    assert view.prefill_tokens_per_step == pytest.approx(20, rel=0.01)
    assert view.drift_ratio == pytest.approx(0.0, abs=0.001)
    assert view.measured_step_seconds == pytest.approx(0.030, rel=0.001)
    assert view.prefill_interference_ratio == pytest.approx(2 / 32, rel=0.01)


def test_the_median_s_bucket_flags_the_prediction() -> None:
    """30 ms lies in (25, 50] ms; a prediction of 10 ms does not."""
    right = Fold().all(busy(FakeEngine()))
    assert right.itl_median_lower_bound_seconds == 0.025
    assert right.itl_median_upper_bound_seconds == 0.05
    assert right.prediction_in_median_bucket is True
    wrong = Fold(facts=Facts(law=replace(LAW, kv_bytes_per_token=1.0))).all(busy(FakeEngine()))
    assert (wrong.prediction_in_median_bucket, wrong.cause) == (False, "unexplained")


def test_two_agents_join_eight_chats_on_a_recorded_engine() -> None:
    """Their prefill is seen as such, then eight become ten with four times the context; nobody is ever stale."""
    law = StepLaw(
        WeightBytes(112e6), 20e9, 32_768, 0.01, 0.002, 6e-4, source="file"
    )  # by hand; the test is not about the law
    fold = Fold(facts=Facts(law=law), policy=Policy(1.0, 10.0, 5.0, 15.0))
    views = [view for at, page in agents_join() if (reading := read(page, at)) for view in fold.page(reading)]
    assert len(views) == 73
    states = [view.state for view in views]
    assert set(states) == {"warming_up", "measuring", "prefilling"}
    chats, joined = views[20], views[-1]
    assert (chats.state, joined.state) == ("measuring", "measuring")
    assert chats.decode_batch_size == pytest.approx(8.0, abs=0.2)  # one chat ends and the next begins
    assert joined.decode_batch_size == pytest.approx(10.0, abs=0.1)
    assert chats.tokens_in_flight is not None
    assert joined.tokens_in_flight is not None
    assert joined.tokens_in_flight / chats.tokens_in_flight > 4
    assert chats.itl_mean_seconds is not None
    assert joined.itl_mean_seconds is not None
    assert joined.itl_mean_seconds / chats.itl_mean_seconds > 2
    during = views[30:50]
    assert {view.state for view in during} == {"prefilling"}
    assert {view.cause for view in during} == {"prefill"}
    assert all(view.requests_prefilling in (1.0, 2.0) for view in during)
