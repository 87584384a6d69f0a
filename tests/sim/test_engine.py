"""The engine in simulated time: conservation of blocks, and booking as vLLM books."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_helpers import small
from stepscope.sim.cohort import Request
from stepscope.sim.counters import Counters, Histogram
from stepscope.sim.engine import Engine
from stepscope.sim.faults import Faults
from stepscope.sim.presets import EngineConfig


def run(engine: Engine, steps: int = 1_000_000) -> float:
    """Play up to `steps` steps; the time of the last one."""
    now = 0.0
    while steps and engine.step_end_seconds < math.inf:
        now = engine.step_end_seconds
        engine.complete()
        check_blocks(engine)
        steps -= 1
    return now


def check_blocks(engine: Engine) -> None:
    """The pool's count is the sum of what requests and prefixes hold, and within the pool."""
    scheduler = engine.scheduler
    own = sum(scheduler.cohort.held_blocks(r) if r.state == "decoding" else r.own_blocks for r in scheduler.running)
    shared = sum(prefix.blocks for prefix in scheduler.pool.prefixes.values() if prefix.holders)
    assert scheduler.pool.used == own + shared
    assert 0 <= scheduler.pool.used <= scheduler.pool.total
    assert scheduler.cohort.context_tokens == sum(map(scheduler.cohort.kv_tokens, scheduler.cohort.members))
    assert scheduler.cohort.context_tokens_squared == sum(
        scheduler.cohort.kv_tokens(r) ** 2 for r in scheduler.cohort.members
    )


def numbers(counters: Counters) -> dict[str, float]:
    """All counters (not gauges) as plain numbers."""
    out: dict[str, float] = {}
    for name, item in vars(counters).items():
        if isinstance(item, Histogram):
            out.update({f"{name}_count": item.count, f"{name}_sum": item.sum})
            out.update({f"{name}_{i}": count for i, count in enumerate(item.counts)})
        elif name.endswith("_total"):
            out.update(item if isinstance(item, dict) else {name: item})
    return out


def test_one_request_is_booked_as_vllm_books_it() -> None:
    """A prompt of 5,000 in chunks of 2,048: nothing is booked before its end, then one ITL per further token."""
    engine = Engine(small(), seed=1)
    engine.submit(Request(5000, 10), 0.0)
    counters = engine.counters
    assert counters.prefix_cache_queries_total == 5000  # counted when scheduled: the open prompt tokens
    assert counters.num_requests_running == 0  # gauges only when a step completes
    engine.complete()
    assert counters.num_requests_running == 1
    assert counters.kv_cache_usage_perc == 128 / engine.scheduler.pool.total
    assert counters.prompt_tokens_total == counters.iteration_tokens_total.count == 0  # two chunks left
    engine.complete()
    engine.complete()
    assert counters.prompt_tokens_total == 5000
    assert counters.prompt_tokens_by_source_total == {"local_compute": 5000, "local_cache_hit": 0}
    assert counters.generation_tokens_total == 1
    assert counters.time_to_first_token_seconds.count == 1
    assert counters.inter_token_latency_seconds.count == 0
    assert counters.iteration_tokens_total.sum == 5001
    run(engine)
    assert counters.generation_tokens_total == 10
    assert counters.inter_token_latency_seconds.count == 9
    assert counters.request_generation_tokens.sum == 10
    assert counters.request_success_total == {"length": 1}
    assert counters.num_requests_running == counters.kv_cache_usage_perc == 0
    tpot = counters.request_time_per_output_token_seconds.sum
    assert tpot == pytest.approx(counters.inter_token_latency_seconds.sum / 9)
    assert counters.e2e_request_latency_seconds.sum == pytest.approx(
        counters.time_to_first_token_seconds.sum + counters.inter_token_latency_seconds.sum
    )


def test_the_mean_itl_is_the_step_time_and_the_batch_is_observations_per_step() -> None:
    """As in vLLM: S/N is the mean step gap and N/K the decode batch."""
    engine = Engine(small(), seed=1)
    for _ in range(8):
        engine.place(Request(1000, 100), 1, 0.0)
    engine.begin(0.0)
    end = run(engine)
    itl = engine.counters.inter_token_latency_seconds
    assert itl.sum / itl.count == pytest.approx(end / engine.steps)
    assert itl.count / engine.counters.iteration_tokens_total.count == 8


def test_decodes_come_first_and_prompt_chunks_share_the_rest_of_the_budget() -> None:
    """100 decoding sequences leave 1,948 of 2,048 tokens to two prompts."""
    engine = Engine(small(), seed=1)
    for _ in range(100):
        engine.place(Request(10, 1000), 1, 0.0)
    first, second = Request(1500, 5), Request(1500, 5)
    engine.submit(first, 0.0)
    engine.complete()  # only the first was there when the step began
    assert (first.state, second.state) == ("decoding", "waiting")
    engine.submit(second, engine.step_end_seconds)
    third = Request(1500, 5)
    engine.submit(third, engine.step_end_seconds)
    engine.complete()
    engine.complete()
    assert (second.computed_tokens, third.computed_tokens) == (1500, 2048 - 101 - 1500)


def test_a_full_pool_preempts_the_last_admitted_and_every_request_still_ends() -> None:
    """Recomputation: tokens come out once, the prompt is booked once, the gap holds the stall."""
    engine = Engine(small(num_gpu_blocks=101), seed=1)
    for _ in range(4):
        engine.submit(Request(300, 200), 0.0)
    run(engine)
    counters = engine.counters
    assert counters.num_preemptions_total > 0
    assert counters.request_success_total["length"] == 4
    assert counters.generation_tokens_total == 800
    assert counters.inter_token_latency_seconds.count == 796
    assert counters.prompt_tokens_total == counters.prefix_cache_queries_total == 1200
    assert counters.request_num_preemptions.sum == counters.num_preemptions_total
    assert engine.state().prefill_tokens > 1200
    assert engine.scheduler.pool.used == 0
    slowest = max(i for i, count in enumerate(counters.inter_token_latency_seconds.counts) if count)
    assert counters.inter_token_latency_seconds.bounds[slowest] >= 1.0


def test_after_cancelling_everything_the_gauges_stay_frozen() -> None:
    """No step runs any more, so nobody sets them; an abort is not a success and moves no request histogram."""
    engine = Engine(small(), seed=1)
    requests = [Request(500, 1000) for _ in range(10)]
    for request in requests:
        engine.submit(request, 0.0)
    run(engine, steps=20)
    before = numbers(engine.counters)
    for request in requests:
        engine.abort(request, engine.step_end_seconds - 0.001)
    run(engine)
    assert engine.state().running == engine.state().used_blocks == 0
    assert engine.counters.num_requests_running == 10
    assert engine.counters.kv_cache_usage_perc > 0
    assert engine.counters.request_success_total == {"length": 0}
    after = numbers(engine.counters)
    assert after["request_prompt_tokens_count"] == 0
    assert after["generation_tokens_total"] == before["generation_tokens_total"] + 10  # the step under way ended


def test_cancelling_one_request_frees_its_blocks_wherever_it_stands() -> None:
    """Waiting, in prefill and decoding."""
    ends: list[str] = []
    engine = Engine(small(max_num_seqs=2), seed=1)
    decoding, prefilling, waiting = (
        Request(n, 500, on_end=lambda _, reason: ends.append(reason)) for n in (100, 50_000, 100)
    )
    for request in (decoding, prefilling, waiting):
        engine.submit(request, 0.0)
    run(engine, steps=3)
    assert [r.state for r in (decoding, prefilling, waiting)] == ["decoding", "prefilling", "waiting"]
    for request in (waiting, prefilling, decoding):
        engine.abort(request, 0.1)
        engine.abort(request, 0.1)  # twice is once
    run(engine)
    assert ends == ["abort"] * 3
    assert engine.scheduler.pool.used == 0
    assert not engine.scheduler.waiting


def test_a_shared_prefix_is_computed_once_and_its_blocks_are_counted_once() -> None:
    """Ten requests with 1,600 common tokens: nine hit the cache; blocks are those of one prefix and ten tails."""
    engine = Engine(small(), seed=1)
    engine.submit(Request(2000, 100, prefix="system", prefix_tokens=1600), 0.0)
    engine.complete()
    for _ in range(9):
        engine.submit(Request(2000, 100, prefix="system", prefix_tokens=1600), engine.step_end_seconds)
    run(engine, steps=4)
    counters = engine.counters
    assert counters.prefix_cache_queries_total == 20_000
    assert counters.prefix_cache_hits_total == counters.prompt_tokens_cached_total == 9 * 1600
    assert counters.prompt_tokens_by_source_total == {"local_compute": 20_000 - 14_400, "local_cache_hit": 14_400}
    state = engine.state()
    assert state.decoding == 10
    assert state.used_blocks <= 100 + 10 * 27
    assert state.context_tokens > 20_000  # each request reads the whole
    run(engine)
    assert engine.scheduler.pool.used == 0
    assert engine.scheduler.pool.cached_blocks("system") == 100  # free, but its content is still there


def test_a_forgotten_prefix_makes_room_for_others() -> None:
    """Blocks of a prefix nobody holds are handed out when needed; later requests compute it again."""
    engine = Engine(small(num_gpu_blocks=201), seed=1)
    engine.submit(Request(1700, 2, prefix="a", prefix_tokens=1600), 0.0)
    run(engine)
    engine.submit(Request(3000, 2), 1.0)
    run(engine)
    assert engine.scheduler.pool.cached_blocks("a") == 0
    engine.submit(Request(1700, 2, prefix="a", prefix_tokens=1600), 2.0)
    run(engine)
    assert engine.counters.prefix_cache_hits_total == 0


def test_speculative_decoding_observes_steps_and_yields_several_tokens() -> None:
    """3 drafts, each accepted with 0.7: 1 + 0.7 + 0.49 + 0.343 = 2.53 tokens per step and sequence."""
    engine = Engine(small(draft_tokens=3, draft_acceptance=0.7), seed=3)
    for _ in range(20):
        engine.submit(Request(100, 2000), 0.0)
    run(engine)
    counters = engine.counters
    drafts = counters.spec_decode_num_drafts_total
    assert counters.inter_token_latency_seconds.count == drafts
    assert counters.spec_decode_num_draft_tokens_total == 3 * drafts
    assert 1 + counters.spec_decode_num_accepted_tokens_total / drafts == pytest.approx(2.533, rel=0.02)
    by_position = counters.spec_decode_num_accepted_tokens_per_pos_total
    assert sum(by_position.values()) == counters.spec_decode_num_accepted_tokens_total
    assert by_position["0"] > by_position["1"] > by_position["2"]
    assert counters.generation_tokens_total == 20 * 2000


def test_a_request_that_can_never_run_is_refused_at_once() -> None:
    """It would wait for ever."""
    engine = Engine(small(num_gpu_blocks=11), seed=1)
    with pytest.raises(ValueError, match="170 tokens exceed the engine's 160"):
        engine.submit(Request(100, 70), 0.0)


def test_faults_act_from_the_next_step_on() -> None:
    """A throttle stretches steps, a hang and sleep stop them, frozen gauges stand still; all can be undone."""
    engine = Engine(small(), seed=1)
    engine.place(Request(1000, 100_000), 1, 0.0)
    engine.begin(0.0)
    plain = run(engine, steps=1)
    engine.set_faults(Faults(throttle=2.0), plain)
    engine.complete()
    start = engine.step_end_seconds
    engine.complete()
    assert engine.step_end_seconds - start == pytest.approx(2 * plain, rel=0.01)
    engine.set_faults(Faults(hang=True), start)
    engine.complete()
    assert engine.step_end_seconds == math.inf
    assert engine.counters.num_requests_running == 1
    engine.set_faults(Faults(sleep=1), 10.0)
    assert engine.step_end_seconds == math.inf
    assert engine.counters.engine_sleep_state == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}
    engine.set_faults(Faults(frozen_gauges=True), 20.0)
    engine.submit(Request(10, 10), 20.0)
    run(engine, steps=3)
    assert engine.state().running == 2
    assert engine.counters.num_requests_running == 1


def test_lost_blocks_are_a_preemption_storm_that_passes() -> None:
    """With nine tenths of the pool gone requests are preempted; when it is back all of them end."""
    engine = Engine(small(num_gpu_blocks=1001), seed=1)
    for _ in range(10):
        engine.submit(Request(1000, 300), 0.0)
    run(engine, steps=30)
    engine.set_faults(Faults(lost_blocks=0.9), 1.0)
    run(engine, steps=50)
    assert engine.counters.num_preemptions_total >= 9
    engine.set_faults(Faults(), 100.0)
    run(engine)
    assert engine.counters.request_success_total["length"] == 10


CONFIGS = st.builds(
    lambda blocks, k, p, seqs, cache: small(
        num_gpu_blocks=blocks,
        draft_tokens=k,
        draft_acceptance=p,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(64, seqs * (1 + k)),
        prefix_caching=cache,
    ),
    st.integers(20, 60),
    st.integers(0, 3),
    st.floats(0, 1),
    st.integers(1, 12),
    st.booleans(),
)
LOADS = st.lists(
    st.tuples(st.integers(1, 150), st.integers(1, 120), st.booleans(), st.integers(0, 60)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(config=CONFIGS, load=LOADS)
def test_whatever_the_load_blocks_are_conserved_and_every_request_ends(
    config: EngineConfig, load: list[tuple[int, int, bool, int]]
) -> None:
    """Random small engines, with prefixes, drafts, aborts and preemption; counters never go back."""
    engine = Engine(replace(config, max_model_len=10_000), seed=7)
    ends: list[str] = []
    submitted = []
    for prompt, output, shared, abort_after in load:
        if prompt + output > engine.scheduler.largest_request_tokens():
            continue
        prefix = "p" if shared and prompt > 33 else None
        request = Request(prompt, output, prefix, 32 if prefix else 0, on_end=lambda _, reason: ends.append(reason))
        engine.submit(request, engine.busy_seconds)
        submitted.append((request, abort_after))
    before = numbers(engine.counters)
    for step in range(5000):
        if engine.step_end_seconds == math.inf:
            break
        for request, abort_after in submitted:
            if abort_after and step == abort_after and request.prompt_tokens % 5 == 0:
                engine.abort(request, engine.step_end_seconds)
        engine.complete()
        check_blocks(engine)
        after = numbers(engine.counters)
        assert all(after[key] >= before[key] for key in before)
        before = after
    assert len(ends) == len(submitted)
    assert engine.scheduler.pool.used == 0
    assert engine.state().running == engine.state().waiting == 0
    assert not engine.scheduler.prefilling
