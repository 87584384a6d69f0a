"""The dimensions of a model that only a plan needs: for prefill attention and for collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.core.config_reader import ConfigReader
from stepscope.core.kv_layout import HEADS, HIDDEN, head_dim
from stepscope.core.layer_plan import read_layers


@dataclass(frozen=True, slots=True)
class Shape:
    """layers: all of them. attention_layers: those whose attention spans the whole context. attention_width: query
    heads x head size, the mean of the key and the value side where they differ (MLA). hidden: width, elements. heads:
    query heads, which tensor parallelism shares out evenly."""

    layers: int
    attention_layers: int
    attention_width: int
    hidden: int
    heads: int

    def attention_share(self, prompt_tokens: float, active_params: float) -> float:
        """FLOPs of causal attention over those of the weights, for one prompt computed from its first token on.

        4 x layers x width per pair of attending tokens (two products, multiply and add) makes 2 x layers x width x T^2
        for T tokens, each seeing those before it; the weights take 2 x params x T.
        """
        return self.attention_layers * self.attention_width * prompt_tokens / active_params


def read_shape(config: Mapping[str, object], name: str) -> Shape:
    """The shape from a Hugging Face configuration. Raises FactError naming the key that is missing or wrong."""
    reader = ConfigReader(config, name)
    layers = read_layers(reader)
    heads = reader.integer(*HEADS)
    if reader.optional_integer("kv_lora_rank") is not None:
        keys = reader.integer("qk_nope_head_dim", minimum=0) + reader.integer("qk_rope_head_dim", minimum=0)
        width = heads * (keys + reader.integer("v_head_dim")) // 2
    else:
        width = heads * head_dim(reader, heads)
    full = sum(layer.mixer == "full" for layer in layers)
    return Shape(len(layers), full, width, reader.integer(*HIDDEN), heads)
