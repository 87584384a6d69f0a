"""Reads and writes calibration.yaml: parameters of the step law measured on one engine, and what it was measured on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepscope.core.assume import Calibration
from stepscope.core.step_model import LoadRange
from stepscope.errors import ConfigError

_MAX_BYTES = 2**20
_HEAD = """\
# The step law of one engine, measured by stepscope calibrate. Use: stepscope serve --calibration.file=THIS
# Units are in the names: bytes, seconds, tokens, ratios; all GPUs of the engine together.
"""


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of the file and the field that holds it. `optional`: absent means unknown, else 0."""

    section: str
    name: str
    kind: Literal["number", "count", "text"] = "number"
    field: str = ""  # where it is not called like the key
    optional: bool = True

    @property
    def attribute(self) -> str:
        return self.field or self.name


_KEYS = (
    _Key("parameters", "effective_bandwidth_bytes_per_second", optional=False),
    _Key("parameters", "kv_bandwidth_bytes_per_second"),
    _Key("parameters", "step_overhead_seconds", optional=False),
    _Key("parameters", "sequence_cost_seconds", optional=False),
    _Key("parameters", "prefill_cost_seconds_per_token", optional=False),
    _Key("parameters", "kv_context_cost_seconds_per_byte_token", optional=False),
    _Key("parameters", "batch_growth_seconds", optional=False),
    _Key("parameters", "wide_batch_seconds", optional=False),
    _Key("parameters", "prefill_growth_seconds_per_token", optional=False),
    _Key("parameters", "prompt_cost_seconds", optional=False),
    _Key("parameters", "prompt_growth_seconds", optional=False),
    _Key("parameters", "compute_flops_per_second"),
    _Key("range", "max_sequences"),
    _Key("range", "max_tokens_in_flight"),
    _Key("range", "max_prefill_tokens_per_step"),
    _Key("residuals", "median_abs_error", field="residual_ratio"),
    _Key("residuals", "repeat_spread", field="noise_ratio"),
    _Key("residuals", "samples", "count"),
    _Key("provenance", "model", "text"),
    _Key("provenance", "gpu", "text"),
    _Key("provenance", "gpu_count", "count"),
    _Key("provenance", "engine_version", "text"),
    _Key("provenance", "dtype", "text"),
    _Key("provenance", "kv_dtype", "text"),
    _Key("provenance", "date", "text"),
    _Key("provenance", "stepscope_version", "text"),
)
_SECTIONS = tuple(dict.fromkeys(key.section for key in _KEYS))
_RANGE = "range"  # the one section that is a value of its own, a LoadRange


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file. Raises ConfigError, one line that names the file and the key."""
    import yaml  # only where there is a file: most sidecars never load it, and it is a megabyte

    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        document = yaml.safe_load(text.decode())
    except OSError as error:
        raise ConfigError(f"calibration file {path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: bytes that are no text, a date that is none, a number of thousands of digits.
        raise ConfigError(f"calibration file {path}: not YAML: {str(error).splitlines()[0]}") from None
    if len(text) > _MAX_BYTES or not isinstance(document, dict):
        raise ConfigError(f"calibration file {path}: not a calibration (expected {', '.join(_SECTIONS)})")
    for section in document:
        if section not in _SECTIONS:
            raise ConfigError(f"calibration file {path}: unknown key {section!r} (known: {', '.join(_SECTIONS)})")
    sections = {name: _section(path, document, name) for name in _SECTIONS}
    if not _number(path, _KEYS[0], sections["parameters"].get(_KEYS[0].name, 0.0)):
        raise ConfigError(f"calibration file {path}: parameters.{_KEYS[0].name} is missing or 0")
    fields: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for key in _KEYS:
        given = sections[key.section].get(key.name)
        if given is None and not key.optional:
            given = 0.0
        value = None if given is None else _value(path, key, given)
        (limits if key.section == _RANGE else fields)[key.attribute] = value
    for name in ("kv_bandwidth_bytes_per_second", "compute_flops_per_second"):
        fields[name] = fields[name] or None
    valid_range = LoadRange(**limits) if any(value is not None for value in limits.values()) else None
    return Calibration(**fields, valid_range=valid_range, identity=hashlib.sha256(text).hexdigest()[:12])


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a file that `read_calibration` gives back as it was, its identity aside. Replaces a file in one step.

    Raises ConfigError where it cannot be written: the old file is then as it was.
    """
    text = _HEAD + calibration_text(calibration)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"calibration file {path}: {error.strerror or error}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would hide it from a sidecar that runs as somebody else
        os.replace(name, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise ConfigError(f"calibration file {path}: {error.strerror or error}") from None


def calibration_text(calibration: Calibration) -> str:
    """The sections as YAML; what is not known is left out."""
    import yaml

    document: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for key in _KEYS:
        holder = calibration.valid_range if key.section == _RANGE else calibration
        value = None if holder is None else getattr(holder, key.attribute)
        if value is not None:
            document[key.section][key.name] = value
    filled = {section: values for section, values in document.items() if values}
    return str(yaml.safe_dump(filled, sort_keys=False, allow_unicode=True))


def _section(path: Path, document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"calibration file {path}: {name} is not a mapping")
    known = [key.name for key in _KEYS if key.section == name]
    for key in section:
        if key not in known:
            raise ConfigError(f"calibration file {path}: unknown key {name}.{key} (known: {', '.join(known)})")
    return section


def _value(path: Path, key: _Key, value: Any) -> float | int | str:
    if key.kind == "text":
        return str(value)
    number = _number(path, key, value)
    return int(number) if key.kind == "count" else number


def _number(path: Path, key: _Key, value: Any) -> float:
    if isinstance(value, str):
        # YAML 1.1 reads 2.01e12 (no sign in the exponent) as text.
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= sys.float_info.max:
        raise ConfigError(f"calibration file {path}: {key.section}.{key.name} is not a number of at least 0: {value!r}")
    return float(value)
