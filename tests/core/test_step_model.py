"""The step law: the worked numbers, what must grow with what, and what cannot be known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_data import shared_path
from stepscope.core.step_model import Load, LoadRange, StepLaw, WeightBytes, predict

# Qwen3-8B at 16 bit on one H100: 16.4e9 B, 2 x 36 layers x 8 KV heads x 128 x 2 B; 3.35e12 B/s x 0.6; 989e12 FLOP/s,
# of which prompt chunks reach 64-65 %.
QWEN_KV = 2 * 36 * 8 * 128 * 2
QWEN = StepLaw(
    weights=WeightBytes(16.4e9),
    effective_bandwidth_bytes_per_second=0.6 * 3.35e12,
    kv_bytes_per_token=QWEN_KV,
    prefill_cost_seconds_per_token=2 * 8.2e9 / (0.645 * 989e12),
)
# 9e9 parameters at 4 bit (5.7e9 B) on an RTX 4090: 1008e9 B/s, 165.2e12 FLOP/s; 32 KiB of KV a token, 8,192 a request.
RTX_4090 = StepLaw(WeightBytes(5.7e9), 1008e9, 32_768)


def seconds(law: StepLaw, sequences: float, tokens: float, prefill: float = 0.0) -> float:
    step = predict(law, Load(sequences, tokens, prefill))
    assert step is not None
    return step.itl_seconds


def test_one_stream_of_qwen3_8b_on_an_h100_takes_8_2_ms() -> None:
    """Which is about 120 tokens a second."""
    assert seconds(QWEN, 1, 0) * 1e3 == pytest.approx(8.2, abs=0.05)
    assert 1 / seconds(QWEN, 1, 0) == pytest.approx(120, abs=3)


@pytest.mark.parametrize(
    ("sequences", "tokens", "prefill", "speed"),
    [(40, 40 * 2000, 0, 71), (42, 40 * 2000 + 2 * 100_000, 0, 35), (40, 40 * 2000, 2048, 15)],
    ids=["40 chats", "two agents join", "a prompt chunk in each step"],
)
def test_two_agents_halve_everybody_s_speed(sequences: float, tokens: float, prefill: float, speed: float) -> None:
    """40 chats run at 71 tokens a second; with 200,000 tokens more at 35; with 2,048 prompt tokens a step at 15."""
    assert 1 / seconds(QWEN, sequences, tokens, prefill) == pytest.approx(speed, abs=0.5)


@pytest.mark.parametrize(
    ("sequences", "memory_ms", "compute_ms"), [(1, 5.92, 0.11), (50, 18.97, 5.45), (100, 32.28, 10.9)]
)
def test_the_4090_is_bound_by_bandwidth(sequences: float, memory_ms: float, compute_ms: float) -> None:
    """At 8,192 tokens a request compute (efficiency 1) takes a third of the time or less, so it adds nothing."""
    tokens = sequences * 8192
    with_compute = replace(RTX_4090, active_params=9e9, compute_flops_per_second=165.2e12)
    assert seconds(RTX_4090, sequences, tokens) * 1e3 == pytest.approx(memory_ms, abs=0.01)
    assert seconds(with_compute, sequences, tokens) == seconds(RTX_4090, sequences, tokens)
    only_compute = replace(with_compute, weights=WeightBytes(0.0))
    assert seconds(only_compute, sequences, 0) * 1e3 == pytest.approx(compute_ms, abs=0.05)


def mpt_7b_rows() -> dict[int, float]:
    """Batch -> seconds a request of 512 tokens in and 64 out takes on one A100-40GB."""
    rows = [json.loads(line) for line in shared_path("data", "measured", "databricks.jsonl").read_text().splitlines()]
    return {
        row["batch_or_concurrency"]: row["batch_or_concurrency"] / row["value"]
        for row in rows
        if row["dataset"] == "databricks_mpt7b_A100x1"
    }


def test_mpt_7b_is_predicted_from_one_measured_point() -> None:
    """Calibrated at batch 4 (batch 1 is printed with one digit), KV and prefill bring every batch within 6 %.

    Weights alone are 4.6 times too fast at batch 64. 6.649e9 parameters at 16 bit; KV 2 x 32 layers x 4,096 x 2 B;
    512 prompt tokens take 46 ms (the published time to first token); mean context of a request 512 + 64 / 2.
    """
    rows = mpt_7b_rows()
    assert sorted(rows) == [1, 4, 8, 16, 32, 64]
    weights, kv, prefill_cost, steps = 2 * 6.649e9, 2 * 32 * 4096 * 2, 0.046 / 512, 64
    left_for_reads = rows[4] - prefill_cost * 512 * 4
    law = StepLaw(
        weights=WeightBytes(weights),
        effective_bandwidth_bytes_per_second=steps * (weights + kv * 4 * 544) / left_for_reads,
        kv_bytes_per_token=kv,
        prefill_cost_seconds_per_token=prefill_cost,
    )
    for batch, measured in rows.items():
        request = steps * seconds(law, batch, batch * 544, prefill=batch * 512 / steps)
        assert request / measured == pytest.approx(1, abs=0.06), batch
    weights_only = replace(law, kv_bytes_per_token=0.0, effective_bandwidth_bytes_per_second=steps * weights / rows[1])
    assert rows[64] / (steps * seconds(weights_only, 64, 64 * 544)) == pytest.approx(4.6, abs=0.05)


_laws = st.builds(
    StepLaw,
    weights=st.builds(
        WeightBytes,
        always_bytes=st.floats(1e8, 1e12),
        expert_bytes=st.floats(0, 1e9),
        experts=st.sampled_from([0, 8, 128, 384]),
        experts_per_token=st.integers(1, 8),
        moe_layers=st.integers(0, 80),
    ),
    effective_bandwidth_bytes_per_second=st.floats(1e10, 1e14),
    kv_bytes_per_token=st.floats(1e3, 1e7),
    step_overhead_seconds=st.floats(0, 0.05),
    sequence_cost_seconds=st.floats(0, 1e-3),
    prefill_cost_seconds_per_token=st.floats(0, 1e-3),
    active_params=st.one_of(st.none(), st.floats(1e8, 1e12)),
    compute_flops_per_second=st.one_of(st.none(), st.floats(1e13, 1e16)),
    low_factor=st.floats(0.5, 1),
    high_factor=st.floats(1, 4),
)
_fitted = {
    "kv_bandwidth_bytes_per_second": st.one_of(st.none(), st.floats(1e10, 1e14)),
    "kv_context_cost_seconds_per_byte_token": st.floats(0, 1e-17),
    "batch_growth_seconds": st.floats(0, 1e-3),
    "wide_batch_seconds": st.floats(0, 1e-3),
    "prefill_growth_seconds_per_token": st.floats(0, 1e-5),
    "prompt_cost_seconds": st.floats(0, 0.01),
    "prompt_growth_seconds": st.floats(0, 0.01),
}
_fitted_laws = st.builds(lambda law, terms: replace(law, **terms), _laws, st.fixed_dictionaries(_fitted))
_loads = st.builds(
    Load,
    sequences=st.floats(0, 2000),
    tokens_in_flight=st.floats(0, 1e7),
    prefill_tokens_per_step=st.floats(0, 16384),
    positions_per_sequence=st.floats(1, 8),
)
ROUNDING = 1e-9  # of a step time, for sums of floats


@given(_laws, _loads, st.sampled_from(["sequences", "tokens_in_flight", "prefill_tokens_per_step"]), st.floats(0, 1e6))
def test_more_load_is_never_faster(law: StepLaw, load: Load, what: str, more: float) -> None:
    """In tokens, sequences and prompt tokens, whatever the parameters of the four terms."""
    heavier = replace(load, **{what: getattr(load, what) + more})
    before, after = predict(law, load), predict(law, heavier)
    assert before is not None
    assert after is not None
    assert after.itl_seconds >= before.itl_seconds * (1 - ROUNDING)


@given(_fitted_laws, _loads, st.floats(0, 1e6))
def test_with_fitted_terms_more_context_or_prompt_is_never_faster(law: StepLaw, load: Load, more: float) -> None:
    """More context makes the decode step longer, more prompt tokens of as many prompts the prefill part."""
    counted = replace(load, prompts_per_step=1.0)
    before = predict(law, counted)
    longer = predict(law, replace(counted, tokens_in_flight=load.tokens_in_flight + more))
    fuller = predict(law, replace(counted, prefill_tokens_per_step=load.prefill_tokens_per_step + more))
    assert before is not None
    assert longer is not None
    assert fuller is not None
    assert longer.decode_seconds >= before.decode_seconds * (1 - ROUNDING)
    assert fuller.prefill_seconds >= before.prefill_seconds * (1 - ROUNDING)


@given(_fitted_laws, _loads)
def test_the_parts_sum_to_the_whole_and_none_is_negative(law: StepLaw, load: Load) -> None:
    """Five components, of which all but prefill are the decode step; its bounds enclose it."""
    step = predict(law, load)
    assert step is not None
    parts = (
        step.overhead_seconds,
        step.weights_seconds,
        step.kv_cache_seconds,
        step.sequences_seconds,
        step.prefill_seconds,
    )
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(step.itl_seconds, rel=ROUNDING)
    assert step.itl_seconds - step.prefill_seconds == pytest.approx(step.decode_seconds, rel=ROUNDING)
    assert step.decode_low_seconds <= step.decode_seconds * (1 + ROUNDING)
    assert step.decode_high_seconds >= step.decode_seconds * (1 - ROUNDING)


def test_what_compute_exceeds_memory_by_is_counted_with_the_sequences() -> None:
    """Below the roof nothing, above it the difference: max(memory, compute)."""
    law = StepLaw(WeightBytes(10e9), 1e12, 1e6, sequence_cost_seconds=1e-5, active_params=5e9)
    bound = replace(law, compute_flops_per_second=1e14)  # 0.1 ms a sequence
    below, above = predict(bound, Load(50, 0)), predict(bound, Load(400, 0))
    assert below is not None
    assert above is not None
    assert below.sequences_seconds == pytest.approx(50e-5)
    assert above.decode_seconds == pytest.approx(0.040 + 400e-5)  # 2 x 5e9 x 400 / 1e14
    assert above.weights_seconds == pytest.approx(0.010)
    without = predict(law, Load(400, 0))
    assert without is not None
    assert without.decode_seconds == pytest.approx(0.010 + 400e-5)


def test_speculative_positions_count_in_compute_and_experts_only() -> None:
    """A draft of 3 makes four positions of each sequence; the cost per sequence stays."""
    law = StepLaw(WeightBytes(1e9, 1e8, 64, 2, 10), 1e12, 1e6, sequence_cost_seconds=1e-4)
    drafted = predict(law, Load(4, 0, positions_per_sequence=4))
    plain = predict(law, Load(16, 0))
    assert drafted is not None
    assert plain is not None
    assert drafted.weights_seconds == plain.weights_seconds
    assert drafted.sequences_seconds == pytest.approx(4e-4)


def test_a_mixture_reads_the_expected_number_of_distinct_experts() -> None:
    """E x (1 - (1 - k/E)^n): k for one token, all of them for many, never more."""
    weights = WeightBytes(always_bytes=1e9, expert_bytes=1e6, experts=128, experts_per_token=8, moe_layers=48)
    per_expert = 48 * 1e6
    assert weights.read_bytes(1) == pytest.approx(1e9 + 8 * per_expert)
    assert weights.read_bytes(2) == pytest.approx(1e9 + (8 + 8 * (1 - 8 / 128)) * per_expert)
    assert weights.read_bytes(1e4) == pytest.approx(1e9 + 128 * per_expert)
    assert weights.read_bytes(0) == weights.read_bytes(1)


def test_bytes_win_over_tokens_where_they_are_known() -> None:
    """Hybrid models: usage x pool bytes; the law then needs no bytes per token."""
    law = StepLaw(WeightBytes(10e9), 1e12, None)
    step = predict(law, Load(4, 50_000, kv_bytes=5e9))
    assert step is not None
    assert step.kv_cache_seconds == pytest.approx(0.005)


def test_the_engine_s_own_count_of_bytes_is_the_memory_term() -> None:
    """Weights are what it read beyond the KV, so that the parts still sum."""
    step = predict(StepLaw(WeightBytes(10e9), 1e12, 1e6), Load(4, 2000, read_bytes=20e9))
    assert step is not None
    assert (step.weights_seconds, step.kv_cache_seconds) == pytest.approx((0.018, 0.002))


def test_what_cannot_be_known_is_none() -> None:
    """Not zero: no KV bytes, or prompt tokens without their cost. Without prompt tokens the cost is not missed."""
    assert predict(StepLaw(WeightBytes(1e9), 1e12, None), Load(1, 10)) is None
    law = StepLaw(WeightBytes(1e9), 1e12, 1e6, prefill_cost_seconds_per_token=None)
    assert predict(law, Load(1, 10, prefill_tokens_per_step=1)) is None
    assert predict(law, Load(1, 10)) is not None


def test_a_calibration_covers_what_it_has_seen() -> None:
    """Each limit on its own, its edge included; no limit covers everything."""
    seen = LoadRange(max_sequences=10, max_tokens_in_flight=1000, max_prefill_tokens_per_step=100)
    assert seen.covers(Load(10, 1000, 100))
    assert not seen.covers(Load(10.1, 1000, 100))
    assert not seen.covers(Load(10, 1001, 100))
    assert not seen.covers(Load(10, 1000, 101))
    assert seen.covers(Load(12.5, 1250, 125), slack=1.25)
    assert LoadRange(min_sequences=4).covers(Load(4, 1e9, 1e9))
    assert not LoadRange(min_sequences=4).covers(Load(3.9, 1e9, 1e9))
    assert LoadRange(min_sequences=4).covers(Load(3.2, 1e9, 1e9), slack=1.25)
    assert LoadRange().covers(Load(1e9, 1e9, 1e9))
