"""The real engine: one that runs already, or one started here by the shared `up` script on a port of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from live.client import get
from shared_data import shared_path

URL_VARIABLE = "STEPSCOPE_LIVE_URL"
_UP_SECONDS = 900.0  # the first start installs the engine, about five minutes on a quiet machine
_DOWN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool as the engine's page tells it."""

    capacity_tokens: int
    blocks: int
    block_tokens: int

    @property
    def usable_share(self) -> float:
        """vLLM keeps one block for itself (the null block): the usage gauge leaves it out, the capacity counts it."""
        return (self.blocks - 1) / self.blocks


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the engine is; its access log where it was started here."""

    url: str
    log: Path | None = None

    def page(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Its whole metrics page by sample name, read with the Prometheus client's own parser."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(get(self.url, "/metrics").decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def pool(self) -> Pool:
        """Its KV pool. Raises KeyError for engines before 0.24, which do not state their capacity in tokens."""
        labels = self.page()["vllm:cache_config_info"][0][0]
        return Pool(int(labels["kv_cache_size_tokens"]), int(labels["num_gpu_blocks"]), int(labels["block_size"]))


@contextmanager
def running_engine() -> Iterator[Engine]:
    """The engine at STEPSCOPE_LIVE_URL, left running; else a new one, stopped at the end. Skips without either."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        yield Engine(url.rstrip("/"))
        return
    try:
        folder = shared_path("live-vllm")
    except pytest.skip.Exception:
        pytest.skip(f"no real engine: set {URL_VARIABLE} to one, or STEPSCOPE_SHARED to the folder with live-vllm/up")
    port = _free_port()
    home = Path(os.environ.get("LIVE_VLLM_HOME", Path.home() / ".cache" / "live-vllm"))
    pid_file = home / f"serve-{port}.pid"
    try:
        up = subprocess.run([folder / "up", str(port)], capture_output=True, text=True, timeout=_UP_SECONDS)
        if up.returncode != 0:
            pytest.fail(f"live-vllm/up ended with {up.returncode}:\n{up.stderr[-2000:]}")
        yield Engine(up.stdout.split()[-1], home / f"serve-{port}.log")
    finally:
        _stop(folder, port, pid_file)
        (home / f"serve-{port}.log").unlink(missing_ok=True)  # every run has a port of its own: they would pile up


def _stop(folder: Path, port: int, pid_file: Path) -> None:
    """Stop what was started on this port, and see that it is gone."""
    pid = int(pid_file.read_text()) if pid_file.exists() else None
    subprocess.run([folder / "down", str(port)], timeout=_DOWN_SECONDS)
    until = time.monotonic() + _DOWN_SECONDS
    while pid is not None and Path(f"/proc/{pid}").exists():
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.2)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
