"""Finds a model's facts by its id or path: a file, a directory, a local Hugging Face cache, or the shipped table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepscope.core.config_reader import ConfigReader
from stepscope.core.layer_plan import read_layers
from stepscope.core.model_spec import ModelSpec, TensorBytes, from_hf_config
from stepscope.core.quantization import model_dtype
from stepscope.errors import FactError
from stepscope.runtime.checkpoint import measure, read_bounded, read_config, short
from stepscope.runtime.tables import published_model

CONFIG_NAME = "config.json"
MAX_REF_BYTES = 256  # a revision is a 40-digit hash
MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")  # the hub's own rule for names
CACHE_FOLDER = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
HINT = "give --model.config, or --model.weight-bytes and --model.kv-bytes-per-token"


def find_hf_caches(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders where the Hugging Face libraries keep downloads, best first, whether or not they exist.

    Order and names: huggingface_hub's constants.py (HF_HUB_CACHE, its older name, HF_HOME, XDG_CACHE_HOME, HOME).
    """
    candidates: list[Path] = []
    for variable, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ):
        value = environ.get(variable, "").strip()
        if value and "\0" not in value:
            path = Path(value, below)
            home = environ.get("HOME")
            if value.startswith("~/") and home:
                path = Path(home, value[2:], below)
            if path not in candidates:
                candidates.append(path)
    return tuple(candidates)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, a loop of links, no permission
        return False


def _snapshot(cache: Path, model_id: str) -> Path | None:
    """The directory of a model's current revision in one cache; None where it is not there."""
    folder = cache / ("models--" + model_id.replace("/", "--"))
    try:
        revision = read_bounded(folder / "refs" / "main", MAX_REF_BYTES).decode("ascii", "replace").strip()
    except FactError:
        revision = ""
    if re.fullmatch(r"[\w.-]+", revision) and _is_file(folder / "snapshots" / revision / CONFIG_NAME):
        return folder / "snapshots" / revision
    try:  # fetched by revision: no refs/main
        found = [path for path in (folder / "snapshots").iterdir() if _is_file(path / CONFIG_NAME)]
        return max(found, key=lambda path: (path.stat().st_mtime, path.name), default=None)
    except OSError:
        return None


def _measured(
    directory: Path, config: Mapping[str, object], name: str, dtype: str | None
) -> tuple[TensorBytes | None, tuple[str, ...]]:
    """The checkpoint beside a configuration, or what to tell the operator where it cannot be read."""
    reader = ConfigReader(config, name)
    quantised = bool(reader.section("quantization_config") or reader.section("compression_config"))
    element_bytes = None if quantised else model_dtype(reader, dtype)[1]
    layers = len(read_layers(reader))
    try:
        return measure(directory, layers, element_bytes), ()
    except FactError as error:
        return None, (f"the checkpoint cannot be measured: {error}",)


def _from_config_file(path: Path, name: str, kv_cache_dtype: str | None, dtype: str | None) -> ModelSpec:
    config = read_config(path)
    tensors, notes = _measured(path.parent, config, name, dtype)
    spec = from_hf_config(
        config, name=name, kv_cache_dtype=kv_cache_dtype, dtype=dtype, tensors=tensors, source=str(path)
    )
    return dataclasses.replace(spec, assumptions=spec.assumptions + notes) if notes else spec


def resolve_model(
    id_or_path: str,
    caches: Sequence[Path] = (),
    *,
    kv_cache_dtype: str | None = None,
    dtype: str | None = None,
) -> ModelSpec:
    """The spec of a model.

    id_or_path: a config.json, a directory that holds one, or an id such as the `root` that /v1/models gives, looked
    up in `caches` (see `find_hf_caches`) and then in the shipped table. kv_cache_dtype, dtype: as in `from_hf_config`.
    Raises FactError, one line: what is wrong in the configuration, or everywhere that was looked.
    """
    wanted = id_or_path.strip()
    if not wanted or "\0" in wanted:
        raise FactError(f"model: no id or path given; {HINT}")
    looked: list[str] = []
    path = Path(wanted).expanduser() if wanted.startswith("~/") else Path(wanted)
    for candidate in (path, path / CONFIG_NAME):
        if _is_file(candidate):
            return _from_config_file(candidate, short(wanted), kv_cache_dtype, dtype)
    if path.is_absolute() or wanted.startswith((".", "~")) or wanted.endswith(".json"):
        looked.append(short(path))
    model_id = wanted
    folder = CACHE_FOLDER.search(wanted)
    if folder:  # the engine's own path into a cache, seen from another container
        model_id = f"{folder.group(1)}/{folder.group(2)}"
    if MODEL_ID.fullmatch(model_id) and ".." not in model_id:
        for cache in caches:
            snapshot = _snapshot(cache, model_id)
            if snapshot is not None:
                return _from_config_file(snapshot / CONFIG_NAME, model_id, kv_cache_dtype, dtype)
            looked.append(str(cache))
        published = published_model(model_id)
        if published is not None:
            return from_hf_config(
                published.config,
                name=model_id,
                kv_cache_dtype=kv_cache_dtype,
                dtype=dtype,
                source=f"shipped table: {published.source}",
            )
        looked.append("the shipped table")
    looked = looked or [short(path)]
    raise FactError(f"model {short(wanted)}: no configuration found (looked in {', '.join(looked)}); {HINT}")
