"""A model's facts from a file, a directory, a local Hugging Face cache or the shipped table."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from model_configs import CONFIGS, LLAMA
from stepscope.errors import FactError
from stepscope.runtime.discover import find_hf_caches, resolve_model
from stepscope.runtime.tables import published_models


def fill_cache(cache: Path, model_id: str, config: dict[str, Any], revision: str = "abc123", ref: bool = True) -> Path:
    """A cache as huggingface_hub lays it out: blobs, a snapshot of links, refs/main."""
    folder = cache / ("models--" + model_id.replace("/", "--"))
    snapshot = folder / "snapshots" / revision
    for path in (folder / "blobs", snapshot, folder / "refs"):
        path.mkdir(parents=True, exist_ok=True)
    blob = folder / "blobs" / f"blob-{revision}"
    blob.write_text(json.dumps(config))
    (snapshot / "config.json").symlink_to(blob)
    if ref:
        (folder / "refs" / "main").write_text(revision)
    return snapshot


def test_a_file_and_its_directory_give_the_same_model(tmp_path: Path) -> None:
    """The source says which file it was."""
    shutil.copy(CONFIGS / "qwen3-8b.json", tmp_path / "config.json")
    by_file, by_directory = resolve_model(str(tmp_path / "config.json")), resolve_model(str(tmp_path))
    assert by_file.source == by_directory.source == str(tmp_path / "config.json")
    assert by_file.kv_bytes_per_token == by_directory.kv_bytes_per_token == 147_456


def test_a_checkpoint_beside_the_configuration_is_measured(tmp_path: Path) -> None:
    """Weights come from the header, to the byte."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    header = {
        "model.embed_tokens.weight": {"dtype": "BF16", "shape": [1000, 256], "data_offsets": [0, 512_000]},
        "lm_head.weight": {"dtype": "BF16", "shape": [1000, 256], "data_offsets": [512_000, 1_024_000]},
        "model.layers.0.x.weight": {"dtype": "BF16", "shape": [500], "data_offsets": [1_024_000, 1_025_000]},
    }
    body = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(body)) + body)
    spec = resolve_model(str(tmp_path))
    assert spec.total_weight_bytes == 1_025_000
    assert spec.weights.always_bytes == 513_000


def test_a_broken_checkpoint_is_said_and_counted_instead(tmp_path: Path) -> None:
    """The model still resolves; the assumption names the file."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    spec = resolve_model(str(tmp_path))
    assert spec.total_params is not None
    assert spec.total_weight_bytes == 2 * spec.total_params
    assert any("model.safetensors: not a safetensors file" in line for line in spec.assumptions)


def test_an_id_is_found_in_the_cache_at_its_current_revision(tmp_path: Path) -> None:
    """refs/main decides between snapshots, and the first cache that has the model wins over the table."""
    fill_cache(tmp_path, "Qwen/Qwen3-8B", LLAMA | {"num_hidden_layers": 7}, "old", ref=False)
    snapshot = fill_cache(tmp_path, "Qwen/Qwen3-8B", LLAMA | {"num_hidden_layers": 5}, "new")
    spec = resolve_model("Qwen/Qwen3-8B", (tmp_path / "empty", tmp_path))
    assert spec.layers == 5
    assert spec.source == str(snapshot / "config.json")


def test_without_a_ref_the_newest_snapshot_is_taken(tmp_path: Path) -> None:
    """A download by revision leaves no refs/main."""
    old = fill_cache(tmp_path, "a/b", LLAMA | {"num_hidden_layers": 7}, "z", ref=False)
    fill_cache(tmp_path, "a/b", LLAMA | {"num_hidden_layers": 5}, "a", ref=False)
    os.utime(old, (1, 1))
    assert resolve_model("a/b", (tmp_path,)).layers == 5


def test_a_ref_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    """A revision is a plain name; anything else is passed over."""
    snapshot = fill_cache(tmp_path, "a/b", LLAMA, "good")
    (snapshot.parent.parent / "refs" / "main").write_text("../../../elsewhere")
    assert resolve_model("a/b", (tmp_path,)).source == str(snapshot / "config.json")


def test_the_shipped_table_answers_where_no_cache_does(tmp_path: Path) -> None:
    """Ids are compared without case, and the source says that it was the table."""
    spec = resolve_model("qwen/qwen3-8b", (tmp_path,))
    assert spec.kv_bytes_per_token == 147_456
    assert spec.source.startswith("shipped table: ")


def test_a_path_into_another_containers_cache_is_taken_as_its_id() -> None:
    """The engine was started with a snapshot's path that this process cannot see."""
    spec = resolve_model("/gone/hub/models--Qwen--Qwen3-8B/snapshots/0123abc")
    assert (spec.name, spec.kv_bytes_per_token) == ("Qwen/Qwen3-8B", 147_456)


@pytest.mark.parametrize(
    "wanted", ["org/unknown", "/none/at/all", "../up", "a/../b", "no such\nmodel", "x" * 5000, "~/none"]
)
def test_what_cannot_be_found_says_where_it_looked(wanted: str, tmp_path: Path) -> None:
    """One line of bounded length with the flags that supply the facts."""
    with pytest.raises(FactError, match="no configuration found") as caught:
        resolve_model(wanted, (tmp_path,))
    message = str(caught.value)
    assert "looked in " in message
    assert "--model.weight-bytes" in message
    assert "\n" not in message
    assert len(message) < 700
    if wanted == "org/unknown":
        assert f"looked in {tmp_path}, the shipped table" in message


@pytest.mark.parametrize("wanted", ["", "  ", "a\0b"])
def test_no_id_at_all_is_an_error(wanted: str) -> None:
    """Empty, blank and impossible names."""
    with pytest.raises(FactError, match="no id or path given"):
        resolve_model(wanted)


def test_a_wrong_configuration_in_the_cache_is_named(tmp_path: Path) -> None:
    """The key at fault, not a silent fall-back to the table."""
    fill_cache(tmp_path, "Qwen/Qwen3-8B", LLAMA | {"num_hidden_layers": "many"})
    with pytest.raises(FactError, match="Qwen/Qwen3-8B: num_hidden_layers must be a whole number, not 'many'"):
        resolve_model("Qwen/Qwen3-8B", (tmp_path,))


def test_the_engines_kv_type_is_passed_through() -> None:
    """fp8 halves the bytes per token."""
    assert resolve_model("Qwen/Qwen3-8B", kv_cache_dtype="fp8").kv_bytes_per_token == 147_456 / 2


def test_caches_are_looked_for_in_the_order_of_the_hub_library() -> None:
    """HF_HUB_CACHE, its older name, HF_HOME, XDG_CACHE_HOME, HOME; unset and empty ones are left out."""
    environ = {
        "HF_HUB_CACHE": "/a",
        "HUGGINGFACE_HUB_CACHE": "/a",
        "HF_HOME": "~/b",
        "XDG_CACHE_HOME": "",
        "HOME": "/h",
    }
    assert find_hf_caches(environ) == (Path("/a"), Path("/h/b/hub"), Path("/h/.cache/huggingface/hub"))
    assert find_hf_caches({}) == ()


def test_every_shipped_model_resolves_under_every_id() -> None:
    """No id twice, each with a source, no guess beyond the counted weights, windows and chunks."""
    ids = [model_id for model in published_models() for model_id in model.ids]
    assert len({model_id.lower() for model_id in ids}) == len(ids) >= 60
    for model_id in ids:
        spec = resolve_model(model_id)
        assert spec.source.startswith("shipped table: ")
        assert spec.kv_bytes_per_token_all_layers
        assert not any("is not in the configuration" in line for line in spec.assumptions), model_id
