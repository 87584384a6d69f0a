"""From names and numbers, as an operator gives them, to an engine configuration."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from stepscope.errors import ConfigError
from stepscope.sim.physics import Physics
from stepscope.sim.presets import GPUS, MODELS, EngineConfig, kv_blocks

T = TypeVar("T")
PHYSICS = ("well-behaved", "realistic")
GPU_MEMORY_UTILIZATION = 0.9  # share of GPU memory for weights and KV; vLLM's default --gpu-memory-utilization
BLOCK_TOKENS = 16  # vLLM's default block size on CUDA


def build_config(
    model: str = "qwen3-8b",
    gpu: str = "H100-SXM",
    physics: str = "well-behaved",
    *,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    draft_tokens: int = 0,
    draft_acceptance: float = 0.0,
    weight_bytes: float | None = None,
    kv_bytes_per_token: float | None = None,
    num_gpu_blocks: int | None = None,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
    mfu_metrics: bool = False,
) -> EngineConfig:
    """An engine by preset names; explicit numbers win. ConfigError names what is unknown or does not fit."""
    model_preset, gpu_preset = _pick("model", model, MODELS), _pick("GPU", gpu, GPUS)
    if physics not in PHYSICS:
        raise ConfigError(f"sim: unknown physics {physics!r} (known: {', '.join(PHYSICS)})")
    if tensor_parallel < 1:
        raise ConfigError("sim: tensor_parallel must be at least 1")
    if weight_bytes is not None:  # resident as well as read: nothing is known of an embedding
        model_preset = replace(model_preset, params=weight_bytes / 2.0, active_params=weight_bytes / 2.0)
    if kv_bytes_per_token is not None:
        model_preset = replace(model_preset, kv_bytes_per_token=kv_bytes_per_token)
    make = Physics.well_behaved if physics == "well-behaved" else Physics.realistic
    try:
        law = make(gpu_preset, model_preset, tensor_parallel)
    except ValueError as error:
        raise ConfigError(f"sim: {error}") from None
    if num_gpu_blocks is None:
        num_gpu_blocks = kv_blocks(gpu_preset, model_preset, tensor_parallel, GPU_MEMORY_UTILIZATION, BLOCK_TOKENS)
        if num_gpu_blocks < 2:
            raise ConfigError(f"sim: {model} does not fit on {tensor_parallel} x {gpu}; give --tensor-parallel")
    return EngineConfig(
        physics=law,
        num_gpu_blocks=num_gpu_blocks,
        model_name=model_preset.model_id,
        model_root=model_preset.model_id,
        max_model_len=max(1, min(model_preset.max_model_len, (num_gpu_blocks - 1) * BLOCK_TOKENS - draft_tokens)),
        block_size=BLOCK_TOKENS,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        data_parallel=data_parallel,
        draft_tokens=draft_tokens,
        draft_acceptance=draft_acceptance,
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION,
        mfu_metrics=mfu_metrics,
    )


def parse_speculative(text: str) -> tuple[int, float]:
    """(drafted tokens, acceptance) of "K:P". ConfigError otherwise."""
    drafts, _, acceptance = text.partition(":")
    try:
        k, p = int(drafts), float(acceptance)
    except ValueError:
        k, p = -1, 0.0
    if not (1 <= k <= 16 and 0.0 <= p <= 1.0):
        raise ConfigError(f"sim: --speculative must be K:P with K 1..16 and P 0..1, not {text!r}")
    return k, p


def _pick(what: str, name: str, table: Mapping[str, T]) -> T:
    for key, value in table.items():
        if key.lower() == name.lower():
            return value
    nearest = difflib.get_close_matches(name, table, n=1, cutoff=0.5)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(f"sim: unknown {what} {name!r}{hint} (known: {', '.join(table)})")
