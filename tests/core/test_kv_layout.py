"""KV bytes per token and per pool block, for uniform and hybrid models."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_configs import LLAMA, load_config
from shared_data import shared_path
from stepscope.core.kv_layout import layers_per_group
from stepscope.core.model_spec import ModelSpec, from_hf_config


def spec_of(config: dict[str, Any], **options: Any) -> ModelSpec:
    return from_hf_config(config, name="m", **options)


def test_latent_attention_keeps_one_latent_per_token_and_layer() -> None:
    """Rank 512 plus 64 rotary elements, 61 layers, 2 bytes; tensor parallelism copies it to every GPU."""
    spec = spec_of(load_config("deepseek-v3.json"))
    assert spec.attention == "mla"
    assert spec.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert spec.kv_read_bytes_per_token(8) == 8 * 70_272
    assert spec.block_bytes(64, tensor_parallel=8) == 8 * 64 * 70_272


def test_the_packed_latent_format_has_its_own_size() -> None:
    """fp8_ds_mla keeps 656 bytes per token and layer."""
    assert spec_of(load_config("deepseek-v3.json"), kv_cache_dtype="fp8_ds_mla").kv_bytes_per_token == 61 * 656


def test_kv_heads_are_copied_only_beyond_their_number() -> None:
    """Two KV heads on two GPUs are shared out, on eight GPUs each is held four times."""
    spec = spec_of(LLAMA)
    per_token = spec.kv_bytes_per_token
    assert per_token is not None
    assert spec.kv_read_bytes_per_token(2) == per_token
    assert spec.kv_read_bytes_per_token(8) == 4 * per_token


def test_a_window_on_every_layer_is_still_uniform() -> None:
    """Mistral 7B v0.1: one kind of layer, so that tokens in flight do say the bytes."""
    spec = spec_of(LLAMA | {"model_type": "mistral", "sliding_window": 4096})
    assert (spec.attention, spec.hybrid) == ("sliding", False)
    assert spec.kv_bytes_per_token == 2 * 4 * 2 * 32 * 2


def test_a_window_switched_off_is_no_window() -> None:
    """Qwen files carry sliding_window with use_sliding_window false, or without the switch at all."""
    off = {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 2}
    assert spec_of(LLAMA | off | {"use_sliding_window": False}).attention == "gqa"
    assert spec_of(LLAMA | off).attention == "gqa"
    on = spec_of(LLAMA | off | {"use_sliding_window": True})
    assert on.hybrid
    assert on.kv_layout is not None
    assert [(group.kind, group.layers) for group in on.kv_layout.groups] == [("full", 2), ("sliding", 2)]


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("gemma2", {"sliding": 6, "full": 6}),
        ("gemma3_text", {"sliding": 10, "full": 2}),
        ("cohere2", {"sliding": 9, "full": 3}),
    ],
)
def test_families_with_a_pattern_by_default_are_hybrid(model_type: str, expected: dict[str, int]) -> None:
    """The class default of the pattern is used where the file leaves it out, and written down."""
    spec = spec_of(LLAMA | {"model_type": model_type, "num_hidden_layers": 12})
    assert spec.kv_layout is not None
    assert {group.kind: group.layers for group in spec.kv_layout.groups} == expected
    assert spec.kv_bytes_per_token is None
    assert any("sliding_window" in line for line in spec.assumptions)


def test_hybrid_models_give_block_bytes_instead_of_token_bytes() -> None:
    """gpt-oss-20b: 12 sliding and 12 full layers share blocks of 12 layers."""
    spec = spec_of(load_config("gpt-oss-20b.json"))
    assert (spec.attention, spec.hybrid, spec.kv_bytes_per_token) == ("hybrid", True, None)
    assert spec.block_bytes(16) == 16 * 12 * (2 * 8 * 64 * 2)
    assert spec.kv_layout is not None
    assert spec.kv_layout.group_count() == 2


def test_a_linear_attention_block_holds_a_whole_state() -> None:
    """A state of 49,152 + 1,048,576 B takes 536 tokens of 2,048 B each: 544 in steps of 16."""
    config = load_config("qwen3.5-397b.json")["text_config"] | {"linear_num_value_heads": 32, "num_hidden_layers": 60}
    spec = spec_of(config)
    per_layer = 2 * 2 * 256 * 2
    assert spec.block_bytes(16) == 15 * 544 * per_layer
    assert spec.block_bytes(544) == spec.block_bytes(16)
    assert spec.block_bytes(1024) == 15 * 1024 * per_layer


def test_mamba_hybrids_are_recognised_and_their_pool_is_not_guessed() -> None:
    """KV per token and per block are unknown, and the reason is written down."""
    spec = spec_of(load_config("nemotron-h.json"))
    assert spec.hybrid
    assert spec.kv_bytes_per_token is None
    assert spec.block_bytes(16) is None
    assert any("pool bytes are unknown" in line for line in spec.assumptions)


@pytest.mark.parametrize(
    ("counts", "expected"), [((10, 50), 10), ((12, 13), 13), ((12, 12), 12), ((24, 36), 24), ((24, 35), 35), ((5,), 5)]
)
def test_layers_per_group_is_the_smaller_count_unless_the_counts_are_close(
    counts: tuple[int, ...], expected: int
) -> None:
    """The rule and its examples (5:1, and 12 + 13 with a drafter) are vLLM's."""
    assert layers_per_group(counts) == expected


@given(full=st.integers(1, 100), sliding=st.integers(1, 100))
def test_groups_hold_every_layer_and_blocks_are_equal(full: int, sliding: int) -> None:
    """Group size x number of groups covers all layers, with less than one group of padding per kind."""
    types = ["full_attention"] * full + ["sliding_attention"] * sliding
    layered = {"num_hidden_layers": full + sliding, "layer_types": types, "sliding_window": 128}
    layout = spec_of(LLAMA | layered).kv_layout
    assert layout is not None
    size, per_layer = layers_per_group([full, sliding]), 2 * 2 * 32 * 2
    assert full + sliding <= layout.group_count() * size < full + sliding + 2 * size
    assert layout.block_bytes(16) == 16 * per_layer * size


def test_the_recorded_hybrid_page_has_the_blocks_that_its_shape_gives() -> None:
    """The gemma3 tape: 8,192 blocks share 2 GiB, and the longest request takes the blocks that three groups need."""
    with gzip.open(shared_path("data", "tapes", "gemma3.jsonl.gz"), "rt") as rows:
        body = next(page for row in rows if (page := json.loads(row).get("body")))
    labels = dict(re.findall(r'(\w+)="([^"]*)"', next(x for x in body.splitlines() if "cache_config_info{" in x)))
    spec = spec_of(load_config("gemma3-tape.json"), kv_cache_dtype=labels["cache_dtype"])
    blocks, block_size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    assert spec.block_bytes(block_size) == int(labels["kv_cache_memory_bytes"]) / blocks == 262_144
    # The engine was started with 16,384 tokens per request and 512 per step: the full group takes 128 blocks, each of
    # the two sliding groups those of window - 1 + 512 tokens and one more (vLLM, SlidingWindowSpec).
    assert spec.kv_layout is not None
    sliding_groups = spec.kv_layout.group_count() - 1
    per_request = 16384 // block_size + sliding_groups * (-(-(512 - 1 + 512) // block_size) + 1)
    assert float(labels["kv_cache_max_concurrency"]) == pytest.approx(blocks / per_request)
