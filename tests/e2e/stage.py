"""What an end-to-end run needs: real processes on loopback, a webhook that listens, and a way to wait for things."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests
import yaml

from e2e.durations import divided
from shared_data import REPOSITORY
from tools import require_tool

FACTOR = 10  # all durations of the shipped files, and the sidecar's own, are divided by this
SCRAPE_SECONDS = 1  # Prometheus asks the sidecar that often: 30 samples in what is 5 minutes
STOP_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Note:
    """One alert in one notification, as a webhook receives it."""

    receiver: str
    status: str  # firing or resolved
    name: str
    instance: str
    labels: dict[str, str]
    annotations: dict[str, str]


class Webhook:
    """Listens for Alertmanager; `notes` holds everything that arrived, in order."""

    def __init__(self) -> None:
        notes: list[Note] = []
        self.notes = notes

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # http.server's name
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for one in body["alerts"]:
                    labels = one["labels"]
                    notes.append(
                        Note(
                            self.path.strip("/"),
                            one["status"],
                            labels["alertname"],
                            labels.get("instance", ""),
                            labels,
                            one["annotations"],
                        )
                    )
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # the base class names it so
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="webhook", daemon=True).start()

    @property
    def url(self) -> str:
        """Where receivers post to; their name follows as the path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to `log`; stopped at the end, whatever happens. No proxy variables."""
    environ = {
        k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("STEPSCOPE_")
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environ, cwd=log.parent)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def get(url: str, **parameters: str) -> Any:
    """JSON from a local server; None while it does not answer."""
    session = requests.Session()
    session.trust_env = False
    try:
        answer = session.get(url, params=parameters, timeout=5)
        return answer.json() if answer.ok and "json" in answer.headers.get("Content-Type", "") else answer.ok or None
    except requests.RequestException:
        return None
    finally:
        session.close()


def post(url: str, content: object) -> int:
    """Status of a POST of JSON to a local server."""
    session = requests.Session()
    session.trust_env = False
    with session:
        return session.post(url, json=content, timeout=5).status_code


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll twice a second; AssertionError with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.5)


@contextlib.contextmanager
def alertmanager(folder: Path, webhook_url: str) -> Iterator[str]:
    """The shipped example, quick, every receiver posting to the webhook under its own name. Yields the URL."""
    config = yaml.safe_load(divided((REPOSITORY / "rules" / "alertmanager.example.yaml").read_text("utf-8"), FACTOR))
    for receiver in config["receivers"]:
        for hook in receiver["webhook_configs"]:
            hook["url"] = f"{webhook_url}/{receiver['name']}"
    path = folder / "alertmanager.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        require_tool("prometheus-alertmanager"),
        f"--config.file={path}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    ]
    with running(command, folder / "alertmanager.log"):
        url = f"http://{address}"
        wait_until(lambda: bool(get(f"{url}/-/ready")), 30, "Alertmanager is ready")
        yield url


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[str], alertmanager_url: str) -> Iterator[str]:
    """Prometheus with the shipped rules, quick. Yields the URL."""
    files = []
    for name in ("alerts.yaml", "recording.yaml"):
        files.append(folder / name)
        files[-1].write_text(divided((REPOSITORY / "rules" / name).read_text("utf-8"), FACTOR), "utf-8")
    config = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(file) for file in files],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}]},
        "scrape_configs": [{"job_name": "stepscope", "static_configs": [{"targets": targets}]}],
    }
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        require_tool("prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={address}",
        f"--rules.alert.resend-delay={60 // FACTOR}s",  # 1m by default
    ]
    with running(command, folder / "prometheus.log"):
        url = f"http://{address}"
        wait_until(lambda: bool(get(f"{url}/-/ready")), 60, "Prometheus is ready")
        yield url


@contextlib.contextmanager
def sidecar(folder: Path, engine_url: str, *more: str) -> Iterator[str]:
    """`stepscope serve` beside an engine, its durations divided like the rules'. Yields its address."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable,
        "-m",
        "stepscope",
        "serve",
        f"--engine.url={engine_url}",
        f"--web.listen-address={address}",
        "--sample.interval=1s",  # 5 s / 10 would do; a slow machine is spared
        "--sample.window=3s",
        "--sample.warm-up=6s",
        "--sample.hold=9s",
        *more,
    ]
    with running(command, folder / f"sidecar-{address.rsplit(':', 1)[1]}.log"):
        yield address
