"""Instruments: CPU time and memory of any process, child processes that surely end, medians with their spread."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

REPOSITORY = Path(__file__).resolve().parent.parent
_STOP_SECONDS = 5.0  # a child that has not ended by then is killed
_MIB = float(2**20)


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of repeated measurements and how far they lie apart: median, 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Raises ValueError without values."""
        if not values:
            raise ValueError("nothing was measured")
        return cls(quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1) of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads, also those that ended. Resolution: nanoseconds.

    Linux gives each process a CPU clock, named by its complemented pid (clock_getcpuclockid(3) and the kernel's
    include/linux/posix-timers_types.h: CPUCLOCK_SCHED is 2). The ticks of /proc/PID/stat are 10 ms: a scrape is 3 ms.
    """
    return time.clock_gettime((~pid << 3) | 2)


def resident_mib(pid: int) -> float:
    """Resident memory of a process, MiB, counted page by page (proc_pid_smaps(5)); statm lags behind by design."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return float(line.split()[1]) * 1024.0 / _MIB
    raise OSError(f"/proc/{pid}/smaps_rollup says no Rss")


def free_port() -> int:
    """A TCP port on loopback that nobody used a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def ahead_of_others() -> Iterator[bool]:
    """Real-time scheduling for this process and the children it starts; yields False where that is not allowed.

    For wall times on a machine that others use: a nice value does not help there, because Linux shares the processor
    out between sessions first (sched(7), autogroup).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Child:
    """A child process with a readable standard output; ended by SIGTERM when the `with` block is left."""

    def __init__(self, *arguments: str) -> None:
        """Starts at once, without the proxy and STEPSCOPE_* variables of whoever measures."""
        environ = {k: v for k, v in os.environ.items() if not k.upper().startswith("STEPSCOPE_")}
        self._process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ, cwd=REPOSITORY
        )

    @classmethod
    def python(cls, *arguments: str) -> Self:
        """The same interpreter as ours."""
        return cls(sys.executable, *arguments)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> IO[str]:
        """Its standard output."""
        if self._process.stdout is None:
            raise RuntimeError("the child has no standard output")
        return self._process.stdout

    def line(self) -> str:
        """The next line it prints. Raises RuntimeError when it ended instead."""
        text = self.output.readline()
        if not text:
            raise RuntimeError(f"{self._process.args!r} ended with status {self._process.wait()}")
        return text.rstrip("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()


def get(port: int, path: str, headers: dict[str, str] | None = None) -> bytes:
    """The body of a 200 answer on loopback. Raises OSError otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"GET {path}: HTTP {answer.status}")
    return body


def wait_until_serving(port: int, path: str, seconds: float = 20.0) -> None:
    """Return once `path` answers with 200. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            get(port, path)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"nothing serves {path} on port {port}")


def say(text: str) -> None:
    """One line for whoever watches."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
