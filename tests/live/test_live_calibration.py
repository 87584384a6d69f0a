"""A real vLLM is calibrated, and the sidecar then predicts a load that the calibration did not contain."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from live.calibration import Calibrated
from live.client import Client, all_answer
from live.engine import Engine
from live.sidecar import Sidecar
from stepscope.runtime.calibration_file import read_calibration

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

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


def test_the_file_says_what_was_measured(calibrated: Calibrated) -> None:
    """Provenance, range and a law that fits its own points about as well as the machine repeats itself."""
    made = read_calibration(calibrated.path)
    assert made.engine_version
    assert made.valid_range is not None
    assert (made.valid_range.max_sequences or 0.0) >= STREAMS
    assert (made.valid_range.max_tokens_in_flight or 0.0) >= STREAMS * PROMPT_TOKENS
    assert made.residual_ratio is not None
    assert made.residual_ratio < WITHIN, calibrated.report["probes"]


def test_the_sidecar_predicts_a_load_it_was_not_calibrated_on(engine: Engine, calibrated: Calibrated) -> None:
    """Within 15 % each time, or within what the machine itself differs by when nothing changed; both are printed."""
    turns = [turn(engine, calibrated.path) for _ in range(TURNS)]
    measured = [seen.measured for seen in turns]
    print(f"calibrate: the same probe twice differs by {calibrated.report['residuals']['repeat_spread']}")
    print(f"{STREAMS} x {PROMPT_TOKENS}: " + ", ".join(
        f"measured {1e3 * seen.measured:.1f} ms, predicted {1e3 * seen.predicted:.1f} ms "
        f"({seen.predicted / seen.measured - 1.0:+.1%}, {seen.windows} windows)" for seen in turns
    ))  # fmt: skip
    apart = abs(measured[0] / measured[1] - 1.0)
    print(f"the same load twice differs by {apart:.1%}")
    errors = [seen.predicted / seen.measured - 1.0 for seen in turns]
    assert max(map(abs, errors)) <= max(WITHIN, apart), errors
