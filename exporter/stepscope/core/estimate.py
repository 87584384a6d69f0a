"""From what the engine said to what a decode step works on: capacity, tokens in flight, bytes, load."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.model_spec import ModelSpec
from stepscope.core.sample import EngineSample
from stepscope.core.step_model import Load, StepLaw
from stepscope.core.window import Pair, increase

# Tokens that a full cache counts for where its capacity is unknown: a unit for learned laws, whatever its size.
USAGE_UNIT_TOKENS = 100_000.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the engine besides its page."""

    law: StepLaw | None = None
    model: ModelSpec | None = None
    gpu_count: int = 1
    capacity_override_tokens: float | None = None
    pool_bytes_override: float | None = None
    lockstep: bool = False  # data-parallel ranks of a mixture of experts wait for the slowest
    law_in_tokens: bool = False  # learned without a model: tokens stand for bytes, usage for tokens where need be


@dataclass(frozen=True, slots=True)
class KvState:
    """The KV cache at one sample. None: cannot be known."""

    capacity_tokens: float | None
    capacity_source: str | None  # override, label, blocks
    tokens_in_flight: float | None
    kv_bytes: float | None  # only where bytes do not follow from tokens (hybrid models)
    bytes_per_token: float | None  # only for hybrid models: pool bytes over capacity
    load_tokens: float | None  # tokens in flight as the law wants them; for a law in tokens never unknown with usage


def capacity(sample: EngineSample, facts: Facts) -> tuple[float | None, str | None]:
    """KV capacity of this engine in tokens and its source: operator, the engine's own label, blocks x block size."""
    if facts.capacity_override_tokens:
        return facts.capacity_override_tokens, "override"
    if sample.capacity_label_tokens:
        return sample.capacity_label_tokens, "label"
    if sample.num_blocks and sample.block_size:
        return sample.num_blocks * sample.block_size, "blocks"
    return None, None


def pool_bytes(sample: EngineSample, facts: Facts) -> float | None:
    """Bytes of the KV pool of a hybrid model, all GPUs: override, blocks x the model's block, the engine's label."""
    if facts.pool_bytes_override:
        return facts.pool_bytes_override
    block_size = sample.attention_block_size or sample.block_size
    if facts.model is not None and sample.num_blocks and block_size:
        block = facts.model.block_bytes(int(block_size), facts.gpu_count)
        if block:
            return block * sample.num_blocks
    if sample.pool_bytes_label:
        return sample.pool_bytes_label * facts.gpu_count  # the label is per GPU
    return None


def kv_state(sample: EngineSample, facts: Facts) -> KvState:
    """Tokens and bytes in flight: usage x capacity, usage x pool. Block rounding is the engine's and stays in."""
    tokens, source = capacity(sample, facts)
    usage = sample.kv_usage
    kv_bytes = per_token = None
    if facts.model is not None and facts.model.hybrid:
        pool = pool_bytes(sample, facts)
        if pool is not None:
            kv_bytes = usage * pool if usage is not None else None
            per_token = pool / tokens if tokens else None
    in_flight = usage * tokens if usage is not None and tokens is not None else None
    load_tokens = in_flight
    if load_tokens is None and facts.law_in_tokens and usage is not None:
        load_tokens = usage * USAGE_UNIT_TOKENS
    return KvState(
        capacity_tokens=tokens,
        capacity_source=source,
        tokens_in_flight=in_flight,
        kv_bytes=kv_bytes,
        bytes_per_token=per_token,
        load_tokens=load_tokens,
    )


def load_of(kv: KvState, sequences: float) -> Load | None:
    """The load of a decode step right now; None if neither tokens nor bytes are known."""
    if kv.load_tokens is None and kv.kv_bytes is None:
        return None
    return Load(sequences=sequences, tokens_in_flight=kv.load_tokens or 0.0, kv_bytes=kv.kv_bytes)


def load_of_pair(pair: Pair, kv: KvState, facts: Facts) -> Load | None:
    """The mean load of the steps of a pair: its batch and prefill, the tokens of its later sample."""
    if pair.sequences is None or (kv.load_tokens is None and kv.kv_bytes is None):
        return None
    read_bytes = None
    read = increase(pair.first.read_bytes, pair.last.read_bytes)  # moves only with --enable-mfu-metrics
    if read > 0.0 and pair.steps and not facts.law_in_tokens:
        read_bytes = read * facts.gpu_count / pair.steps
    return Load(
        sequences=pair.sequences,
        tokens_in_flight=kv.load_tokens or 0.0,
        prefill_tokens_per_step=pair.prefill_seen_tokens_per_step,
        positions_per_sequence=pair.positions_per_sequence,
        kv_bytes=kv.kv_bytes,
        read_bytes=read_bytes,
    )
