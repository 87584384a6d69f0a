"""`stepscope serve` as a process of its own, started, asked and stopped as a supervisor would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from web_helpers import Client, Reply

_SERVING = re.compile(r"serving on \S*:(\d+), watching")
_START_SECONDS = 30.0  # a cold start on a busy machine
COMMAND = [sys.executable, "-m", "stepscope", "serve"]
# Samples as often as is allowed, so that a test waits for none; numbers instead of a model to look for.
FAST = ["--sample.interval=200ms", "--sample.window=2s", "--sample.warm-up=0s"]
FACTS = ["--model.weight-bytes=1e10", "--model.kv-bytes-per-token=1e5", "--hardware.gpu=H100-SXM"]


def environment(**changes: str) -> dict[str, str]:
    """The environment without settings, proxies or a multi-process directory of whoever runs the tests."""
    foreign = ("STEPSCOPE_", "PROMETHEUS_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    own = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
    return {**own, **changes}


class Serve:
    """A running sidecar on a free port of loopback; everything it logs is kept in `log`."""

    def __init__(self, url: str, *flags: str, env: Mapping[str, str] | None = None) -> None:
        """Returns when it listens. Raises RuntimeError with its own words when it does not."""
        self.log: list[str] = []
        self.port = 0
        self._listening = threading.Event()
        self.process = subprocess.Popen(
            [*COMMAND, f"--engine.url={url}", "--web.listen-address=127.0.0.1:0", *FAST, *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(env) if env is not None else environment(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(_START_SECONDS) or not self.port:
            self.kill()
            raise RuntimeError("stepscope did not come up:\n" + "\n".join(self.log))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            if found := _SERVING.search(line):
                self.port = int(found.group(1))
                self._listening.set()
        self._listening.set()

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> Reply:
        """One request on a connection of its own."""
        with Client(self.port) as client:
            return client.get(path, method=method, **headers)

    def page(self) -> str:
        """The text form of /metrics."""
        return self.get().body.decode()

    def value(self, series: str) -> float | None:
        """The value of `name` or `name{labels}` without the prefix; None where it is absent."""
        found = re.search(rf"^stepscope_{re.escape(series)} (\S+)$", self.page(), re.MULTILINE)
        return float(found.group(1)) if found else None

    def outcome(self, name: str) -> float:
        """How many scrapes ended so."""
        return self.value(f'engine_scrapes_total{{outcome="{name}"}}') or 0.0

    def wait_for(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Fails with the log when it does not come true in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("it did not happen; the log says:\n" + "\n".join(self.log))
            time.sleep(0.03)

    def terminate(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """(exit status, seconds it took)."""
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(20)
        return status, time.monotonic() - began

    def kill(self) -> None:
        """The end, whatever happened before."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def __enter__(self) -> Serve:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
