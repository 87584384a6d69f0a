"""The sidecar that leases are loaded on: a process beside a simulated engine, and what it says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback ignores proxy variables


def get(port: int, path: str) -> Any:
    """A JSON page of the sidecar."""
    with _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())


def sampling_delays(port: int, interval_seconds: float) -> list[float]:
    """How late each sample came against the most punctual one, from the sidecar's own history; seconds."""
    times = [point["time_unix_seconds"] for point in get(port, "/api/v1/history")["points"]]
    offsets = [at - times[0] - round((at - times[0]) / interval_seconds) * interval_seconds for at in times]
    return [offset - min(offsets) for offset in offsets]


@contextlib.contextmanager
def stand(interval_seconds: float, *flags: str, budget_tokens: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """(port, process) of a sidecar with admission beside an idle simulated engine; both end with the block."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE_")}
    command = [sys.executable, "-m", "stepscope"]
    engine = _start([*command, "sim", "--listen-address=127.0.0.1:0", "--scenario=none"], environ)
    try:
        url = _first(engine, r"simulated vLLM on (\S+)")
        sidecar = _start(
            [*command, "serve", f"--engine.url={url}", "--web.listen-address=127.0.0.1:0", "--admission.enabled",
             f"--sample.interval={interval_seconds:g}s", f"--admission.budget-tokens={budget_tokens}", *flags],
            environ,
        )  # fmt: skip
        try:
            yield int(_first(sidecar, r"serving on 127\.0\.0\.1:(\d+)")), sidecar
        finally:
            _end(sidecar)
    finally:
        _end(engine)


def _start(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _first(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if match := re.search(pattern, line):
            return match.group(1)
    raise RuntimeError(f"the process ended early: {''.join(seen)}")


def resident_bytes(process: subprocess.Popen[str]) -> int:
    """Memory of a process that lies in RAM."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
