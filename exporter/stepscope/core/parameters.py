"""Counts a model's parameters by part, from its dimensions alone.

Checked against the published sizes of 40 models and, family by family, against the modules that transformers 5.19.0
builds from the same configuration; biases of linear layers are left out (below 0.1 % where a family has them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.config_reader import ConfigReader
from stepscope.core.kv_layout import HEADS, HIDDEN, head_dim, kv_heads
from stepscope.core.layer_plan import EXPERTS, Layer

FFN = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "ffn_config.ffn_hidden_size")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "ffn_config.moe_top_k")

# Families whose MLP is up and down only, without a gate (transformers, modeling_<type>.py).
UNGATED = frozenset(
    {"apertus", "arcee", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt"}
    | {"nemotron", "nemotron_h", "opt", "persimmon", "phi", "refinedweb", "refinedwebmodel", "starcoder2"}
)
# Families whose class ties input and output embeddings unless the configuration says otherwise (the same sources).
TIED = frozenset(
    {"bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "mpt"}
    | {"opt", "refinedweb", "refinedwebmodel", "starcoder2"}
)
LEARNED_POSITIONS = frozenset({"gpt2", "gpt_bigcode", "opt"})  # a table of position vectors, one row read per token


@dataclass(frozen=True, slots=True)
class Parameters:
    """Number of parameters of each part, summed over the layers; `expert` is ONE expert of one layer.

    attention includes the mixers of linear-attention and Mamba layers; other: norms and convolutions; positions:
    learned position vectors (not read as a whole).
    """

    embedding: int
    positions: int
    lm_head: int  # 0 where the embedding is tied: then the embedding is what the output head reads
    attention: int
    mlp: int
    shared_experts: int
    router: int
    other: int
    expert: int = 0
    experts: int = 0
    experts_per_token: int = 0
    moe_layers: int = 0

    @property
    def tied(self) -> bool:
        """Whether the output head is the embedding table itself."""
        return self.lm_head == 0

    @property
    def always(self) -> int:
        """Parameters that every decode step reads: all but the experts, and without an untied input embedding."""
        head = self.embedding if self.tied else self.lm_head
        return head + self.attention + self.mlp + self.shared_experts + self.router + self.other

    @property
    def total(self) -> int:
        """All parameters."""
        experts = self.expert * self.experts * self.moe_layers
        return self.always + self.positions + experts + (0 if self.tied else self.embedding)

    @property
    def active(self) -> int:
        """Parameters that one token is multiplied with."""
        return self.always + self.expert * self.experts_per_token * self.moe_layers


def _attention(reader: ConfigReader, hidden: int) -> int:
    """Projections of one attention layer (DeepSeek's latent form where kv_lora_rank is given)."""
    heads = reader.integer(*HEADS)
    if reader.has("kv_lora_rank"):
        rank, rope = reader.integer("kv_lora_rank"), reader.integer("qk_rope_head_dim", minimum=0)
        nope, value = reader.integer("qk_nope_head_dim", minimum=0), reader.integer("v_head_dim")
        query_rank = reader.optional_integer("q_lora_rank", minimum=0) or 0
        query = heads * (nope + rope)
        count = (hidden * query_rank + query_rank * query) if query_rank else hidden * query
        count += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
        index = reader.optional_integer("index_head_dim")
        if index is not None:  # DeepSeek-V3.2 Indexer: wq_b, wk, weights_proj
            index_heads = reader.integer("index_n_heads")
            count += query_rank * index_heads * index + hidden * index + hidden * index_heads
        return count
    size = head_dim(reader, heads)
    per_layer = reader.integers("num_key_value_heads_per_layer", minimum=1)
    copies = sum(per_layer) / len(per_layer) if per_layer else kv_heads(reader, heads)
    # Qwen3-Next: the query projection is twice as wide, half of it gates the output.
    gated = reader.boolean("attn_output_gate", default=reader.model_type.startswith(("qwen3_next", "qwen3_5")))
    query_width = heads * size * (2 if gated else 1)
    return round(hidden * (query_width + 2 * copies * size) + heads * size * hidden)


def _linear(reader: ConfigReader, hidden: int) -> int:
    """One gated delta net layer (transformers, Qwen3NextGatedDeltaNet)."""
    keys = reader.integer("linear_num_key_heads") * reader.integer("linear_key_head_dim")
    value_heads = reader.integer("linear_num_value_heads")
    values = value_heads * reader.integer("linear_value_head_dim")
    convolution = (2 * keys + values) * reader.integer("linear_conv_kernel_dim")
    return hidden * (2 * keys + 2 * values + 2 * value_heads) + convolution + values * hidden


def _mamba(reader: ConfigReader, hidden: int) -> int:
    """One Mamba layer: the second version where it has heads, else the first (transformers, nemotron_h and jamba)."""
    heads = reader.optional_integer("mamba_num_heads", "mamba_n_heads")
    state = reader.integer("ssm_state_size", "mamba_d_state")
    kernel = reader.integer("conv_kernel", "mamba_d_conv", "conv_kernel_size")
    if heads is None:
        inner = hidden * reader.integer("mamba_expand", "expand")
        given = None if reader.is_text("mamba_dt_rank") else reader.optional_integer("mamba_dt_rank")
        rank = given or -(-hidden // 16)  # "auto" is hidden / 16 rounded up (transformers, JambaConfig)
        return hidden * 2 * inner + inner * (kernel + rank + 2 * state) + rank * inner + inner * state + inner * hidden
    inner = heads * reader.integer("mamba_head_dim", "mamba_d_head")
    mixed = inner + 2 * reader.integer("n_groups", "mamba_n_groups") * state
    return hidden * (inner + mixed + heads) + mixed * kernel + inner * hidden


def _feed_forward_width(reader: ConfigReader, hidden: int) -> int:
    """Width of the dense MLP. Raises FactError where it is not given and the family has no rule for it."""
    if reader.model_type.startswith("llama4"):
        return reader.integer("intermediate_size_mlp", "intermediate_size")
    width = reader.optional_integer(*FFN)
    if width is not None:
        return width
    ratio = reader.optional_integer("expansion_ratio")
    if ratio is None and reader.model_type not in UNGATED:
        return reader.integer(*FFN)  # raises, naming the key
    return hidden * (ratio or 4)  # 4 where the ungated families leave it out (transformers: n_inner None)


def _expert_width(reader: ConfigReader) -> int:
    """Width of one routed expert."""
    if reader.is_list("moe_intermediate_size"):  # one entry per layer (Hunyuan)
        widths = set(reader.integers("moe_intermediate_size", minimum=1) or ())
        if len(widths) != 1:
            raise reader.error("moe_intermediate_size differs by layer: give --model.weight-bytes")
        return widths.pop()
    width = reader.optional_integer("moe_intermediate_size", "expert_ffn_hidden_size")
    return width or reader.integer(*FFN)


def _shared_width(reader: ConfigReader, expert_width: int) -> int:
    """Width of all shared experts of one layer together; 0 where there are none."""
    if reader.model_type.startswith("llama4"):
        return expert_width  # transformers, Llama4TextMoe: one shared expert of the routed experts' width
    given = reader.optional_integer(
        "shared_expert_intermediate_size", "shared_intermediate_size", "shared_mlp_intermediate_size", minimum=0
    )
    if given is not None:
        return given
    if reader.is_list("num_shared_expert"):
        counts = set(reader.integers("num_shared_expert") or ())
        return max(counts, default=0) * expert_width
    count = reader.optional_integer(*SHARED_EXPERTS, minimum=0) or 0
    return count * (reader.optional_integer("moe_shared_expert_intermediate_size", minimum=0) or expert_width)


def is_tied(reader: ConfigReader) -> bool:
    """Whether input and output embedding are one table; a guess is written down."""
    default = reader.model_type in TIED
    if not reader.has("tie_word_embeddings"):
        what = "tied" if default else "separate"
        reader.assume(f"tie_word_embeddings is not in the configuration: {what} embeddings assumed")
    return reader.boolean("tie_word_embeddings", default=default)


def count_parameters(reader: ConfigReader, layers: Sequence[Layer], tied: bool | None = None) -> Parameters:
    """Parameters of a model by part. tied: what the checkpoint shows, else as the configuration says.

    Raises FactError naming the key that is missing or wrong.
    """
    hidden = reader.integer(*HIDDEN)
    vocabulary = reader.integer("vocab_size", "padded_vocab_size")
    mixers = [layer.mixer for layer in layers]
    attention_layers = sum(mixer in ("full", "sliding", "chunked") for mixer in mixers)
    attention = attention_layers * _attention(reader, hidden) if attention_layers else 0
    for kind, count_one in (("linear", _linear), ("mamba", _mamba)):
        if kind in mixers:
            attention += mixers.count(kind) * count_one(reader, hidden)
    if "other" in mixers:  # lightning attention and the like: about as wide as the attention they stand for
        reader.assume("layers of an unknown kind are counted with as many weights as attention layers")
        attention += mixers.count("other") * _attention(reader, hidden)
    gates = 2 if reader.model_type in UNGATED else 3
    dense_layers = sum(layer.feed_forward == "dense" for layer in layers)
    moe_layers = sum(layer.feed_forward == "moe" for layer in layers)
    mlp = dense_layers * gates * hidden * _feed_forward_width(reader, hidden) if dense_layers else 0
    positions = (
        hidden * reader.integer("n_positions", "max_position_embeddings")
        if (reader.model_type in LEARNED_POSITIONS)
        else 0
    )
    is_tied_ = is_tied(reader) if tied is None else tied
    common = {
        "embedding": vocabulary * hidden,
        "positions": positions,
        "lm_head": 0 if is_tied_ else vocabulary * hidden,
        "attention": attention,
        "mlp": mlp,
        "other": hidden * (2 * len(layers) + 1),
    }
    if not moe_layers:
        return Parameters(**common, shared_experts=0, router=0)
    experts = reader.integer(*EXPERTS, maximum=10**6)
    top_k = reader.integer(*TOP_K, maximum=10**6)
    if top_k > experts:
        raise reader.error(f"num_experts_per_tok {top_k} exceeds the {experts} experts")
    width = _expert_width(reader)
    latent = reader.optional_integer("moe_latent_size")  # Nemotron-H: experts work in a narrower space
    shared = moe_layers * gates * hidden * _shared_width(reader, width)
    return Parameters(
        **common,
        shared_experts=shared,
        router=moe_layers * (hidden * experts + (2 * hidden * latent if latent else 0)),
        expert=gates * (latent or hidden) * width,
        experts=experts,
        experts_per_token=top_k,
        moe_layers=moe_layers,
    )
