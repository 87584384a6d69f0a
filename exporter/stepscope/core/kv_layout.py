"""Bytes of KV cache: per token where every layer keeps the same, per pool block where layers differ (hybrid models).

How vLLM lays out a hybrid pool (v1/core/kv_cache_utils.py, read in 0.32.0: get_kv_cache_groups,
unify_kv_cache_spec_page_size, _get_kv_cache_groups_uniform_page_size): layers of one kind are split into groups of
equal size, all groups share one pool of equal blocks, and a block holds `block_size` tokens of each layer of one group.
So a block's bytes = layers per group x bytes of one layer's page, whichever group it serves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.config_reader import ConfigReader
from stepscope.core.layer_plan import Layer
from stepscope.core.quantization import DTYPE_BYTES, MLA_PACKED_BYTES

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "attn_config.kv_n_heads")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")

KERNEL_BLOCK_TOKENS = 16  # vLLM 0.32.0, platforms/interface.py: smallest kernel block of the attention backends
INDEX_SCALE_BYTES = 4 / 128  # vLLM 0.32.0, deepseek_v2.py Indexer: one float32 scale per 128 one-byte key elements
MERGE_RATIO = 1.5  # _get_kv_cache_groups_uniform_page_size of 0.32.0; releases before it used 1.25


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that keep the same kind of memory.

    kind: full, sliding, chunked (KV per token), linear, mamba, other (a fixed state per sequence).
    bytes_per_token: one token in ONE layer, unsharded; 0 for states. state_bytes: one sequence in one layer, None where
    it is not known. heads: KV copies that tensor parallelism can share out (1 for a latent).
    """

    kind: str
    layers: int
    bytes_per_token: float
    heads: int
    window_tokens: int | None = None
    state_bytes: float | None = None

    @property
    def is_state(self) -> bool:
        """Whether the layers keep a state of fixed size instead of KV per token."""
        return self.kind in ("linear", "mamba", "other")


def layers_per_group(counts: Sequence[int]) -> int:
    """Layers per KV group from the number of layers of each kind, as _get_kv_cache_groups_uniform_page_size chooses.

    The smallest count, unless the largest is below 1.5 times it: then the largest (with padding layers). counts: each
    at least 1, not empty.
    """
    smallest, largest = min(counts), max(counts)
    return largest if largest < smallest * MERGE_RATIO else smallest


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The KV memory of a model. `attention`: mha, gqa, mqa, mla, sliding or hybrid."""

    groups: tuple[KvGroup, ...]
    attention: str

    @property
    def hybrid(self) -> bool:
        """Whether layers differ in kind, so that tokens in flight do not say how many bytes are held."""
        kinds = {(group.kind, group.window_tokens) for group in self.groups}
        return len(kinds) > 1 or any(group.is_state for group in self.groups)

    @property
    def bytes_per_token_all_layers(self) -> float:
        """Bytes of one token in every layer that keeps KV, windows ignored: the upper bound for a hybrid model."""
        return sum(group.layers * group.bytes_per_token for group in self.groups)

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of one token in flight; None for hybrid models and where nothing keeps KV."""
        total = self.bytes_per_token_all_layers
        return None if self.hybrid or not total else total

    def copies(self, tensor_parallel: int) -> float:
        """How often each KV byte is held (and read) over the GPUs: a head that cannot be split is copied to each."""
        heads = [group.heads for group in self.groups if not group.is_state]
        return max(1.0, tensor_parallel / min(heads)) if heads else 1.0

    def group_count(self) -> int:
        """How many KV groups share the pool."""
        if not self.hybrid:
            return 1
        size = self._group_size()
        return sum(math.ceil(count / size) for count in self._counts())

    def _counts(self) -> list[int]:
        counts: Counter[tuple[str, int | None]] = Counter()
        for group in self.groups:
            counts[(group.kind, group.window_tokens)] += group.layers
        return list(counts.values())

    def _group_size(self) -> int:
        return layers_per_group(self._counts())

    def block_bytes(self, block_size: int) -> float | None:
        """Bytes of one block of the pool, unsharded and held once; multiply by `copies` for the sum over the GPUs.

        block_size: tokens, the engine's attention block size. With states in the pool the engine raises it until a
        layer's page holds a state (platforms/interface.py); the label of older releases does not show that, so that a
        too small one is raised here in the same way. None where a state's size is unknown.
        """
        if not self.groups or block_size < 1:
            return None
        if not self.hybrid:
            return block_size * self.bytes_per_token_all_layers or None
        page_bytes = max(group.bytes_per_token for group in self.groups)
        if not page_bytes:
            return None
        tokens = block_size
        for group in self.groups:
            if group.is_state:
                if group.state_bytes is None:
                    return None
                if tokens * page_bytes < group.state_bytes:
                    tokens = KERNEL_BLOCK_TOKENS * math.ceil(group.state_bytes / (KERNEL_BLOCK_TOKENS * page_bytes))
        return self._group_size() * tokens * page_bytes


def head_dim(reader: ConfigReader, heads: int) -> int:
    """Elements of one attention head; where it is not given the width over the heads, rounded down (as vLLM does)."""
    given = reader.optional_integer("head_dim", "kv_channels")
    if given is not None:
        return given
    hidden = reader.integer(*HIDDEN)
    if hidden < heads:
        raise reader.error(f"head_dim is missing, and hidden_size {hidden} is below num_attention_heads {heads}")
    return hidden // heads


def kv_heads(reader: ConfigReader, heads: int) -> int:
    """KV heads per layer. Source of the older families' rules: transformers' falcon, gpt_bigcode and mpt classes."""
    if reader.model_type in ("falcon", "refinedweb", "refinedwebmodel", "gpt_bigcode"):
        grouped = reader.boolean("new_decoder_architecture", default=False)
        if not grouped and reader.boolean("multi_query", default=True):
            return 1
        return (reader.optional_integer("num_kv_heads", "n_head_kv") or heads) if grouped else heads
    if reader.text("attn_config.attn_type") == "multiquery_attention":
        return 1
    if reader.model_type == "chatglm" and not reader.boolean("multi_query_attention", default=False):
        return heads
    given = reader.optional_integer(*KV_HEADS) or heads
    if given > heads:
        raise reader.error(f"num_key_value_heads {given} exceeds num_attention_heads {heads}")
    return given


def _linear_state_bytes(reader: ConfigReader, element: float) -> float:
    """State of a gated delta net layer: vLLM 0.32.0, mamba_utils.py, gated_delta_net_state_shape."""
    keys = reader.integer("linear_num_key_heads") * reader.integer("linear_key_head_dim")
    values = reader.integer("linear_num_value_heads") * reader.integer("linear_value_head_dim")
    kernel = reader.integer("linear_conv_kernel_dim")
    recurrent = DTYPE_BYTES.get(reader.text("mamba_ssm_dtype") or "", element)
    return (2 * keys + values) * (kernel - 1) * element + values * reader.integer("linear_key_head_dim") * recurrent


def _latent_bytes(reader: ConfigReader, kv_type: tuple[str, float]) -> float:
    """One token of one latent (MLA) layer: rank + rotary elements, plus the index key of sparse attention."""
    elements = reader.integer("kv_lora_rank") + reader.integer("qk_rope_head_dim", minimum=0)
    size = MLA_PACKED_BYTES.get(kv_type[0], elements * kv_type[1])
    index = reader.optional_integer("index_head_dim")
    if index is not None:
        top = reader.optional_integer("index_topk")
        reader.assume(f"sparse attention reads at most {top} latents per token: KV reads are an upper bound")
        size += index * (1 + INDEX_SCALE_BYTES)
    return size


def read_kv_layout(
    reader: ConfigReader, layers: Sequence[Layer], kv_type: tuple[str, float], element: float
) -> KvLayout:
    """The KV memory of a model's layers. kv_type: (name, bytes per element); element: bytes of the model's own type."""
    shared = reader.optional_integer("num_kv_shared_layers", minimum=0) or 0  # Gemma 3n: the last layers keep no KV
    counted = Counter(layer.mixer for layer in layers[: max(len(layers) - shared, 0)] if layer.mixer != "none")
    if not counted:
        raise reader.error("no layer has attention or a state: give --model.kv-bytes-per-token")
    groups: list[KvGroup] = []
    label = "hybrid"
    for kind, count in counted.items():
        if kind == "linear":
            groups.append(KvGroup(kind, count, 0.0, 1, state_bytes=_linear_state_bytes(reader, element)))
        elif kind in ("mamba", "other"):
            reader.assume(f"{count} layers keep a state whose size is not derived: pool bytes are unknown")
            groups.append(KvGroup(kind, count, 0.0, 1))
        else:
            attention, label = _attention_groups(reader, kind, count, len(layers), kv_type)
            groups += attention
    layout = KvLayout(tuple(groups), label)
    if layout.hybrid:
        layout = KvLayout(layout.groups, "hybrid")
        if any(group.kind == "chunked" for group in groups):
            reader.assume("chunked layers are taken as KV groups of their own (the default of new vLLM releases)")
    return layout


def _attention_groups(
    reader: ConfigReader, kind: str, count: int, layers: int, kv_type: tuple[str, float]
) -> tuple[list[KvGroup], str]:
    """The groups of one kind of attention, and its name."""
    window = None
    if kind == "sliding":
        window = reader.integer("sliding_window")
    elif kind == "chunked":
        window = reader.integer("attention_chunk_size")
    if reader.has("kv_lora_rank"):
        return [KvGroup(kind, count, _latent_bytes(reader, kv_type), 1, window)], "mla"
    heads = reader.integer(*HEADS)
    size = head_dim(reader, heads)
    varied = reader.integers("num_key_value_heads_per_layer", minimum=1)  # DeciLM
    if varied:
        reader.per_layer("num_key_value_heads_per_layer", varied, layers)
        groups = [KvGroup(kind, n, 2 * h * size * kv_type[1], h, window) for h, n in sorted(Counter(varied).items())]
        return groups, "gqa"
    copies = kv_heads(reader, heads)
    group = KvGroup(kind, count, 2 * copies * size * kv_type[1], copies, window)
    if window is not None and kind == "sliding":
        return [group], "sliding"
    return [group], "mha" if copies == heads else "mqa" if copies == 1 else "gqa"
