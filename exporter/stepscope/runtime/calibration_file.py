"""Reads calibration.yaml: parameters of the step law measured on one engine, with what they were measured on."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from pathlib import Path
from typing import Any

from stepscope.core.assume import Calibration
from stepscope.core.step_model import LoadRange
from stepscope.errors import ConfigError

_MAX_BYTES = 2**20
_KEYS: dict[str, tuple[str, ...]] = {
    "parameters": (
        "effective_bandwidth_bytes_per_second",
        "step_overhead_seconds",
        "sequence_cost_seconds",
        "prefill_cost_seconds_per_token",
    ),
    "range": ("max_sequences", "max_tokens_in_flight", "max_prefill_tokens_per_step"),
    "residuals": ("median_abs_error", "samples"),
    "provenance": ("model", "gpu", "gpu_count", "engine_version", "dtype", "date", "stepscope_version"),
}


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
        raise ConfigError(f"calibration file {path}: not a calibration (expected {', '.join(_KEYS)})")
    for section in document:
        if section not in _KEYS:
            raise ConfigError(f"calibration file {path}: unknown key {section!r} (known: {', '.join(_KEYS)})")
    sections = {name: _section(path, document, name) for name in _KEYS}
    parameters, limits, residuals = sections["parameters"], sections["range"], sections["residuals"]
    numbers = {name: _number(path, "parameters", name, parameters.get(name, 0.0)) for name in _KEYS["parameters"]}
    if not numbers["effective_bandwidth_bytes_per_second"]:
        raise ConfigError(f"calibration file {path}: parameters.effective_bandwidth_bytes_per_second is missing or 0")
    ranges = {name: _number(path, "range", name, limits[name]) for name in _KEYS["range"] if name in limits}
    error_ratio = residuals.get("median_abs_error")
    samples = residuals.get("samples")
    provenance = sections["provenance"]
    count = provenance.get("gpu_count")
    return Calibration(
        effective_bandwidth_bytes_per_second=numbers["effective_bandwidth_bytes_per_second"],
        step_overhead_seconds=numbers["step_overhead_seconds"],
        sequence_cost_seconds=numbers["sequence_cost_seconds"],
        prefill_cost_seconds_per_token=numbers["prefill_cost_seconds_per_token"],
        identity=hashlib.sha256(text).hexdigest()[:12],
        valid_range=LoadRange(
            ranges.get("max_sequences"),
            ranges.get("max_tokens_in_flight"),
            ranges.get("max_prefill_tokens_per_step"),
        )
        if ranges
        else None,
        residual_ratio=None if error_ratio is None else _number(path, "residuals", "median_abs_error", error_ratio),
        samples=None if samples is None else int(_number(path, "residuals", "samples", samples)),
        model=_text(provenance.get("model")),
        gpu=_text(provenance.get("gpu")),
        gpu_count=None if count is None else int(_number(path, "provenance", "gpu_count", count)),
        engine_version=_text(provenance.get("engine_version")),
    )


def _section(path: Path, document: dict[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"calibration file {path}: {name} is not a mapping")
    for key in section:
        if key not in _KEYS[name]:
            raise ConfigError(f"calibration file {path}: unknown key {name}.{key} (known: {', '.join(_KEYS[name])})")
    return section


def _number(path: Path, section: str, name: str, value: Any) -> float:
    if isinstance(value, str):
        # YAML 1.1 reads 2.01e12 (no sign in the exponent) as text.
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= sys.float_info.max:
        raise ConfigError(f"calibration file {path}: {section}.{name} is not a number of at least 0: {value!r}")
    return float(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
