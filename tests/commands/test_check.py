"""`stepscope check`, as an operator runs it, against a simulated engine and against nothing at all."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest

from stepscope.cli import main
from stepscope.sim.build import build_config
from stepscope.sim.scenario import SCENARIOS
from stepscope.sim.server import SimServer


@pytest.fixture(scope="module")
def engine() -> Iterator[SimServer]:
    """Forty chats on one simulated H100."""
    server = SimServer(build_config("qwen3-8b", "H100-SXM"), scenario=SCENARIOS["steady"])
    server.start()
    yield server
    server.stop()


def check(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error)."""
    status = main(["check", "--sample.interval=1s", *flags])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_good_engine_is_reported_with_everything_that_was_found(
    engine: SimServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version, capacity and its source, model and GPU and theirs, predicted next to measured, budget, series read."""
    flags = (f"--engine.url={engine.url}", "--hardware.gpu=H100-SXM", "--objective.tokens-per-second=50")
    status, out, _ = check(capsys, *flags)
    assert status == 0
    assert out.startswith(f"stepscope 0.1.0 checks {engine.url}\n")
    for line in (
        "engine      vLLM 0.32.0, page of",
        "KV capacity 377,184 tokens (the engine's own figure), in use ",
        "model       Qwen/Qwen3-8B: dense, gqa; from shipped table",
        "147456 B of KV per token",
        "hardware    1 x H100-SXM, 3.35e+12 B/s in all; from NVIDIA",
        "step law    from datasheet",
        "assumed     nothing was calibrated",
        "tokens at the promised speed, 377,184 in memory;",
        "vllm:kv_cache_usage_perc",
    ):
        assert line in out, line
    assert re.search(r"requests    (39|40|41) decoding, [01] in prefill, \d+ waiting", out), out
    assert "ITL         measured" in out
    assert "MISSING" not in out
    assert out.endswith("a step can be predicted\n")


def test_what_is_missing_is_said_with_the_flag_that_supplies_it(
    engine: SimServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """No GPU given: nothing can be predicted, and the report says which flag to give."""
    status, out, _ = check(capsys, f"--engine.url={engine.url}")
    assert status == 1
    assert "MISSING     GPU: give --hardware.gpu and --hardware.count, or --calibration.*" in out
    assert out.endswith("NO step can be predicted\n")


def test_the_json_report_says_the_same(engine: SimServer, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, numbers in base units, names as in the metric table."""
    status, out, _ = check(capsys, f"--engine.url={engine.url}", "--hardware.gpu=H100-SXM", "--json")
    report = json.loads(out)
    assert (status, report["ok"], report["engine_version"]) == (0, True, "0.32.0")
    view = report["engines"][0]
    assert view["capacity_tokens"] == 377_184
    assert view["predicted_itl_seconds"] == pytest.approx(view["itl_mean_seconds"], rel=0.1)
    assert report["assumed"]["model"]["kv_bytes_per_token"] == "147456"
    assert "vllm:kv_cache_usage_perc" in report["names"]


def test_an_engine_that_does_not_answer_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, the reason, and nothing made up."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        status, out, _ = check(capsys, f"--engine.url={url}")
    assert status == 1
    assert "engine      NOT READ: connection: GET " in out
    assert "NO step can be predicted" in out


def test_a_wrong_flag_ends_with_status_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the flag and the nearest valid one."""
    status, out, err = check(capsys, "--engine.ulr=http://127.0.0.1:1")
    assert (status, out) == (2, "")
    assert err == "stepscope: unknown flag --engine.ulr, did you mean --engine.url?\n"
