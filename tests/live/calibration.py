"""`stepscope calibrate` on the real engine, once for all tests that need its file."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live.engine import Engine
from live.sidecar import own_environment

_MOST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The file, and the report of the run that wrote it."""

    path: Path
    report: dict[str, Any]


def calibrate(engine: Engine, path: Path) -> Calibrated:
    """As an operator does it: everything by default. Fails with the command's own words."""
    command = [sys.executable, "-m", "stepscope", "calibrate", f"--engine.url={engine.url}", f"--output={path}"]
    done = subprocess.run(
        [*command, "--json", "--wait", f"--max-seconds={_MOST_SECONDS}"],
        capture_output=True, text=True, timeout=_MOST_SECONDS + 60, env=own_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Calibrated(path, json.loads(done.stdout))
