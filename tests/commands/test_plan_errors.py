"""The plan command on inputs that are wrong, impossible, or not enough: one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope import cli

QWEN = (
    "--model.weight-bytes=16.4e9", "--model.params=8.2e9", "--model.kv-bytes-per-token=147456", "--hardware.gpu=H100",
    "--bandwidth-efficiency=0.6",
)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ((), "plan needs --context-tokens, or --mix for several kinds of requests"),
        (("--context-tokens=1",), "plan needs --model.id, --model.config, or --model.weight-bytes (or --model.params) "
         "and --model.kv-bytes-per-token"),
        (("--mix=40x2000", "--context-tokens=5"), "--mix: cannot be given together with --context-tokens; both say how "
         "long contexts are"),
        (("--mix=40",), '--mix: "40" is not REQUESTSxTOKENS (example: 40x2000,2x100000)'),
        (("--mix=0x10",), '--mix: "0" is not above 0'),
        (("--context-tokens=-1",), '--context-tokens: "-1" is below the smallest allowed, 0'),
        (("--context-tokens=nan",), '--context-tokens: "nan" is not a finite number'),
        (("--context-tokens=1", "--concurrency=1,x"), '--concurrency: "x" is not a number (examples: 50, 0.9, 16.4e9)'),
        (("--context-tokens=1", "--concurrency=,"), '--concurrency: "," is not a list of 1 to 64 values, separated by '
         "commas"),
        (("--context-tokens=1", "--utilization=90"), '--utilization: "90" is above the largest allowed, 1'),
        (("--context-tokens=1", "--daily-users=5"), "--daily-users: needs --output-tokens, to know how long a request "
         "takes"),
        (("--context-tokens=1", "--tokens-per-second=5"), "--tokens-per-second: needs --gpu-price-per-hour"),
        (("--context-tokens=1", "--json", "--markdown"), "--markdown: cannot be given together with --json"),
        (("--context-tokens=1", "--plot=/nowhere/p.svg"), '--plot: the folder of "/nowhere/p.svg" is not there'),
        (("--context-tokens=1", "--model.weight-bytes=1e9", "--model.kv-bytes-per-token=1e5"), "plan: GPU: give "
         "--hardware.gpu and --hardware.count, or --calibration.*"),
        (("--context-tokens=1", "--hardware.gpu=H9000", *QWEN[:3]), "GPU 'H9000' is not in the table; nearest: H200-SXM"
         ", H100-SXM, GH200-96GB, RTXA6000"),
        ((*QWEN, "--context-tokens=1", "--calibration.effective-bandwidth-bytes-per-second=1e12"),
         "--bandwidth-efficiency: cannot be given together with --calibration.*"),
        ((*QWEN, "--context-tokens=10", "--prompt-tokens=11"), "--prompt-tokens: 11 is more than the longest "
         "context, 10, which contains it"),
        (("--context-tokens=10", "--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100", "--hardware.count=3"),
         "--hardware.count: 3 GPUs cannot share 32 attention heads evenly (possible: 1, 2, 4, 8, 16, 32); it is "
         "the size of one replica"),
        (("--context-tokens=1", "--hardware.gpu=H100", "--model.weight-bytes=1e9", "--model.kv-bytes-per-token=1e-300"),
         "--model.kv-bytes-per-token: 1e-300 is below one byte"),
        (("--context-tokens=1", "--prefill-efficiency=1e-300"), '--prefill-efficiency: "1e-300" is below the smallest '
         "allowed, 0.001"),
        (("--context-tokens=1", "--gpu-price-per-hour=1e300"), '--gpu-price-per-hour: "1e300" is above the largest '
         "allowed, 1e+09"),
        (("--context-tokens=2000", "--output-tokens=4000"), "--output-tokens: 4000 generated tokens make 2000 of a "
         "mean context by themselves; one of 2000 leaves no prompt"),
        (("--context-tokens=2000", "--prompt-tokens=1500", "--output-tokens=1100"), "--output-tokens: a prompt of 1500 "
         "and half of 1100 generated tokens are more than the longest mean context, 2000"),
        (("--mix=40x2000", "--mix=2x100000"), "--mix: given 2 times; several values go into one, with commas"),
        (("--context-tokens=1", "--prefill-tokens-per-step=2049"), "--prefill-tokens-per-step: 2049 is more than a "
         "step takes, --chunk-tokens=2048"),
        (("--context-tokens=1", "--plot=x.png"), '--plot: writes SVG: "x.png" should end in .svg'),
        (("--context-tokens=1", "--output-tokens=0.5"), '--output-tokens: "0.5" is below the smallest allowed, 1'),
        (("--context-tokens=1", "--engine.url=http://127.0.0.1:9", *QWEN), "--engine.url: http://127.0.0.1:9: "),
    ],
)  # fmt: skip
def test_wrong_inputs_get_one_line(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], line: str) -> None:
    """And exit status 2, with nothing on standard output."""
    assert cli.main(["plan", *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("stepscope: ")
    assert shown.err.count("\n") == 1
    said = shown.err.removeprefix("stepscope: ").rstrip("\n")
    assert said == line or (line.endswith(": ") and said.startswith(line))


@pytest.mark.parametrize(
    ("provenance", "line"),
    [
        ("gpu: H100-SXM, gpu_count: 2", "another GPU count: 2, the plan is for 1: give --hardware.count=2"),
        ("gpu: H200-SXM, gpu_count: 1", "another GPU: H200-SXM, the plan is for H100-SXM: give "
         "--hardware.gpu=H200-SXM"),
        ("model: Qwen/Qwen3-32B", "another model: Qwen/Qwen3-32B, the plan is for Qwen/Qwen3-8B: give "
         "--model.id=Qwen/Qwen3-32B"),
    ],
)  # fmt: skip
def test_a_calibration_of_something_else_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, provenance: str, line: str
) -> None:
    """Its figures would be made up here; both are named, and what to give instead."""
    flags = ("--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100", "--context-tokens=1", calibration(tmp_path, provenance))
    assert cli.main(["plan", *flags]) == 2
    rest = ", or leave the calibration away to plan with the pooled figures\n"
    assert capsys.readouterr().err == f"stepscope: --calibration.file: made for {line}{rest}"


def test_a_calibration_of_the_same_is_used_by_whatever_name(plan: Any, tmp_path: Path) -> None:
    """A path or numbers do not say which model they are."""
    file = calibration(tmp_path, "model: /models/qwen3-8b, gpu: H100-SXM, gpu_count: 1")
    assert (
        plan("--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100", "--context-tokens=1", file)["law"]["source"] == "file"
    )
    file = calibration(tmp_path, "model: Qwen/Qwen3-8B, gpu: H100-SXM, gpu_count: 1")
    assert plan(*QWEN[:-1], "--context-tokens=1", file)["law"]["source"] == "file"


def calibration(folder: Path, provenance: str) -> str:
    """The flag for a file that was measured on that."""
    file = folder / "calibration.yaml"
    file.write_text(
        "parameters: {effective_bandwidth_bytes_per_second: 2.01e+12}\n"
        "residuals: {median_abs_error: 0.05, samples: 40}\n"
        f"provenance: {{{provenance}}}\n"
        "range: {max_sequences: 64, max_tokens_in_flight: 300000}\n"
    )
    return f"--calibration.file={file}"


def test_loads_that_a_calibration_never_saw_are_called_that(plan: Any, tmp_path: Path) -> None:
    """A quarter beyond is still taken for seen; and no step is shorter than its arithmetic at the data sheet's peak."""
    flags = ("--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100", "--context-tokens=10", "--max-num-seqs=64",
             calibration(tmp_path, "gpu_count: 1"))  # fmt: skip
    near, far = plan(*flags, "--concurrency=80"), plan(*flags, "--concurrency=80,3771")
    said = "beyond the loads of the calibration, which saw nothing like it: 3,771 requests and more"
    assert said not in near["assumptions"]
    assert said in far["assumptions"]
    attention = "attention over long prompts is from the model's dimensions, not from the calibration"
    assert attention not in far["assumptions"]
    last = far["concurrency"][-1]
    assert last["step_seconds"] == pytest.approx(last["compute_seconds"])
    assert last["compute_seconds"] == pytest.approx(2 * 7.568e9 * 3771 / 989e12, rel=0.01)


def test_without_a_constraint_the_plan_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    """It does not say that no number of GPUs is enough."""
    flags = ("--model.id=Qwen/Qwen3-8B", "--hardware.peak-bandwidth-bytes-per-second=2e12", "--context-tokens=10")
    assert cli.main(["plan", *flags]) == 0
    said = capsys.readouterr().out
    assert "reserve of 25%: no constraint is known: give an objective or the GPU's memory" in said


def test_a_model_that_does_not_fit_is_told_so(plan: Any) -> None:
    """No number of replicas helps."""
    found = plan("--model.id=meta-llama/Llama-3.1-70B", "--hardware.gpu=RTX4090", "--context-tokens=1000")
    assert found["limits"]["memory"]["requests"] == 0
    assert found["gpus"] is None
    assert found["sizes"][0]["why_not"] == "the weights do not fit into the GPU memory"


def test_attention_that_no_calibration_measured_is_named(plan: Any, tmp_path: Path) -> None:
    """It triples the time of a prompt of 100,000 tokens."""
    priced = calibration(tmp_path, "gpu_count: 1")
    file = tmp_path / "calibration.yaml"
    file.write_text(file.read_text().replace("e+12}", "e+12, prefill_cost_seconds_per_token: 2.5e-5}"))
    found = plan("--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100", "--context-tokens=100000", priced)
    assert found["prefill_seconds"] == pytest.approx(2.95 * found["prefill_seconds_linear"], rel=0.01)
    assert any(line.startswith("attention over long prompts is from the model") for line in found["assumptions"])
