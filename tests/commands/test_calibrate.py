"""`stepscope calibrate` as an operator runs it, on a simulated engine."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from chat_server import Manner, chat_server
from load_commands import BANDWIDTH, KV_BYTES_PER_TOKEN, MODEL, WEIGHT_BYTES, quick_engine, start, stepscope
from sim_helpers import get, value
from stepscope import cli
from stepscope.core.step_model import Load, StepLaw, WeightBytes, predict
from stepscope.runtime.calibration_file import read_calibration
from stepscope.runtime.load_client import LoadClient
from stepscope.runtime.load_crew import Crew, Work
from stepscope.runtime.scrape_options import ScrapeOptions

QUICK = ("--probe-seconds=0.3", "--streams=8", "--long-tokens=8000", "--max-seconds=40")


@pytest.mark.slow
def test_it_measures_the_engine_and_writes_what_serve_reads(tmp_path: Path) -> None:
    """The bandwidth of the engine's own law within 8 %, from short and long run alike; a law that holds elsewhere."""
    output, points = tmp_path / "calibration.yaml", tmp_path / "points.jsonl"
    with quick_engine() as server:
        status, out, err = stepscope(
            "calibrate", f"--engine.url={server.url}", f"--output={output}", f"--points-output={points}", "--json",
            *QUICK, *MODEL,
        )  # fmt: skip
        assert status == 0, err
        assert value(get(server.url + "/metrics"), "vllm:num_requests_running") == 0.0
        # What serve would make of the file, on the same engine and on one that is said to be another.
        checks = [
            stepscope("check", f"--engine.url={server.url}", f"--calibration.file={output}", "--sample.interval=0.3s",
                      "--json", *MODEL, *more)
            for more in ((), ("--hardware.count=2",))
        ]  # fmt: skip
    for (status, shown, said), mismatch in zip(checks, (False, True), strict=True):
        assert status == 0, said
        assumed = json.loads(shown)["assumed"]
        assert (assumed["law"]["source"], assumed["calibration_mismatch"]) == ("file", mismatch)
    report: dict[str, Any] = json.loads(out)
    for run in ("short_run_bytes_per_second", "long_run_bytes_per_second"):
        assert report["bandwidths"][run] == pytest.approx(BANDWIDTH, rel=0.08), run
    assert report["advice"] == []
    assert report["residuals"]["repeat_spread"] < 0.1
    made = read_calibration(output)
    assert made.valid_range is not None
    assert made.valid_range.max_sequences == pytest.approx(8.0, rel=0.02)
    assert made.engine_version == "0.32.0"
    # A load that was not measured: six streams of 3,000 tokens.
    law = StepLaw(
        WeightBytes(WEIGHT_BYTES), made.effective_bandwidth_bytes_per_second, KV_BYTES_PER_TOKEN,
        kv_bandwidth_bytes_per_second=made.kv_bandwidth_bytes_per_second,
        step_overhead_seconds=made.step_overhead_seconds, sequence_cost_seconds=made.sequence_cost_seconds,
        batch_growth_seconds=made.batch_growth_seconds,
        kv_context_cost_seconds_per_byte_token=made.kv_context_cost_seconds_per_byte_token,
    )  # fmt: skip
    step = predict(law, Load(6.0, 18_000.0))
    assert step is not None
    assert step.decode_seconds == pytest.approx((WEIGHT_BYTES + 18_000 * KV_BYTES_PER_TOKEN) / BANDWIDTH, rel=0.08)
    assert "s left)" in err
    # What was measured is in the form that fit reads.
    status, out, err = stepscope("fit", f"--points={points}", "--json")
    assert status == 0, err
    assert json.loads(out)["fit"]["median_abs_error"] < 0.05


def test_a_busy_engine_is_refused_and_waited_for_only_when_asked(tmp_path: Path) -> None:
    """Exit 1 with one line; nothing is written; with --wait, within the time."""
    with quick_engine() as server:
        crew = Crew(LoadClient(ScrapeOptions(server.url, 4.0), "Qwen/Qwen3-8B"), [Work(64, 100_000)] * 3)
        crew.start()
        try:
            flags = (f"--engine.url={server.url}", f"--output={tmp_path / 'c.yaml'}", *MODEL)
            refused = stepscope("calibrate", *flags)
            waited = stepscope("calibrate", *flags, "--wait", "--max-seconds=5")
        finally:
            crew.stop()
    busy = "stepscope: calibrate: the engine is busy (3 requests run or wait)"
    assert refused == (1, "", f"{busy}: stop its clients, or give --wait\n")
    assert waited[0] == 1
    assert waited[2].splitlines()[-1] == f"{busy} and stayed so until the time was over"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_the_engine_clean(tmp_path: Path, number: signal.Signals) -> None:
    """Within seconds, exit 130, no traceback, no file; no request runs and the gauges say so."""
    with quick_engine() as server:
        process = start("calibrate", f"--engine.url={server.url}", f"--output={tmp_path / 'c.yaml'}", *MODEL)
        try:
            until = time.monotonic() + 20.0
            while time.monotonic() < until and value(get(server.url + "/metrics"), "vllm:num_requests_running") < 2:
                time.sleep(0.05)
            began = time.monotonic()
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
        assert time.monotonic() - began < 8.0
        assert process.returncode == 130
        assert out == ""
        assert "Traceback" not in err
        assert value(get(server.url + "/metrics"), "vllm:num_requests_running") == 0.0
        assert value(get(server.url + "/metrics"), "vllm:kv_cache_usage_perc") == 0.0
    assert list(tmp_path.iterdir()) == []


def test_the_time_bounds_everything(tmp_path: Path) -> None:
    """Five seconds are too few for a law: it says so, in five seconds and a little."""
    with quick_engine() as server:
        began = time.monotonic()
        status, out, err = stepscope(
            "calibrate", f"--engine.url={server.url}", f"--output={tmp_path / 'c.yaml'}", "--max-seconds=5", *MODEL
        )
    assert time.monotonic() - began < 12.0
    assert (status, out) == (1, "")
    assert "too few for a law: give more --max-seconds" in err.splitlines()[-1]


@pytest.mark.slow
def test_an_engine_that_runs_few_at_once_is_measured_with_those(tmp_path: Path) -> None:
    """What it cannot run is left out and said."""
    with quick_engine(max_num_seqs=4) as server:
        status, _, err = stepscope(
            "calibrate", f"--engine.url={server.url}", f"--output={tmp_path / 'c.yaml'}", "--repeat=1", *QUICK, *MODEL
        )
    assert status == 0, err
    assert "left out: 8 streams x 256 tokens: the engine runs no more than 4 of these at once" in err
    limits = read_calibration(tmp_path / "c.yaml").valid_range
    assert limits is not None
    assert limits.max_sequences == pytest.approx(4.0, rel=0.02)


def test_an_engine_without_counters_is_measured_by_the_client(tmp_path: Path) -> None:
    """A chat engine whose page says nothing: tokens by usage, times by arrival."""
    with chat_server(Manner(takes_extras=True, page="up 1\n", gap_seconds=0.004)) as url:
        status, out, err = stepscope(
            "calibrate", f"--engine.url={url}", f"--output={tmp_path / 'c.yaml'}", "--json", "--probe-seconds=0.2",
            "--streams=2", "--repeat=1", "--max-seconds=40", "--long-tokens=1000", *MODEL,
        )  # fmt: skip
    assert status == 0, err
    assert "cannot see whether the engine is idle" in err
    report = json.loads(out)
    assert report["probes"][0]["engine_itl_seconds"] is None
    assert report["probes"][0]["tokens_in_flight"] > 250
    # It takes 4 ms whatever the context: no bandwidth can be told, and that is said.
    assert any("the step did not grow with the context" in line for line in report["advice"]) or report["bandwidths"]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--streams=1",), "stepscope: --streams: "),
        (("--max-seconds=soon",), "stepscope: --max-seconds: "),
        (("--output=/nowhere/c.yaml",), "stepscope: --output: /nowhere is not a directory"),
        (("--engine.url=http://127.0.0.1:9", *MODEL), "stepscope: --engine.url: GET http://127.0.0.1:9/v1/models: "),
    ],
)
def test_what_is_wrong_is_one_line(flags: tuple[str, ...], line: str) -> None:
    """Exit 2, and nothing is sent."""
    status, out, err = stepscope("calibrate", *flags)
    assert (status, out) == (2, "")
    assert err.startswith(line)
    assert len(err.splitlines()) == 1


def test_a_model_that_nobody_knows_is_refused_before_any_load(tmp_path: Path) -> None:
    """With the flags that supply it."""
    with chat_server(Manner(page="up 1\n")) as url:
        status, _, err = stepscope("calibrate", f"--engine.url={url}", f"--output={tmp_path / 'c.yaml'}")
    assert status == 2
    assert "--model.weight-bytes and --model.kv-bytes-per-token" in err


def test_a_file_that_is_to_be_written_need_not_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod's environment names it for the sidecar; the first thing missed here is the engine."""
    monkeypatch.setenv("STEPSCOPE_CALIBRATION_FILE", "/nowhere/calibration.yaml")
    assert cli.main(["calibrate", "--engine.url=http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err.startswith("stepscope: --engine.url: ")
