"""What a configuration says about weights, KV bytes and active parameters, against published numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_configs import LLAMA, MIXTRAL, config_from_facts, load_config, without
from shared_data import shared_path
from stepscope.core.model_spec import ModelSpec, TensorBytes, from_hf_config, from_numbers
from stepscope.errors import FactError

# Published counts are rounded to 1e5 parameters and leave out norms or biases: both are below 0.1 % of any model here.
PARAMS_TOLERANCE = 0.001
# The published sparse-attention entry counts index keys in 16 bits (128 x 2 B); vLLM keeps 8-bit keys with one float32
# scale (132 B per layer and token).
SPARSE_ATTENTION = {"glm-5": 78 * (128 * 2 - 132)}
# Two entries have no dimensions, only sizes from a model card.
WITHOUT_DIMENSIONS = {"north-mini-code-1.0", "glm-4.5-air"}


def spec_of(config: dict[str, Any], **options: Any) -> ModelSpec:
    return from_hf_config(config, name="m", **options)


def test_every_published_model_comes_out_of_its_dimensions() -> None:
    """Total, decode-read and active parameters within 0.1 %, KV bytes per token exactly."""
    table = json.loads(shared_path("data", "facts", "models.json").read_text())
    checked = 0
    for name, facts in table.items():
        if name in WITHOUT_DIMENSIONS:
            continue
        spec = spec_of(config_from_facts(name, facts))
        assert spec.total_params == pytest.approx(facts["params_b"] * 1e9, rel=PARAMS_TOLERANCE), name
        kv = facts["kv_bytes_per_token_bf16"] - SPARSE_ATTENTION.get(name, 0)
        assert spec.kv_bytes_per_token_all_layers == kv, name
        if facts["type"] == "dense":
            decode = facts["decode_weight_params_b"] * 1e9
            assert spec.weights.always_bytes == pytest.approx(2 * decode, rel=PARAMS_TOLERANCE), name
            assert spec.active_params == pytest.approx(decode, rel=PARAMS_TOLERANCE), name
        else:
            assert spec.active_params == pytest.approx(facts["active_params_b"] * 1e9, rel=PARAMS_TOLERANCE), name
            always = 2e9 * facts["non_expert_decode_params_b"]
            assert spec.weights.always_bytes == pytest.approx(always, rel=PARAMS_TOLERANCE), name
            assert spec.weights.expert_bytes == pytest.approx(2e6 * facts["expert_params_m"], rel=1e-5), name
            assert spec.weights.moe_layers == facts["moe_layers"], name
        checked += 1
    assert checked >= 50


def test_qwen3_8b_gives_the_worked_numbers() -> None:
    """147,456 B of KV per token exactly; 16.4e9 B of weights, of which 15.1e9 B are read (no input embedding)."""
    spec = spec_of(load_config("qwen3-8b.json"))
    assert spec.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2 == 147_456
    assert spec.total_weight_bytes == pytest.approx(16.4e9, rel=0.002)
    assert spec.weights.always_bytes == pytest.approx(15.14e9, rel=0.001)
    assert spec.weights.read_bytes(40) == spec.weights.always_bytes
    assert (spec.kind, spec.attention, spec.hybrid, spec.max_model_len) == ("dense", "gqa", False, 40960)


def test_mixture_weights_grow_with_the_sequences_up_to_all_experts() -> None:
    """A step of one sequence reads the active parameters, a step of very many reads all but the embedding."""
    spec = spec_of(MIXTRAL)
    assert spec.kind == "moe"
    assert spec.active_params is not None
    assert spec.weights.read_bytes(1) == pytest.approx(2 * spec.active_params)
    assert spec.weights.read_bytes(10_000) == pytest.approx(spec.total_weight_bytes - 1000 * 256 * 2)


def test_tied_embeddings_are_read_and_separate_input_embeddings_are_not() -> None:
    """The table is the output head where tied; where separate, a step reads one row per token."""
    table = 1000 * 256 * 2
    tied, separate = spec_of(LLAMA | {"tie_word_embeddings": True}), spec_of(LLAMA)
    assert tied.weights.always_bytes == tied.total_weight_bytes == separate.weights.always_bytes
    assert separate.total_weight_bytes - separate.weights.always_bytes == table


def test_a_guess_is_written_down_in_one_sentence() -> None:
    """What the configuration leaves out is named among the assumptions."""
    spec = spec_of(without(LLAMA, "tie_word_embeddings", "torch_dtype"))
    assert any("tie_word_embeddings" in line for line in spec.assumptions)
    assert any("bfloat16 assumed" in line for line in spec.assumptions)
    assert all("\n" not in line for line in spec.assumptions)


def test_multimodal_configurations_are_read_from_their_language_part() -> None:
    """The nested text_config decides; the vision part adds no layer."""
    spec = spec_of(load_config("llama-4-maverick.json"))
    assert spec.layers == 48
    assert spec.weights.moe_layers == 24
    assert spec.total_params == pytest.approx(400.7e9, rel=0.001)


@pytest.mark.parametrize(
    ("config", "params"),
    [
        # Parameters that transformers 5.19.0 builds for the same configuration (summed over the modules).
        (
            {
                "model_type": "gpt2",
                "n_layer": 12,
                "n_embd": 768,
                "n_head": 12,
                "vocab_size": 50257,
                "n_positions": 1024,
            },
            124_439_808,
        ),
        (
            {
                "model_type": "falcon",
                "num_hidden_layers": 2,
                "hidden_size": 4544,
                "num_attention_heads": 71,
                "vocab_size": 65024,
            },
            709_618_304,
        ),
        (
            {"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 8192, "num_attention_heads": 128}
            | {"new_decoder_architecture": True, "num_kv_heads": 8, "vocab_size": 65024},
            1_891_713_024,
        ),
        ({"model_type": "mpt", "d_model": 512, "n_heads": 8, "n_layers": 2, "vocab_size": 50368}, 32_082_432),
        (
            {"model_type": "phi3", "num_hidden_layers": 2, "hidden_size": 3072, "num_attention_heads": 32}
            | {"num_key_value_heads": None, "intermediate_size": 8192, "vocab_size": 32064},
            423_508_992,
        ),
    ],
    ids=["gpt2", "falcon-7b-form", "falcon-40b-form", "mpt", "phi3"],
)
def test_old_spellings_count_as_the_reference_implementation_does(config: dict[str, Any], params: int) -> None:
    """n_layer, n_embd, d_model, multi_query and the like; biases are left out (0.1 %)."""
    assert spec_of(config).total_params == pytest.approx(params, rel=0.001)


def test_a_measured_checkpoint_wins_over_counting() -> None:
    """Sizes from safetensors headers are used as they are."""
    spec = spec_of(MIXTRAL, tensors=TensorBytes(10_000_000, 600_000, 8_000_000, 400_000, True))
    assert spec.total_weight_bytes == 10_000_000
    assert spec.weights.always_bytes == 1_000_000
    assert spec.weights.expert_bytes * 8 * 4 == 8_000_000
    assert not any("counted from the dimensions" in line for line in spec.assumptions)


def test_an_index_total_is_spread_over_experts_and_the_rest() -> None:
    """With the total alone, the parts keep their counted proportion and sum to the total less the embedding."""
    counted = spec_of(MIXTRAL)
    total = int(counted.total_weight_bytes * 0.9)
    spec = spec_of(MIXTRAL, safetensors_total_bytes=total)
    read_all = spec.weights.always_bytes + 4 * 8 * spec.weights.expert_bytes
    assert spec.total_weight_bytes == total
    assert read_all == pytest.approx(total - 1000 * 256 * 2)
    ratio = counted.weights.expert_bytes / counted.weights.always_bytes
    assert spec.weights.expert_bytes / spec.weights.always_bytes == pytest.approx(ratio)


def test_explicit_numbers_make_a_spec_without_any_guess() -> None:
    """from_numbers keeps what it is given."""
    spec = from_numbers(5.7e9, 32768, 9e9, name="nine")
    assert (spec.weights.always_bytes, spec.total_weight_bytes) == (5.7e9, 5.7e9)
    assert (spec.kv_bytes_per_token, spec.active_params) == (32768, 9e9)
    assert spec.block_bytes(16) == 16 * 32768
    assert spec.assumptions == ()


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 1e300])
def test_explicit_numbers_out_of_range_are_refused(wrong: float) -> None:
    """Zero, negative, not a number and absurd weights raise one line that says which number."""
    with pytest.raises(FactError, match="weight bytes must lie between"):
        from_numbers(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "m: num_hidden_layers is missing"),
        ({"num_hidden_layers": "32"}, "m: num_hidden_layers must be a whole number, not '32'"),
        ({"num_hidden_layers": 10**9}, "m: num_hidden_layers must lie between 1 and 10000"),
        ({"hidden_size": -1}, "m: hidden_size must lie between 1"),
        ({"num_attention_heads": [8]}, r"m: num_attention_heads must be a whole number, not \[8\]"),
        ({"num_attention_heads": True}, "m: num_attention_heads must be a whole number, not True"),
        ({"num_key_value_heads": 9}, "m: num_key_value_heads 9 exceeds num_attention_heads 8"),
        ({"vocab_size": 1.5}, "m: vocab_size must be a whole number, not 1.5"),
        ({"vocab_size": float("nan")}, "m: vocab_size must be a whole number"),
        ({"intermediate_size": None}, "m: intermediate_size is missing"),
        ({"tie_word_embeddings": "no"}, "m: tie_word_embeddings must be true or false"),
        ({"torch_dtype": "int3"}, "m: torch_dtype 'int3' is not known"),
        ({"torch_dtype": 16}, "m: torch_dtype must be a string"),
        ({"layer_types": ["full_attention"]}, "m: layer_types has 1 entries for 4 layers"),
        ({"layer_types": [1, 2, 3, 4]}, "m: layer_types must be a list of strings"),
        ({"quantization_config": []}, r"m: quantization_config must be an object, not \[\]"),
        ({"num_local_experts": 2, "num_experts_per_tok": 3}, "m: num_experts_per_tok 3 exceeds the 2 experts"),
        ({"num_local_experts": 8}, "m: num_experts_per_tok is missing"),
    ],
)
def test_a_wrong_key_is_named_in_one_line(change: dict[str, Any], message: str) -> None:
    """Strings for numbers, negative, huge, lists, missing: a FactError that names model and key."""
    with pytest.raises(FactError, match=message) as caught:
        spec_of(LLAMA | change)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(1, 64) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
BASES = [
    LLAMA,
    MIXTRAL,
    *map(load_config, ("gpt-oss-20b.json", "qwen3.5-397b.json", "nemotron-h.json", "compressed-moe.json")),
]


def spec_or_reason(config: dict[str, Any], cache_dtype: str | None) -> ModelSpec | str:
    try:
        return from_hf_config(config, name="m", kv_cache_dtype=cache_dtype)
    except FactError as error:
        return str(error)


@given(st.data())
def test_no_configuration_whatever_gives_a_traceback(data: st.DataObject) -> None:
    """Any keys replaced by any JSON values: a spec with finite numbers, or a FactError of one line."""
    config = dict(data.draw(st.sampled_from(BASES)))
    extra = ("layer_types", "sliding_window", "kv_lora_rank", "quantization_config", "text_config", "moe_layer_freq")
    keys = data.draw(st.lists(st.sampled_from([*config, *extra, "mlp_only_layers", "head_dim"]), max_size=4))
    config |= {key: data.draw(json_values) for key in keys}
    cache_dtype = data.draw(st.sampled_from([None, "auto", "fp8", "fp8_ds_mla", "float16", "odd"]))
    spec = spec_or_reason(config, cache_dtype)
    if isinstance(spec, str):
        assert "\n" not in spec
        assert spec.startswith("m: ")
        return
    assert 0 < spec.weights.always_bytes <= spec.total_weight_bytes < float("inf")
    assert spec.weights.read_bytes(8) <= spec.total_weight_bytes * (1 + 1e-9)
    block = spec.block_bytes(16)
    assert block is None or 0 < block < float("inf")


@given(layers=st.integers(1, 200), heads=st.integers(1, 64), size=st.sampled_from([64, 80, 128, 256]))
def test_kv_bytes_are_proportional_to_layers_heads_and_head_size(layers: int, heads: int, size: int) -> None:
    """2 x layers x KV heads x head size x element bytes."""
    shape = {"num_hidden_layers": layers, "num_key_value_heads": heads, "num_attention_heads": 64, "head_dim": size}
    assert spec_of(LLAMA | shape).kv_bytes_per_token == 2 * layers * heads * size * 2
    assert spec_of(LLAMA | shape, kv_cache_dtype="fp8").kv_bytes_per_token == 2 * layers * heads * size


@given(
    key=st.sampled_from(["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_local_experts"]),
    factor=st.integers(2, 8),
)
def test_weights_grow_with_every_dimension(key: str, factor: int) -> None:
    """More layers, width, vocabulary or experts: more bytes in memory, and never fewer read."""
    small, large = spec_of(MIXTRAL), spec_of(MIXTRAL | {key: MIXTRAL[key] * factor})
    assert large.total_weight_bytes > small.total_weight_bytes
    assert large.weights.always_bytes >= small.weights.always_bytes
