"""Bytes per weight and per KV element: element types, and what a quantised checkpoint stores for each part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stepscope.core.config_reader import ConfigReader, shown

# Widths of element types in bytes, by the names that `torch_dtype`, `dtype` and safetensors headers use.
DTYPE_BYTES: Mapping[str, float] = {
    "float64": 8.0,
    "float32": 4.0,
    "float": 4.0,
    "float16": 2.0,
    "half": 2.0,
    "bfloat16": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "int8": 1.0,
    "uint8": 1.0,
}

# Parts of a model that can be stored differently. Embedding, norms, routers and convolutions are never quantised by the
# methods below; the output head only where GPTQ says `lm_head: true`.
PARTS = ("attention", "mlp", "shared_experts", "experts", "lm_head")

SCALE_BYTES = 2.0  # AWQ, GPTQ and compressed-tensors keep group scales in 16 bits (AutoAWQ and AutoGPTQ packing)
MXFP4_BYTES = (4 + 8 / 32) / 8  # OCP Microscaling 1.0: 4-bit elements, one 8-bit scale per 32
NVFP4_BYTES = (4 + 8 / 16) / 8  # NVIDIA NVFP4: 4-bit elements, one 8-bit scale per 16
FP8_BLOCK_SCALE_BYTES = 4.0  # DeepSeek-V3 `weight_scale_inv`: one float32 per block
NF4_BLOCK_BYTES = 4 / 64  # QLoRA (Dettmers 2023) section 3: one float32 constant per 64 weights
NF4_DOUBLE_QUANT_BYTES = 1 / 64 + 4 / (64 * 256)  # the same section: 8-bit constants, float32 per 256 of them

# KV cache types of vLLM (config/cache.py, CacheDType of 0.32.0). Bytes per element; the packed ones are below.
KV_DTYPE_BYTES: Mapping[str, float] = {
    **DTYPE_BYTES,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "fp8_per_token_head": 1.0,
    "int8_per_token_head": 1.0,
    "nvfp4": NVFP4_BYTES,
    "nvfp4_4over6": NVFP4_BYTES,
}
# Bytes per token and layer of the packed latent formats (vLLM 0.32.0, mla_attention.py, state_content_bytes).
MLA_PACKED_BYTES: Mapping[str, float] = {"fp8_ds_mla": 656.0, "nvfp4_ds_mla": 352.0}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights are stored: bytes per parameter of each part.

    `label` is what an operator reads ("bfloat16", "awq 4 bit"). Parts not in `part_bytes` take `plain_bytes`.
    """

    label: str
    plain_bytes: float
    part_bytes: Mapping[str, float] = field(default_factory=dict)

    def bytes_per_param(self, part: str) -> float:
        """Bytes of one parameter of a part, scales and zero points included."""
        return self.part_bytes.get(part, self.plain_bytes)


def model_dtype(reader: ConfigReader, override: str | None = None) -> tuple[str, float]:
    """The element type that the engine computes in and its width in bytes. Raises FactError for an unknown one."""
    name = override or reader.text("torch_dtype", "dtype")
    if name is None:
        reader.assume("the element type is not in the configuration: bfloat16 assumed")
        name = "bfloat16"
    name = name.removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise reader.error(f"torch_dtype {shown(name)} is not known (known: {', '.join(DTYPE_BYTES)})")
    if name == "float32" and override is None:
        reader.assume("the configuration says float32: vLLM serves that in 16 bits unless started with --dtype float32")
    return name, DTYPE_BYTES[name]


def kv_dtype(reader: ConfigReader, cache_dtype: str | None, model: tuple[str, float]) -> tuple[str, float]:
    """KV element type and bytes per element from the engine's `cache_dtype` label; "auto" and None are the model's.

    A packed latent format (fp8_ds_mla) is returned with 1 byte: `MLA_PACKED_BYTES` has its size. Raises FactError for
    a type whose size is not known.
    """
    if cache_dtype in (None, "", "auto", "None"):
        return model
    assert cache_dtype is not None
    if cache_dtype in MLA_PACKED_BYTES:
        return cache_dtype, 1.0
    name = cache_dtype.removeprefix("torch.")
    if name not in KV_DTYPE_BYTES:
        raise reader.error(f"KV cache type {shown(cache_dtype)} is not known: give --model.kv-bytes-per-token")
    return name, KV_DTYPE_BYTES[name]


def _number(reader: ConfigReader, section: Mapping[str, object], keys: Iterable[str], default: int | None) -> int:
    for key in keys:
        value = section.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 10**6:
            raise reader.error(f"quantization_config.{key} must be a whole number, not {shown(value)}")
        return value
    if default is None:
        raise reader.error(f"quantization_config: {'/'.join(keys)} is missing")
    return default


def _grouped(bits: int, group_size: int, zero_points: bool) -> float:
    """Bytes per weight: the bits, and per group one 16-bit scale and, where there are any, one packed zero point."""
    per_group = SCALE_BYTES + (bits / 8 if zero_points else 0.0)
    return bits / 8 + (per_group / group_size if group_size > 0 else 0.0)


def _bits(reader: ConfigReader, section: Mapping[str, object], keys: Iterable[str]) -> int:
    bits = _number(reader, section, keys, None)
    if not 1 <= bits <= 16:
        raise reader.error(f"quantization_config: {bits} bits per weight is not possible")
    return bits


def _compressed_tensors(reader: ConfigReader, section: Mapping[str, object]) -> tuple[str, float]:
    groups = section.get("config_groups")
    widths: dict[str, float] = {}
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        bits = _bits(reader, weights, ("num_bits",))
        size = _number(reader, weights, ("group_size",), 0)
        if bits == 4 and weights.get("type") == "float":
            widths["4 bit float"] = MXFP4_BYTES if size == 32 else NVFP4_BYTES
        else:
            widths[f"{bits} bit"] = _grouped(bits, size, weights.get("symmetric") is False)
    if not widths:
        raise reader.error("quantization_config: config_groups names no quantised weights")
    if len(widths) > 1:
        reader.assume("the checkpoint mixes widths: every quantised layer is counted at the widest")
    label = max(widths, key=lambda key: widths[key])
    return f"compressed-tensors {label}", widths[label]


def _quantised_width(reader: ConfigReader, method: str, section: Mapping[str, object]) -> tuple[str, float] | None:
    """Label and bytes per weight of the quantised layers; None for a method that is not known."""
    if method in ("awq", "awq_marlin"):
        bits = _bits(reader, section, ("bits", "w_bit"))
        size = _number(reader, section, ("group_size", "q_group_size"), 128)
        return f"awq {bits} bit", _grouped(bits, size, section.get("zero_point") is not False)
    if method in ("gptq", "gptq_marlin", "auto-round", "autoround"):
        bits = _bits(reader, section, ("bits",))
        return f"{method} {bits} bit", _grouped(bits, _number(reader, section, ("group_size",), 128), True)
    if method in ("fp8", "fbgemm_fp8", "ptpc_fp8"):
        block = section.get("weight_block_size")
        if (
            isinstance(block, list | tuple)
            and len(block) == 2
            and all(type(b) is int and 0 < b <= 10**6 for b in block)
        ):
            return "fp8", 1.0 + FP8_BLOCK_SCALE_BYTES / (block[0] * block[1])
        return "fp8", 1.0
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(reader, section)
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return "mxfp4", MXFP4_BYTES
    if method in ("modelopt", "modelopt_fp4"):
        algorithm = str(section.get("quant_algo") or "").upper()
        width = {"FP8": 1.0, "NVFP4": NVFP4_BYTES}.get(algorithm)
        return None if width is None else (f"modelopt {algorithm.lower()}", width)
    if method == "bitsandbytes":
        if section.get("load_in_8bit") is True:
            return "bitsandbytes 8 bit", 1.0
        double = section.get("bnb_4bit_use_double_quant") is True
        return "bitsandbytes 4 bit", 0.5 + (NF4_DOUBLE_QUANT_BYTES if double else NF4_BLOCK_BYTES)
    return None


def _plain_shares(patterns: Iterable[str], layers: int) -> dict[str, float]:
    """Share of each part that an ignore list leaves unquantised, 0..1.

    A pattern that names one layer ("model.layers.3.self_attn.k_proj") counts for that layer, any other for all layers.
    Regular expressions are read by the names inside them and never run: one in a file may take for ever.
    """
    whole: set[str] = set()
    single: dict[str, set[int]] = {}
    for pattern in patterns:
        if any(word in pattern for word in ("vision", "visual", "vit", "projector")):
            continue
        parts = [
            part
            for part, words in (
                ("lm_head", ("lm_head",)),
                ("shared_experts", ("shared_expert",)),
                ("attention", ("attn", "attention")),
                ("mlp", ("mlp.", "mlp\\.", "feed_forward")),
            )
            if any(word in pattern for word in words)
        ]
        if "shared_experts" in parts or "expert" in pattern:
            parts = [part for part in parts if part != "mlp"]
            if "shared_expert" not in pattern:
                parts.append("experts")
        elif "mlp" in parts and not re.search(r"(gate|up|gate_up|down)\|?.*_proj|feed_forward|mlp\.\*$", pattern[:500]):
            parts.remove("mlp")  # "mlp.gate" is the router, which no method quantises
        layer = re.search(r"layers\.(\d{1,5})\b", pattern[:500])
        if layer and not parts and pattern.rstrip(".*").endswith(layer.group(0)):
            parts = ["attention", "mlp", "shared_experts", "experts"]  # a whole layer
        for part in parts:
            if layer:
                single.setdefault(part, set()).add(int(layer.group(1)))
            else:
                whole.add(part)
    shares = {part: min(1.0, len(numbers) / max(layers, 1)) for part, numbers in single.items()}
    shares.update(dict.fromkeys(whole, 1.0))
    return shares


def read_quantization(reader: ConfigReader, dtype: tuple[str, float], layers: int, exact: bool = False) -> Quantization:
    """How the checkpoint stores its weights, from `quantization_config` (or `compression_config`).

    dtype: (name, bytes) of what is not quantised. exact: the checkpoint's bytes are known, so that a method that is not
    known is only written down; otherwise it raises FactError.
    """
    section = reader.section("quantization_config") or reader.section("compression_config")
    name, plain = dtype
    if not section:
        return Quantization(name, plain)
    raw = section.get("quant_method")
    method = raw.lower() if isinstance(raw, str) else "modelopt" if section.get("quant_algo") else ""
    found = _quantised_width(reader, method, section)
    if found is None:
        what = f"quantization_config.quant_method {shown(raw)} is not known"
        if not exact:
            raise reader.error(f"{what}: give --model.weight-bytes")
        reader.assume(f"{what}: only the checkpoint's total size was used")
        return Quantization(method or "unknown", plain)
    label, width = found
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return Quantization(label, plain, {"experts": width})  # vLLM's Mxfp4Config quantises the experts alone
    part_bytes = {part: width for part in PARTS if part != "lm_head" or section.get("lm_head") is True}
    patterns: list[str] = []
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"):
        listed = section.get(key)
        patterns += [item for item in listed if isinstance(item, str)] if isinstance(listed, list | tuple) else []
    for part, share in _plain_shares(patterns[:100_000], layers).items():
        if part in part_bytes:
            part_bytes[part] = share * plain + (1.0 - share) * part_bytes[part]
    return Quantization(label, plain, part_bytes)
