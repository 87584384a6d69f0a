"""What a plan may not promise: a class that is too slow, a size without room, a table that is not there."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope import cli

QWEN = ("--model.id=Qwen/Qwen3-8B", "--hardware.gpu=H100")
BOTH = "--mix=40x2000,2x100000"


def test_each_kind_of_request_pays_for_its_own_prompt(plan: Any) -> None:
    """40 chats and two long sessions, 400 tokens out: 2 GPUs, not the 18 of 42 long prompts."""
    flags = (*QWEN, BOTH, "--output-tokens=400", "--objective.tokens-per-second=20", "--gpu-price-per-hour=2")
    found = plan(*flags)
    row = found["concurrency"][-1]
    assert row["prefill_tokens_per_step"] == pytest.approx(41 * (280_000 / 42 - 200) / 400)
    assert row["itl_seconds"] < 0.1
    assert not row["prompts_queue"]
    assert (found["gpus_low"], found["gpus"], found["gpus_high"]) == (2, 2, 3)
    assert found["demand"]["prompt_tokens"] == 99_800
    assert plan(*flags, "--prompt-tokens=1000")["demand"]["mean_prompt_tokens"] == 1000


def test_prompts_that_queue_are_said_to(plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """2,000 tokens in, 20 out: a chunk a step keeps up with 20; the total is what the prompts allow."""
    flags = (*QWEN, "--context-tokens=2010", "--output-tokens=20", "--concurrency=16,32,64")
    found = plan(*flags)
    few, many, more = found["concurrency"]
    assert [row["prompts_queue"] for row in found["concurrency"]] == [False, True, True]
    assert many["prefill_tokens_per_step"] == 2048
    assert many["decoding_requests"] == pytest.approx(20.48)
    assert few["tokens_per_second"] < many["tokens_per_second"] == more["tokens_per_second"] < 350
    assert found["limits"]["prompts"]["requests"] == found["requests"] == 21
    assert cli.main(["plan", *flags]) == 0
    said = capsys.readouterr().out
    assert "from 32 requests on, prompts queue: more than a chunk of 2,048 tokens" in said
    assert "the first token comes later than TTFT says" in said
    assert f">{many['ttft_seconds']:.2f} s" in said


def test_no_row_decodes_faster_than_its_arithmetic(plan: Any) -> None:
    """The pooled law, far beyond the loads it was fitted on."""
    for row in plan(*QWEN, "--context-tokens=16", "--concurrency=128,512,3771,20000")["concurrency"]:
        assert row["step_seconds"] > row["compute_seconds"]
        assert row["step_low_seconds"] < row["step_seconds"] < row["step_high_seconds"]


@pytest.mark.parametrize(
    ("bytes_each", "flops"), [(2.0, 989e12 * 0.645), (1.0, 1979e12 * 0.645), (0.6, 1979e12)], ids=["16", "8", "4 bit"]
)
def test_the_arithmetic_is_that_of_the_weights(plan: Any, bytes_each: float, flops: float) -> None:
    """8 bits at their own FLOP/s; of 4 bits only the peak is known, so that no measured load is called too fast."""
    params = 7.568e9
    flags = ("--context-tokens=2000", "--concurrency=128", f"--model.weight-bytes={bytes_each * params}")
    row = plan(*QWEN, *flags)["concurrency"][0]
    assert row["compute_seconds"] == pytest.approx(2 * params * 128 / flops, rel=0.01)
    assert row["bound_by"] == "bandwidth"


def test_a_kind_that_can_never_meet_the_promise_gets_no_gpus(plan: Any) -> None:
    """Two sessions of 200,000 tokens decode at 48 tokens/s alone: no number of GPUs makes it 50."""
    flags = (*QWEN, "--mix=40x2000,2x200000", "--gpu-price-per-hour=2")
    found = plan(*flags, "--objective.tokens-per-second=50")
    assert found["gpus"] is None
    assert found["cost_per_million_tokens"]["at_objective"] is None
    assert found["sizes"][0]["why_not"].startswith("one context of 200000 tokens alone decodes at 48.2 tokens/s")
    assert plan(*flags, "--objective.tokens-per-second=40")["gpus"] >= 1


def test_a_size_without_room_for_the_engine_itself_is_not_recommended(
    plan: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """70B fills 141 of 144e9 bytes of two H100s; an engine may want 5e9 of each for itself."""
    flags = ("--model.id=meta-llama/Llama-3.1-70B-Instruct", "--hardware.gpu=H100", "--hardware.count=8",
             "--context-tokens=2000", "--objective.tokens-per-second=25")  # fmt: skip
    found = plan(*flags)
    assert (found["tensor_parallel"], found["gpus"]) == (4, 4)
    two = found["sizes"][1]
    assert two["doubt"].startswith("no room for one longest context if the engine takes 5.2e+09")
    exact = plan(*flags, "--runtime-overhead-bytes=0")
    assert (exact["tensor_parallel"], exact["gpus"], exact["gpus_doubt"]) == (2, 2, "")
    assert exact["limits"]["memory"]["low_requests"] == exact["limits"]["memory"]["high_requests"]
    assert cli.main(["plan", *flags]) == 0
    assert "2 GPU(s) per replica, not recommended: no room for one longest context" in capsys.readouterr().out


def test_a_doubtful_size_is_passed_over_for_a_sure_one(plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """At 0.93 of the memory 70B on two H100s has room by the best guess and none by the high one."""
    flags = ("--model.id=meta-llama/Llama-3.1-70B-Instruct", "--hardware.gpu=H100", "--context-tokens=2000",
             "--utilization=0.93", "--reserve=0", "--objective.tokens-per-second=10")  # fmt: skip
    found = plan(*flags, "--hardware.count=4")
    assert found["sizes"][1]["doubt"].startswith("no room for one longest context if the engine takes 5.2e+09")
    assert found["tensor_parallel"] == 4
    only = plan(*flags, "--hardware.count=2")
    assert only["gpus"] == 2
    assert only["gpus_high"] is None
    assert cli.main(["plan", *flags, "--hardware.count=2"]) == 0
    said = capsys.readouterr().out
    assert "2 GPU(s) (2 to no number)" in said
    assert "doubtful: no room for one longest context" in said


def test_every_figure_has_its_low_and_high(plan: Any) -> None:
    """GPUs, costs, ITL, speed, TTFT and prefill, by the spread of the law."""
    found = plan(*QWEN, BOTH, "--output-tokens=400", "--objective.tokens-per-second=20", "--gpu-price-per-hour=2")
    row, costs = found["concurrency"][-1], found["cost_per_million_tokens"]
    for low, best, high in (
        (row["itl_low_seconds"], row["itl_seconds"], row["itl_high_seconds"]),
        (row["ttft_low_seconds"], row["ttft_seconds"], row["ttft_high_seconds"]),
        (row["tokens_per_second_low"], row["tokens_per_second"], row["tokens_per_second_high"]),
        (row["tokens_per_second_per_user_low"], row["tokens_per_second_per_user"],
         row["tokens_per_second_per_user_high"]),
        (row["cost_low_per_million_tokens"], row["cost_per_million_tokens"], row["cost_high_per_million_tokens"]),
        (found["prefill_low_seconds"], found["prefill_seconds"], found["prefill_high_seconds"]),
        (found["requests_low"], found["requests"], found["requests_high"]),
        (costs["at_objective_low"], costs["at_objective"], costs["at_objective_high"]),
        (costs["at_full_load_low"], costs["at_full_load"], costs["at_full_load_high"]),
    ):  # fmt: skip
        assert low < best < high


def test_a_table_that_cannot_be_made_is_said_to_be_missing(plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Users a day at a speed that no GPU reaches."""
    flags = (*QWEN, "--context-tokens=1000", "--output-tokens=100", "--daily-users=1000")
    assert plan(*flags, "--objective.tokens-per-second=20")["peaks_missing"] == ""
    assert cli.main(["plan", *flags, "--objective.tokens-per-second=500"]) == 0
    said = capsys.readouterr().out
    assert "no table of users a day: not even one request meets the bandwidth limit: replicas do not help" in said


def test_a_prompt_alone_and_its_first_token_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """In chunks of one token 2,000 steps take 15 s, of which the prompt adds 0.05."""
    assert cli.main(["plan", *QWEN, "--context-tokens=2000", "--chunk-tokens=1", "--concurrency=1"]) == 0
    said = capsys.readouterr().out
    assert "adds 0.05 s (0.05 to 0.06) to its 2,000 steps" in said
    assert "TTFT below has the steps in it" in said
    assert "14.92 s" in said
