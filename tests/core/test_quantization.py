"""Bytes per weight of quantised checkpoints, part by part."""

from __future__ import annotations

from typing import Any

import pytest

from model_configs import LLAMA, load_config
from stepscope.core.config_reader import ConfigReader
from stepscope.core.model_spec import TensorBytes, from_hf_config
from stepscope.core.quantization import Quantization, kv_dtype, read_quantization
from stepscope.errors import FactError

BF16 = ("bfloat16", 2.0)


def read(section: dict[str, Any] | None, layers: int = 10) -> Quantization:
    return read_quantization(ConfigReader({"quantization_config": section}, "m"), BF16, layers)


@pytest.mark.parametrize(
    ("section", "label", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "awq 4 bit", 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}, "awq 4 bit", 4 + 16 / 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "gptq 8 bit", 8 + 24 / 32),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq 4 bit", 4),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8 + 32 / 16384),
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes 8 bit", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes 4 bit", 4.5),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            "bitsandbytes 4 bit",
            4.127,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt nvfp4", 4.5),
    ],
)
def test_each_method_stores_its_bits_and_its_scales(section: dict[str, Any], label: str, bits: float) -> None:
    """Attention and MLP shrink; the output head stays in 16 bits."""
    found = read(section)
    assert found.label == label
    assert found.bytes_per_param("attention") * 8 == pytest.approx(bits, abs=0.001)
    assert found.bytes_per_param("mlp") == found.bytes_per_param("attention")
    assert found.bytes_per_param("lm_head") == found.bytes_per_param("embedding") == 2.0


def test_mxfp4_shrinks_the_experts_alone() -> None:
    """gpt-oss: 4.25 bits per expert weight, everything else in 16 bits; the model card says 12.8 GiB."""
    spec = from_hf_config(load_config("gpt-oss-20b.json"), name="m")
    assert spec.weights.expert_bytes == 3 * 2880 * 2880 * 4.25 / 8
    assert spec.total_weight_bytes == pytest.approx(12.8 * 2**30, rel=0.004)  # the card rounds to 0.1 GiB


def test_ignored_parts_keep_their_width() -> None:
    """A 4-bit mixture in groups of 32 with attention, shared experts and dense layers left alone."""
    config = load_config("compressed-moe.json")
    found = read_quantization(ConfigReader(config, "m"), BF16, 4)
    assert found.bytes_per_param("experts") * 8 == 4 + 16 / 32
    assert {found.bytes_per_param(part) for part in ("attention", "shared_experts", "mlp", "lm_head")} == {2.0}


def test_a_pattern_for_one_layer_counts_for_one_layer() -> None:
    """Two of ten layers keep their attention: the part's width is the mean."""
    ignore = [f"model.layers.{i}.self_attn.{name}" for i in (0, 9) for name in ("q_proj", "k_proj")]
    found = read(
        {"quant_method": "fp8", "ignored_layers": [*ignore, "model.visual.blocks.0.attn", "model.layers.3.mlp.gate"]}
    )
    assert found.bytes_per_param("attention") == pytest.approx(0.2 * 2 + 0.8 * 1)
    assert found.bytes_per_param("mlp") == 1.0


def test_a_hostile_pattern_is_never_run() -> None:
    """A regular expression that would take for ever, and very many of them, are read in no time."""
    hostile = ["re:(a+)+$" + "a" * 5000, "re:" + ".*" * 5000 + "self_attn"] * 2000
    found = read({"quant_method": "fp8", "ignore": hostile})
    assert found.bytes_per_param("attention") == 2.0


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"quant_method": "novel"}, "quant_method 'novel' is not known: give --model.weight-bytes"),
        ({"quant_method": 4}, "quant_method 4 is not known"),
        ({"quant_method": "awq", "bits": "4"}, "quantization_config.bits must be a whole number, not '4'"),
        ({"quant_method": "gptq"}, "quantization_config: bits is missing"),
        ({"quant_method": "gptq", "bits": 0}, "0 bits per weight is not possible"),
        ({"quant_method": "compressed-tensors"}, "config_groups names no quantised weights"),
    ],
)
def test_a_wrong_quantisation_is_named(section: dict[str, Any], message: str) -> None:
    """Each is one line that says which key."""
    with pytest.raises(FactError, match=message):
        read(section)


def test_an_unknown_method_is_no_hindrance_where_the_checkpoint_was_measured() -> None:
    """The total is right whatever the method is called; the assumption says so."""
    config = LLAMA | {"quantization_config": {"quant_method": "novel"}}
    spec = from_hf_config(config, name="m", tensors=TensorBytes(3_000_000))
    assert spec.total_weight_bytes == 3_000_000
    assert any("'novel' is not known" in line for line in spec.assumptions)


@pytest.mark.parametrize(
    ("label", "width"),
    [
        (None, 2),
        ("auto", 2),
        ("None", 2),
        ("fp8", 1),
        ("fp8_e4m3", 1),
        ("fp8_e5m2", 1),
        ("float32", 4),
        ("nvfp4", 0.5625),
    ],
)
def test_the_cache_dtype_label_decides_the_kv_width(label: str | None, width: float) -> None:
    """ "auto" is the model's own type."""
    assert kv_dtype(ConfigReader({}, "m"), label, BF16)[1] == width


def test_a_cache_dtype_of_unknown_size_is_refused() -> None:
    """The message names the flag that supplies the number."""
    with pytest.raises(FactError, match="'turboquant_4bit_nc' is not known: give"):
        kv_dtype(ConfigReader({}, "m"), "turboquant_4bit_nc", BF16)


def test_awq_makes_a_step_read_about_a_quarter() -> None:
    """The linear layers shrink to 4.16 bits, the head does not."""
    plain = from_hf_config(LLAMA, name="m")
    awq = from_hf_config(LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}, name="m")
    head = 1000 * 256 * 2
    shrunk = (awq.weights.always_bytes - head) / (plain.weights.always_bytes - head)
    assert shrunk == pytest.approx((4 + 20 / 128) / 16, rel=0.02)
    assert awq.active_params == plain.active_params
