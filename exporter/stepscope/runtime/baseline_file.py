"""Keeps a learned baseline over restarts: one small JSON file, replaced as a whole, believed only where it matches."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.core.learn import Baseline
from stepscope.core.step_model import Load, LoadRange, StepLaw, WeightBytes
from stepscope.errors import StateError

FORMAT = 1
_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Identity:
    """What a baseline was learned on. None or empty: not known, which fits everything."""

    model_name: str
    engine_version: str | None = None
    kv_cache_dtype: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None

    def mismatch(self, other: Identity) -> str | None:
        """The first thing that differs where both are known, in words; None if nothing does."""
        for entry in dataclasses.fields(self):
            ours, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if ours and theirs and ours != theirs:
                return f"{entry.name} was {ours}, is {theirs}"
        return None


def write_baseline(path: Path, baseline: Baseline, identity: Identity, at_unix_seconds: float) -> None:
    """Replace the file at once, so that a reader or a crash never meets half of it. Raises StateError."""
    document = {
        "format": FORMAT,
        "learned_unix_seconds": round(at_unix_seconds),
        "identity": dataclasses.asdict(identity),
        "baseline": _json(dataclasses.asdict(baseline)),
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    temporary = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise StateError(f"state file {path}: {error.strerror or error}") from None


def read_baseline(path: Path) -> tuple[Baseline, Identity] | None:
    """What the file holds; None if there is none. Raises StateError, one line that says why it cannot be used."""
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"state file {path}: {error.strerror or error}") from None
    if len(body) > _MAX_BYTES:
        raise StateError(f"state file {path}: larger than {_MAX_BYTES} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise StateError(f"state file {path}: not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StateError(f"state file {path}: not of format {FORMAT}")
    try:
        return _baseline(document["baseline"]), _identity(document["identity"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"state file {path}: not a baseline ({error})") from None


def remove_baseline(path: Path) -> None:
    """Forget what was kept. Raises StateError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"state file {path}: {error.strerror or error}") from None


def _json(value: Any) -> Any:
    """JSON has no infinity; a price of nothing is an infinite bandwidth."""
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    return "inf" if value == math.inf else value


def _baseline(row: Mapping[str, Any]) -> Baseline:
    law = {name: _value(name, value) for name, value in row["law"].items() if name not in ("weights", "valid_range")}
    found = StepLaw(
        weights=WeightBytes(**_numbers(row["law"]["weights"])),
        valid_range=LoadRange(**_numbers(row["law"]["valid_range"])),
        **law,
    )
    if found.source != "learned":
        raise ValueError(f"source is {found.source!r}")
    flags = {name: row[name] for name in ("in_tokens", "suspect")}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError("a flag is not true or false")
    return Baseline(law=found, load=Load(**_numbers(row["load"])), **flags)


def _identity(row: Mapping[str, Any]) -> Identity:
    found = Identity(**row)
    texts = (found.model_name, found.engine_version, found.kv_cache_dtype, found.gpu)
    if not all(text is None or isinstance(text, str) for text in texts):
        raise ValueError("a name is not a text")
    if found.gpu_count is not None and not isinstance(found.gpu_count, int):
        raise ValueError("gpu_count is not a number")
    return found


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in row.items()}


def _value(name: str, value: Any) -> Any:
    """A figure of a law: a number not below 0, a text where the field is one, or None."""
    if name in ("source", "identity"):
        if not isinstance(value, str):
            raise ValueError(f"{name} is not a text")
        return value
    if value == "inf":
        return math.inf
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}")
    return value
