"""`stepscope demo`: its tally and verdict at once, and its first seconds as a real process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from stepscope.commands.demo import MIN_JUDGED, Tally, _verdict


def tally(drifts: list[float], causes: tuple[str, ...] = ("context", "prefill")) -> Tally:
    return Tally(drifts=drifts, causes=dict.fromkeys(causes, 5), samples=100)


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (tally([0.01] * 60), ""),
        (tally([0.06] * 60), "the drift is above 5% (median) or 15% (90th percentile)"),
        (tally([0.01] * 50 + [0.2] * 10), "the drift is above 5% (median) or 15% (90th percentile)"),
        (tally([0.01] * (MIN_JUDGED - 1)), "only 19 samples were judged, 20 are needed"),
        (tally([0.01] * 60, ("prefill",)), "the cause context was never seen"),
    ],
)
def test_once_fails_unless_the_numbers_hold(run: Tally, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Median and 90th percentile of the drift, enough judged samples, and the causes of the story."""
    assert _verdict(run) == (1 if complaint else 0)
    assert complaint in capsys.readouterr().err


def test_the_first_seconds_show_measured_next_to_predicted_and_a_page() -> None:
    """A table on standard output, the pages on the port it names, and a clean end on SIGTERM."""
    command = [sys.executable, "-m", "stepscope", "demo", "--listen-address=127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        until = time.monotonic() + 30
        while time.monotonic() < until and sum(" ms " in line and "|" in line for line in lines) < 4:
            lines.append(process.stdout.readline())
        text = "".join(lines)
        page = re.search(r"stepscope watches it: (http://127\.0\.0\.1:\d+)/", text)
        assert page is not None, text
        with urllib.request.urlopen(f"{page.group(1)}/api/v1/snapshot", timeout=5) as answer:
            view = json.load(answer)["engines"][0]
        assert view["tokens_in_flight"] == pytest.approx(80_000, rel=0.1)
        assert view["predicted_itl_seconds"] == pytest.approx(view["itl_mean_seconds"], rel=0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    assert "-- 40 chats --" in text
