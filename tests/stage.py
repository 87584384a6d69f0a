"""A small world to look at: simulated engines, real sidecars, and a real Prometheus that scrapes them."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import requests

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.runtime.log import make_logger
from stepscope.runtime.sidecar import Sidecar
from stepscope.setting_kinds import Setting
from stepscope.sim.build import build_config
from stepscope.sim.scenario import Scenario
from stepscope.sim.server import SimServer

OBJECTIVE = 50.0  # tokens/s and user, as in the demo
# Shorter than the defaults: a story of half a minute must be enough.
QUICK = ((table.SAMPLE_INTERVAL, 1.0), (table.SAMPLE_WINDOW, 5.0), (table.SAMPLE_WARM_UP, 3.0))


@dataclass(frozen=True, slots=True)
class Scraped:
    """One target of Prometheus with the labels that a cluster would add."""

    sidecar: Sidecar
    pod: str
    namespace: str


class Stage:
    """Starts things, and stops all of them at the end."""

    def __init__(self, folder: Path) -> None:
        """`folder`: an empty place for Prometheus's configuration and data."""
        self._folder = folder
        self._engines: list[SimServer] = []
        self._scraped: list[Scraped] = []
        self._prometheus: subprocess.Popen[bytes] | None = None
        self.prometheus_url = ""
        self.began_unix_seconds = time.time()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._prometheus is not None:
            self._prometheus.terminate()
            self._prometheus.wait(20)
        for one in self._scraped:
            one.sidecar.stop()
        for engine in self._engines:
            engine.stop()

    def engine(
        self,
        scenario: Scenario | None,
        model: str = "qwen3-8b",
        *,
        served_as: str | None = None,
        data_parallel: int = 1,
        **faults: object,
    ) -> SimServer:
        """A simulated engine on an H100 that runs from now on."""
        config = build_config(model, "H100-SXM", "well-behaved", data_parallel=data_parallel)
        if served_as is not None:
            config = replace(config, model_name=served_as)
        simulator = SimServer(config, "127.0.0.1:0", scenario)
        simulator.start()
        self._engines.append(simulator)
        if faults:
            simulator.set_faults(**faults)
        return simulator

    def sidecar(
        self,
        engine_url: str,
        pod: str,
        *extra: tuple[Setting[Any], Any],
        namespace: str = "llm",
        listen: str = "127.0.0.1:0",
    ) -> Sidecar:
        """A sidecar for it, known to Prometheus as `pod`. `extra` settings win over the usual ones."""
        chosen: dict[Setting[Any], Any] = {
            table.ENGINE_URL: engine_url,
            table.WEB_LISTEN_ADDRESS: listen,
            table.MODEL_ID: "Qwen/Qwen3-8B",
            table.HARDWARE_GPU: "H100-SXM",
            table.OBJECTIVE_TOKENS_PER_SECOND: OBJECTIVE,
            **dict(QUICK),
            **dict(extra),
        }
        settings = Settings.of(*((key, value) for key, value in chosen.items() if value is not None))
        sidecar = Sidecar(settings, make_logger("error", "text"), reread=lambda: settings, environ={})
        sidecar.start()
        self._scraped.append(Scraped(sidecar, pod, namespace))
        return sidecar

    def prometheus(self, program: str, interval_seconds: int = 1, rules: Path | None = None) -> None:
        """Start a Prometheus that scrapes every sidecar so far. Raises RuntimeError if it does not come up."""
        static = [
            {
                "targets": [f"127.0.0.1:{one.sidecar.web.port}"],
                "labels": {"pod": one.pod, "namespace": one.namespace},
            }
            for one in self._scraped
        ]
        interval = f"{interval_seconds}s"
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(rules)] if rules is not None else [],
            "scrape_configs": [{"job_name": "stepscope", "static_configs": static}],
        }
        path = self._folder / "prometheus.yml"
        path.write_text(json.dumps(configuration))  # JSON is YAML
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.prometheus_url = f"http://{address}"
        with (self._folder / "prometheus.log").open("wb") as log:
            self._prometheus = subprocess.Popen(
                [program, f"--config.file={path}", f"--storage.tsdb.path={self._folder / 'data'}",
                 f"--web.listen-address={address}", "--log.level=warn"],
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            try:
                if ask(self.prometheus_url + "/-/ready").status_code == 200:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.2)
        raise RuntimeError((self._folder / "prometheus.log").read_text() or "Prometheus did not become ready")

    def query_range(self, expr: str, start: float, end: float, step_seconds: float) -> list[dict[str, Any]]:
        """The series of a range query. Raises RuntimeError with Prometheus's words for a query that it refuses."""
        return self._query("query_range", {"query": expr, "start": start, "end": end, "step": step_seconds})

    def query(self, expr: str, at_unix_seconds: float) -> list[dict[str, Any]]:
        """The series of an instant query. Raises RuntimeError as above."""
        return self._query("query", {"query": expr, "time": at_unix_seconds})

    def _query(self, kind: str, parameters: Mapping[str, str | float]) -> list[dict[str, Any]]:
        answer = ask(f"{self.prometheus_url}/api/v1/{kind}", parameters).json()
        if answer["status"] != "success":
            raise RuntimeError(f"{answer['error']}: {parameters['query']}")
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


def ask(url: str, parameters: Mapping[str, str | float] | None = None) -> requests.Response:
    """GET on loopback, whatever proxy the environment names."""
    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, params=dict(parameters or {}), timeout=10)
