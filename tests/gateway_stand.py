"""The example gateways as processes, and what is around them."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from admission_helpers import ask
from shared_data import REPOSITORY
from stepscope.sim.server import SimServer
from tools import require_tool

EXAMPLES = REPOSITORY / "examples"
TTL_SECONDS = 1.5
BUDGET_TOKENS = 20_000
PYTHON_VARIABLE = "GATEWAY_PYTHON"  # an interpreter that has examples/fastapi-gateway/requirements.txt


def node_command() -> list[str]:
    return [require_tool("node"), str(EXAMPLES / "node-gateway" / "gateway.mjs")]


def fastapi_command() -> list[str]:
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    probe = subprocess.run([python, "-c", "import fastapi, httpx, uvicorn"], capture_output=True, timeout=60)
    if probe.returncode:
        pytest.skip(
            f"{python} lacks examples/fastapi-gateway/requirements.txt (set {PYTHON_VARIABLE} to one that has it)"
        )
    return [python, str(EXAMPLES / "fastapi-gateway" / "gateway.py")]


@dataclass
class Stand:
    """A gateway in front of an engine with a sidecar."""

    port: int
    process: subprocess.Popen[str]
    leases: str
    engine: SimServer

    def post(self, body: dict[str, Any]) -> tuple[int, dict[str, str], str]:
        """One whole request through the gateway."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()
        finally:
            connection.close()

    def open_stream(self, max_tokens: int) -> socket.socket:
        """A streamed request, read up to its first token and left open."""
        body = json.dumps({"prompt": [1] * 100, "max_tokens": max_tokens, "stream": True}).encode()
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%b" % (len(body), body))  # fmt: skip
        seen = b""
        while b"data: " not in seen:
            got = sock.recv(65536)
            assert got, seen
            seen += got
        return sock

    def leased(self) -> float:
        """Tokens on lease now."""
        return float(ask(f"{self.leases}/v1/budget", "GET").document["leased_tokens"])

    def running(self) -> int:
        """Requests the engine works on."""
        engines: Any = ask(f"{self.engine.url}/sim/truth", "GET").document["engines"]
        return int(engines[0]["running"])


@contextmanager
def gateway(command: list[str], engine_url: str, leases_url: str, **environ: str) -> Iterator[tuple[int, Any]]:
    """(port, process) of a gateway, stopped at the end."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "ENGINE_URL": engine_url, "LEASES_URL": leases_url, "PORT": "0",
             "LEASE_TTL_SECONDS": str(TTL_SECONDS), **environ},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("gateway on "), line
        port = int(line.split()[-1])
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield port, process
    finally:
        process.kill()
        process.communicate()
