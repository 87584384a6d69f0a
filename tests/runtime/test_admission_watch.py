"""What a sidecar tells its operator: promises not enforced or out of reach, an engine that stands still."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from admission_helpers import ask, leasing, simulated
from stepscope import settings as table
from stepscope.sim.scenario import Group, Phase, Scenario
from waiting import eventually

TEN_CHATS = Scenario((Phase("ten chats", 600.0, (Group("chat", 10, 4000, 4000, aged=True),)),))


def budget_of(base: str) -> dict[str, Any]:
    return ask(f"{base}/v1/budget", "GET").document


def test_a_promise_that_is_not_enforced_is_a_warning_that_says_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without the GPU there is no speed budget; memory alone then counts."""
    pairs = ((table.HARDWARE_GPU, None), (table.CALIBRATION_EFFECTIVE_BANDWIDTH, None))
    with simulated() as engine, leasing(engine.url, *pairs) as base:
        assert eventually(lambda: budget_of(base)["limit"] == "memory")
        assert eventually(lambda: any("is not enforced" in line for line in caplog.messages))
        (said,) = budget_of(base)["warnings"]
    assert said.startswith("--objective.tokens-per-second=50 is not enforced: missing ")
    assert "--hardware.gpu" in said
    (record,) = [record for record in caplog.records if "is not enforced" in record.message]
    assert (record.levelname, record.message) == ("WARNING", f"admission: {said}")


def test_without_a_promise_memory_is_enforced(caplog: pytest.LogCaptureFixture) -> None:
    """That is what was asked for: no warning, and what does not fit into memory is refused."""
    with simulated() as engine, leasing(engine.url, (table.OBJECTIVE_TOKENS_PER_SECOND, None)) as base:
        assert eventually(lambda: budget_of(base)["limit"] == "memory")
        known = budget_of(base)
        assert (known["speed_budget_tokens"], known["warnings"]) == (None, [])
        said = ask(f"{base}/v1/leases", "POST", {"tokens": known["budget_tokens"] + 1}).document
        assert (said["reason"], said["fits_when_empty"]) == ("memory", False)
    assert not [line for line in caplog.messages if "not enforced" in line]


def test_a_promise_out_of_reach_is_said_in_the_log_and_in_each_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """5000 tokens/s: not one request may run, and nobody should have to guess why."""
    with simulated() as engine, leasing(engine.url, (table.OBJECTIVE_TOKENS_PER_SECOND, 5000.0)) as base:
        assert eventually(lambda: budget_of(base)["budget_tokens"] == 0.0)
        assert eventually(lambda: any("out of reach" in line for line in caplog.messages))
        said = ask(f"{base}/v1/leases", "POST", {"tokens": 1})
        assert (said.status, said.document["reason"], said.document["fits_when_empty"]) == (429, "speed", False)
        assert said.document["error"] == (
            "--objective.tokens-per-second is out of reach: not even an empty engine keeps it (speed)"
        )
        (line,) = budget_of(base)["warnings"]
        assert line.startswith("--objective.tokens-per-second=5000 is out of reach")
    assert sum("out of reach" in line for line in caplog.messages) == 1  # not at every sample


def test_a_missing_budget_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It says what happens to the requests meanwhile."""
    for way, done in (("admit", "given"), ("refuse", "refused")):
        with leasing("http://127.0.0.1:9", (table.ADMISSION_WHEN_UNKNOWN, way)) as base:
            line = f"no budget is known (the engine is not answering): every lease is {done}"
            assert eventually(lambda line=line, base=base: budget_of(base)["warnings"] == [line])  # type: ignore[misc]
            assert f"admission: {line}" in caplog.messages


def stands_still(base: str) -> Callable[[], bool]:
    return lambda: any("makes no step" in line for line in budget_of(base)["warnings"])


def test_a_hung_engine_is_not_taken_for_an_empty_one(caplog: pytest.LogCaptureFixture) -> None:
    """Its gauges count as before; one request at a time may try it, and the rest go elsewhere."""
    pairs = ((table.ADMISSION_LONGEST_TTL, 60.0), (table.ADMISSION_BUDGET_TOKENS, 50_000.0))
    with simulated(TEN_CHATS) as engine, leasing(engine.url, *pairs) as base:
        assert eventually(lambda: (budget_of(base)["outside_tokens"] or 0) > 50_000)
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1000}).status == 429
        engine.set_faults(hang=True)
        assert eventually(stands_still(base), 15.0)
        assert budget_of(base)["outside_tokens"] > 50_000
        for _ in range(2):  # one at a time, as often as the one before was given back
            trial = ask(f"{base}/v1/leases", "POST", {"tokens": 1000})
            assert trial.status == 201
            assert ask(f"{base}/v1/leases", "POST", {"tokens": 1000}).status == 429
            assert ask(f"{base}{trial.headers['Location']}", "DELETE").status == 204
        engine.set_faults(hang=False)
        assert eventually(lambda: not stands_still(base)())
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1000}).status == 429
    assert any("it hangs, or all its requests were cancelled" in line for line in caplog.messages)


def test_gauges_that_cancelled_requests_left_standing_do_not_keep_the_next_request_out() -> None:
    """It is let in to make the step that shows the engine empty; then there is room for all."""
    pairs = ((table.ADMISSION_LONGEST_TTL, 1.0), (table.ADMISSION_BUDGET_TOKENS, 5000.0))
    with simulated() as engine, leasing(engine.url, *pairs) as base:
        host, port = engine.url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": [5] * 8000, "max_tokens": 2000, "stream": True}).encode()
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n%b" % (len(body), body))  # fmt: skip
            assert eventually(lambda: (budget_of(base)["outside_tokens"] or 0) > 5000)
        assert eventually(stands_still(base), 15.0)
        assert budget_of(base)["outside_tokens"] > 5000
        leases = f"{base}/v1/leases"
        assert [ask(leases, "POST", {"tokens": 1000, "ttl_seconds": 60}).status for _ in range(2)] == [201, 429]
        ask(f"{engine.url}/v1/completions", "POST", {"prompt": [5], "max_tokens": 3}, Content_Type="application/json")
        assert eventually(lambda: budget_of(base)["outside_tokens"] == 0.0)
        assert ask(leases, "POST", {"tokens": 3000}).status == 201
