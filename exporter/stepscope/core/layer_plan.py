"""What each layer of a model is made of: its attention (or state) and its feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.config_reader import MAX_LAYERS, ConfigReader, shown

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "ffn_config.moe_num_experts")

# Spellings of layer kinds in `layer_types`, `layers_block_type` and `hybrid_override_pattern`.
_KINDS = {
    "full_attention": "full",
    "indexed_attention": "full",  # DeepSeek sparse attention: keeps every token's latent, reads a choice of them
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding_window_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
}
_NEMOTRON_H = {"M": "mamba", "*": "full", "-": "mlp", "E": "moe"}  # transformers, nemotron_h: pattern letters


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. mixer: full, sliding, chunked, linear, mamba, other or none; feed_forward: dense, moe or none."""

    mixer: str
    feed_forward: str


def _from_pattern(reader: ConfigReader, layers: int) -> list[Layer] | None:
    """Layers that are one block each (Nemotron-H): attention, Mamba, MLP or experts."""
    pattern = reader.text("hybrid_override_pattern")
    blocks = reader.strings("layers_block_type")
    if pattern is not None:
        reader.per_layer("hybrid_override_pattern", pattern, layers)
        kinds = [_NEMOTRON_H.get(letter) for letter in pattern]
        if None in kinds:
            raise reader.error(f"hybrid_override_pattern has a letter other than M * - E: {shown(pattern)}")
    elif blocks is not None and "nemotron_h" in reader.model_type:
        reader.per_layer("layers_block_type", blocks, layers)
        kinds = [_state_kind(reader, _KINDS.get(block, block)) for block in blocks]
    else:
        return None
    plan = {"mlp": Layer("none", "dense"), "moe": Layer("none", "moe")}
    return [plan.get(str(kind)) or Layer(str(kind), "none") for kind in kinds]


def _every(reader: ConfigReader, key: str, layers: int, often: str, rare: str) -> list[str] | None:
    """`rare` on every n-th layer (n under `key`), `often` between."""
    interval = reader.optional_integer(key)
    return [rare if (i + 1) % interval == 0 else often for i in range(layers)] if interval else None


def _state_kind(reader: ConfigReader, kind: str) -> str:
    """Which state "linear_attention" means: gated delta net, Mamba (its name in newer files), or one not known here."""
    if kind != "linear" or reader.optional_integer("linear_num_key_heads") is not None:
        return kind
    return "mamba" if reader.has("mamba_d_state", "ssm_state_size") else "other"


def _mixers(reader: ConfigReader, layers: int) -> list[str]:
    """The attention or state kind of each layer."""
    types_key = next((key for key in ("layer_types", "layers_block_type", "attn_type_list") if reader.is_list(key)), "")
    if types_key and types_key != "attn_type_list":
        types = reader.strings(types_key) or ()
        reader.per_layer(types_key, types, layers)
        unknown = sorted({kind for kind in types if kind not in _KINDS})
        if unknown:
            reader.assume(f"layer kind {shown(unknown[0])} is not known: its KV bytes are left out")
        return [_state_kind(reader, _KINDS.get(kind, "other")) for kind in types]
    if types_key:  # MiniMax: 1 is softmax attention, 0 is lightning attention
        flags = reader.integers(types_key) or ()
        reader.per_layer(types_key, flags, layers)
        return ["full" if flag else "other" for flag in flags]
    if reader.is_list("attn_layer_indices"):  # Bamba
        indices = set(reader.integers("attn_layer_indices") or ())
        return ["full" if i in indices else "mamba" for i in range(layers)]
    if reader.has("attn_layer_period") or reader.model_type == "jamba":
        period = reader.integer("attn_layer_period")
        offset = reader.integer("attn_layer_offset", minimum=0)
        return ["full" if i % period == offset else "mamba" for i in range(layers)]
    if reader.model_type.startswith(("qwen3_next", "qwen3_5")):
        interval = reader.integer("full_attention_interval")
        return ["full" if (i + 1) % interval == 0 else "linear" for i in range(layers)]
    if reader.has("attention_chunk_size") or reader.model_type.startswith("llama4"):
        return _chunked(reader, layers)
    return _sliding(reader, layers)


def _chunked(reader: ConfigReader, layers: int) -> list[str]:
    """Llama 4: layers with rotary positions attend inside a chunk, every fourth layer to everything."""
    if reader.optional_integer("attention_chunk_size") is None:
        return ["full"] * layers
    flags = reader.integers("no_rope_layers")
    if flags:
        reader.per_layer("no_rope_layers", flags, layers)
        return ["chunked" if flag else "full" for flag in flags]
    return _every(reader, "no_rope_layer_interval", layers, "chunked", "full") or ["chunked"] * layers


def _sliding(reader: ConfigReader, layers: int) -> list[str]:
    """Sliding window: on all layers, on all but every n-th, on every second, or from a layer upwards."""
    if reader.optional_integer("sliding_window", minimum=0) in (None, 0):
        return ["full"] * layers
    if not reader.boolean("use_sliding_window", default=True):
        return ["full"] * layers
    if reader.model_type.startswith("qwen") and not reader.has("use_sliding_window"):
        return ["full"] * layers  # transformers: Qwen2Config(use_sliding_window=False)
    key = "sliding_window_pattern" if not reader.has("_sliding_window_pattern") else "_sliding_window_pattern"
    pattern = _every(reader, key, layers, "sliding", "full")
    if pattern:
        return pattern
    if reader.model_type in ("gemma2", "gpt_oss"):  # transformers: sliding on layers 0, 2, 4, ...
        return ["sliding" if i % 2 == 0 else "full" for i in range(layers)]
    first = reader.optional_integer("max_window_layers", minimum=0)
    if first is not None and reader.model_type.startswith("qwen"):
        return ["full" if i < first else "sliding" for i in range(layers)]
    return ["sliding"] * layers


def _feed_forwards(reader: ConfigReader, layers: int) -> list[str]:
    """Whether each layer's feed-forward part is dense or a mixture of experts."""
    if (reader.optional_integer(*EXPERTS, minimum=0) or 0) <= 1:
        return ["dense"] * layers
    types = reader.strings("mlp_layer_types")
    if types is not None:
        reader.per_layer("mlp_layer_types", types, layers)
        return ["moe" if kind in ("sparse", "moe") else "dense" for kind in types]
    if reader.is_list("moe_layer_freq"):  # one flag per layer
        flags = reader.integers("moe_layer_freq") or ()
        reader.per_layer("moe_layer_freq", flags, layers)
        return ["moe" if flag else "dense" for flag in flags]
    if reader.is_list("moe_layers"):  # Llama 4
        moe_layers = set(reader.integers("moe_layers") or ())
        return ["moe" if i in moe_layers else "dense" for i in range(layers)]
    if reader.has("expert_layer_period") or reader.model_type == "jamba":
        period, offset = reader.integer("expert_layer_period"), reader.integer("expert_layer_offset", minimum=0)
        return ["moe" if i % period == offset else "dense" for i in range(layers)]
    # Qwen: transformers Qwen3MoeDecoderLayer; Llama 4: Llama4TextConfig.moe_layers; DeepSeek: DeepseekV2DecoderLayer.
    step = reader.optional_integer("decoder_sparse_step", "interleave_moe_layer_step") or 1
    dense_only = set(reader.integers("mlp_only_layers") or ())
    first = reader.optional_integer("first_k_dense_replace", "moe_layer_start_index", minimum=0) or 0
    every = reader.optional_integer("moe_layer_freq") or 1
    return [
        "moe" if (i + 1) % step == 0 and i not in dense_only and i >= first and i % every == 0 else "dense"
        for i in range(layers)
    ]


def read_layers(reader: ConfigReader) -> list[Layer]:
    """The layers of a model in order. Raises FactError naming the key that is missing or wrong."""
    blocks = reader.strings("layers_block_type") if "nemotron_h" in reader.model_type else None
    count = len(blocks) if blocks else reader.integer(*LAYERS, maximum=MAX_LAYERS)
    if not 1 <= count <= MAX_LAYERS:
        raise reader.error(f"layers_block_type has {count} entries; at most {MAX_LAYERS} make sense")
    if reader.model_type in ("falcon_h1", "hymba"):
        reader.assume("every layer also has a Mamba part that is not counted")
    single_blocks = _from_pattern(reader, count)
    if single_blocks is not None:
        return single_blocks
    return [Layer(m, f) for m, f in zip(_mixers(reader, count), _feed_forwards(reader, count), strict=True)]
