"""Plans across GPUs: what each size is said to do against what it was measured to do, and what the law contains."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from shared_data import shared_path

PARAMS = 7.57e9  # of Qwen3-8B that work on a token: its 8.19e9 without the table of embeddings
LLAMA = ("--model.id=meta-llama/Llama-3.3-70B-Instruct", "--hardware.gpu=H100")


def measured(gpus: int) -> list[dict[str, Any]]:
    """Llama-3.3-70B in fp8 on so many H100s: a decode sweep that no default was fitted on, loads like the pool."""
    lines = shared_path("data", "measured", "dynamo_decode.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        row
        for row in rows
        if row["series"] == f"dynamo:llama-3.3-70b:H100-SXM:tp{gpus}"
        and row["sequences"] <= 128
        and row["tokens_in_flight"] <= 7_834 * row["sequences"]
    ]


def ratios(plan: Any, gpus: int, *flags: str) -> list[float]:
    """Measured over planned, row by row."""
    found = []
    for row in measured(gpus):
        document = plan(
            *LLAMA, *flags, f"--hardware.count={gpus}", f"--concurrency={row['sequences']:.0f}",
            f"--context-tokens={row['tokens_in_flight'] / row['sequences']}",
            f"--model.weight-bytes={row['weight_bytes_per_gpu'] * gpus}",
            f"--model.kv-bytes-per-token={row['kv_bytes_per_token_per_gpu'] * gpus}",
        )  # fmt: skip
        found.append(row["itl_seconds"] / document["concurrency"][0]["itl_seconds"])
    assert len(found) == 3
    return found


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_70b_on_several_gpus_takes_what_was_measured(plan: Any, gpus: int) -> None:
    """Without any calibration: 6 % in the middle, 15 % at most, at every size."""
    found = ratios(plan, gpus)
    assert median(found) == pytest.approx(1.0, abs=0.06)
    assert max(abs(ratio - 1.0) for ratio in found) < 0.15


@pytest.mark.parametrize(("gpus", "times"), [(2, 1.0), (4, 1.4), (8, 1.9)])
def test_an_efficiency_alone_is_too_fast_on_several_gpus(plan: Any, gpus: int, times: float) -> None:
    """By the factors that the plan states below its tables."""
    assert median(ratios(plan, gpus, "--bandwidth-efficiency=0.6")) == pytest.approx(times, abs=0.05)
    said = plan(*LLAMA, "--hardware.count=8", "--context-tokens=2000", "--bandwidth-efficiency=0.6")["assumptions"]
    assert any("took 1.0, 1.4 and 1.9 times as long" in line for line in said)


def test_the_pooled_law_has_its_all_reduces_inside(plan: Any) -> None:
    """They are shown, not added: the same step with and without them being told apart; more GPUs move more."""
    found = plan(*LLAMA, "--hardware.count=8", "--context-tokens=2000", "--concurrency=1,64")
    first, last = found["concurrency"]
    assert last["communication_seconds"] == pytest.approx(64 * first["communication_seconds"])
    cost = found["law"]["sequence_cost_seconds"]
    assert 0.0 < first["communication_seconds"] <= cost * (1 + 1e-9)
    rest = last["step_seconds"] - last["memory_seconds"] - found["law"]["step_overhead_seconds"]
    assert last["communication_seconds"] <= rest * (1 + 1e-9)  # inside the step's own parts
    sizes = {size["tensor_parallel"]: size for size in found["sizes"]}
    assert sizes[1]["communication_seconds"] == 0.0
    assert sizes[2]["communication_seconds"] < sizes[4]["communication_seconds"] < sizes[8]["communication_seconds"]
    assert sizes[8]["communication_source"].startswith("part of the pooled law")


def test_all_four_constraints_are_there_without_calibration(plan: Any) -> None:
    """Arithmetic and attention come from the model, whichever law is used; loads beyond the pool are called that."""
    flags = ("--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100", "--mix=40x2000,2x100000", "--output-tokens=500",
             "--objective.tokens-per-second=30", "--objective.ttft-seconds=20")  # fmt: skip
    found = plan(*flags)
    assert set(found["limits"]) == {"memory", "bandwidth", "compute", "tpot", "ttft", "prompts"}
    row = found["concurrency"][-1]
    assert row["compute_seconds"] == pytest.approx(2 * PARAMS * 42 / (989e12 * 0.645), rel=0.01)
    attention = 1 + 36 * 4096 * 100_000 / PARAMS  # layers x width x prompt over parameters
    assert found["prefill_seconds"] / found["prefill_seconds_linear"] == pytest.approx(attention, rel=0.01)
    linear = plan(*flags, "--prompt-tokens=100")["concurrency"][-1]
    assert row["prefill_tokens_per_step"] == pytest.approx(41 * (280_000 / 42 - 250) / 500)  # each its own prompt
    ratio = (row["itl_seconds"] - row["step_seconds"]) / (linear["itl_seconds"] - linear["step_seconds"])
    assert (
        ratio > 2.0 * row["prefill_tokens_per_step"] / linear["prefill_tokens_per_step"]
    )  # attention more than doubles
    assert not any("pooled figures end" in line for line in found["assumptions"])
    long = plan(*flags[:2], "--context-tokens=100000", "--concurrency=1")
    assert any("pooled figures end at 128 requests and 7,834 tokens" in line for line in long["assumptions"])
