"""Whether the engine serves the model that `--model.id` names: rows must not carry another model's facts."""

from __future__ import annotations

import re
from dataclasses import replace

from stepscope import settings as table
from stepscope.commands._load import Opened
from stepscope.config import Settings
from stepscope.runtime.discover import MODEL_ID
from stepscope.runtime.engine_api import fetch_models
from stepscope.runtime.engine_client import EngineClient


def checked(engine: Opened, settings: Settings) -> tuple[Opened, str | None]:
    """(engine, one line to say or None). Where the model is another one for certain, the engine comes without facts.

    `--model.config` is not compared: who gives a file says that it fits.
    """
    claimed = settings[table.MODEL_ID]
    if not claimed or settings[table.MODEL_CONFIG] or engine.facts.model is None:
        return engine, None
    served = _served(engine, settings)
    if any(_same(claimed, name) for name in served):
        return engine, None
    said = f"--model.id: {claimed}, but the engine serves {' from '.join(served)}"
    if not any(_is_repository(name) for name in served):
        return engine, f"{said}: nothing says whether these are the same"
    # The law too: its bytes are the model's.
    known = replace(engine, facts=replace(engine.facts, model=None, law=None), missing=(), assumptions=())
    return known, f"{said}: no prediction, and rows without facts of a model (--model.config=FILE is taken unchecked)"


def _served(engine: Opened, settings: Settings) -> tuple[str, ...]:
    """What the engine calls its model and what it was given; the name alone where it does not list them."""
    key_file = settings[table.ENGINE_API_KEY_FILE] or settings[table.ENGINE_BEARER_TOKEN_FILE]
    api = EngineClient(replace(engine.client.options, bearer_token_file=key_file))
    try:
        models = fetch_models(api).value or []
    finally:
        api.close()
    names = [name for model in models if model.id == engine.client.model for name in (model.id, model.root) if name]
    return tuple(dict.fromkeys(names)) or (engine.client.model,)


def _same(one: str, other: str) -> bool:
    """By the last part: a repository's name, or a folder on the way that is called like it (models--Qwen--Qwen3-8B)."""
    return one.rstrip("/").rpartition("/")[2].lower() in re.split("/|--", other.lower())


def _is_repository(name: str) -> bool:
    """OWNER/NAME, not a path and not a nickname."""
    return "/" in name and MODEL_ID.fullmatch(name) is not None
