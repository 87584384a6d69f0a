"""A plan against the engine that really runs: what differs, and what to look at."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stepscope.core.plan_demand import Demand, Replica
from stepscope.core.step_model import StepLaw

# Below this a difference is rounding: the engine hands memory out in blocks and keeps one of them for itself.
SAME_WITHIN = 0.05
ENOUGH_OBSERVATIONS = 50.0  # gaps between tokens, as many as a verdict of the sidecar needs


@dataclass(frozen=True, slots=True)
class Reality:
    """What the engine said. Ratios and tokens; None: it cannot say.

    step_ratio: measured over predicted decode step, while it served requests. served: what it calls its model, and
    where it has it from.
    """

    capacity_tokens: float | None = None
    capacity_source: str | None = None
    block_size: float | None = None
    kv_dtype: str | None = None
    max_model_len: int | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    step_ratio: float | None = None
    observations: float = 0.0
    preemptions: float | None = None
    served: tuple[str, ...] = ()

    @property
    def usable_ratio(self) -> float | None:
        """The ratio where it rests on enough observations."""
        return self.step_ratio if self.observations >= ENOUGH_OBSERVATIONS else None


def scaled(law: StepLaw, ratio: float) -> StepLaw:
    """The law with every part of the decode step `ratio` times as long: what the engine was seen to do.

    It was seen at one load. At others anything between the law's own low and high and this is possible: that is the
    spread.
    """
    kv, flops = law.kv_bandwidth_bytes_per_second, law.compute_flops_per_second
    return replace(
        law,
        effective_bandwidth_bytes_per_second=law.effective_bandwidth_bytes_per_second / ratio,
        kv_bandwidth_bytes_per_second=None if kv is None else kv / ratio,
        kv_context_cost_seconds_per_byte_token=law.kv_context_cost_seconds_per_byte_token * ratio,
        step_overhead_seconds=law.step_overhead_seconds * ratio,
        sequence_cost_seconds=law.sequence_cost_seconds * ratio,
        batch_growth_seconds=law.batch_growth_seconds * ratio,
        wide_batch_seconds=law.wide_batch_seconds * ratio,
        compute_flops_per_second=None if flops is None else flops / ratio,
        source="engine",
        low_factor=min(law.low_factor, ratio) / ratio,
        high_factor=max(law.high_factor, ratio) / ratio,
    )


def checks(
    planned: Replica, planned_kv_dtype: str, demand: Demand, seen: Reality, planned_model: str | None = None
) -> list[str]:
    """What to look at, one line each; empty where plan and engine agree. `planned`: without the engine's capacity.

    planned_model: None where numbers were given instead of a model.
    """
    found = []
    if planned_model is not None and seen.served and not any(same_model(planned_model, name) for name in seen.served):
        found.append(f"model: planned {planned_model}, the engine serves {' from '.join(seen.served)}")
    room = planned.kv_room_bytes
    if room is not None and seen.capacity_tokens:
        tokens = room / planned.kv_bytes_per_token
        if abs(tokens / seen.capacity_tokens - 1.0) > SAME_WITHIN:
            found.append(
                f"memory: planned {tokens:,.0f} tokens of KV, the engine holds {seen.capacity_tokens:,.0f} "
                f"({seen.capacity_source}); what would explain it:"
            )
            found += list(_explanations(planned, planned_kv_dtype, seen, tokens))
    longest = max(part.tokens for part in demand.mix)
    if seen.max_model_len is not None and longest > seen.max_model_len:
        found.append(f"--max-model-len: the engine takes {seen.max_model_len:,} tokens, the mix has {longest:,.0f}")
    if seen.requests_waiting and seen.requests_running and demand.max_num_seqs is None:
        found.append(
            f"--max-num-seqs: {seen.requests_waiting:.0f} requests wait while {seen.requests_running:.0f} run; if KV "
            "is free, that flag is the limit: give the same number here"
        )
    if seen.preemptions:
        found.append(f"preemptions: {seen.preemptions:.0f} so far; the engine has run out of KV memory before")
    if seen.step_ratio is not None and abs(seen.step_ratio - 1.0) > SAME_WITHIN:
        found.append(f"decode step: {seen.step_ratio:.2f} times the prediction now; run stepscope calibrate")
    return found


def same_model(one: str, other: str) -> bool:
    """Whether two names stand for one model.

    By the last part: a repository's name, or a folder on the way that is called like it (models--Qwen--Qwen3-8B).
    """
    return one.rstrip("/").rpartition("/")[2].lower() in re.split("/|--", other.lower())


def _explanations(planned: Replica, kv_dtype: str, seen: Reality, tokens: float) -> list[str]:
    lines = []
    capacity = seen.capacity_tokens or 1.0
    if seen.kv_dtype and seen.kv_dtype not in ("auto", kv_dtype):
        lines.append(f"  KV dtype: planned {kv_dtype}, the engine says {seen.kv_dtype}")
    if planned.memory_bytes is not None and tokens > capacity:
        spare = (tokens - capacity) * planned.kv_bytes_per_token / planned.gpu_count
        overhead = planned.overhead_bytes + spare
        lines.append(f"  runtime overhead: --runtime-overhead-bytes={overhead:.4g} per GPU would give the same")
    if planned.memory_bytes is not None:
        needed = capacity * planned.kv_bytes_per_token + planned.resident_weight_bytes
        share = (needed / planned.gpu_count + planned.overhead_bytes) / planned.memory_bytes
        lines.append(f"  --gpu-memory-utilization: planned {planned.utilization:g}, {share:.2f} would give the same")
    if seen.block_size:
        lines.append(f"  block size: {seen.block_size:.0f} tokens; with short contexts the last block is partly empty")
    lines.append("  KV layout: hybrid models and draft models keep more than one cache in the same pool")
    return lines
