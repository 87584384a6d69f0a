"""Shared by the simulator's tests: small deployments, page parsing, HTTP clients on real sockets."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

from stepscope.sim.build import build_config
from stepscope.sim.presets import EngineConfig

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback ignores proxy variables


def small(**changes: object) -> EngineConfig:
    """The default deployment without jitter, with some fields replaced."""
    config = build_config()
    config = replace(config, physics=replace(config.physics, jitter=0.0))
    return replace(config, **changes)  # type: ignore[arg-type]  # the test names the fields


def get(url: str, headers: dict[str, str] | None = None) -> str:
    """The text of a 200 answer."""
    with OPENER.open(urllib.request.Request(url, headers=headers or {}), timeout=10) as response:
        return str(response.read().decode())


def post(url: str, body: object) -> dict[str, object]:
    """The JSON of a 200 answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with OPENER.open(request, timeout=10) as response:
        answer: dict[str, object] = json.loads(response.read())
        return answer


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of every sample."""
    for line in page.splitlines():
        if not line.startswith("#"):
            head, _, value = line.rpartition(" ")
            name, _, labels = head.partition("{")
            yield name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value)


def value(page: str, name: str, **labels: str) -> float:
    """The one sample so named and labelled."""
    found = [v for n, have, v in samples(page) if n == name and labels.items() <= have.items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]
