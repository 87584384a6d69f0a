"""`stepscope serve` as a real process beside the engine, and everything it said while it ran."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

from live.client import get

_POLL_SECONDS = 0.1  # well below the sampling interval: no sample is missed
_START_SECONDS = 30.0  # a cold start on a busy machine
_CPU_TICKS = os.sysconf("SC_CLK_TCK")  # unit of utime and stime in /proc/PID/stat, proc(5)


def own_environment() -> dict[str, str]:
    """The environment without variables that stepscope reads, or refuses because it does not know them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE_")}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of the sidecar. The engine's page was made between `earliest` and `latest` (monotonic clock)."""

    earliest: float
    latest: float
    number: int  # good scrapes so far
    snapshot: dict[str, Any]
    page: str  # the sidecar's /metrics, read right after

    @property
    def view(self) -> dict[str, Any]:
        """What it says of the first engine."""
        view: dict[str, Any] = self.snapshot["engines"][0]
        return view

    @property
    def at(self) -> float:
        """The best guess of when the engine's page was made."""
        return (self.earliest + self.latest) / 2.0


class Sidecar:
    """A running sidecar. With `watch`, `samples` holds one entry for each sample it took."""

    def __init__(self, engine_url: str, *flags: str, watch: bool = True) -> None:
        """Raises RuntimeError with the process's own words when it does not come up."""
        self.samples: list[Sample] = []
        self._stopping = threading.Event()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the process that writes it
        command = [sys.executable, "-m", "stepscope", "serve", f"--engine.url={engine_url}"]
        self.process = subprocess.Popen(
            [*command, "--web.listen-address=127.0.0.1:0", *flags],
            stdout=self._log,
            stderr=self._log,
            env=own_environment(),
        )
        self._watcher = threading.Thread(target=self._watch, name="live-watch", daemon=True)
        try:
            self.url = self._address()
        except RuntimeError:
            self.process.kill()
            self.process.wait()
            raise
        if watch:
            self._watcher.start()

    def log(self) -> str:
        """Everything it wrote."""
        self._log.flush()
        return os.pread(self._log.fileno(), 10_000_000, 0).decode()

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CPU_TICKS  # utime, stime: fields 14 and 15 of proc(5)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join(10.0)
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(10.0)
        finally:
            self.process.kill()
            self.process.wait()

    def _address(self) -> str:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            found = re.search(r"serving on (?:http://)?(127\.0\.0\.1:\d+)", self.log())
            if found:
                return f"http://{found[1]}"
            time.sleep(0.05)
        raise RuntimeError(f"stepscope serve did not come up:\n{self.log()}")

    def _watch(self) -> None:
        last = 0
        while not self._stopping.wait(_POLL_SECONDS):
            try:
                asked = time.monotonic()
                snapshot = json.loads(get(self.url, "/api/v1/snapshot"))
                answered = time.monotonic()
                number = snapshot["engine_scrapes"]["ok"]
                if number == last or not snapshot["engines"]:
                    continue
                page = get(self.url, "/metrics").decode()
            except OSError:
                continue  # the next poll tells; a sidecar that is gone shows as too few samples
            last = number
            age = snapshot["engines"][0]["age_seconds"]
            self.samples.append(
                Sample(asked - age, answered - age + snapshot["scrape_duration_seconds"], number, snapshot, page)
            )
