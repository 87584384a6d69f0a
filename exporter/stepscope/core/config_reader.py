"""Reads a Hugging Face model configuration with care: every value is checked, every guess is written down.

A configuration comes from a file that anybody may have written, so that each getter raises FactError with one line that
names the key, and no number is ever so large that the arithmetic on it could fail or take long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.errors import FactError

MAX_LAYERS = 10_000  # bounds the work; the deepest published models have a few hundred layers
MAX_DIMENSION = 10**9  # bounds the numbers; the widest published dimension (a vocabulary) is below 10**6
MAX_SHOWN = 60  # characters of a wrong value repeated in an error

# Where multimodal configurations keep the language model's own configuration.
NESTED_KEYS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")

# Keys that a configuration may leave out because they equal the default of its class. Source of every number: the
# configuration classes of transformers 5.19.0, models/<type>/configuration_<type>.py.
_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_LLAMA4 = {"head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4, "num_experts_per_tok": 1}
_QWEN3_NEXT = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_DSA = {"index_topk": 2048, "index_head_dim": 128}
CLASS_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "vocab_size": 256000},
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "llama4_text": _LLAMA4,
    "llama4": _LLAMA4,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_NEXT,
    "qwen3_5_moe": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "mpt": {"expansion_ratio": 4},
    "glm_moe_dsa": {**_DSA, "index_n_heads": 32},
    "deepseek_v32": {**_DSA, "index_n_heads": 64},
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
}


def shown(value: object) -> str:
    """A wrong value as one short line for an error message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with too many digits, a list nested too deep
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


class ConfigReader:
    """Typed access to one configuration; `assumptions` collects one sentence per guess, in order, without repeats.

    Multimodal configurations are unwrapped: keys are looked up in the language model's part first, then at the top.
    """

    def __init__(self, config: Mapping[str, object], name: str) -> None:
        if not isinstance(config, Mapping):
            raise FactError(f"{name}: the model configuration is not a JSON object but {shown(config)}")
        self.name = name
        self.assumptions: list[str] = []
        self._levels: list[Mapping[str, object]] = [config]
        for _ in range(2):  # thinker_config holds text_config in the omni models
            inner = next((v for k in NESTED_KEYS if isinstance(v := self._levels[0].get(k), Mapping) and v), None)
            if inner is None:
                break
            self._levels.insert(0, inner)
        self.model_type = str(self._raw("model_type") or "").lower()[:MAX_SHOWN]
        self._defaults = CLASS_DEFAULTS.get(self.model_type, {})

    def assume(self, sentence: str) -> None:
        """Write down one guess."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def error(self, text: str) -> FactError:
        """A FactError that names the model."""
        return FactError(f"{self.name}: {text}")

    def _raw(self, key: str) -> object:
        """The value of a key, `a.b` for a nested one; None where it is absent or null."""
        first, _, rest = key.partition(".")
        for level in self._levels:
            value = level.get(first)
            if rest:
                value = value.get(rest) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def has(self, *keys: str) -> bool:
        """Whether one of the keys is there and not null."""
        return any(self._raw(key) is not None for key in keys)

    def integer(self, *keys: str, minimum: int = 1, maximum: int = MAX_DIMENSION) -> int:
        """The first of the keys that is there. Raises FactError when none is, or when it is no such number."""
        value = self.optional_integer(*keys, minimum=minimum, maximum=maximum)
        if value is None:
            spellings = f" (nor {', '.join(keys[1:])})" if len(keys) > 1 else ""
            raise self.error(f"{keys[0]} is missing{spellings} in the model configuration")
        return value

    def optional_integer(self, *keys: str, minimum: int = 1, maximum: int = MAX_DIMENSION) -> int | None:
        """As `integer`, None where no key is there; a class default counts as there and is written down."""
        for key in keys:
            value = self._raw(key)
            if value is not None:
                return self._checked(key, value, minimum, maximum)
        for key in keys:
            if key in self._defaults:
                self.assume(f"{key} is not in the configuration: {self._defaults[key]} by {self.model_type}'s default")
                return self._defaults[key]
        return None

    def _checked(self, key: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, float) and value.is_integer() and abs(value) <= maximum:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key} must be a whole number, not {shown(value)}")
        if not minimum <= value <= maximum:
            raise self.error(f"{key} must lie between {minimum} and {maximum}, not {shown(value)}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """A true or false; FactError for anything else."""
        value = self._raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {shown(value)}")
        return value

    def text(self, *keys: str) -> str | None:
        """The first of the keys that is there as a string; FactError when it is not one."""
        for key in keys:
            value = self._raw(key)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.error(f"{key} must be a string, not {shown(value)}")
            return value
        return None

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, None where it is absent."""
        value = self._raw(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(f"{key} must be a list of strings, not {shown(value)}")
        return tuple(value)

    def integers(self, key: str, minimum: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers, None where it is absent."""
        value = self._raw(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.error(f"{key} must be a list of whole numbers, not {shown(value)}")
        return tuple(self._checked(key, item, minimum, MAX_DIMENSION) for item in value)

    def is_list(self, key: str) -> bool:
        """Whether the key holds a list (some keys hold a number in one family and a list in another)."""
        return isinstance(self._raw(key), list | tuple)

    def is_text(self, key: str) -> bool:
        """Whether the key holds a string (some keys hold "auto" or a number)."""
        return isinstance(self._raw(key), str)

    def section(self, key: str) -> Mapping[str, object] | None:
        """A nested object, None where it is absent; FactError when it is not an object."""
        value = self._raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{key} must be an object, not {shown(value)}")
        return value

    def per_layer(self, key: str, values: Sequence[object], layers: int) -> None:
        """Raise FactError unless a per-layer list has one entry for each layer."""
        if len(values) != layers:
            raise self.error(f"{key} has {len(values)} entries for {layers} layers")
