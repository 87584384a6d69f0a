"""From settings and flags to what is planned with: the model, the replica at each tensor-parallel size, the demand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope import settings as table
from stepscope.commands._plan_flags import PlanFlags
from stepscope.config import Settings
from stepscope.core.assume import DATASHEET_COMPUTE_SHARE, Calibration, Given, assume
from stepscope.core.collectives import Collective, all_reduce_of
from stepscope.core.model_shape import Shape, read_shape
from stepscope.core.model_spec import ModelSpec, from_numbers
from stepscope.core.plan_demand import ContextClass, Demand, Replica
from stepscope.core.plan_reality import same_model
from stepscope.core.step_model import StepLaw, WeightBytes
from stepscope.errors import ConfigError, FactError
from stepscope.runtime.checkpoint import read_config
from stepscope.runtime.discover import find_hf_caches, resolve_model
from stepscope.runtime.facts import given_of
from stepscope.runtime.tables import published_model

BYTES_PER_16_BIT = 2.0
# Memory per GPU beside weights and KV, as vLLM prints it when it starts (non-torch memory + peak of activations):
# Llama 3 8B on one H100 1.79 + 1.26 GiB, on each of two 3.58 + 1.26 (vllm-project/vllm pull request 10511). The table's
# memory is the product's name, 80e9, while the engine there sees 79.22 GiB, 85.1e9: about as much more. It had 53.3 GiB
# left for KV; weights and KV alone, as in the worked numbers of docs/physics.md, give 52.1. The high end is what hurts.
OVERHEAD_BEST_BYTES, OVERHEAD_HIGH_BYTES = 0.0, 4.84 * 2**30
NUMBERS = "given"  # name of a model that is known by numbers alone (core/model_spec.py)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything a plan is made of, and what was assumed on the way. `law_given`: by --bandwidth-efficiency."""

    model: ModelSpec
    given: Given
    demand: Demand
    flags: PlanFlags
    memory_bytes: float | None
    shape: Shape | None
    assumptions: tuple[str, ...]

    @property
    def calibrated(self) -> bool:
        """Whether the law was measured, so that it stands for one number of GPUs only."""
        return self.given.calibration is not None

    def replica(self, gpu_count: int, law: StepLaw | None = None) -> Replica:
        """One engine on so many GPUs; `law` replaces the one that follows from the inputs. Raises ConfigError."""
        law = law or self._law(gpu_count)
        per_token = law.kv_bytes_per_token
        if per_token is None:  # the sliding layers' windows ignored: the upper bound
            copies = self.model.kv_layout.copies(gpu_count) if self.model.kv_layout else 1.0
            per_token = (self.model.kv_bytes_per_token_all_layers or 0.0) * copies
            law = replace(law, kv_bytes_per_token=per_token)
        if per_token <= 0.0:
            raise ConfigError("plan: KV bytes per token are not known: give --model.kv-bytes-per-token")
        if per_token < 1.0:
            raise ConfigError(f"--model.kv-bytes-per-token: {per_token:g} is below one byte")
        # A measured or pooled law has the all-reduces in its overhead already.
        bare = law.step_overhead_seconds == 0.0 and law.batch_growth_seconds == 0.0
        overhead = self.flags["runtime-overhead-bytes"]
        is_guessed = overhead is None and self.memory_bytes is not None and self.given.capacity_override_tokens is None
        # A fitted law without a roof has the arithmetic in its prices; it cannot be faster than the data sheet's peak.
        at_peak = law.compute_flops_per_second is None and (self.calibrated or self._bits == 4)
        share = 1.0 if at_peak else DATASHEET_COMPUTE_SHARE
        return Replica(
            law=law,
            gpu_count=gpu_count,
            resident_weight_bytes=self.model.total_weight_bytes,
            kv_bytes_per_token=per_token,
            memory_bytes=self.memory_bytes,
            utilization=self.flags["utilization"],
            overhead_bytes=OVERHEAD_BEST_BYTES if overhead is None else overhead,
            overhead_low_bytes=OVERHEAD_BEST_BYTES if is_guessed else None,
            overhead_high_bytes=OVERHEAD_HIGH_BYTES if is_guessed else None,
            capacity_tokens=self.given.capacity_override_tokens,
            collective=self._collective() if bare else None,
            reduce_seconds_per_sequence=self._reduces_in(law, gpu_count),
            active_params=self.model.active_params,
            compute_flops_per_second=self._compute_flops(gpu_count, share),
        )

    def law_assumptions(self) -> tuple[str, ...]:
        """Where the law is from if nothing was measured, and what a calibration was made for and is not there now."""
        if self.flags["bandwidth-efficiency"] is not None:
            return ()
        return assume(self.given, self.model, 1, None, ())[1].law_assumptions

    def _reduces_in(self, law: StepLaw, gpu_count: int) -> float:
        """Seconds per sequence of the pooled law's all-reduces: what one GPU's law has not."""
        pooled = self._law(gpu_count)
        if gpu_count < 2 or pooled.source != "datasheet" or not pooled.sequence_cost_seconds:
            return 0.0
        inside = max(0.0, pooled.sequence_cost_seconds - self._law(1).sequence_cost_seconds)
        return inside * law.sequence_cost_seconds / pooled.sequence_cost_seconds  # scaled to a running engine

    @property
    def _bits(self) -> int:
        """Of a weight: 4, 8 or 16, by the name of the type, or by bytes per parameter where bytes were given."""
        each = self.model.total_weight_bytes / self.model.active_params if self.model.active_params else 2.0
        dense = self.model.kind != "moe"
        if "4" in self.model.weight_dtype.replace("e4m3", "") or (dense and each < 0.75):
            return 4
        return 8 if "8" in self.model.weight_dtype or (dense and each < 1.5) else 16

    def _compute_flops(self, gpu_count: int, share: float) -> float | None:
        """FLOP/s that decoding may reach at a share of the peak, all GPUs, at the precision of the weights.

        Weights of 4 bits count at the 8-bit peak: the GPU table has no faster one.
        """
        gpu, share = self.given.gpu, self.flags["decode-efficiency"] or share
        if gpu is not None and gpu.fp8_flops and self.given.peak_flops is None and self._bits < 16:
            return gpu.fp8_flops * gpu_count * share
        flops = replace(self.given, gpu_count=gpu_count).flops
        return flops * share if flops is not None else None

    def _collective(self) -> Collective | None:
        row = all_reduce_of(self.given.gpu.name) if self.given.gpu is not None else None
        return Collective(row, self.shape.layers, self.shape.hidden) if row and self.shape else None

    def _law(self, gpu_count: int) -> StepLaw:
        flags, active = self.flags, self.model.active_params
        given = replace(self.given, gpu_count=gpu_count)
        share = flags["bandwidth-efficiency"]
        if share is not None:
            if given.bandwidth is None:
                raise ConfigError("--bandwidth-efficiency: share of what? give --hardware.gpu")
            given = replace(given, calibration=Calibration(share * given.bandwidth, identity="efficiencies"))
        facts, assumed = assume(given, self.model, 1, None, ())
        law = facts.law
        if law is None:
            raise ConfigError(f"plan: {'; '.join(assumed.missing) or 'no step law: give --hardware.gpu'}")
        if share is not None:
            law = replace(law, source="given")
        prefill = flags["prefill-efficiency"] or (DATASHEET_COMPUTE_SHARE if share is not None else None)
        if prefill is not None:
            cost = 2.0 * active / (given.flops * prefill) if active and given.flops else None
            law = replace(law, prefill_cost_seconds_per_token=cost, prefill_growth_seconds_per_token=0.0,
                          prompt_cost_seconds=0.0, prompt_growth_seconds=0.0)  # fmt: skip
        # The pooled figures end before the knee, so that the pooled law has no roof of its own. How fast the arithmetic
        # of 4-bit weights is (16-bit on Hopper, 4-bit on Blackwell) is not known: only the peak holds for it.
        if law.source == "datasheet" and law.compute_flops_per_second is None and self._bits > 4:
            roof = self._compute_flops(gpu_count, DATASHEET_COMPUTE_SHARE)
            law = replace(law, active_params=active, compute_flops_per_second=roof)
        if flags["decode-efficiency"] is not None and given.flops:
            law = replace(law, active_params=active, compute_flops_per_second=given.flops * flags["decode-efficiency"])
        return law


def check_heads(inputs: Inputs) -> None:
    """Raises ConfigError for a number of GPUs that tensor parallelism cannot use: engines refuse to start with it."""
    count, shape = inputs.given.gpu_count, inputs.shape
    if shape is not None and shape.heads % count:
        sizes = ", ".join(str(size) for size in range(1, min(shape.heads, 64) + 1) if shape.heads % size == 0)
        raise ConfigError(
            f"--hardware.count: {count} GPUs cannot share {shape.heads} attention heads evenly (possible: {sizes}); it "
            "is the size of one replica"
        )


def check_calibration(model: ModelSpec, given: Given) -> None:
    """Raises ConfigError for a calibration that was measured on something else: its figures would be made up here."""
    measured = given.calibration
    if measured is None:
        return
    gpu = given.gpu.name if given.gpu is not None else None
    named = measured.model is not None and _is_name(measured.model) and _is_name(model.name)
    for what, then, now, differs, flag in (
        ("model", measured.model, model.name, named and not same_model(measured.model or "", model.name), "model.id"),
        ("GPU", measured.gpu, gpu, gpu is not None and measured.gpu not in (None, gpu), "hardware.gpu"),
        ("GPU count", measured.gpu_count, given.gpu_count, measured.gpu_count not in (None, given.gpu_count),
         "hardware.count"),
    ):  # fmt: skip
        if differs:
            raise ConfigError(
                f"--calibration.file: made for another {what}: {then}, the plan is for {now}: give --{flag}={then}, or "
                "leave the calibration away to plan with the pooled figures"
            )


def _is_name(model: str) -> bool:
    """Whether it says which model it is: not numbers, not a path."""
    return model != NUMBERS and not model.startswith(("/", ".", "~")) and not model.endswith(".json")


def gather(settings: Settings, flags: PlanFlags, environ: Mapping[str, str] = os.environ) -> Inputs:
    """The inputs of an offline plan. Raises ConfigError or FactError."""
    model, assumptions = _model(settings, flags, environ)
    inputs = inputs_for(model, given_of(settings), settings, flags, assumptions)
    check_heads(inputs)
    return inputs


def inputs_for(
    model: ModelSpec, given: Given, settings: Settings, flags: PlanFlags, assumptions: tuple[str, ...] = ()
) -> Inputs:
    """The same for a model that is known."""
    if flags["bandwidth-efficiency"] is not None and given.calibration is not None:
        raise ConfigError("--bandwidth-efficiency: cannot be given together with --calibration.*")
    check_calibration(model, given)
    memory = settings[table.HARDWARE_MEMORY_BYTES] or (given.gpu.memory_bytes if given.gpu is not None else None)
    shape, reason = _shape(model)
    said = [*assumptions, *model.assumptions]
    if reason:
        said.append(reason)
    if model.kv_bytes_per_token is None:
        said.append("the model is hybrid: KV is taken as if every layer kept all tokens, an upper bound")
    if model.kind == "moe":
        said.append("a mixture of experts reads the expected number of distinct experts; real routing is less even")
    return Inputs(model, given, _demand(settings, flags, shape), flags, memory, shape, tuple(said))


def _demand(settings: Settings, flags: PlanFlags, shape: Shape | None) -> Demand:
    mix = flags["mix"] or (ContextClass(1.0, flags["context-tokens"]),)
    # A context is its prompt and, on average, half of what is generated.
    own = tuple(part.tokens - (flags["output-tokens"] or 0.0) / 2.0 for part in mix)
    prompts = own if flags["prompt-tokens"] is None else (flags["prompt-tokens"],) * len(mix)
    return Demand(
        mix=mix,
        concurrency=flags["concurrency"] or (),
        prompt_tokens=max(prompts),
        class_prompt_tokens=prompts,
        output_tokens=flags["output-tokens"],
        prefill_tokens_per_step=flags["prefill-tokens-per-step"],
        chunk_tokens=flags["chunk-tokens"],
        objective_tokens_per_second=settings[table.OBJECTIVE_TOKENS_PER_SECOND],
        headroom=settings[table.OBJECTIVE_HEADROOM],
        ttft_seconds=settings[table.OBJECTIVE_TTFT_SECONDS],
        max_num_seqs=flags["max-num-seqs"],
        reserve=flags["reserve"],
        shape=shape,
    )


def _model(settings: Settings, flags: PlanFlags, environ: Mapping[str, str]) -> tuple[ModelSpec, tuple[str, ...]]:
    """(model, what was assumed)."""
    params, weight_bytes = flags["model.params"], settings[table.MODEL_WEIGHT_BYTES]
    active = settings[table.MODEL_ACTIVE_PARAMS] or params
    per_token = settings[table.MODEL_KV_BYTES_PER_TOKEN]
    wanted = settings[table.MODEL_CONFIG] or settings[table.MODEL_ID]
    if wanted is None:
        said: tuple[str, ...] = ()
        if weight_bytes is None and params is not None:
            weight_bytes = BYTES_PER_16_BIT * params
            said = (f"weights are taken as 16 bit: {weight_bytes:.4g} bytes",)
        if weight_bytes is None or per_token is None:
            raise ConfigError("plan needs --model.id, --model.config, or --model.weight-bytes (or --model.params) and "
                              "--model.kv-bytes-per-token")  # fmt: skip
        return from_numbers(weight_bytes, per_token, active), said
    caches = settings[table.MODEL_HF_CACHE] or tuple(find_hf_caches(environ))
    model = resolve_model(str(wanted), caches=caches, kv_cache_dtype=settings[table.MODEL_KV_CACHE_DTYPE])
    if weight_bytes is not None:
        model = replace(model, weights=WeightBytes(weight_bytes), total_weight_bytes=weight_bytes)
    if per_token is not None:
        model = replace(model, kv_bytes_per_token=per_token, kv_layout=None)
    return (replace(model, active_params=active) if active is not None else model), ()


def _shape(model: ModelSpec) -> tuple[Shape | None, str]:
    """The model's dimensions from where its facts are from, or why there are none."""
    try:
        path = Path(model.source.removesuffix(", given"))
        if path.is_file():
            return read_shape(read_config(path), model.name), ""
        published = published_model(model.name)
        if published is not None:
            return read_shape(published.config, model.name), ""
    except FactError as error:
        return None, f"prefill attention and collectives are not known: {error}"
    return None, "no model configuration: the quadratic part of prefill and tensor-parallel collectives are left out"
