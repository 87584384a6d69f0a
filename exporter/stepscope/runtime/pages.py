"""What stepscope answers: its metrics, health, configuration, the last comparison as JSON, the live page."""

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
from stepscope.runtime.http1 import Request, Response, line
from stepscope.runtime.live import live_page
from stepscope.runtime.routes import Route, loopback_or_authenticated
from stepscope.runtime.sentences import missing, notices, verdict
from stepscope.runtime.state import State

_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"


def make_routes(
    state: State,
    registry: CollectorRegistry,
    config: Callable[[], Mapping[str, Any]],
    reload: Callable[[], None],
    recalibrate: Callable[[], None],
    *,
    unix_clock: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> dict[tuple[str, str], Route]:
    """The table of routes. `config()` has secrets hidden; `reload()` raises StepscopeError and then changed nothing.

    `recalibrate()` returns at once; learning begins anew with the next sample.
    """

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

    def recalibrate_now(request: Request) -> Response:
        refused = loopback_or_authenticated(request)
        if refused is not None:
            return refused
        recalibrate()
        return Response(200, b"the learned baseline is dropped; learning begins with the next sample\n", _TEXT)

    def show_config(_: Request) -> Response:
        return _json({"settings": config(), "assumed": assumed_json(state.snapshot)})

    def snapshot(_: Request) -> Response:
        return _json(snapshot_json(state.snapshot, clock()))

    def history(request: Request) -> Response:
        return history_response(state, request, unix_clock())

    def live(_: Request) -> Response:
        page = live_page()
        return Response(200, page.body, "text/html; charset=utf-8", page.headers)

    return {
        ("GET", "/metrics"): metrics,
        ("GET", "/"): live,
        ("GET", "/-/healthy"): healthy,
        ("GET", "/-/ready"): ready,
        ("POST", "/-/reload"): reload_now,
        ("POST", "/-/recalibrate"): recalibrate_now,
        ("GET", "/config"): show_config,
        ("GET", "/api/v1/snapshot"): snapshot,
        ("GET", "/api/v1/history"): history,
    }


def _json(document: Any) -> Response:
    return Response(200, (json.dumps(finite(document), indent=1, allow_nan=False) + "\n").encode(), _JSON)


def history_response(state: State, request: Request, now_unix_seconds: float) -> Response:
    """The last fifteen minutes; `since` (Unix seconds) leaves out what the client has, `engine` all other engines.

    On one line: a page asks for it every few seconds, and the indenting encoder is the slow one.
    """
    since = request.query.get("since", ["0"])[-1]
    engine = request.query.get("engine", [None])[-1]
    try:
        after = float(since)
    except ValueError:
        return line(400, "since must be a time in Unix seconds")
    points = [point for point in state.history(now_unix_seconds) if not point["time_unix_seconds"] <= after]
    if engine is not None:
        points = [{**p, "engines": [row for row in p["engines"] if row["engine"] == engine]} for p in points]
    document = {"now_unix_seconds": round(now_unix_seconds, 3), "points": finite(points)}
    return Response(200, (json.dumps(document, allow_nan=False) + "\n").encode(), _JSON)


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
        row["verdict"] = dataclasses.asdict(verdict(view, engine_up=snapshot.engine_up))
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
        "notices": [dataclasses.asdict(notice) for notice in notices(snapshot)],
        "engines": engines,
        "missing": list(missing(snapshot)),
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
