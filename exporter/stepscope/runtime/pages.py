"""What stepscope answers: its metrics, health, configuration, the last comparison as JSON, a landing page."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.registry import CollectorRegistry

from stepscope.core.snapshot import Snapshot
from stepscope.errors import StepscopeError
from stepscope.metrics import CAUSES, OUTCOMES, STATES
from stepscope.runtime.collector import render
from stepscope.runtime.http1 import Request, Response
from stepscope.runtime.landing import landing_page
from stepscope.runtime.routes import Route, loopback_or_authenticated
from stepscope.runtime.state import State

_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
# The page is one document without scripts or outside parts.
_PAGE_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)  # fmt: skip


def make_routes(
    state: State,
    registry: CollectorRegistry,
    config: Callable[[], Mapping[str, Any]],
    reload: Callable[[], None],
    *,
    unix_clock: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> dict[tuple[str, str], Route]:
    """The table of routes. `config()` has secrets hidden; `reload()` raises StepscopeError and then changed nothing."""

    def metrics(request: Request) -> Response:
        body, content_type = render(registry, request.headers.get("accept", ""))
        return Response(200, body, content_type)

    def healthy(_: Request) -> Response:
        return Response(200, b"stepscope is healthy\n", _TEXT)

    def ready(_: Request) -> Response:
        # Never depends on the engine: a pod must not turn unready because its model still loads.
        return Response(200, b"stepscope is ready\n", _TEXT)

    def reload_now(request: Request) -> Response:
        refused = loopback_or_authenticated(request)
        if refused is not None:
            return refused
        try:
            reload()
        except StepscopeError as error:
            return Response(500, f"not reloaded, the old configuration stands: {error}\n".encode(), _TEXT)
        return Response(200, b"reloaded\n", _TEXT)

    def show_config(_: Request) -> Response:
        return _json({"settings": config(), "assumed": assumed_json(state.snapshot)})

    def snapshot(_: Request) -> Response:
        return _json(snapshot_json(state.snapshot, clock()))

    def history(_: Request) -> Response:
        return _json({"points": state.history(unix_clock())})

    def landing(_: Request) -> Response:
        return Response(200, landing_page(state.snapshot, clock()).encode(), "text/html; charset=utf-8", _PAGE_HEADERS)

    return {
        ("GET", "/metrics"): metrics,
        ("GET", "/"): landing,
        ("GET", "/-/healthy"): healthy,
        ("GET", "/-/ready"): ready,
        ("POST", "/-/reload"): reload_now,
        ("GET", "/config"): show_config,
        ("GET", "/api/v1/snapshot"): snapshot,
        ("GET", "/api/v1/history"): history,
    }


def _json(document: Any) -> Response:
    return Response(200, (json.dumps(finite(document), indent=1, allow_nan=False) + "\n").encode(), _JSON)


def finite(value: Any) -> Any:
    """The same document with None for numbers that JSON cannot say (the median's last bucket ends at infinity)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def snapshot_json(snapshot: Snapshot, now_seconds: float) -> dict[str, Any]:
    """The last comparison as plain JSON: names as in the metric table, None where something cannot be known."""
    engines = []
    for view in snapshot.engines:
        row = dataclasses.asdict(view)
        row.pop("at_seconds")
        row["age_seconds"] = round(now_seconds - view.at_seconds, 3)
        row["token_headroom_tokens"] = view.token_headroom_tokens
        row["predicted_itl_seconds"] = view.predicted_itl_seconds
        row["predicted_step_seconds"] = view.predicted.decode_seconds if view.predicted is not None else None
        accounts = row["accounts"]
        accounts["state_seconds"] = dict(zip(STATES, view.accounts.state_seconds, strict=True))
        accounts["cause_seconds"] = dict(zip(CAUSES, view.accounts.cause_seconds, strict=True))
        accounts["invalid_values"] = dict(view.accounts.invalid_values)
        engines.append(row)
    return {
        "version": snapshot.version,
        "config_ok": snapshot.config_ok,
        "config_errors": list(snapshot.config_errors),
        "engine_up": snapshot.engine_up,
        "engine_ever_up": snapshot.engine_ever_up,
        "engine_version": snapshot.engine_version,
        "engine_scrapes": dict(zip(OUTCOMES, snapshot.scrapes, strict=True)),
        "scrape_duration_seconds": snapshot.scrape_duration_seconds,
        "last_sample_unix_seconds": snapshot.last_sample_unix_seconds,
        "last_error": snapshot.last_error,
        "notes": list(snapshot.notes),
        "engines": engines,
        "assumed": assumed_json(snapshot),
    }


def assumed_json(snapshot: Snapshot) -> dict[str, Any]:
    """What the predictions rest on."""
    assumed = snapshot.assumed
    return {
        "law": dataclasses.asdict(assumed.law) if assumed.law is not None else None,
        "model": dict(assumed.model_labels),
        "hardware": dict(assumed.hardware_labels),
        "calibration_mismatch": assumed.calibration_mismatch,
        "assumptions": list(assumed.assumptions),
        "missing": list(assumed.missing),
    }
