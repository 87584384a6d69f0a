"""`stepscope plan` against a real vLLM: how many requests it holds, and how fast it is after it was calibrated."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pytest

from live.calibration import Calibrated
from live.client import Client, Request, all_answer, get_json
from live.engine import Engine
from live.sidecar import own_environment
from live.truth import gaps_between

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

WITHIN = 0.15  # speed
MEMORY_WITHIN = 0.20
STEADY_SECONDS = 20.0
FIRST_TOKENS_SECONDS = 180.0
NEVER = 8000  # new tokens: more than anybody gets
TURNS = 2  # the same load twice says how noisy the machine is
LONG_PROMPT_TOKENS = 4000  # of the requests that fill the memory
MOST_REQUESTS = 60  # below the engine's --max-num-seqs, which would be the limit otherwise


def plan(*flags: str) -> dict[str, Any]:
    """The command's JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "plan", "--json", *flags],
        capture_output=True, text=True, timeout=60, env=own_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """A load as its clients saw it: mean gap between tokens, and the mean context over the measured time."""

    itl_seconds: float
    requests: int
    tokens_in_flight: float


def measure(client: Client, requests: list[Request]) -> Measured:
    """The steady load of requests that all have their first token."""
    begin = time.monotonic()
    time.sleep(STEADY_SECONDS)
    end = time.monotonic()
    streams = [request.stream for request in requests]
    middle = (begin + end) / 2.0
    return Measured(
        fmean(gaps_between(streams, begin, end)), len(requests), sum(stream.tokens_at(middle) for stream in streams)
    )


def hold(engine: Engine, *prompts: int) -> Measured:
    """Streams with these prompts, side by side; nothing is left running."""
    client = Client(engine.url)
    try:
        requests = [client.start(tokens, NEVER) for tokens in prompts]
        assert all_answer(requests, FIRST_TOKENS_SECONDS), client.errors
        return measure(client, requests)
    finally:
        client.cancel_all()


def agree(what: str, planned: float, turns: list[float]) -> None:
    """Within 15 %, or within what the machine itself differs by when nothing changed. Prints a line for the record."""
    errors = [planned / seen - 1.0 for seen in turns]
    both = ", ".join(f"{1e3 * seen:.1f} ms ({error:+.1%})" for seen, error in zip(turns, errors, strict=True))
    print(f"{what}: planned {1e3 * planned:.1f} ms a token, measured {both}")
    apart = max(turns) / min(turns) - 1.0
    assert max(map(abs, errors)) <= max(WITHIN, apart), errors


def test_a_single_stream_is_as_fast_as_planned(engine: Engine, calibrated: Calibrated) -> None:
    """One user with 1,500 tokens, which the calibration did not contain."""
    turns = [hold(engine, 1500) for _ in range(TURNS)]
    context = fmean(turn.tokens_in_flight for turn in turns)
    found = plan(
        f"--engine.url={engine.url}", f"--calibration.file={calibrated.path}",
        f"--context-tokens={context:.0f}", "--concurrency=1",
    )  # fmt: skip
    planned = 1.0 / found["concurrency"][0]["tokens_per_second_per_user"]
    agree("1 x 1,500", planned, [turn.itl_seconds for turn in turns])


def test_a_mix_of_short_and_long_contexts_is_as_fast_as_planned(engine: Engine, calibrated: Calibrated) -> None:
    """Eight chats and one session of 6,000 tokens."""
    prompts = (*[256] * 8, 6000)
    turns = [hold(engine, *prompts) for _ in range(TURNS)]
    # What each has generated when it is measured, on average over all.
    grown = (fmean(turn.tokens_in_flight for turn in turns) - sum(prompts)) / len(prompts)
    found = plan(
        f"--engine.url={engine.url}", f"--calibration.file={calibrated.path}",
        f"--mix=8x{256 + grown:.0f},1x{6000 + grown:.0f}",
    )  # fmt: skip
    (row,) = (row for row in found["concurrency"] if row["requests"] == len(prompts))
    agree("8 x 256 and 1 x 6,000", row["step_seconds"], [turn.itl_seconds for turn in turns])


USERS, ASKED_TOKENS, ANSWER_TOKENS = 6, 300, 150


def test_prompts_mixed_into_the_steps_cost_what_was_planned(engine: Engine, calibrated: Calibrated) -> None:
    """Six users who each ask again as soon as they have their answer: the plan knows prompt and output tokens only."""
    turns = [converse(engine) for _ in range(TURNS)]
    found = plan(
        f"--engine.url={engine.url}", f"--calibration.file={calibrated.path}",
        f"--context-tokens={ASKED_TOKENS + ANSWER_TOKENS / 2:.0f}", f"--prompt-tokens={ASKED_TOKENS}",
        f"--output-tokens={ANSWER_TOKENS}", f"--concurrency={USERS}",
    )  # fmt: skip
    planned = 1.0 / found["concurrency"][0]["tokens_per_second_per_user"]
    agree(f"{USERS} users, {ASKED_TOKENS} in, {ANSWER_TOKENS} out", planned, turns)


def converse(engine: Engine) -> float:
    """Mean gap between tokens, seconds, over a time in which every user asks several times."""
    client, leave = Client(engine.url), threading.Event()

    def user() -> None:
        while not leave.is_set() and not client.errors:
            client.start(ASKED_TOKENS, ANSWER_TOKENS).wait(FIRST_TOKENS_SECONDS)

    users = [threading.Thread(target=user, name="live-user", daemon=True) for _ in range(USERS)]
    try:
        for number, thread in enumerate(users):  # apart, so that they do not all ask in the same step for ever
            thread.start()
            time.sleep(1.0 + 0.1 * number)
        begin = time.monotonic()
        time.sleep(2.0 * STEADY_SECONDS)
        end = time.monotonic()
        return fmean(gaps_between(client.streams, begin, end))
    finally:
        leave.set()
        client.cancel_all()
        for thread in users:
            thread.join(FIRST_TOKENS_SECONDS)


def test_memory_holds_as_many_requests_as_planned(engine: Engine) -> None:
    """Requests join one by one until the engine lets one wait or preempts; the plan was made before, without load."""
    context = LONG_PROMPT_TOKENS + 100  # what they have generated by then
    beside = plan(f"--engine.url={engine.url}", *_NO_LAW, f"--context-tokens={context}", "--concurrency=1")
    alone = plan(*_offline(engine), f"--context-tokens={context}", "--concurrency=1")
    held = fill(engine)
    planned = {name: found["limits"]["memory"]["requests"] for name, found in (("beside", beside), ("alone", alone))}
    print(f"requests of {LONG_PROMPT_TOKENS:,} tokens: {held} held, planned {planned}")
    for requests in planned.values():
        assert abs(requests / held - 1.0) <= MEMORY_WITHIN


# The memory limit needs no speed, but a plan without any law is refused.
_NO_LAW = ("--calibration.effective-bandwidth-bytes-per-second=1e10",)


def _offline(engine: Engine) -> tuple[str, ...]:
    """The model's own configuration, and as memory its weights beside the bytes that the engine was given for KV."""
    folder = get_json(engine.url, "/v1/models")["data"][0]["root"]
    labels = engine.page()["vllm:cache_config_info"][0][0]
    kv_bytes = float(labels["kv_cache_memory_bytes"])
    weights = plan(f"--model.config={folder}", *_NO_LAW, "--context-tokens=1", "--concurrency=1")["weight_bytes"]
    memory = kv_bytes + weights
    return (f"--model.config={folder}", *_NO_LAW, f"--hardware.memory-bytes={memory:.0f}", "--utilization=1",
            "--runtime-overhead-bytes=0")  # fmt: skip


def fill(engine: Engine) -> int:
    """How many requests run at once before one has to wait or is thrown out."""
    client, preempted = Client(engine.url), preemptions(engine)
    try:
        for held in range(MOST_REQUESTS):
            request = client.start(LONG_PROMPT_TOKENS, NEVER)
            until = time.monotonic() + FIRST_TOKENS_SECONDS
            while not request.has_token:
                assert time.monotonic() < until, client.errors
                if preemptions(engine) > preempted or waits(engine):
                    return held
                time.sleep(0.5)
        raise AssertionError(f"{MOST_REQUESTS} requests did not fill it")
    finally:
        client.cancel_all()


def preemptions(engine: Engine) -> float:
    """So far."""
    return sum(value for _, value in engine.page()["vllm:num_preemptions_total"])


def waits(engine: Engine) -> bool:
    """Somebody waits for longer than the steps that a request needs to be let in."""
    for _ in range(4):
        if not sum(value for _, value in engine.page()["vllm:num_requests_waiting"]):
            return False
        time.sleep(1.0)
    return True
