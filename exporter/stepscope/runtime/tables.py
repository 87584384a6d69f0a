"""Reads the tables shipped with the package: GPUs and published model configurations, each row with its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from stepscope.core import hardware
from stepscope.core.hardware import Gpu, read_gpus
from stepscope.errors import FactError


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """One row of the model table: the ids it stands for, what rebuilds its configuration, and where that is from."""

    ids: tuple[str, ...]
    config: Mapping[str, object]
    source: str


def _table(name: str, key: str) -> list[object]:
    document = json.loads(resources.files("stepscope").joinpath("facts", name).read_text(encoding="utf-8"))
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise FactError(f"facts/{name}: {key} must be a list")
    return rows


@cache
def shipped_gpus() -> tuple[Gpu, ...]:
    """The GPU table."""
    return read_gpus(_table("gpus.json", "gpus"), "facts/gpus.json")


def find_gpu(name: str) -> Gpu:
    """The shipped GPU of a name; FactError with the choices or the nearest names."""
    return hardware.find_gpu(name, shipped_gpus())


@cache
def published_models() -> tuple[PublishedModel, ...]:
    """The model table. Raises FactError where a row lacks its ids, its configuration or its source."""
    models = []
    for row in _table("models.json", "models"):
        ids = row.get("ids") if isinstance(row, dict) else None
        if not isinstance(row, dict) or not isinstance(ids, list) or not ids:
            raise FactError("facts/models.json: a row has no ids")
        config, source = row.get("config"), row.get("source")
        if not isinstance(config, dict) or not isinstance(source, str) or not source:
            raise FactError(f"facts/models.json: {ids[0]}: config or source is missing")
        models.append(PublishedModel(tuple(map(str, ids)), config, source))
    return tuple(models)


def published_model(model_id: str) -> PublishedModel | None:
    """The row of a model id, whatever the case; None where the table has none."""
    wanted = model_id.lower()
    return next((model for model in published_models() if wanted in (known.lower() for known in model.ids)), None)
