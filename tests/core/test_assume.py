"""Which law is used, where it comes from, what was guessed and what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model_configs import LLAMA, MIXTRAL, load_config
from stepscope.core.assume import (
    DATASHEET_BANDWIDTH_SHARE,
    DATASHEET_COMPUTE_SHARE,
    DATASHEET_HIGH,
    DATASHEET_LOW,
    Calibration,
    Given,
    assume,
)
from stepscope.core.hardware import Gpu
from stepscope.core.model_spec import from_hf_config, from_numbers
from stepscope.core.step_model import Load, LoadRange, predict

H100 = Gpu("H100-SXM", 3.35e12, 989e12, 1979e12, 80e9, "NVIDIA H100 data sheet")
QWEN = from_hf_config(load_config("qwen3-8b.json"), name="Qwen/Qwen3-8B")
MEASURED = Calibration(2e12, 1e-3, 2e-5, 3e-5, identity="abc", residual_ratio=0.04, samples=40)


RTX = Gpu("RTX4090", 1.008e12, 165.2e12, None, 24e9, "NVIDIA RTX 4090 data sheet")


def test_a_known_model_on_a_measured_generation_gets_the_pooled_law() -> None:
    """Prices from public measurements of vLLM on such GPUs, with the spread of engines left out of the pool."""
    facts, assumed = assume(Given(gpu=H100), QWEN, 1, None, ())
    law = facts.law
    assert law is not None
    assert (law.source, law.identity) == ("datasheet", "vllm-hopper-dense")
    assert 0.85 < law.low_factor < 1.0 < law.high_factor < 1.3
    chats, agents = predict(law, Load(40, 80_000)), predict(law, Load(42, 280_000))
    assert chats is not None
    assert agents is not None
    assert chats.decode_seconds == pytest.approx(12.8e-3, rel=0.05)  # the published example at 60 %: 14.1 ms
    assert agents.decode_seconds / chats.decode_seconds > 2.0
    assert "131 public measurements of vLLM on Hopper GPUs" in assumed.assumptions[0]


def test_where_other_engines_stand_in_the_bounds_are_the_widest() -> None:
    """No public measurement of vLLM on A100 is in the pool."""
    a100 = Gpu("A100-80GB-SXM", 2.039e12, 312e12, None, 80e9, "NVIDIA A100 data sheet")
    facts, assumed = assume(Given(gpu=a100), QWEN, 1, None, ())
    assert facts.law is not None
    assert facts.law.low_factor <= 0.72
    assert facts.law.high_factor >= 1.48
    assert "none of vLLM on Ampere GPUs" in assumed.assumptions[0]


def test_context_costs_something_whatever_the_pool_says() -> None:
    """Batch and context grow together in public sweeps of experts; nothing reads faster than twice the data sheet."""
    model = from_hf_config(MIXTRAL, name="mixtral")
    facts, _ = assume(Given(gpu=H100), model, 1, None, ())
    assert facts.law is not None
    few, many = predict(facts.law, Load(8, 8_000)), predict(facts.law, Load(8, 108_000))
    assert few is not None
    assert many is not None
    per_token = model.kv_bytes_per_token or 0.0
    assert many.kv_cache_seconds - few.kv_cache_seconds >= 0.99 * 100_000 * per_token / (2 * 3.35e12)


def test_explicit_numbers_alone_get_the_plain_share_of_peak() -> None:
    """Without layers and active parameters the pool cannot be used, and nothing is made up."""
    facts, _ = assume(Given(gpu=H100), from_numbers(16.4e9, 147_456), 1, None, ())
    assert facts.law is not None
    assert facts.law.effective_bandwidth_bytes_per_second == pytest.approx(DATASHEET_BANDWIDTH_SHARE * 3.35e12)
    single = predict(facts.law, Load(1, 0))
    assert single is not None
    assert single.decode_seconds == pytest.approx(8.2e-3, rel=0.01)


def test_a_gpu_nobody_measured_gets_the_plain_share_of_peak() -> None:
    """60 % of the bandwidth, prefill and the compute roof at 64.5 % of the FLOP/s; what is guessed is said."""
    facts, assumed = assume(Given(gpu=RTX), QWEN, 1, None, ())
    law = facts.law
    assert law is not None
    assert (law.source, law.identity) == ("datasheet", "RTX4090")
    assert law.effective_bandwidth_bytes_per_second == pytest.approx(DATASHEET_BANDWIDTH_SHARE * 1.008e12)
    assert law.compute_flops_per_second == pytest.approx(DATASHEET_COMPUTE_SHARE * 165.2e12)
    assert law.prefill_cost_seconds_per_token == pytest.approx(
        2 * (QWEN.active_params or 0) / (DATASHEET_COMPUTE_SHARE * 165.2e12)
    )
    assert (law.low_factor, law.high_factor) == (DATASHEET_LOW, DATASHEET_HIGH)
    assert law.kv_bytes_per_token == 147_456
    assert assumed.missing == ()
    assert len(assumed.assumptions) >= 2
    assert "nothing was calibrated" in assumed.assumptions[0]
    assert assumed.peak_bandwidth_bytes_per_second == 1.008e12


def test_gpus_are_added_up() -> None:
    """Bandwidth and FLOP/s are those of all of them together."""
    facts, assumed = assume(Given(gpu=RTX, gpu_count=4), QWEN, 1, None, ())
    assert facts.law is not None
    assert facts.law.effective_bandwidth_bytes_per_second == pytest.approx(4 * 0.6 * 1.008e12)
    assert facts.gpu_count == 4
    assert dict(assumed.hardware_labels)["count"] == "4"


def test_explicit_peaks_replace_the_table_s() -> None:
    """Per GPU; the source then says that they were given."""
    given = Given(gpu=RTX, gpu_count=2, peak_bandwidth_bytes_per_second=2e12, peak_flops=1e14)
    facts, assumed = assume(given, QWEN, 1, None, ())
    assert facts.law is not None
    assert facts.law.effective_bandwidth_bytes_per_second == pytest.approx(2.4e12)
    labels = dict(assumed.hardware_labels)
    assert (labels["gpu"], labels["source"], labels["peak_flops"]) == ("RTX4090", "given", "2e+14")


def test_a_calibration_replaces_the_data_sheet() -> None:
    """Its numbers, its range, its residual as the spread; nothing is guessed."""
    measured = replace(MEASURED, valid_range=LoadRange(max_sequences=64))
    facts, assumed = assume(Given(gpu=H100, calibration=measured), QWEN, 1, None, ())
    law = facts.law
    assert law is not None
    assert (law.source, law.identity, law.samples, law.residual_ratio) == ("file", "abc", 40, 0.04)
    assert law.valid_range == LoadRange(max_sequences=64)
    assert (law.low_factor, law.high_factor) == (0.96, 1.04)
    step = predict(law, Load(10, 1000, 100))
    assert step is not None
    assert step.overhead_seconds == 1e-3
    assert step.sequences_seconds == pytest.approx(2e-4)
    assert step.prefill_seconds == pytest.approx(3e-3)
    assert not any("calibrated" in line for line in assumed.assumptions)


def test_a_fitted_calibration_brings_all_its_terms_and_a_roof_only_if_it_saw_one() -> None:
    """The compute of large batches is in the terms already: a roof on top would count it twice."""
    fitted = replace(
        MEASURED, valid_range=LoadRange(64, 1e5, 100), kv_bandwidth_bytes_per_second=1e12, batch_growth_seconds=1e-4,
        wide_batch_seconds=2e-4, kv_context_cost_seconds_per_byte_token=1e-19, prompt_cost_seconds=3e-4,
        prefill_growth_seconds_per_token=1e-6, prompt_growth_seconds=4e-4,
    )  # fmt: skip
    law = assume(Given(gpu=H100, calibration=fitted), QWEN, 1, None, ())[0].law
    assert law is not None
    assert law.compute_flops_per_second is None
    for name in (
        "kv_bandwidth_bytes_per_second", "batch_growth_seconds", "wide_batch_seconds", "prompt_cost_seconds",
        "kv_context_cost_seconds_per_byte_token", "prefill_growth_seconds_per_token", "prompt_growth_seconds",
    ):  # fmt: skip
        assert getattr(law, name) == getattr(fitted, name)
    shown = replace(fitted, compute_flops_per_second=4e14)
    roofed = assume(Given(gpu=H100, calibration=shown), QWEN, 1, None, ())[0].law
    assert roofed is not None
    assert (roofed.compute_flops_per_second, roofed.active_params) == (4e14, QWEN.active_params)
    plain = assume(Given(gpu=H100, calibration=MEASURED), QWEN, 1, None, ())[0].law
    assert plain is not None
    assert plain.compute_flops_per_second == pytest.approx(DATASHEET_COMPUTE_SHARE * 989e12)


@pytest.mark.parametrize(
    ("made_for", "says"),
    [
        ({"model": "other"}, "another model: other, here Qwen/Qwen3-8B"),
        ({"gpu": "A100"}, "another GPU: A100, here H100-SXM"),
        ({"gpu_count": 8}, "another GPU count: 8, here 1"),
        ({"engine_version": "0.10"}, "another engine version: 0.10, here 0.32.0"),
        ({"dtype": "fp8"}, "another dtype: fp8, here bfloat16"),
        ({"kv_dtype": "fp8_e4m3"}, "another KV cache dtype: fp8_e4m3, here bfloat16"),
    ],
)
def test_a_calibration_made_for_something_else_is_a_mismatch(made_for: dict[str, object], says: str) -> None:
    """Published and said; the law is used all the same."""
    measured = replace(MEASURED, **made_for)  # type: ignore[arg-type]  # fields from the table above
    facts, assumed = assume(Given(gpu=H100, calibration=measured), QWEN, 1, "0.32.0", ())
    assert assumed.calibration_mismatch is True
    assert any(line.endswith(says) for line in assumed.assumptions)
    assert facts.law is not None


def test_a_calibration_that_matches_or_says_nothing_is_none() -> None:
    """What it does not name cannot contradict; explicit flags have no provenance at all."""
    same = replace(MEASURED, model="Qwen/Qwen3-8B", gpu="H100-SXM", gpu_count=1, engine_version="0.32.0")
    assert assume(Given(gpu=H100, calibration=same), QWEN, 1, "0.32.0", ())[1].calibration_mismatch is False
    assert assume(Given(calibration=same), QWEN, 1, None, ())[1].calibration_mismatch is False
    flags = replace(MEASURED, identity="flags", model="other")
    assert assume(Given(calibration=flags), QWEN, 1, None, ())[1].calibration_mismatch is None
    assert assume(Given(gpu=H100), QWEN, 1, None, ())[1].calibration_mismatch is None


def test_what_is_missing_is_said_with_its_flag() -> None:
    """No model: what the search said. No GPU, no FLOP/s: the flags."""
    facts, assumed = assume(Given(gpu=H100), None, 1, None, ("model facts: give --model.id",))
    assert (facts.law, assumed.missing) == (None, ("model facts: give --model.id",))
    facts, assumed = assume(Given(), QWEN, 1, None, ())
    assert facts.law is None
    assert "--hardware.gpu" in assumed.missing[0]
    facts, assumed = assume(Given(peak_bandwidth_bytes_per_second=1e12), QWEN, 1, None, ())
    assert facts.law is not None
    assert facts.law.prefill_cost_seconds_per_token is None
    assert "--hardware.peak-flops" in assumed.missing[0]


def test_numbers_alone_make_a_law() -> None:
    """Weight and KV bytes with a bandwidth: no prefill cost, no compute roof."""
    facts, assumed = assume(Given(peak_bandwidth_bytes_per_second=1e12), from_numbers(1e10, 1e5), 1, None, ())
    assert facts.law is not None
    assert facts.law.weights.always_bytes == 1e10
    assert facts.law.active_params is None
    assert dict(assumed.model_labels)["source"] == "given"


def test_ranks_of_a_mixture_are_in_lockstep() -> None:
    """Several engines on one page, and experts."""
    mixture = from_hf_config(MIXTRAL, name="mixture")
    dense = from_hf_config(LLAMA, name="dense")
    assert assume(Given(gpu=H100), mixture, 2, None, ())[0].lockstep
    assert not assume(Given(gpu=H100), mixture, 1, None, ())[0].lockstep
    assert not assume(Given(gpu=H100), dense, 2, None, ())[0].lockstep


def test_overrides_reach_the_facts() -> None:
    """Capacity and pool, whatever the law."""
    facts, assumed = assume(Given(capacity_override_tokens=5.0, pool_bytes_override=6.0), None, 1, None, ())
    assert (facts.capacity_override_tokens, facts.pool_bytes_override) == (5.0, 6.0)
    assert (assumed.hardware_labels, assumed.model_labels) == ((), ())
