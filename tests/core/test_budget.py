"""The token budget is the step law turned round, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stepscope.core.budget import speed_budget_tokens
from stepscope.core.step_model import Load, StepLaw, WeightBytes, predict

QWEN = StepLaw(WeightBytes(16.4e9), 0.6 * 3.35e12, 2 * 36 * 8 * 128 * 2)


def decode_seconds(law: StepLaw, load: Load) -> float:
    step = predict(law, load)
    assert step is not None
    return step.decode_seconds


def test_50_tokens_a_second_with_headroom_allow_134_000_tokens() -> None:
    """Qwen3-8B on an H100 at 60 % of its bandwidth, held to 0.9 / 50 s."""
    assert speed_budget_tokens(QWEN, Load(40, 0), 0.9 / 50) == pytest.approx(134_000, abs=500)


def test_memory_holds_377_000_tokens() -> None:
    """80e9 B x 0.9 less the weights, at 147,456 B a token."""
    assert (80e9 * 0.9 - 16.4e9) / (QWEN.kv_bytes_per_token or 0) == pytest.approx(377_000, abs=500)


def test_memory_of_the_4090_holds_53_requests() -> None:
    """14.4e9 B for KV, 8,192 tokens of 32 KiB a request."""
    assert 14.4e9 // (8192 * 32 * 1024) == 53


_weights = st.one_of(
    st.builds(WeightBytes, st.floats(1e9, 1e12)),
    st.builds(WeightBytes, st.floats(1e9, 1e11), st.floats(1e6, 1e8), st.just(128), st.integers(1, 16), st.just(60)),
)
_laws = st.builds(
    StepLaw,
    weights=_weights,
    effective_bandwidth_bytes_per_second=st.floats(1e11, 1e13),
    kv_bytes_per_token=st.floats(1e4, 1e6),
    step_overhead_seconds=st.floats(0, 0.01),
    sequence_cost_seconds=st.floats(0, 1e-4),
    prefill_cost_seconds_per_token=st.one_of(st.none(), st.floats(0, 1e-4)),
    active_params=st.one_of(st.none(), st.floats(1e9, 1e11)),
    compute_flops_per_second=st.floats(1e14, 1e15),
    kv_bandwidth_bytes_per_second=st.one_of(st.none(), st.floats(1e11, 1e13)),
    kv_context_cost_seconds_per_byte_token=st.sampled_from([0.0, 1e-18, 1e-17]),
    batch_growth_seconds=st.floats(0, 1e-3),
    wide_batch_seconds=st.floats(0, 1e-3),
    prefill_growth_seconds_per_token=st.floats(0, 1e-5),
    prompt_cost_seconds=st.floats(0, 0.01),
    prompt_growth_seconds=st.floats(0, 0.01),
)


@given(_laws, st.floats(1, 500), st.floats(1, 5), st.floats(0.001, 1))
def test_the_prediction_at_the_budget_is_the_target(
    law: StepLaw, sequences: float, positions: float, target: float
) -> None:
    """One token more is above it: below the compute roof, above it, for mixtures, and with every fitted term."""
    load = Load(sequences, 5000.0, prefill_tokens_per_step=300.0, positions_per_sequence=positions)
    budget = speed_budget_tokens(law, load, target)
    assert budget is not None
    decode = replace(load, prefill_tokens_per_step=0.0)
    if budget == 0.0:
        assert decode_seconds(law, replace(decode, tokens_in_flight=0.0)) >= target * (1 - 1e-9)
        return
    assert decode_seconds(law, replace(decode, tokens_in_flight=budget)) == pytest.approx(target, rel=1e-9)
    # Far below a float's resolution of the target one token cannot show.
    bandwidth = law.kv_bandwidth_bytes_per_second or law.effective_bandwidth_bytes_per_second
    assume((law.kv_bytes_per_token or 0) / bandwidth > 1e-12 * target)
    assert decode_seconds(law, replace(decode, tokens_in_flight=budget + 1)) > target


def test_below_the_compute_roof_kv_is_free() -> None:
    """20 ms of compute hide 20 ms of reads, 10 of them weights: a target of 20 ms buys 10 ms of KV."""
    law = StepLaw(WeightBytes(10e9), 1e12, 1e6, active_params=1e9, compute_flops_per_second=1e13)
    load = Load(100, 0)
    assert decode_seconds(law, load) == pytest.approx(0.020)
    assert speed_budget_tokens(law, load, 0.020) == pytest.approx(10_000)
    assert speed_budget_tokens(law, load, 0.0199) == 0.0


def test_a_target_that_the_weights_alone_miss_leaves_no_budget() -> None:
    """Zero, not a negative number: no load would do."""
    assert speed_budget_tokens(QWEN, Load(1, 0), 0.008) == 0.0


def test_hybrid_models_bring_their_own_bytes_per_token() -> None:
    """Pool bytes over capacity; without either there is no budget."""
    law = replace(QWEN, kv_bytes_per_token=None)
    assert speed_budget_tokens(law, Load(1, 0), 0.018) is None
    assert speed_budget_tokens(law, Load(1, 0), 0.018, kv_bytes_per_token=0.0) is None
    given_bytes = speed_budget_tokens(law, Load(1, 0), 0.018, kv_bytes_per_token=147_456)
    assert given_bytes == pytest.approx(speed_budget_tokens(QWEN, Load(1, 0), 0.018))
