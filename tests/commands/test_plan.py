"""The plan command: every worked number of docs/physics.md from the command line, and one line for what is wrong."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from shared_data import shared_path
from sim_helpers import small
from stage import ask
from stepscope import cli
from stepscope.sim.scenario import SCENARIOS
from stepscope.sim.server import SimServer

WITHIN = 0.005  # of every worked number
QWEN = (
    "--model.weight-bytes=16.4e9", "--model.params=8.2e9", "--model.kv-bytes-per-token=147456", "--hardware.gpu=H100",
    "--bandwidth-efficiency=0.6",
)  # fmt: skip
RTX_4090 = (
    "--model.weight-bytes=5.7e9", "--model.params=9e9", "--model.kv-bytes-per-token=32768", "--hardware.gpu=RTX4090",
    "--bandwidth-efficiency=1", "--decode-efficiency=1", "--prefill-efficiency=0.3", "--context-tokens=8192",
    "--concurrency=1,50,100", "--runtime-overhead-bytes=1.5e9",
)  # fmt: skip

_RUNNING = re.compile(r"^vllm:num_requests_running\{[^}]*\} 40\.0$", re.MULTILINE)


def near(value: float) -> Any:
    return pytest.approx(value, rel=WITHIN)


def test_one_stream_of_qwen3_8b_takes_8_2_ms(plan: Any) -> None:
    """8.16 ms of weights alone: about 120 tokens a second."""
    row = plan(*QWEN, "--context-tokens=0", "--concurrency=1")["concurrency"][0]
    assert row["step_seconds"] == near(8.2e-3)
    assert row["tokens_per_second_per_user"] == pytest.approx(120, abs=3)


@pytest.mark.parametrize(
    ("flags", "speed"),
    [
        (("--mix=40x2000",), 71.26),
        (("--mix=40x2000,2x100000",), 34.84),
        (("--mix=40x2000", "--prefill-tokens-per-step=2048"), 14.99),
    ],
    ids=["40 chats", "two sessions join", "a prompt chunk in each step"],
)
def test_two_sessions_halve_the_speed_of_forty_chats(plan: Any, flags: tuple[str, ...], speed: float) -> None:
    """71, then 35; and 15 with a chunk of 2,048 prompt tokens in each step."""
    assert plan(*QWEN, *flags)["concurrency"][-1]["tokens_per_second_per_user"] == near(speed)
    assert round(speed) in (71, 35, 15)


def test_the_budgets_of_the_h100_are_377_000_and_134_000_tokens(plan: Any) -> None:
    """Memory holds almost three times what the promise allows, so the promise binds."""
    found = plan(*QWEN, "--context-tokens=2000", "--objective.tokens-per-second=50")
    assert found["limits"]["memory"]["tokens"] == near(377_000)
    assert found["limits"]["bandwidth"]["tokens"] == near(134_000)
    assert found["binding"] == "bandwidth"
    assert found["requests"] == found["limits"]["bandwidth"]["requests"] == 67  # 134,142 / 2,000


def test_a_9b_model_at_4_bit_on_an_rtx_4090(plan: Any) -> None:
    """53 requests in 14.4e9 bytes, bandwidth before compute at each concurrency, 3 s for a prompt of 8,192."""
    found = plan(*RTX_4090)
    memory = found["limits"]["memory"]
    assert memory["bytes"] == near(14.4e9)
    assert memory["requests"] == 53
    rows = found["concurrency"]
    assert [row["requests"] for row in rows] == [1, 50, 100]
    assert [row["memory_seconds"] for row in rows] == [near(5.92e-3), near(18.97e-3), near(32.28e-3)]
    assert [row["step_seconds"] for row in rows] == [row["memory_seconds"] for row in rows]
    assert [row["compute_seconds"] for row in rows] == [pytest.approx(0.11e-3, abs=5e-6), near(5.45e-3), near(10.9e-3)]
    assert [row["fits_memory"] for row in rows] == [True, True, False]
    assert found["prefill_seconds_linear"] == pytest.approx(3.0, abs=0.05)  # "about 3.0 s": 2.975
    assert found["prefill_seconds"] >= found["prefill_seconds_linear"]


def test_a_million_tokens_cost_what_the_rate_makes_of_the_price(plan: Any) -> None:
    """At 2 an hour: 0.56, 0.19 and 0.11 at 1,000, 3,000 and 5,000 tokens a second."""
    found = plan(*RTX_4090, "--gpu-price-per-hour=2", "--tokens-per-second=1000,3000,5000", "--currency=EUR")
    costs = found["cost_per_million_tokens"]
    assert [round(cost, 2) for cost in costs["at_tokens_per_second"].values()] == [0.56, 0.19, 0.11]
    full = next(row for row in found["concurrency"] if row["requests"] == 50)
    assert full["cost_per_million_tokens"] == near(2 / 3600 / full["tokens_per_second"] * 1e6)
    assert costs["at_full_load"] < full["cost_per_million_tokens"]  # 53 requests share the same weights
    assert found["currency"] == "EUR"


def test_mpt_7b_from_one_measured_point(plan: Any) -> None:
    """Calibrated at batch 4, every batch from 1 to 64 is within 6 % of the published table."""
    rows = [json.loads(line) for line in shared_path("data", "measured", "databricks.jsonl").read_text().splitlines()]
    measured = {
        row["batch_or_concurrency"]: row["batch_or_concurrency"] / row["value"]
        for row in rows
        if row["dataset"] == "databricks_mpt7b_A100x1"
    }
    weights, kv, steps, prefill = 2 * 6.649e9, 2 * 32 * 4096 * 2, 64, 0.046 / 512
    bandwidth = steps * (weights + kv * 4 * 544) / (measured[4] - prefill * 512 * 4)
    common = (
        f"--model.weight-bytes={weights}", f"--calibration.effective-bandwidth-bytes-per-second={bandwidth}",
        "--concurrency=1,4,8,16,32,64", "--hardware.gpu=A100-40GB-SXM",
    )  # fmt: skip
    found = plan(
        *common, f"--model.kv-bytes-per-token={kv}", f"--calibration.prefill-cost-seconds-per-token={prefill}",
        "--context-tokens=544", "--prompt-tokens=512",
    )  # fmt: skip
    for row in found["concurrency"]:  # static batches: all prompts first, then 64 steps
        whole = row["requests"] * found["prefill_seconds_linear"] + steps * row["step_seconds"]
        assert whole / measured[row["requests"]] == pytest.approx(1, abs=0.06)
    by_weights = plan(*common, "--model.kv-bytes-per-token=1", "--context-tokens=0")
    alone, crowd = by_weights["concurrency"][0], by_weights["concurrency"][-1]
    assert measured[64] / (crowd["step_seconds"] / alone["step_seconds"] * measured[1]) == pytest.approx(4.6, abs=0.05)


def test_a_known_model_pays_for_attention_and_all_reduces(plan: Any) -> None:
    """70B on 8 H100s: 0.85 ms a step for one request, 3.1 ms for 128; the quadratic part of a long prompt shows."""
    found = plan(
        "--model.id=meta-llama/Llama-3.1-70B", "--hardware.gpu=H100", "--hardware.count=8",
        "--bandwidth-efficiency=0.6", "--context-tokens=32000", "--concurrency=1,128",
        "--objective.tokens-per-second=20", "--gpu-price-per-hour=2",
    )  # fmt: skip
    first, last = found["concurrency"]
    assert first["communication_seconds"] == near(0.85e-3)
    assert last["communication_seconds"] == pytest.approx(3.1e-3, rel=0.03)  # published with two digits
    assert first["step_seconds"] == near(first["memory_seconds"] + first["communication_seconds"])
    assert found["prefill_seconds"] / found["prefill_seconds_linear"] == near(1 + 80 * 8192 * 32000 / 70.5e9)
    sizes = {size["tensor_parallel"]: size for size in found["sizes"]}
    assert sorted(sizes) == [1, 2, 4, 8]
    assert sizes[1]["why_not"] == "the weights do not fit into the GPU memory"
    assert "H100 x8" in sizes[8]["communication_source"]
    assert sizes[8]["single_stream_tokens_per_second"] > 1.5 * sizes[4]["single_stream_tokens_per_second"]
    assert found["gpus"] == min(size["gpus"] for size in found["sizes"] if size["gpus"])


def test_the_reserve_and_the_peak_decide_how_many_gpus(plan: Any) -> None:
    """67 chats fit one H100 at 50 tokens/s; 120 need two, with a quarter in reserve three; users a day make a peak."""
    promised = "--objective.tokens-per-second=50"
    assert plan(*QWEN, "--mix=120x2000", promised, "--reserve=0")["gpus"] == 2
    assert plan(*QWEN, "--mix=120x2000", promised)["gpus"] == 3
    found = plan(
        *QWEN, "--context-tokens=2000", promised, "--prompt-tokens=0", "--output-tokens=1000", "--daily-users=3600",
        "--requests-per-user=10", "--peak-duration=1h,10h",
    )  # fmt: skip
    hour, day = found["peaks"]
    assert hour["peak_requests"] == near(10 * hour["request_seconds"])  # 36,000 requests in 3,600 seconds
    assert day["peak_requests"] == near(hour["peak_requests"] / 10)
    assert hour["gpus"] == -(-hour["peak_requests"] * 1.25 // found["requests"])


def test_without_calibration_the_plan_has_a_low_and_a_high(plan: Any) -> None:
    """And says so."""
    found = plan("--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100", "--mix=40x2000", "--objective.tokens-per-second=30")
    limit = found["limits"]["bandwidth"]
    assert limit["low_requests"] < limit["requests"] <= limit["high_requests"]
    row = found["concurrency"][-1]
    assert row["step_low_seconds"] < row["step_seconds"] < row["step_high_seconds"]
    assert any("nothing was calibrated" in line for line in found["assumptions"])


def test_a_calibration_file_makes_it_exact(plan: Any, tmp_path: Path) -> None:
    """What was measured is used, with its own spread."""
    file = tmp_path / "calibration.yaml"
    file.write_text(
        "parameters: {effective_bandwidth_bytes_per_second: 2.01e+12, step_overhead_seconds: 0.001}\n"
        "residuals: {median_abs_error: 0.05, samples: 40}\n"
    )
    row = plan(*QWEN[:-1], "--context-tokens=0", "--concurrency=1", f"--calibration.file={file}")["concurrency"][0]
    assert row["step_seconds"] == near(16.4e9 / 2.01e12 + 0.001)
    assert row["step_high_seconds"] == near(1.05 * row["step_seconds"])


def test_the_ttft_limit_counts_the_steps_that_chunks_share(plan: Any) -> None:
    """More decoding requests make each chunk's step longer."""
    found = plan(*QWEN, "--mix=1x8192", "--concurrency=1,16", "--objective.ttft-seconds=0.35")
    one, many = (row["ttft_seconds"] for row in found["concurrency"])
    chunks = 4  # 8,192 in chunks of 2,048
    assert many - one == near(chunks * (15 * 8192 * 147456) / 2.01e12)
    assert found["binding"] == "ttft"
    assert found["requests"] >= 1


def test_tables_markdown_and_picture_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Plain text by default; --markdown pastes into a page; --plot is an SVG with the promise and the budgets."""
    picture = tmp_path / "plan.svg"
    flags = [*QWEN, "--mix=40x2000,2x100000", "--objective.tokens-per-second=50", f"--plot={picture}"]
    assert cli.main(["plan", *flags]) == 0
    text = capsys.readouterr().out
    assert "34.8" in text
    assert "bandwidth binds" in text
    assert max(map(len, text.splitlines())) < 200
    assert cli.main(["plan", *flags, "--markdown"]) == 0
    table = capsys.readouterr().out
    assert "| 42 | 280,000 | 28.70 ms |" in table
    root = ElementTree.parse(picture).getroot()
    words = " ".join(node.text or "" for node in root.iter())
    assert root.tag.endswith("svg")
    assert "promised 50" in words
    assert "memory budget 377,062" in words


def test_beside_a_running_engine_the_plan_starts_from_what_it_does(plan: Any) -> None:
    """Capacity is the engine's; a step that is slower than the law slows the plan; what differs is named."""
    config = small(num_gpu_blocks=10_000)
    with_load = SimServer(config, scenario=SCENARIOS["steady"])
    with_load.start()
    try:
        with_load.set_faults(throttle=1.5)
        # Between a sample of the void and one of forty chats nothing is compared.
        deadline = time.monotonic() + 10.0
        while _RUNNING.search(ask(with_load.url + "/metrics").text) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        found = plan(
            f"--engine.url={with_load.url}", "--sample.interval=1s", "--hardware.gpu=H100", "--mix=20x2000",
            "--model.id=Qwen/Qwen3-8B", "--calibration.effective-bandwidth-bytes-per-second=2.01e12",
            "--objective.tokens-per-second=30",
        )  # fmt: skip
    finally:
        with_load.stop()
    assert found["engine"]["capacity_tokens"] == 160_000
    assert found["limits"]["memory"]["tokens"] == 160_000
    assert found["engine"]["step_ratio"] == pytest.approx(1.5, rel=0.1)
    assert found["law"]["source"] == "engine"
    assert found["law"]["effective_bandwidth_bytes_per_second"] == pytest.approx(2.01e12 / 1.5, rel=0.1)
    assert found["law"]["low_factor"] == pytest.approx(1 / found["engine"]["step_ratio"])  # the calibration's own step
    assert found["law"]["high_factor"] == 1.0
    row = found["concurrency"][0]
    assert row["step_low_seconds"] < row["step_seconds"]
    assert any("the step was measured at one load" in line for line in found["assumptions"])
    said = "\n".join(found["checks"])
    for name in ("runtime overhead", "--gpu-memory-utilization", "block size", "decode step: 1."):
        assert name in said, said


def test_nobody_waits_for_his_own_prompt(plan: Any) -> None:
    """With 100 tokens in and 10 out, each other user brings 10 prompt tokens between two of mine."""
    found = plan(*RTX_4090, "--prompt-tokens=100", "--output-tokens=10")
    assert [row["prefill_tokens_per_step"] for row in found["concurrency"]] == [0.0, 490.0, 990.0]
    assert found["concurrency"][0]["itl_seconds"] == found["concurrency"][0]["step_seconds"]
