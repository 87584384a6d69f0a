"""Reads what a checkpoint's files say about sizes: JSON documents and safetensors headers, never the weights.

Every read is bounded, and only regular files are read, so that neither a pipe nor a huge file can hold the caller up.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepscope.core.model_spec import TensorBytes
from stepscope.errors import FactError

MAX_CONFIG_BYTES = 8 * 2**20  # a bound with room: a thousand times the configurations in the tests
MAX_INDEX_BYTES = 64 * 2**20  # a bound with room: about half a million tensors at 120 bytes each
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format's own reader
MAX_SHARDS = 2000
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# Widths of safetensors element types that an engine casts to the type it computes in.
FLOAT_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}

EMBEDDING = re.compile(r"(embed_tokens|wte|word_embeddings|tok_embeddings|backbone\.embeddings|embed_in)\.weight$")
HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output_layer)\.")
EXPERTS = re.compile(r"\.experts\.")
# Vision, audio and projector parts, multi-token-prediction layers, learned positions: a plain decode step reads none.
UNREAD = re.compile(
    r"(^|\.)(vision_tower|vision_model|vision_encoder|visual|audio_tower|multi_modal_projector|mm_projector"
    r"|embed_vision|embed_audio|mtp|wpe|embed_positions|position_embeddings)\."
)
LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,5})\.")


def short(text: object) -> str:
    """A path or id as one line of bounded length for an error message."""
    line = str(text)
    line = line if line.isprintable() else repr(line)
    return line if len(line) <= 200 else line[:197] + "..."


def _open_regular(path: Path) -> int:
    """A file descriptor of a regular file. Raises FactError for anything else, at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise FactError(f"{short(path)}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FactError(f"{short(path)}: not a regular file")
    return descriptor


def read_bounded(path: Path, limit: int) -> bytes:
    """A file's bytes. Raises FactError when it cannot be read or holds more than `limit` bytes."""
    with os.fdopen(_open_regular(path), "rb") as file:
        try:
            body = file.read(limit + 1)
        except OSError as error:
            raise FactError(f"{path}: {error.strerror}") from None
    if len(body) > limit:
        raise FactError(f"{short(path)}: larger than {limit} bytes")
    return body


def parse_object(body: bytes, where: object) -> dict[str, object]:
    """A JSON object. Raises FactError for anything else, in one line."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError holds UnicodeDecodeError and too long numbers
        reason = " ".join(str(error).split())[:120]
        raise FactError(f"{short(where)}: not valid JSON ({reason})") from None
    if not isinstance(value, dict):
        raise FactError(f"{short(where)}: not a JSON object")
    return value


def read_config(path: Path) -> dict[str, object]:
    """A model configuration file."""
    return parse_object(read_bounded(path, MAX_CONFIG_BYTES), path)


def read_header(path: Path) -> dict[str, object]:
    """The header of a safetensors file: 8 bytes of length (little endian), then that many bytes of JSON."""
    with os.fdopen(_open_regular(path), "rb") as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise FactError(f"{short(path)}: not a safetensors file (header of {length} bytes)")
            body = file.read(length)
        except OSError as error:
            raise FactError(f"{path}: {error.strerror}") from None
    if len(body) < length:
        raise FactError(f"{short(path)}: cut inside its header")
    return parse_object(body, path)


def _sizes(header: Mapping[str, object], where: Path, element_bytes: float | None) -> Iterator[tuple[str, float]]:
    """Name and bytes of each tensor; floats at `element_bytes` each where the engine casts them."""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, Mapping) else None
        if not (
            isinstance(entry, Mapping)
            and isinstance(offsets, list)
            and len(offsets) == 2
            and all(type(offset) is int for offset in offsets)
            and 0 <= offsets[0] <= offsets[1] < 2**53
        ):
            raise FactError(f"{short(where)}: tensor {short(name[:80])} has no valid data_offsets")
        size = float(offsets[1] - offsets[0])
        width = FLOAT_WIDTHS.get(str(entry.get("dtype")))
        yield name, size * element_bytes / width if element_bytes and width else size


def _shards(directory: Path) -> tuple[list[Path], int | None]:
    """The safetensors files of a checkpoint and the index's total size, where there is one."""
    index_path = directory / INDEX_NAME
    if not index_path.is_file():
        single = directory / SINGLE_NAME
        return ([single] if single.is_file() else []), None
    index = parse_object(read_bounded(index_path, MAX_INDEX_BYTES), index_path)
    weight_map, metadata = index.get("weight_map"), index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if type(total) is not int or not 0 < total < 2**53:
        total = None
    names = (
        {name for name in weight_map.values() if isinstance(name, str)} if isinstance(weight_map, Mapping) else set()
    )
    if len(names) > MAX_SHARDS or any(os.sep in name or name.startswith(".") for name in names):
        raise FactError(f"{index_path}: weight_map names files outside the checkpoint, or too many")
    paths = [directory / name for name in sorted(names)]
    return (paths if paths and all(path.is_file() for path in paths) else []), total


def measure(directory: Path, layers: int | None, element_bytes: float | None) -> TensorBytes | None:
    """Sizes of the checkpoint in a directory; None where it has no safetensors files and no index.

    layers: of the model; tensors of layers beyond are multi-token-prediction ones. element_bytes: width of the type
    that floats are cast to, None to take them as stored (quantised checkpoints). Raises FactError for a broken file.
    """
    paths, total_size = _shards(directory)
    if not paths:
        return None if total_size is None else TensorBytes(total_size)
    total = embedding = experts = unread = 0.0
    has_head = False
    for path in paths:
        for name, size in _sizes(read_header(path), path, element_bytes):
            total += size
            layer = LAYER.search(name)
            if UNREAD.search(name) or (layer and layers is not None and int(layer.group(1)) >= layers):
                unread += size
            elif EXPERTS.search(name):
                experts += size
            elif EMBEDDING.search(name):
                embedding += size
            elif HEAD.search(name):
                has_head = True
    if total <= 0:
        raise FactError(f"{paths[0]}: holds no tensors")
    # Zero means that the names are not known here: then the counted size stands.
    return TensorBytes(round(total), round(embedding) or None, round(experts) or None, round(unread), has_head)
