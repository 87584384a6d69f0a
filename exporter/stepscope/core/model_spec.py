"""What the step law must know of a model: weight bytes read in a step, KV bytes per token, parameters at work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.core.config_reader import ConfigReader
from stepscope.core.kv_layout import KvLayout, read_kv_layout
from stepscope.core.layer_plan import read_layers
from stepscope.core.parameters import Parameters, count_parameters
from stepscope.core.quantization import Quantization, kv_dtype, model_dtype, read_quantization
from stepscope.core.step_model import WeightBytes
from stepscope.errors import FactError

MAX_LEN = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
MAX_BYTES = 1e16  # far above any checkpoint; keeps sums of wrong numbers finite


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """Exact sizes read from a checkpoint's safetensors headers. None where only the total is known (an index alone).

    embedding: the input embedding table; experts: all routed experts; unread: vision towers, multi-token-prediction
    layers and other tensors that a plain decode step does not touch.
    """

    total: int
    embedding: int | None = None
    experts: int | None = None
    unread: int | None = None
    has_lm_head: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, all GPUs together.

    kind: dense or moe. weights: what a decode step reads (an input embedding that is not tied is left out: one row per
    token). total_weight_bytes: what lies in memory. kv_bytes_per_token: one token in flight, held once; None for hybrid
    models, where `block_bytes` gives the bytes of a pool block. attention: mha, gqa, mqa, mla, sliding, hybrid or
    given. assumptions: what was guessed, one sentence each. source: where the facts are from.
    """

    name: str
    kind: str
    layers: int | None
    weights: WeightBytes
    total_weight_bytes: float
    kv_bytes_per_token: float | None
    kv_layout: KvLayout | None
    active_params: float | None
    total_params: float | None
    max_model_len: int | None
    attention: str
    weight_dtype: str
    kv_dtype: str
    assumptions: tuple[str, ...]
    source: str

    @property
    def hybrid(self) -> bool:
        """Whether layers keep different kinds of memory, so that bytes must come from pool blocks."""
        return self.kv_layout is not None and self.kv_layout.hybrid

    @property
    def kv_bytes_per_token_all_layers(self) -> float | None:
        """One token in every layer that keeps KV, windows ignored: exact for uniform models, else the upper bound."""
        return self.kv_layout.bytes_per_token_all_layers if self.kv_layout else self.kv_bytes_per_token

    def block_bytes(self, block_size: int, tensor_parallel: int = 1) -> float | None:
        """Bytes of one block of the KV pool, summed over `tensor_parallel` GPUs; None where that is unknown.

        block_size: tokens, as the engine's page says it (`effective_attention_block_size` where there is one).
        """
        if self.kv_layout is None:
            return None if self.kv_bytes_per_token is None else block_size * self.kv_bytes_per_token
        size = self.kv_layout.block_bytes(block_size)
        return None if size is None else size * self.kv_layout.copies(tensor_parallel)

    def kv_read_bytes_per_token(self, tensor_parallel: int = 1) -> float | None:
        """Bytes that one token in flight adds to a step's reads, summed over `tensor_parallel` GPUs.

        Above `kv_bytes_per_token` where a copy per GPU is read: a latent (MLA) is never shared out, KV heads only as
        far as there are heads (vLLM, ModelConfig.get_num_kv_heads: at least one per GPU).
        """
        if self.kv_bytes_per_token is None:
            return None
        return self.kv_bytes_per_token * (self.kv_layout.copies(tensor_parallel) if self.kv_layout else 1.0)


def from_hf_config(
    config: Mapping[str, object],
    *,
    name: str,
    kv_cache_dtype: str | None = None,
    dtype: str | None = None,
    tensors: TensorBytes | None = None,
    safetensors_total_bytes: int | None = None,
    source: str = "config.json",
) -> ModelSpec:
    """The spec of a model from its Hugging Face configuration.

    kv_cache_dtype: the engine's `cache_dtype` label. dtype: what the engine was started with, if not the
    configuration's. tensors: sizes read from the checkpoint; safetensors_total_bytes: the same where only the total is
    known. Raises FactError, one line that names the model and the key.
    """
    reader = ConfigReader(config, name)
    if tensors is None and safetensors_total_bytes is not None:
        tensors = TensorBytes(safetensors_total_bytes)
    if tensors is not None and not 0 < tensors.total <= MAX_BYTES:
        raise reader.error(f"the checkpoint's size {tensors.total} bytes is not possible")
    plan = read_layers(reader)
    element = model_dtype(reader, dtype)
    kv_type = kv_dtype(reader, kv_cache_dtype, element)
    layout = read_kv_layout(reader, plan, kv_type, element[1])
    seen_head = None if tensors is None or tensors.has_lm_head is None else not tensors.has_lm_head
    parameters = count_parameters(reader, plan, tied=seen_head)
    quantization = read_quantization(reader, element, len(plan), exact=tensors is not None)
    if reader.model_type.startswith(("gemma3n", "gemma4")):
        reader.assume("per-layer input embeddings are not counted")
    weights, total = weigh(parameters, quantization, tensors)
    if tensors is None:
        reader.assume("weight bytes are counted from the dimensions: no checkpoint was there to measure")
    return ModelSpec(
        name=name,
        kind="moe" if parameters.moe_layers else "dense",
        layers=len(plan),
        weights=weights,
        total_weight_bytes=total,
        kv_bytes_per_token=layout.bytes_per_token,
        kv_layout=layout,
        active_params=float(parameters.active),
        total_params=float(parameters.total),
        max_model_len=reader.optional_integer(*MAX_LEN),
        attention=layout.attention,
        weight_dtype=quantization.label,
        kv_dtype=kv_type[0],
        assumptions=tuple(reader.assumptions),
        source=source,
    )


def weigh(parameters: Parameters, quantization: Quantization, tensors: TensorBytes | None) -> tuple[WeightBytes, float]:
    """Bytes read in a step and bytes resident, from counted parameters, corrected by what a checkpoint measures."""
    plain = quantization.plain_bytes
    parts = ("attention", "mlp", "shared_experts", "lm_head")
    counted = sum(getattr(parameters, part) * quantization.bytes_per_param(part) for part in parts)
    counted += (parameters.router + parameters.other) * plain
    table = parameters.embedding * plain
    always = counted + (table if parameters.tied else 0.0)
    unread = parameters.positions * plain + (0.0 if parameters.tied else table)
    expert = parameters.expert * quantization.bytes_per_param("experts")
    all_experts = expert * parameters.experts * parameters.moe_layers
    total = always + unread + all_experts
    if tensors is not None:
        total = float(tensors.total)
        measured_table = table if tensors.embedding is None else float(tensors.embedding)
        skipped = (0.0 if parameters.tied else measured_table) + (tensors.unread or 0)
        body = max(total - skipped, 0.0)
        if tensors.experts is not None:
            all_experts = float(tensors.experts)
        elif all_experts + always > 0:
            # Only the total is known: what it differs by is spread over experts and the rest alike.
            all_experts *= body / (all_experts + always)
        all_experts = min(all_experts, body)
        always = body - all_experts
        if parameters.moe_layers:
            expert = all_experts / (parameters.experts * parameters.moe_layers)
    if not parameters.moe_layers:
        return WeightBytes(always), total
    return (
        WeightBytes(always, expert, parameters.experts, parameters.experts_per_token, parameters.moe_layers),
        total,
    )


def from_numbers(
    weight_bytes: float,
    kv_bytes_per_token: float | None = None,
    active_params: float | None = None,
    *,
    name: str = "given",
    max_model_len: int | None = None,
) -> ModelSpec:
    """A dense spec from explicit numbers. weight_bytes: read in a step and resident.

    Raises FactError for a number that is out of range or not finite.
    """
    for what, value, low in (
        ("weight bytes", weight_bytes, 1.0),
        ("KV bytes per token", kv_bytes_per_token, 0.0),
        ("active parameters", active_params, 1.0),
    ):
        if value is not None and not low <= value <= MAX_BYTES:
            raise FactError(f"{name}: {what} must lie between {low:g} and {MAX_BYTES:g}, not {value:g}")
    return ModelSpec(
        name=name,
        kind="dense",
        layers=None,
        weights=WeightBytes(float(weight_bytes)),
        total_weight_bytes=float(weight_bytes),
        kv_bytes_per_token=None if kv_bytes_per_token is None else float(kv_bytes_per_token),
        kv_layout=None,
        active_params=active_params,
        total_params=None,
        max_model_len=max_model_len,
        attention="given",
        weight_dtype="given",
        kv_dtype="given",
        assumptions=(),
        source="given",
    )
