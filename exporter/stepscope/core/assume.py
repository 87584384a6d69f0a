"""Puts the facts together: which step law to use, from what was given, calibrated, or known of model and GPU.

Explicit numbers win over a calibration's provenance, a calibration over data sheets. What was assumed is said, and what
is missing is said with the flag that supplies it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepscope.core.defaults import ANY, Machine, default_law, find_row
from stepscope.core.defaults_table import TABLE
from stepscope.core.estimate import Facts
from stepscope.core.hardware import Gpu
from stepscope.core.model_spec import ModelSpec
from stepscope.core.snapshot import Assumed
from stepscope.core.step_model import LoadRange, StepLaw

# Share of peak bandwidth that a decode step's reads reach where nothing was measured (docs/physics.md: 60 % is common).
DATASHEET_BANDWIDTH_SHARE = 0.6
# Share of peak FLOP/s that prompt chunks reach, and dense decode batches past the knee: 64-65 % of an H100's
# 989e12 (docs/physics.md); with it the roof meets the weights at 317 tokens, near the measured knee of 256 to 512.
DATASHEET_COMPUTE_SHARE = 0.645
# Measured decode step over (weights + KV) / (0.6 x peak) on 206 points of vLLM serving dense models on H100, H200 and
# B200 (silicon_dense_vllm in the public InferenceX and NVIDIA sweeps): 5th and 95th percentile; the median is 1.8.
DATASHEET_LOW, DATASHEET_HIGH = 0.92, 3.6
POOLED_ENGINE = "vllm"  # the only dialect whose pages are read
STAND_IN_LOW, STAND_IN_HIGH = 0.72, 1.48  # the widest of the dense rows (core/defaults_table.py)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parameters measured on this engine. Bandwidth in bytes/s of all GPUs together, costs in seconds."""

    effective_bandwidth_bytes_per_second: float
    step_overhead_seconds: float = 0.0
    sequence_cost_seconds: float = 0.0
    prefill_cost_seconds_per_token: float = 0.0
    # Further terms of a fitted law (core/step_model.py). None: the KV cache is read as fast as the weights.
    kv_bandwidth_bytes_per_second: float | None = None
    kv_context_cost_seconds_per_byte_token: float = 0.0
    batch_growth_seconds: float = 0.0
    wide_batch_seconds: float = 0.0
    prefill_growth_seconds_per_token: float = 0.0
    prompt_cost_seconds: float = 0.0
    prompt_growth_seconds: float = 0.0
    compute_flops_per_second: float | None = None  # roof of large batches; None: the loads showed none
    identity: str = "flags"
    valid_range: LoadRange | None = None
    residual_ratio: float | None = None
    noise_ratio: float | None = None  # by how much the same load measured twice differs, median
    samples: int | None = None
    # What it was measured on, to compare with what runs; None: not said.
    model: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    engine_version: str | None = None
    dtype: str | None = None  # of the weights
    kv_dtype: str | None = None
    date: str | None = None
    stepscope_version: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What the operator said about hardware and KV cache. Per GPU where the name does not say otherwise."""

    gpu: Gpu | None = None
    gpu_count: int = 1
    peak_bandwidth_bytes_per_second: float | None = None
    peak_flops: float | None = None
    capacity_override_tokens: float | None = None
    pool_bytes_override: float | None = None
    calibration: Calibration | None = None

    @property
    def bandwidth(self) -> float | None:
        """Peak bytes/s of all GPUs."""
        one = self.peak_bandwidth_bytes_per_second or (self.gpu and self.gpu.peak_bandwidth_bytes_per_second)
        return one * self.gpu_count if one else None

    @property
    def flops(self) -> float | None:
        """Peak dense 16-bit FLOP/s of all GPUs."""
        one = self.peak_flops or (self.gpu and self.gpu.peak_flops)
        return one * self.gpu_count if one else None


def assume(
    given: Given, model: ModelSpec | None, engines_on_page: int, engine_version: str | None, missing: tuple[str, ...]
) -> tuple[Facts, Assumed]:
    """The facts for the core and what to publish about them. `missing`: what the search for the model said."""
    law, lacks, guesses = _law(given, model)
    tensor_parallel = given.gpu_count
    facts = Facts(
        law=law,
        model=model,
        gpu_count=tensor_parallel,
        capacity_override_tokens=given.capacity_override_tokens,
        pool_bytes_override=given.pool_bytes_override,
        # vLLM keeps the data-parallel ranks of a mixture of experts in step with each other, idle ones included.
        lockstep=model is not None and model.kind == "moe" and engines_on_page > 1,
    )
    mismatch = None
    if given.calibration is not None and given.calibration.identity != "flags":
        mismatch = bool(_mismatches(given, model, engine_version))
        guesses += _mismatches(given, model, engine_version)
    return facts, Assumed(
        law=law,
        calibration_mismatch=mismatch,
        model_labels=_model_labels(model, tensor_parallel),
        hardware_labels=_hardware_labels(given),
        peak_bandwidth_bytes_per_second=given.bandwidth,
        law_assumptions=guesses,
        assumptions=guesses + (model.assumptions if model is not None else ()),
        missing=missing + lacks,
    )


def _law(given: Given, model: ModelSpec | None) -> tuple[StepLaw | None, tuple[str, ...], tuple[str, ...]]:
    """(law, what is missing, what was guessed)."""
    if model is None:
        return None, (), ()
    active, flops = model.active_params, given.flops
    roof = flops * DATASHEET_COMPUTE_SHARE if flops is not None else None
    kv_bytes_per_token = model.kv_read_bytes_per_token(given.gpu_count)
    measured = given.calibration
    if measured is not None:
        return (
            StepLaw(
                weights=model.weights,
                effective_bandwidth_bytes_per_second=measured.effective_bandwidth_bytes_per_second,
                kv_bytes_per_token=kv_bytes_per_token,
                step_overhead_seconds=measured.step_overhead_seconds,
                sequence_cost_seconds=measured.sequence_cost_seconds,
                prefill_cost_seconds_per_token=measured.prefill_cost_seconds_per_token,
                kv_bandwidth_bytes_per_second=measured.kv_bandwidth_bytes_per_second,
                kv_context_cost_seconds_per_byte_token=measured.kv_context_cost_seconds_per_byte_token,
                batch_growth_seconds=measured.batch_growth_seconds,
                wide_batch_seconds=measured.wide_batch_seconds,
                prefill_growth_seconds_per_token=measured.prefill_growth_seconds_per_token,
                prompt_cost_seconds=measured.prompt_cost_seconds,
                prompt_growth_seconds=measured.prompt_growth_seconds,
                active_params=active,
                # A fitted law has the compute of large batches in its own terms, unless its loads showed the roof: one
                # on top would count it twice.
                compute_flops_per_second=measured.compute_flops_per_second
                or (None if measured.valid_range is not None else roof),
                source="file",
                identity=measured.identity,
                valid_range=measured.valid_range,
                residual_ratio=measured.residual_ratio,
                samples=measured.samples,
                low_factor=1.0 - (measured.residual_ratio or 0.0),
                high_factor=1.0 + (measured.residual_ratio or 0.0),
            ),
            (),
            (),
        )
    bandwidth = given.bandwidth
    if bandwidth is None:
        return None, ("GPU: give --hardware.gpu and --hardware.count, or --calibration.*",), ()
    pooled = _pooled_law(given, model, bandwidth, kv_bytes_per_token)
    if pooled is not None:
        return pooled
    guesses = [
        f"nothing was calibrated: reads proceed at {DATASHEET_BANDWIDTH_SHARE:.0%} of the data sheet's bandwidth, "
        "without overhead; measured engines take 0.9 to 3.6 times as long"
    ]
    prefill = None
    if active and roof:
        prefill = 2.0 * active / roof
        guesses.append(f"prompt chunks reach {DATASHEET_COMPUTE_SHARE:.1%} of the data sheet's FLOP/s")
    lacks = () if prefill is not None else ("prefill cost: give --model.active-params and --hardware.peak-flops",)
    return (
        StepLaw(
            weights=model.weights,
            effective_bandwidth_bytes_per_second=DATASHEET_BANDWIDTH_SHARE * bandwidth,
            kv_bytes_per_token=kv_bytes_per_token,
            prefill_cost_seconds_per_token=prefill,
            active_params=active,
            compute_flops_per_second=roof,
            source="datasheet",
            identity=given.gpu.name if given.gpu is not None else "peak",
            low_factor=DATASHEET_LOW,
            high_factor=DATASHEET_HIGH,
        ),
        lacks,
        tuple(guesses),
    )


def _pooled_law(
    given: Given, model: ModelSpec, bandwidth: float, kv_bytes_per_token: float | None
) -> tuple[StepLaw, tuple[str, ...], tuple[str, ...]] | None:
    """The law pooled from public measurements; None where the pool says nothing of such a GPU, or the model too little.

    It needs layers and active parameters: guessing them from a number of bytes would be making them up.
    """
    if given.gpu is None or given.flops is None or model.layers is None or not model.active_params:
        return None
    eight_bit = "8" in model.weight_dtype and given.gpu.fp8_flops is not None and given.peak_flops is None
    machine = Machine(
        engine=POOLED_ENGINE,
        gpu=given.gpu.name,
        gpus=given.gpu_count,
        peak_bandwidth_bytes_per_second=bandwidth,
        peak_flops=given.gpu.fp8_flops * given.gpu_count if eight_bit and given.gpu.fp8_flops else given.flops,
        active_params=model.active_params,
        moe=model.kind == "moe",
        four_bit="4" in model.weight_dtype,
        layers=float(model.layers),
    )
    if machine.generation == ANY:
        return None
    row = find_row(TABLE, machine)
    low, high = row.low, row.high
    if not row.series:  # other engines or generations stand in: the widest spread of the pool is the honest one
        low, high = min(low, STAND_IN_LOW), max(high, STAND_IN_HIGH)
    where = f"vLLM on {machine.generation.capitalize()} GPUs"
    said = f"{row.points} public measurements of {where}" if row.points else f"public measurements, none of {where}"
    law = replace(
        default_law(row, machine, model.weights, kv_bytes_per_token),
        identity=f"{POOLED_ENGINE}-{machine.generation}-{'moe' if machine.moe else 'dense'}",
        low_factor=low,
        high_factor=high,
    )
    guess = (
        f"nothing was calibrated: parameters pooled from {said}; measured engines take {low:.2f} to {high:.2f} times"
    )
    return law, (), (guess + " as long (5th to 95th percentile)",)


def _mismatches(given: Given, model: ModelSpec | None, engine_version: str | None) -> tuple[str, ...]:
    """What the calibration was made for and is not there now."""
    measured = given.calibration
    if measured is None:
        return ()
    found = []
    for what, then, now in (
        ("model", measured.model, model.name if model is not None else None),
        ("GPU", measured.gpu, given.gpu.name if given.gpu is not None else None),
        ("GPU count", measured.gpu_count, given.gpu_count),
        ("engine version", measured.engine_version, engine_version),
        ("dtype", measured.dtype, model.weight_dtype if model is not None else None),
        ("KV cache dtype", measured.kv_dtype, model.kv_dtype if model is not None else None),
    ):
        if then is not None and now is not None and then != now:
            found.append(f"the calibration was made for another {what}: {then}, here {now}")
    return tuple(found)


def _model_labels(model: ModelSpec | None, gpu_count: int) -> tuple[tuple[str, str], ...]:
    if model is None:
        return ()
    per_token = model.kv_read_bytes_per_token(gpu_count)
    return (
        ("model", model.name),
        ("kind", model.kind),
        ("attention", model.attention),
        ("weight_bytes", f"{model.total_weight_bytes:.0f}"),
        ("step_weight_bytes", f"{model.weights.read_bytes(1.0):.0f}"),
        ("kv_bytes_per_token", "" if per_token is None else f"{per_token:.0f}"),
        ("kv_dtype", model.kv_dtype),
        ("source", model.source),
    )


def _hardware_labels(given: Given) -> tuple[tuple[str, str], ...]:
    if given.bandwidth is None and given.flops is None:
        return ()
    overridden = given.peak_bandwidth_bytes_per_second is not None or given.peak_flops is not None
    return (
        ("gpu", given.gpu.name if given.gpu is not None else ""),
        ("count", str(given.gpu_count)),
        ("peak_bandwidth_bytes_per_second", "" if given.bandwidth is None else f"{given.bandwidth:.4g}"),
        ("peak_flops", "" if given.flops is None else f"{given.flops:.4g}"),
        ("source", "given" if overridden or given.gpu is None else given.gpu.source),
    )
