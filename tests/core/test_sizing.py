"""Limits and replicas: more never fits when less did not, and what binds is the smallest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.collectives import TABLE, Collective, all_reduce_of, powers_of_two
from stepscope.core.model_shape import read_shape
from stepscope.core.plan import prefill_seconds, row, step, ttft_seconds
from stepscope.core.plan_demand import ContextClass, Demand, Replica
from stepscope.core.plan_reality import Reality, checks, scaled
from stepscope.core.plan_svg import escape, nice_top
from stepscope.core.sizing import MOST_REQUESTS, cost_per_million_tokens, largest, limits, peak_concurrency, size
from stepscope.core.step_model import Load, StepLaw, WeightBytes, predict
from stepscope.errors import FactError

# 10 ms of weights, 1 ms for each 1,000 tokens, 0.1 ms for each prompt token, 50 microseconds of compute a request.
LAW = StepLaw(WeightBytes(10e9), 1e12, 1e6, prefill_cost_seconds_per_token=1e-4, active_params=5e9,
              compute_flops_per_second=2e14)  # fmt: skip
REPLICA = Replica(LAW, 1, resident_weight_bytes=12e9, kv_bytes_per_token=1e6, memory_bytes=40e9, utilization=0.9)
DEMAND = Demand((ContextClass(10, 1000),), (), prompt_tokens=1000)


def test_memory_holds_what_is_left_after_weights_and_overhead() -> None:
    """40e9 x 0.9 - 12e9 - 4e9 = 20e9 bytes: 20,000 tokens, 20 requests."""
    (memory,) = limits(replace(REPLICA, overhead_bytes=4e9), DEMAND)
    assert (memory.name, memory.requests, memory.tokens) == ("memory", 20, 20_000)


def test_the_speed_limit_is_where_the_step_reaches_its_target() -> None:
    """At 50 tokens/s a step may take 18 ms: 8 ms for KV, 8,000 tokens, 8 requests; compute alone would allow 360."""
    found = {limit.name: limit for limit in limits(REPLICA, replace(DEMAND, objective_tokens_per_second=50))}
    assert found["bandwidth"].requests == 8
    assert found["bandwidth"].tokens == pytest.approx(8000)
    assert found["compute"].requests == 360
    slow = replace(REPLICA, law=replace(LAW, low_factor=0.9, high_factor=1.5))
    spread = {limit.name: limit for limit in limits(slow, replace(DEMAND, objective_tokens_per_second=50))}
    assert (spread["bandwidth"].low_requests, spread["bandwidth"].high_requests) == (2, 10)


def test_the_tokens_of_the_speed_limit_are_those_of_its_requests() -> None:
    """A price per sequence is paid by as many as fit, not by one: 8 ms for n x (1 ms of KV + 1 ms) leave 4 of 1,000."""
    priced = replace(REPLICA, law=replace(LAW, sequence_cost_seconds=1e-3))
    found = {limit.name: limit for limit in limits(priced, replace(DEMAND, mix=(ContextClass(1, 1000.0),),
                                                                   objective_tokens_per_second=50))}  # fmt: skip
    assert found["bandwidth"].requests == 4
    assert found["bandwidth"].tokens == pytest.approx(4000)


def test_the_prefill_of_others_lowers_the_limit_for_tpot() -> None:
    """With 1,000 tokens in and 100 out, each other request brings 10 prompt tokens a step: 1 ms more each."""
    demand = replace(DEMAND, objective_tokens_per_second=50, output_tokens=100.0)
    found = {limit.name: limit.requests for limit in limits(REPLICA, demand)}
    assert found["tpot"] == 5  # 10 + 5 + 4 = 19 ms, and 21 with one more
    assert size(REPLICA, demand).binding == min(limits(REPLICA, demand), key=lambda limit: limit.requests)


def test_a_prompt_shares_its_steps_with_the_decoding_ones() -> None:
    """Three chunks of up to 400 tokens: 0.1 s alone, and a decode step for each."""
    demand = replace(DEMAND, chunk_tokens=400.0)
    decode = step(REPLICA, demand, 5)
    assert decode is not None
    assert prefill_seconds(REPLICA, demand) == pytest.approx(0.1)
    assert ttft_seconds(REPLICA, demand, 5) == pytest.approx(0.1 + 3 * decode.decode_seconds)
    assert prefill_seconds(REPLICA, replace(demand, prompt_tokens=0.0)) == 0.0


@given(st.integers(1, 3000), st.integers(0, 5000))
def test_the_search_finds_the_last_number_that_fits(last: int, more: int) -> None:
    """Whatever it is; 0 where nothing fits, the ceiling where everything does."""
    assert largest(lambda n: n <= last) == last
    assert largest(lambda n: False) == 0
    assert largest(lambda n: True) >= MOST_REQUESTS


@given(st.floats(1, 1e5), st.floats(1, 200), st.floats(0, 2))
def test_a_replica_carries_its_limit_and_not_one_more(context: float, speed: float, reserve: float) -> None:
    """The step at the limit is within target, one request more is not (or memory is full)."""
    demand = Demand((ContextClass(7, context),), (), 10.0, objective_tokens_per_second=speed, reserve=reserve)
    sizing = size(REPLICA, demand)
    binding = sizing.binding
    assert binding is not None
    target = demand.headroom / speed * (1 + 1e-9)
    at, beyond = step(REPLICA, demand, max(binding.requests, 1)), step(REPLICA, demand, binding.requests + 1)
    assert at is not None
    assert beyond is not None
    if binding.requests:
        assert at.decode_seconds <= target
        assert sizing.replicas is None or sizing.replicas * binding.requests >= demand.requests * (1 + reserve) * 0.999
    fits = (binding.requests + 1) * context * 1e6 <= 24e9
    assert not (fits and beyond.decode_seconds <= target * 0.999999)


def test_costs_and_peaks_are_plain_arithmetic() -> None:
    """Price over tokens; Little's law."""
    assert cost_per_million_tokens(2.0, 1, 1000) == pytest.approx(0.5556, abs=1e-4)
    assert cost_per_million_tokens(2.0, 8, 8000) == pytest.approx(0.5556, abs=1e-4)
    assert peak_concurrency(3600, 2, 0.5, 3600, 30) == pytest.approx(30)


def test_why_no_replica_helps_is_said() -> None:
    """Weights too large, a context too long, a promise that one request already breaks, nothing known."""
    huge = replace(REPLICA, resident_weight_bytes=50e9)
    assert size(huge, DEMAND).why_not == "the weights do not fit into the GPU memory"
    tight = replace(REPLICA, overhead_bytes=30e9)
    assert size(tight, DEMAND).why_not == (
        "the weights fit into the GPU memory, but not with 3e+10 bytes of overhead per GPU in 0.9 of it"
    )
    long = replace(DEMAND, mix=(ContextClass(1, 10), ContextClass(1, 30_000)))
    assert size(REPLICA, long).why_not == "one context of 30000 tokens does not fit into the memory left for KV"
    fast = replace(DEMAND, objective_tokens_per_second=1000)
    assert size(REPLICA, fast).why_not == "not even one request meets the bandwidth limit: replicas do not help"
    slow = Demand((ContextClass(40, 100), ContextClass(2, 15_000)), (), 0.0, objective_tokens_per_second=40)
    assert size(REPLICA, slow).why_not == (
        "one context of 15000 tokens alone decodes at 40.0 tokens/s, 44.4 are needed (objective over headroom): "
        "replicas do not help"
    )
    unknown = replace(REPLICA, memory_bytes=None)
    assert size(unknown, DEMAND).why_not == "no constraint is known: give an objective or the GPU's memory"
    assert size(unknown, replace(DEMAND, max_num_seqs=4)).replicas == 3  # 10 requests, 4 each


def test_a_size_without_room_in_the_worst_case_is_doubtful() -> None:
    """24e9 bytes of KV are left; 25e9 more of overhead, and not one context of 1,000 tokens is."""
    assert size(REPLICA, DEMAND).doubt == ""
    unsure = replace(REPLICA, overhead_bytes=1e9, overhead_low_bytes=0.0, overhead_high_bytes=5e9)
    (memory,) = limits(unsure, DEMAND)
    assert (memory.low_requests, memory.requests, memory.high_requests) == (19, 23, 24)
    found = size(replace(unsure, overhead_high_bytes=25e9), DEMAND)
    assert found.gpus == 1
    assert found.high_gpus is None
    assert found.doubt == (
        "no room for one longest context if the engine takes 2.5e+10 bytes per GPU beside weights and KV"
    )


def test_the_number_of_replicas_has_a_low_and_a_high() -> None:
    """10 requests at 50 tokens/s: 8 fit one replica, 2 to 10 by the law's spread."""
    slow = replace(REPLICA, law=replace(LAW, low_factor=0.9, high_factor=1.5))
    found = size(slow, replace(DEMAND, objective_tokens_per_second=50))
    assert (found.low_gpus, found.gpus, found.high_gpus) == (1, 2, 5)


def test_prompts_that_come_faster_than_chunks_limit_a_replica() -> None:
    """100 tokens out for 1,000 in: a chunk of 500 a step keeps up with 50, and nobody waits for his own."""
    demand = replace(DEMAND, output_tokens=100.0, chunk_tokens=500.0)
    found = {limit.name: limit.requests for limit in limits(replace(REPLICA, memory_bytes=None), demand)}
    assert found == {"prompts": 51}
    assert not demand.prompts_queue(51)
    assert demand.prompts_queue(52)


def test_all_reduces_are_interpolated_between_measured_sizes() -> None:
    """And cost nothing on one GPU."""
    h100 = all_reduce_of("H100-SXM")
    assert h100 is TABLE[0]
    assert h100.seconds(1) == h100.seconds(8192) == 5.3e-6
    assert h100.seconds((8192 + 262144) / 2) == pytest.approx((5.3e-6 + 12e-6) / 2)
    assert h100.seconds(2 * 1048576 - 262144) == pytest.approx(26e-6)
    assert all_reduce_of("MI300X") is None
    collective = Collective(h100, layers=80, hidden=8192)
    assert collective.seconds(1, 1) == 0.0
    assert collective.seconds(1, 8) == pytest.approx(0.848e-3)
    assert list(powers_of_two(6)) == [1, 2, 4]
    two = replace(REPLICA, gpu_count=2, collective=collective)
    found, without = row(two, DEMAND, 3), row(replace(two, collective=None), DEMAND, 3)
    assert found is not None
    assert without is not None
    assert found.step_seconds - without.step_seconds == pytest.approx(collective.seconds(3, 2))


def test_the_shape_of_a_model_comes_from_its_configuration() -> None:
    """Query heads x head size; keys and values apart under MLA; a missing key is named."""
    qwen = {"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
    shape = read_shape(qwen, "qwen")
    assert (shape.layers, shape.attention_layers, shape.attention_width, shape.hidden) == (36, 36, 4096, 4096)
    assert shape.attention_share(100_000, 8.2e9) == pytest.approx(36 * 4096 * 1e5 / 8.2e9)
    latent = {**qwen, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    assert read_shape(latent, "latent").attention_width == 32 * (128 + 64 + 128) // 2
    with pytest.raises(FactError, match="num_attention_heads"):
        read_shape({"model_type": "x", "num_hidden_layers": 2, "hidden_size": 8}, "x")


def test_a_law_scaled_to_the_engine_is_as_many_times_slower() -> None:
    """Memory-bound and compute-bound alike."""
    full = replace(LAW, step_overhead_seconds=1e-3, sequence_cost_seconds=1e-5, batch_growth_seconds=1e-4,
                   kv_bandwidth_bytes_per_second=5e11, wide_batch_seconds=1e-3,
                   kv_context_cost_seconds_per_byte_token=1e-20)  # fmt: skip
    for load in (Load(4, 5000), Load(900, 10)):
        before, after = predict(full, load), predict(scaled(full, 1.3), load)
        assert before is not None
        assert after is not None
        assert after.decode_seconds == pytest.approx(1.3 * before.decode_seconds)


def test_one_load_leaves_the_law_its_spread_at_others() -> None:
    """From what the law said to what the engine did, and no wider."""
    law = scaled(replace(LAW, low_factor=0.8, high_factor=1.5), 1.25)
    assert (law.low_factor, law.high_factor) == (pytest.approx(0.64), pytest.approx(1.2))
    beyond = scaled(replace(LAW, low_factor=0.9, high_factor=1.1), 2.0)
    assert (beyond.low_factor, beyond.high_factor) == (pytest.approx(0.45), 1.0)


def test_what_differs_between_plan_and_engine_is_named() -> None:
    """Nothing where they agree; else the settings to look at, with the number that would explain it."""
    seen = Reality(capacity_tokens=24_000, capacity_source="label", kv_dtype="auto", max_model_len=4096)
    assert checks(REPLICA, "bfloat16", DEMAND, seen) == []
    less = replace(seen, capacity_tokens=20_000, kv_dtype="fp8", block_size=16.0, preemptions=3.0, step_ratio=1.4,
                   requests_waiting=5.0, requests_running=64.0, max_model_len=500)  # fmt: skip
    said = checks(REPLICA, "bfloat16", DEMAND, less)
    assert said[0] == ("memory: planned 24,000 tokens of KV, the engine holds 20,000 (label); what would explain it:")
    for part in (
        "KV dtype: planned bfloat16, the engine says fp8", "--runtime-overhead-bytes=4e+09", "0.80 would give the same",
        "block size: 16", "--max-model-len: the engine takes 500 tokens, the mix has 1,000",
        "--max-num-seqs: 5 requests", "preemptions: 3", "decode step: 1.40 times",
    ):  # fmt: skip
        assert any(part in line for line in said), part


@pytest.mark.parametrize(
    ("served", "differs"),
    [
        (("Qwen/Qwen3-8B",), False),
        (("chat", "/cache/models--Qwen--Qwen3-8B/snapshots/b968826d/"), False),
        (("chat", "/models/qwen3-8b"), False),
        (("chat", "/models/llama"), True),
        (("Qwen/Qwen3-8B-FP8",), True),
        ((), False),
    ],
)
def test_a_plan_for_another_model_than_the_engine_serves_is_named(served: tuple[str, ...], differs: bool) -> None:
    """By the name it has, or the place it was loaded from."""
    said = checks(REPLICA, "bfloat16", DEMAND, Reality(served=served), "Qwen/Qwen3-8B")
    assert said == ([f"model: planned Qwen/Qwen3-8B, the engine serves {' from '.join(served)}"] if differs else [])


def test_a_ratio_from_few_observations_is_not_used() -> None:
    """As many as the sidecar wants for a verdict."""
    assert Reality(step_ratio=1.2, observations=49.0).usable_ratio is None
    assert Reality(step_ratio=1.2, observations=50.0).usable_ratio == 1.2


def test_axes_end_on_round_numbers_and_text_is_escaped() -> None:
    """The picture's two small helpers."""
    assert [nice_top(value) for value in (0, 0.03, 1, 7.2, 42, 377_062)] == [1, 0.03, 1, 10, 50, 400_000]
    assert escape("<a & b>") == "&lt;a &amp; b&gt;"
