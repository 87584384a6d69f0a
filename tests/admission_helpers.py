"""A real sidecar with admission beside a simulated engine, and a small client for its lease routes."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sim_helpers import small
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.runtime.sidecar import Sidecar
from stepscope.setting_kinds import Setting
from stepscope.sim.presets import EngineConfig
from stepscope.sim.scenario import Scenario
from stepscope.sim.server import SimServer

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback ignores proxy variables
INTERVAL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; document: its JSON, empty where there is none."""

    status: int
    headers: dict[str, str]
    document: dict[str, Any]


def ask(url: str, method: str, body: object = None, **headers: str) -> Answer:
    """One request. Header names with underscores for dashes. A body of bytes is sent as it is."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, fields, method=method)
    try:
        with _OPENER.open(request, timeout=10) as reply:
            return _answer(reply.status, reply)
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error.code, error)


def _answer(status: int, reply: Any) -> Answer:
    content = reply.read()
    is_json = "json" in reply.headers.get("Content-Type", "")
    return Answer(status, dict(reply.headers), json.loads(content) if content and is_json else {})


def text(url: str) -> str:
    """A page as text."""
    with _OPENER.open(url, timeout=10) as reply:
        return str(reply.read().decode())


@contextmanager
def simulated(scenario: Scenario | None = None, config: EngineConfig | None = None) -> Iterator[SimServer]:
    """An engine, stopped at the end."""
    engine = SimServer(config or small(), scenario=scenario)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def leasing(
    engine_url: str, *pairs: tuple[Setting[Any], Any], later: list[tuple[Setting[Any], Any]] | None = None
) -> Iterator[str]:
    """The base URL of a sidecar that leases the engine's tokens, stopped at the end.

    later: what a reload finds beside `pairs`; may be filled while it runs.
    """

    def with_pairs(*more: tuple[Setting[Any], Any]) -> Settings:
        return Settings.of(*_usual(engine_url), *pairs, *more)

    sidecar = Sidecar(
        with_pairs(), logging.getLogger("test_admission"), reread=lambda: with_pairs(*(later or ())), environ={}
    )
    sidecar.start()
    try:
        yield f"http://127.0.0.1:{sidecar.web.port}"
    finally:
        sidecar.stop()


def _usual(engine_url: str) -> tuple[tuple[Setting[Any], Any], ...]:
    return (
        (table.ENGINE_URL, engine_url),
        (table.WEB_LISTEN_ADDRESS, "127.0.0.1:0"),
        (table.SAMPLE_INTERVAL, INTERVAL_SECONDS),
        (table.MODEL_ID, "Qwen/Qwen3-8B"),
        (table.HARDWARE_GPU, "H100-SXM"),
        (table.CALIBRATION_EFFECTIVE_BANDWIDTH, 2.01e12),
        (table.OBJECTIVE_TOKENS_PER_SECOND, 50.0),
        (table.ADMISSION_ENABLED, True),
    )
