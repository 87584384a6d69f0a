"""Finds out what is served on what, once per engine life, and keeps the answer for the sampler."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.assume import Calibration, Given, assume
from stepscope.core.estimate import Facts
from stepscope.core.hardware import find_gpu
from stepscope.core.model_spec import ModelSpec, from_numbers
from stepscope.core.sample import Reading
from stepscope.core.snapshot import Assumed
from stepscope.core.step_model import WeightBytes
from stepscope.errors import FactError
from stepscope.runtime.calibration_file import read_calibration
from stepscope.runtime.discover import find_hf_caches, resolve_model
from stepscope.runtime.engine_api import ServedModel, fetch_models, fetch_version
from stepscope.runtime.engine_client import EngineClient
from stepscope.runtime.tables import shipped_gpus

_RETRY_SECONDS = 60.0  # between two attempts to learn what the engine did not say the first time
_API_DEADLINE_SECONDS = 2.0  # so that a hung /v1/models delays a sample by little
_SUPPLY_MODEL = "--model.id, --model.config, or --model.weight-bytes and --model.kv-bytes-per-token"


def given_of(settings: Settings) -> Given:
    """What the settings say about hardware, KV cache and calibration. Raises ConfigError or FactError."""
    gpu_name = settings[table.HARDWARE_GPU]
    return Given(
        gpu=find_gpu(gpu_name, shipped_gpus()) if gpu_name else None,
        gpu_count=settings[table.HARDWARE_COUNT],
        peak_bandwidth_bytes_per_second=settings[table.HARDWARE_PEAK_BANDWIDTH],
        peak_flops=settings[table.HARDWARE_PEAK_FLOPS],
        capacity_override_tokens=settings[table.KV_CAPACITY_TOKENS],
        pool_bytes_override=settings[table.KV_POOL_BYTES],
        calibration=_calibration(settings),
    )


def _calibration(settings: Settings) -> Calibration | None:
    file = settings[table.CALIBRATION_FILE]
    if file is not None:
        return read_calibration(file)
    bandwidth = settings[table.CALIBRATION_EFFECTIVE_BANDWIDTH]
    if bandwidth is None:
        return None
    return Calibration(
        effective_bandwidth_bytes_per_second=bandwidth,
        step_overhead_seconds=settings[table.CALIBRATION_STEP_OVERHEAD] or 0.0,
        sequence_cost_seconds=settings[table.CALIBRATION_SEQUENCE_COST] or 0.0,
        prefill_cost_seconds_per_token=settings[table.CALIBRATION_PREFILL_COST] or 0.0,
    )


class FactsKeeper:
    """Facts for the core, made anew when the page, the engine's life or a pending answer asks for it."""

    def __init__(
        self,
        settings: Settings,
        client: EngineClient,
        environ: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError or FactError for explicit facts that cannot be read."""
        self._settings = settings
        self._client = client
        self._clock = clock
        self._caches = settings[table.MODEL_HF_CACHE] or tuple(find_hf_caches(environ))
        self._given = given_of(settings)
        self._key: tuple[object, ...] | None = None
        self._complete = False
        self._asked_at_seconds = float("-inf")
        self._facts = Facts()
        self.assumed = Assumed()
        self.engine_version: str | None = None
        if settings[table.MODEL_CONFIG] or settings[table.MODEL_ID]:
            self._explicit_model(None)  # a wrong path is a configuration error, to be said at once

    def for_reading(self, reading: Reading) -> Facts:
        """The facts for one page. Asks the engine at most once a minute, and only while something is open."""
        first = reading.engines[0]
        key = (first.model_name, first.kv_cache_dtype, len(reading.engines))
        now = self._clock()
        if key != self._key or (not self._complete and now - self._asked_at_seconds >= _RETRY_SECONDS):
            self._key, self._asked_at_seconds = key, now
            self._find(first.model_name, first.kv_cache_dtype, len(reading.engines))
        return self._facts

    def engine_restarted(self) -> None:
        """Ask again: another version or model may have come up."""
        self._key = None

    def to_say(self) -> tuple[str, ...]:
        """What was guessed and what is missing, one line each; the caller says each once."""
        guessed = tuple(f"assumed: {line}" for line in self.assumed.assumptions)
        return guessed + tuple(f"missing: {line}" for line in self.assumed.missing)

    def _find(self, model_name: str, kv_cache_dtype: str | None, engines_on_page: int) -> None:
        version = fetch_version(self._client, deadline_seconds=_API_DEADLINE_SECONDS)
        self.engine_version = version.value or self.engine_version
        model, missing = self._model(model_name, kv_cache_dtype)
        self._complete = model is not None and version.value is not None
        self._facts, self.assumed = assume(self._given, model, engines_on_page, self.engine_version, missing)

    def _model(self, model_name: str, kv_cache_dtype: str | None) -> tuple[ModelSpec | None, tuple[str, ...]]:
        """(model, what is missing)."""
        settings = self._settings
        dtype = settings[table.MODEL_KV_CACHE_DTYPE] or kv_cache_dtype
        weight_bytes = settings[table.MODEL_WEIGHT_BYTES]
        per_token = settings[table.MODEL_KV_BYTES_PER_TOKEN]
        if settings[table.MODEL_CONFIG] or settings[table.MODEL_ID]:
            try:
                return self._overridden(self._explicit_model(dtype)), ()
            except FactError as error:
                return None, (f"model: {error}",)
        if weight_bytes is not None and per_token is not None:
            name = model_name or "given"
            return from_numbers(weight_bytes, per_token, settings[table.MODEL_ACTIVE_PARAMS], name=name), ()
        reasons = []
        models = fetch_models(self._client, deadline_seconds=_API_DEADLINE_SECONDS)
        if models.value is None:
            reasons.append(models.reason or "/v1/models says nothing")
        for name in _candidates(models.value or [], model_name):
            try:
                return self._overridden(resolve_model(name, caches=self._caches, kv_cache_dtype=dtype)), ()
            except FactError as error:
                reasons.append(str(error))
        return None, (f"model facts: give {_SUPPLY_MODEL} ({'; '.join(reasons) or 'the engine names no model'})",)

    def _explicit_model(self, kv_cache_dtype: str | None) -> ModelSpec:
        wanted = self._settings[table.MODEL_CONFIG] or self._settings[table.MODEL_ID]
        return resolve_model(str(wanted), caches=self._caches, kv_cache_dtype=kv_cache_dtype)

    def _overridden(self, model: ModelSpec) -> ModelSpec:
        """The model with explicit numbers in place of its own."""
        settings = self._settings
        weight_bytes = settings[table.MODEL_WEIGHT_BYTES]
        if weight_bytes is not None:
            weights = WeightBytes(weight_bytes)
            model = replace(model, weights=weights, total_weight_bytes=weight_bytes, source=f"{model.source}, given")
        if settings[table.MODEL_KV_BYTES_PER_TOKEN] is not None:
            per_token = settings[table.MODEL_KV_BYTES_PER_TOKEN]
            model = replace(model, kv_bytes_per_token=per_token, kv_layout=None, source=f"{model.source}, given")
        if settings[table.MODEL_ACTIVE_PARAMS] is not None:
            model = replace(model, active_params=settings[table.MODEL_ACTIVE_PARAMS])
        return model


def _candidates(models: list[ServedModel], model_name: str) -> list[str]:
    """Names under which the model's facts may be found: what the engine was given, then what it calls it."""
    base = [model for model in models if model.parent is None] or models
    named = [model for model in base if model.id == model_name] or base[:1]
    names = [name for model in named for name in (model.root, model.id) if name]
    names += [model_name] if model_name else []
    return list(dict.fromkeys(names))
