"""What the engine says about itself beside its metrics: `/version` and `/v1/models`. Never raises: a reason instead."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stepscope.errors import ScrapeError
from stepscope.runtime.engine_client import EngineClient

_MAX_BYTES = 2**20  # a model list is a few kB even with hundreds of adapters
_MAX_TEXT = 512  # characters of a version, id or path that are believed
_ACCEPT = "application/json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A value, or None and one line that says why there is none."""

    value: T | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`. parent: the base model's id where this one is an adapter. Source: vLLM's ModelCard."""

    id: str
    root: str | None  # the model as the engine was given it: a repository id or a path
    max_model_len: int | None  # tokens
    parent: str | None = None


def fetch_version(client: EngineClient, *, deadline_seconds: float | None = None) -> Answer[str]:
    """The engine's version; open even where the engine wants a key. `deadline_seconds`: the client's own if None."""
    document = _get_json(client, "/version", deadline_seconds)
    if document.value is None:
        return Answer(None, document.reason)
    version = _text(document.value.get("version"))
    if version is None:
        return Answer(None, f"{client.options.api_url('/version')}: no version in the answer")
    return Answer(version)


def fetch_models(client: EngineClient, *, deadline_seconds: float | None = None) -> Answer[list[ServedModel]]:
    """The models the engine serves, adapters included, in its order. Needs the engine's key where it has one."""
    document = _get_json(client, "/v1/models", deadline_seconds)
    if document.value is None:
        return Answer(None, document.reason)
    rows = document.value.get("data")
    found = [model for row in (rows if isinstance(rows, list) else []) if (model := _model(row)) is not None]
    if not found:
        return Answer(None, f"{client.options.api_url('/v1/models')}: no model in the answer")
    return Answer(found)


def _model(row: object) -> ServedModel | None:
    if not isinstance(row, dict):
        return None
    name = _text(row.get("id"))
    if name is None:
        return None
    length = row.get("max_model_len")
    if isinstance(length, bool) or not isinstance(length, int) or length <= 0:
        length = None
    return ServedModel(name, _text(row.get("root")), length, _text(row.get("parent")))


def _text(value: object) -> str | None:
    """A short printable text, else None: it will stand in labels, logs and reports."""
    if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable():
        return value
    return None


def _get_json(client: EngineClient, path: str, deadline_seconds: float | None) -> Answer[dict[str, Any]]:
    url = client.options.api_url(path)
    allowed = client.options.deadline_seconds if deadline_seconds is None else deadline_seconds
    try:
        reply = client.get(url, accept=_ACCEPT, max_bytes=_MAX_BYTES, until_seconds=time.monotonic() + allowed)
        document = json.loads(reply.body)
    except ScrapeError as error:
        return Answer(None, str(error))
    except (ValueError, RecursionError):
        # RecursionError: a megabyte of opening brackets.
        return Answer(None, f"GET {url}: the answer is not JSON")
    if not isinstance(document, dict):
        return Answer(None, f"GET {url}: the answer is not a JSON object")
    return Answer(document)
