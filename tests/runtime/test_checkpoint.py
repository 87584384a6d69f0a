"""Sizes read from real safetensors files and indexes on disk, whole and broken."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import FactError
from stepscope.runtime.checkpoint import measure, read_config

MODEL = {
    "model.embed_tokens.weight": ("BF16", 100),
    "model.layers.0.self_attn.q_proj.weight": ("BF16", 40),
    "model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", 300),
    "model.layers.1.mlp.gate.weight": ("F32", 8),
    "model.layers.2.mlp.experts.0.up_proj.weight": ("BF16", 64),
    "visual.blocks.0.attn.qkv.weight": ("BF16", 20),
    "lm_head.weight": ("BF16", 100),
}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, int]], data: bool = True) -> None:
    """A real safetensors file: length, JSON header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    body = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + (b"\0" * at if data else b""))


def write_index(directory: Path, weight_map: dict[str, str], total_size: object) -> None:
    text = json.dumps({"metadata": {"total_size": total_size}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(text)


def test_one_file_is_split_into_what_a_step_reads(tmp_path: Path) -> None:
    """Embedding, experts and unread parts (vision, layers beyond the model's own) are told apart by name."""
    write_safetensors(tmp_path / "model.safetensors", MODEL)
    sizes = measure(tmp_path, layers=2, element_bytes=None)
    assert sizes is not None
    assert (sizes.total, sizes.embedding, sizes.experts, sizes.unread) == (632, 100, 300, 84)
    assert sizes.has_lm_head is True


def test_floats_count_at_the_width_the_engine_casts_them_to(tmp_path: Path) -> None:
    """A float32 checkpoint served in 16 bits takes half; integers stay as stored."""
    write_safetensors(tmp_path / "model.safetensors", {"a.weight": ("F32", 400), "b.qweight": ("I32", 100)})
    sizes = measure(tmp_path, layers=1, element_bytes=2.0)
    assert sizes is not None
    assert sizes.total == 300
    assert sizes.embedding is None  # no name known as an embedding: the counted size stands


def test_shards_are_summed_and_the_index_alone_gives_the_total(tmp_path: Path) -> None:
    """With every shard there the headers decide, with one missing the index's total does."""
    names = list(MODEL)
    write_safetensors(tmp_path / "one.safetensors", {name: MODEL[name] for name in names[:3]})
    write_safetensors(tmp_path / "two.safetensors", {name: MODEL[name] for name in names[3:]})
    write_index(tmp_path, {n: "one.safetensors" if n in names[:3] else "two.safetensors" for n in names}, 632)
    whole = measure(tmp_path, layers=2, element_bytes=None)
    assert whole is not None
    assert (whole.total, whole.experts) == (632, 300)
    (tmp_path / "two.safetensors").unlink()
    alone = measure(tmp_path, layers=2, element_bytes=None)
    assert alone is not None
    assert (alone.total, alone.experts, alone.has_lm_head) == (632, None, None)


def test_a_directory_without_a_checkpoint_has_no_sizes(tmp_path: Path) -> None:
    """Neither file nor index: None, and an index without a usable total is the same."""
    assert measure(tmp_path, layers=2, element_bytes=None) is None
    write_index(tmp_path, {"a": "missing.safetensors"}, "many")
    assert measure(tmp_path, layers=2, element_bytes=None) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not a safetensors file"),
        (b"PK\x03\x04" + b"\0" * 4, "cut inside its header"),
        (struct.pack("<Q", 2**62), "not a safetensors file"),
        (struct.pack("<Q", 1000) + b"{}", "cut inside its header"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 2) + b"{}", "holds no tensors"),
        (struct.pack("<Q", 9) + b'{"a": [1]', "not valid JSON"),
        (struct.pack("<Q", 10) + b'{"a": [1]}', "tensor a has no valid data_offsets"),
        (struct.pack("<Q", 31) + b'{"a": {"data_offsets": [9, 1]}}', "tensor a has no valid data_offsets"),
    ],
)
def test_a_broken_file_is_named_in_one_line(tmp_path: Path, body: bytes, message: str) -> None:
    """Empty, foreign, cut and lying headers."""
    (tmp_path / "model.safetensors").write_bytes(body)
    with pytest.raises(FactError, match=message) as caught:
        measure(tmp_path, layers=2, element_bytes=None)
    assert "\n" not in str(caught.value)


def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    """A shard name with a path in it is refused."""
    write_index(tmp_path, {"a": "../secret.safetensors"}, 10)
    with pytest.raises(FactError, match="names files outside the checkpoint"):
        measure(tmp_path, layers=2, element_bytes=None)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Opening one must not wait for a writer."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(FactError, match="not a regular file"):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"1" * 10_000, "not valid JSON"),
        (b'"text"', "not a JSON object"),
        (b" " * (8 * 2**20 + 1), "larger than 8388608 bytes"),
    ],
)
def test_a_configuration_that_is_no_json_object_is_named(tmp_path: Path, body: bytes, message: str) -> None:
    """Empty, binary, nested without end, endless digits, too large."""
    path = tmp_path / "config.json"
    path.write_bytes(body)
    with pytest.raises(FactError, match=message) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    """The operating system's own words, in one line."""
    with pytest.raises(FactError, match="No such file"):
        read_config(tmp_path / "none.json")
    with pytest.raises(FactError, match="not a regular file"):
        read_config(tmp_path)
