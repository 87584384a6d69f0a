"""A real vLLM is calibrated, and the sidecar then predicts a load that the calibration did not contain."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from live.client import Client, all_answer
from live.engine import Engine
from live.sidecar import Sidecar, own_environment
from stepscope.runtime.calibration_file import read_calibration

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

CALIBRATE_SECONDS = 300
STREAMS, PROMPT_TOKENS = 6, 1500
STEADY_SECONDS = 25.0  # two windows of ten seconds, and a few samples
TURNS = 2  # the same load twice says how noisy the machine is
WITHIN = 0.15
FLAGS = ("--sample.interval=1s", "--sample.window=10.5s", "--sample.warm-up=2s")


@dataclass(frozen=True, slots=True)
class Seen:
    """Medians over the judged windows of one turn, in seconds."""

    measured: float
    predicted: float
    windows: int


@pytest.fixture(scope="module")
def calibrated(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The file, and the report of the run that wrote it."""
    path = tmp_path_factory.mktemp("calibrate") / "calibration.yaml"
    command = [sys.executable, "-m", "stepscope", "calibrate", f"--engine.url={engine.url}", f"--output={path}"]
    done = subprocess.run(
        [*command, "--json", "--wait", f"--max-seconds={CALIBRATE_SECONDS}"],
        capture_output=True, text=True, timeout=CALIBRATE_SECONDS + 60, env=own_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout)


def turn(engine: Engine, path: Path) -> Seen:
    """Six streams side by side, with the sidecar beside them; nothing is left running."""
    client = Client(engine.url)
    sidecar = Sidecar(engine.url, *FLAGS, f"--calibration.file={path}")
    try:
        requests = [client.start(PROMPT_TOKENS, 8000) for _ in range(STREAMS)]
        assert all_answer(requests, 180.0), client.errors
        steady = time.monotonic() + 11.0  # a window without prompts
        time.sleep(11.0 + STEADY_SECONDS)
    finally:
        client.cancel_all()
        sidecar.stop()
    views = [s.view for s in sidecar.samples if s.earliest > steady and s.view["state"] == "measuring"]
    assert views, [s.view["state"] for s in sidecar.samples]
    return Seen(
        median(view["itl_mean_seconds"] for view in views),
        median(view["predicted_itl_seconds"] for view in views),
        len(views),
    )


def test_the_file_says_what_was_measured(calibrated: tuple[Path, dict[str, Any]]) -> None:
    """Provenance, range and a law that fits its own points about as well as the machine repeats itself."""
    path, report = calibrated
    made = read_calibration(path)
    assert made.engine_version
    assert made.valid_range is not None
    assert (made.valid_range.max_sequences or 0.0) >= STREAMS
    assert (made.valid_range.max_tokens_in_flight or 0.0) >= STREAMS * PROMPT_TOKENS
    assert made.residual_ratio is not None
    assert made.residual_ratio < WITHIN, report["probes"]


def test_the_sidecar_predicts_a_load_it_was_not_calibrated_on(
    engine: Engine, calibrated: tuple[Path, dict[str, Any]]
) -> None:
    """Within 15 % each time, or within what the machine itself differs by when nothing changed; both are printed."""
    path, report = calibrated
    turns = [turn(engine, path) for _ in range(TURNS)]
    measured = [seen.measured for seen in turns]
    print(f"calibrate: the same probe twice differs by {report['residuals']['repeat_spread']}")
    print(f"{STREAMS} x {PROMPT_TOKENS}: " + ", ".join(
        f"measured {1e3 * seen.measured:.1f} ms, predicted {1e3 * seen.predicted:.1f} ms "
        f"({seen.predicted / seen.measured - 1.0:+.1%}, {seen.windows} windows)" for seen in turns
    ))  # fmt: skip
    apart = abs(measured[0] / measured[1] - 1.0)
    print(f"the same load twice differs by {apart:.1%}")
    errors = [seen.predicted / seen.measured - 1.0 for seen in turns]
    assert max(map(abs, errors)) <= max(WITHIN, apart), errors
