"""The law learned from an engine's own pages: how good it is, what it refuses, and that no fault is learned away."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from learning_loads import POLICY, realistic, varied, watched
from stepscope.core.estimate import USAGE_UNIT_TOKENS, Facts, kv_state
from stepscope.core.learn import EDGE_EPISODES, Baseline, Learner, fitted, learned, with_baseline
from stepscope.core.load_bins import Bin
from stepscope.core.memory import Memory
from stepscope.core.model_spec import from_numbers
from stepscope.core.score import quantile
from stepscope.core.step_model import Load, LoadRange, Slowest, StepLaw, WeightBytes, predict
from stepscope.sim.scenario import Group, Phase, Scenario

QUARTER = 900.0  # seconds: fifteen minutes of varied load
MACHINES = (("qwen3-8b", "H100-SXM", 1), ("llama-3.1-70b", "H200-SXM", 2), ("llama-3.1-8b", "A100-80GB-SXM", 1))


def fed(learner: Learner, memory: Memory, facts: Facts) -> Learner:
    return learned(learner, {"0": memory}, memory.at_seconds, facts, POLICY.warm_up_seconds)


def error_of(law: StepLaw, memory: Memory, facts: Facts) -> float | None:
    """Relative error of the last pair's mean; None where there is none to compare."""
    pair = memory.pairs[-1] if memory.pairs else None
    if pair is None or pair.observations < 10 or pair.sequences is None or not pair.prefill_accounted:
        return None
    kv = kv_state(pair.last, facts)
    if not kv.load_tokens:
        return None
    load = Load(pair.sequences, kv.load_tokens, pair.prefill_seen_tokens_per_step)
    step = predict(law, load)
    return None if step is None else step.itl_seconds / (pair.itl_sum_seconds / pair.observations) - 1.0


@pytest.fixture(scope="module")
def learnt() -> tuple[Learner, list[float]]:
    """Three engines, each learned for a quarter of an hour without any fact; errors on the next, unseen quarter."""
    errors: list[float] = []
    for model, gpu, gpus in MACHINES:
        learner = Learner()
        for memory in watched(realistic(model, gpu, gpus), varied(2, 20), 2 * QUARTER, seed=2):
            if memory.at_seconds <= QUARTER:
                learner = fed(learner, memory, Facts())
                continue
            assert learner.baseline is not None, "a quarter of an hour of varied load is enough"
            facts = with_baseline(Facts(), learner.baseline)
            error = error_of(learner.baseline.law, memory, facts)
            errors += [] if error is None else [abs(error)]
    return learner, errors


def test_unseen_loads_are_predicted_without_any_fact(learnt: tuple[Learner, list[float]]) -> None:
    """Median error at most 5 %, nine in ten within 15 %, on pairs of samples five seconds apart."""
    errors = learnt[1]
    assert len(errors) > 300
    assert quantile(errors, 0.5) <= 0.05
    assert quantile(errors, 0.9) <= 0.15


def test_the_law_says_that_it_is_learned_and_in_what(learnt: tuple[Learner, list[float]]) -> None:
    """In tokens, without weights, with its residual and the loads it has seen."""
    baseline = learnt[0].baseline
    assert baseline is not None
    assert baseline.in_tokens
    law = baseline.law
    assert (law.source, law.kv_bytes_per_token, law.weights.read_bytes(8.0)) == ("learned", 1.0, 0.0)
    assert law.residual_ratio is not None
    assert law.residual_ratio <= 0.05
    assert law.valid_range is not None
    assert (law.valid_range.max_sequences or 0.0) > 20.0


def test_a_slowdown_after_the_baseline_is_never_learned() -> None:
    """Half an hour of an engine that is 30 % slower leaves the prices as they were, and the drift stays visible."""
    learner, errors = Learner(), []
    prices: StepLaw | None = None
    for memory in watched(realistic(), varied(2, 30), 3 * QUARTER, seed=2, throttle_from=QUARTER):
        learner = fed(learner, memory, Facts())
        if memory.at_seconds == QUARTER:
            assert learner.baseline is not None
            prices = learner.baseline.law
        if memory.at_seconds > QUARTER and learner.baseline is not None:
            error = error_of(learner.baseline.law, memory, with_baseline(Facts(), learner.baseline))
            errors += [] if error is None else [error]
    assert prices is not None
    assert learner.baseline is not None
    assert replace(learner.baseline.law, valid_range=None) == replace(prices, valid_range=None)
    assert quantile(errors, 0.5) == pytest.approx(1.0 / 1.3 - 1.0, abs=0.05)


def test_one_level_of_load_is_never_enough() -> None:
    """Forty chats for half an hour: nothing tells overhead from KV."""
    from stepscope.sim.scenario import SCENARIOS

    learner = Learner()
    for memory in watched(realistic(), SCENARIOS["steady"], 1200.0, seed=3):
        learner = fed(learner, memory, Facts())
    assert learner.baseline is None
    assert 0 < len(learner.bins) < 8


def test_learning_costs_less_than_a_tenth_of_a_millisecond_a_sample() -> None:
    """CPU time over half an hour, the fits included; `benchmarks/learning.py` says how much less."""
    memories = list(watched(realistic(), varied(4, 20), 2 * QUARTER, seed=4))
    learner, began = Learner(), time.process_time()
    for memory in memories:
        learner = fed(learner, memory, Facts())
    spent = time.process_time() - began
    assert learner.baseline is not None
    assert spent / len(memories) < 1e-4


def bins_of(law: StepLaw, sequences: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0)) -> list[Bin]:
    """Bins of an engine that follows a law to the letter."""
    found = []
    for n in sequences:
        for tokens in (2_000.0, 20_000.0, 100_000.0):
            for prefill in (0.0, 20.0):
                step = predict(law, Load(n, tokens, prefill))
                assert step is not None
                found.append(Bin(4.0, 100.0, 100.0 * step.itl_seconds, 100.0 * n, 100.0 * tokens, prefill * 50.0, 50.0))
    return found


TRUTH = StepLaw(
    WeightBytes(16e9), 2e12, 147_456.0, step_overhead_seconds=2e-3, sequence_cost_seconds=2e-5,
    prefill_cost_seconds_per_token=3e-5,
)  # fmt: skip
MODEL = from_numbers(16e9, 147_456.0)
REACH = LoadRange(64.0, 100_000.0, 20.0)


def test_with_a_model_the_law_is_in_bytes() -> None:
    """The weights get their part of the constant, so that the bandwidth can be held against the data sheet."""
    baseline, lacks = fitted(bins_of(TRUTH), REACH, Facts(model=MODEL), 147_456.0)
    assert lacks == ""
    assert not baseline.in_tokens
    assert baseline.law.effective_bandwidth_bytes_per_second == pytest.approx(2e12, rel=0.02)
    assert baseline.law.step_overhead_seconds == pytest.approx(2e-3, rel=0.1)
    assert baseline.law.prefill_cost_seconds_per_token == pytest.approx(3e-5, rel=0.05)


def test_an_engine_slow_from_birth_is_suspect() -> None:
    """Slower than the slowest that data-sheet parameters allow; a sound one is not."""
    datasheet = replace(TRUTH, source="datasheet", high_factor=1.5)
    slow = replace(TRUTH, effective_bandwidth_bytes_per_second=0.5e12, step_overhead_seconds=8e-3)
    facts = Facts(law=datasheet, model=MODEL)
    assert fitted(bins_of(slow), REACH, facts, 147_456.0)[0].suspect
    assert not fitted(bins_of(TRUTH), REACH, facts, 147_456.0)[0].suspect


def test_a_batch_that_never_changes_fixes_no_price_of_a_sequence() -> None:
    """And the reason is said."""
    _, lacks = fitted(bins_of(TRUTH, (8.0,)), REACH, Facts(), None)
    assert "batch_growth_seconds" in lacks


def test_a_law_that_fits_badly_is_refused() -> None:
    """Bins that scatter by half of themselves, whatever the load."""
    scatter = (1.6, 0.6, 0.8, 1.3, 0.7)
    bins = [replace(b, itl_sum_seconds=b.itl_sum_seconds * scatter[i % 5]) for i, b in enumerate(bins_of(TRUTH))]
    assert fitted(bins, REACH, Facts(), None)[1] != ""


def test_without_prompts_their_price_is_unknown_and_not_zero() -> None:
    """Then the decode step is predicted, and the inter-token latency with prompts in it is not."""
    bins = [b for b in bins_of(TRUTH) if not b.prefill_tokens]
    baseline, lacks = fitted(bins, REACH, Facts(), None)
    assert lacks == ""
    assert baseline.law.prefill_cost_seconds_per_token is None


def test_weights_and_overhead_share_the_constant_as_in_the_law_in_use() -> None:
    """An engine whose constant is 1.4 times that of data-sheet parameters reads at their bandwidth over 1.4."""
    datasheet = replace(TRUTH, source="datasheet", effective_bandwidth_bytes_per_second=2.5e12)
    of_theirs = 2e-3 + 16e9 / 2.5e12
    slow = replace(TRUTH, step_overhead_seconds=1.4 * of_theirs - 16e9 / 2e12)
    law = fitted(bins_of(slow), REACH, Facts(law=datasheet, model=MODEL), 147_456.0)[0].law
    assert law.effective_bandwidth_bytes_per_second == pytest.approx(2.5e12 / 1.4, rel=0.02)
    assert law.step_overhead_seconds == pytest.approx(1.4 * 2e-3, rel=0.02)
    assert law.kv_bandwidth_bytes_per_second == pytest.approx(2e12, rel=0.02)


def test_an_engine_no_slower_than_the_slowest_measured_is_not_suspect() -> None:
    """Bounds of the prediction hold for nine in ten; beyond them such an engine may be sound."""
    datasheet = replace(TRUTH, source="datasheet", high_factor=1.1)
    slow = replace(TRUTH, effective_bandwidth_bytes_per_second=1.6e12)
    bins = bins_of(slow)
    slowest = Slowest(1.4, 128.0, 1e6)
    assert fitted(bins, REACH, Facts(law=datasheet, model=MODEL), 147_456.0)[0].suspect
    assert not fitted(bins, REACH, Facts(law=replace(datasheet, slowest=slowest), model=MODEL), 147_456.0)[0].suspect
    slowest = replace(slowest, factor=1.15)
    assert fitted(bins, REACH, Facts(law=replace(datasheet, slowest=slowest), model=MODEL), 147_456.0)[0].suspect


def rough_prompts() -> list[Bin]:
    """Bins that scatter by 5 %, with hardly any prompts but in one: what a prompt token costs is known to a third."""
    draw, bins = random.Random(3), []
    for b in bins_of(TRUTH):
        few = replace(b, prefill_tokens=4.0 * b.steps if b.prefill_tokens else 0.0)
        bins.append(replace(few, itl_sum_seconds=few.itl_sum_seconds * draw.gauss(1.0, 0.05)))
    full = bins_of(TRUTH, (8.0,))[0]
    more = 400.0 * (TRUTH.prefill_cost_seconds_per_token or 0.0)
    itl = full.itl_sum_seconds + more * full.observations
    return [*bins, replace(full, episodes=1.0, prefill_tokens=400.0 * full.steps, itl_sum_seconds=itl)]


def test_a_law_waits_until_prompts_tell_their_price() -> None:
    """A load full of prompts would be predicted at random."""
    assert "prefill_cost_seconds_per_token" in fitted(rough_prompts(), REACH, Facts(), None)[1]


def test_at_the_last_call_the_law_holds_for_few_prompts() -> None:
    """As many per step as their price is known well enough for; beyond, the state is out of range."""
    wide = replace(REACH, max_prefill_tokens_per_step=400.0)
    baseline, lacks = fitted(rough_prompts(), wide, Facts(), None, last_call=True)
    assert lacks == ""
    limits = baseline.law.valid_range
    assert limits is not None
    assert 20.0 < (limits.max_prefill_tokens_per_step or 0.0) < 300.0
    assert (limits.max_sequences, limits.max_tokens_in_flight) == (64.0, 100_000.0)
    known, _ = fitted(bins_of(TRUTH), REACH, Facts(), None, last_call=True)
    assert known.law.valid_range == replace(REACH, min_sequences=1.0)


def test_a_few_odd_loads_do_not_veto_a_law_and_many_do() -> None:
    """Nine in ten are weighed by how often they were met."""
    often = [replace(b, episodes=16.0) for b in bins_of(TRUTH)]
    odd = [replace(b, episodes=1.0, itl_sum_seconds=1.6 * b.itl_sum_seconds) for b in bins_of(TRUTH)[::4]]
    assert fitted([*often, *odd], REACH, Facts(), None)[1] == ""
    assert "fits badly" in fitted([*often, *(replace(b, episodes=16.0) for b in odd)], REACH, Facts(), None)[1]


def test_an_engine_that_only_reads_prompts_is_not_learned() -> None:
    """What it would be judged by was never seen."""
    heavy = [
        replace(b, prefill_tokens=5000.0 * b.steps, itl_sum_seconds=b.itl_sum_seconds + 15.0) for b in bins_of(TRUTH)
    ]
    assert fitted(heavy, REACH, Facts(), None, last_call=True)[1] != ""


BASELINE = Baseline(replace(TRUTH, source="learned", valid_range=REACH), False, Load(8.0, 20_000.0, kv_bytes=2.9e9))


def test_a_calibration_of_the_operator_stands() -> None:
    """The learned law replaces data-sheet parameters and the lack of any, never a file."""
    own = replace(TRUTH, source="file")
    assert with_baseline(Facts(law=own), BASELINE).law is own
    assert with_baseline(Facts(law=replace(TRUTH, source="datasheet")), BASELINE).law is BASELINE.law
    assert with_baseline(Facts(), BASELINE).law is BASELINE.law
    assert with_baseline(Facts(law=own), None).law is own


def test_a_law_in_tokens_meets_no_bytes() -> None:
    """Neither the model's weights nor the engine's own count of bytes; without a capacity, usage stands for tokens."""
    facts = with_baseline(Facts(model=MODEL), replace(BASELINE, in_tokens=True))
    assert facts.model is None
    assert facts.law_in_tokens
    memory = next(iter(watched(realistic(), varied(1, 1), 5.0, seed=1)))
    nameless = replace(memory.sample, capacity_label_tokens=None, num_blocks=None, kv_usage=0.25)
    assert kv_state(nameless, facts).load_tokens == 0.25 * USAGE_UNIT_TOKENS
    assert kv_state(nameless, facts).tokens_in_flight is None


def episode_of(at: float, ratio: float, tokens: float) -> Memory:
    """A memory whose last pair is one long episode beyond the range, `ratio` times as slow as the baseline says."""
    from fake_engine import FakeEngine
    from folding import Fold

    step = predict(BASELINE.law, Load(8.0, tokens))
    assert step is not None
    engine, fold = FakeEngine(at=at), Fold()
    engine.running = 8.0
    fold(engine.decode(5.0, batch=8, itl=step.itl_seconds * ratio, tokens=tokens))
    fold(engine.decode(5.0, batch=8, itl=step.itl_seconds * ratio, tokens=tokens))
    return fold.memories["0"]


@pytest.mark.parametrize(("ratio", "grows"), [(1.0, True), (1.3, False)])
def test_the_range_grows_only_where_the_baseline_holds(ratio: float, grows: bool) -> None:
    """Four episodes in a row that agree; an engine that is 30 % slower out there is not taken in."""
    small = replace(BASELINE, law=replace(BASELINE.law, valid_range=LoadRange(64.0, 10_000.0, 20.0)))
    learner = Learner(baseline=small)
    for turn in range(EDGE_EPISODES):
        memory = episode_of(1000.0 + 100.0 * turn, ratio, 40_000.0)
        learner = learned(learner, {"0": memory}, memory.at_seconds, Facts(), 0.0)
    assert learner.baseline is not None
    reach = learner.baseline.law.valid_range
    assert reach is not None
    assert (reach.max_tokens_in_flight == 40_000.0) is grows


def test_load_with_shared_prefixes_teaches_nothing_and_says_so() -> None:
    """Sixty requests whose prompts are mostly one and the same: the gauge counts it once."""
    tool = Group("tool", 60, 8000, 400, shared_prefix_tokens=7000, think_seconds=1.0)
    learner = Learner()
    for memory in watched(
        realistic("qwen3-8b", "H100-SXM", 1), Scenario((Phase("all", QUARTER, (tool,)),)), QUARTER, seed=1
    ):
        learner = fed(learner, memory, Facts())
    assert learner.baseline is None
    assert learner.lacks.startswith("requests share prefixes")


def test_a_law_learned_without_small_batches_is_not_used_for_them() -> None:
    """What a step takes with one request is then only a guess; few episodes of it tell no more."""
    crowds = [one for one in bins_of(TRUTH) if one.sequences >= 8.0]
    alone = [replace(one, episodes=1.0) for one in bins_of(TRUTH) if one.sequences < 8.0][:2]
    limits = fitted([*crowds, *alone], REACH, Facts(), None)[0].law.valid_range
    assert limits is not None
    assert limits.min_sequences is not None
    assert limits.min_sequences >= 8.0
    assert not limits.covers(Load(1.0, 1000.0), slack=1.25)
