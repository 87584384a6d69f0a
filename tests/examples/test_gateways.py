"""The example gateways as processes, between real clients, a real sidecar and a simulated engine."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from pathlib import Path

import pytest

from admission_helpers import ask, leasing, simulated
from chat_server import Manner, chat_server
from gateway_stand import BUDGET_TOKENS, TTL_SECONDS, Stand, gateway
from stepscope import settings as table
from waiting import eventually


def test_a_request_holds_a_lease_while_it_runs_and_none_after(stand: Stand) -> None:
    """The answer passes unchanged; the lease is prompt + most output."""
    status, _, body = stand.post({"prompt": [1] * 50, "max_tokens": 20})
    assert status == 200
    assert json.loads(body)["usage"] == {"prompt_tokens": 50, "total_tokens": 70, "completion_tokens": 20}
    assert eventually(lambda: stand.leased() == 0)
    with stand.open_stream(400) as sock:
        assert stand.leased() == 500
        rest = b""
        while b"[DONE]" not in rest:
            rest = rest[-100:] + sock.recv(65536)
    assert eventually(lambda: stand.leased() == 0)


def test_a_long_answer_renews_its_lease(stand: Stand) -> None:
    """Longer than the TTL, and still on lease."""
    with stand.open_stream(2000):  # about 15 s
        time.sleep(TTL_SECONDS + 0.7)
        assert stand.leased() == 2100


def test_a_client_that_goes_away_gives_everything_back(stand: Stand) -> None:
    """The engine's request is cancelled and the lease released, at once and not by its TTL."""
    with stand.open_stream(5000):
        assert stand.running() == 1
        assert stand.leased() == 5100
    began = time.monotonic()
    assert eventually(lambda: stand.leased() == 0 and stand.running() == 0, TTL_SECONDS / 2)
    assert time.monotonic() - began < TTL_SECONDS / 2


def test_a_client_that_goes_away_before_the_answer_gives_everything_back(stand: Stand) -> None:
    """Nothing was sent yet: the answer is not a stream."""
    body = json.dumps({"prompt": [1] * 100, "max_tokens": 5000}).encode()
    with socket.create_connection(("127.0.0.1", stand.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n%b" % (len(body), body))  # fmt: skip
        assert eventually(lambda: stand.running() == 1)
    assert eventually(lambda: stand.leased() == 0 and stand.running() == 0)


def test_a_crashed_gateway_loses_its_leases_to_the_ttl(stand: Stand) -> None:
    """Killed in the middle: the lease runs out, and is counted as such."""
    with stand.open_stream(5000):
        assert stand.leased() == 5100
        stand.process.send_signal(signal.SIGKILL)
        stand.process.wait(5)
        assert stand.leased() == 5100
        assert eventually(lambda: stand.leased() == 0, TTL_SECONDS + 1.0)
    assert eventually(lambda: stand.running() == 0)


def test_a_refusal_reaches_the_client_with_its_retry_after(stand: Stand) -> None:
    """And nothing reaches the engine."""
    with stand.open_stream(BUDGET_TOKENS - 1000):
        status, headers, body = stand.post({"prompt": [1], "max_tokens": 5000})
        assert status == 429
        assert json.loads(body)["reason"] == "configured"
        assert int(headers.get("Retry-After") or headers["retry-after"]) >= 1
        assert stand.running() == 1


def test_requests_pass_when_nobody_leases(command: list[str]) -> None:
    """The sidecar is down, or has admission off: serving goes on."""
    with simulated() as engine, leasing(engine.url, (table.ADMISSION_ENABLED, False)) as without:
        for leases_url in ("http://127.0.0.1:9", without):
            with gateway(command, engine.url, leases_url) as (port, process):
                stand = Stand(port, process, leases_url, engine)
                assert stand.post({"prompt": [1] * 5, "max_tokens": 3})[0] == 200


def test_the_gateway_shows_its_token(command: list[str], tmp_path: Path) -> None:
    """Without it the sidecar leases nothing (and requests pass); with it they are on lease."""
    token = tmp_path / "token"
    token.write_text("a-secret-of-the-gateway\n")
    pairs = ((table.ADMISSION_BEARER_TOKEN_FILE, token), (table.ADMISSION_BUDGET_TOKENS, 100.0))
    with simulated() as engine, leasing(engine.url, *pairs) as leases:
        for environ, status in (({}, 200), ({"LEASE_TOKEN_FILE": str(token)}, 429)):
            with gateway(command, engine.url, leases, **environ) as (port, process):
                assert Stand(port, process, leases, engine).post({"prompt": [1], "max_tokens": 500})[0] == status


def test_the_pods_behind_a_service_are_addressed_themselves(command: list[str]) -> None:
    """Engine and sidecar at the same address: the lease is on the engine that gets the request."""
    with simulated() as engine, leasing(engine.url) as leases:
        ports = {"ENGINE_PORT": engine.url.rpartition(":")[2], "LEASES_PORT": leases.rpartition(":")[2]}
        nowhere = "http://127.0.0.1:9"
        with gateway(command, nowhere, nowhere, SERVICE="localhost", **ports) as (port, process):
            stand = Stand(port, process, leases, engine)
            with stand.open_stream(500):
                assert stand.leased() == 600
                assert stand.running() == 1


def test_several_answers_and_chats_without_a_limit_lease_what_they_may_hold(command: list[str]) -> None:
    """One prompt and n answers; a chat that could go on to the end of the context is given a limit."""
    manner = Manner(path="/v1/chat/completions", takes_extras=True, gap_seconds=0.05)
    with (
        chat_server(manner) as engine,
        leasing(engine) as leases,
        gateway(command, engine, leases, DEFAULT_CHAT_TOKENS="300") as (port, _),
    ):

        def held() -> float:
            return float(ask(f"{leases}/v1/budget", "GET").document["leased_tokens"])

        messages = [{"role": "user", "content": ""}]  # counted as about 10 tokens
        for body, outputs in (({}, 300), ({"max_tokens": 40, "n": 3}, 120)):
            text = json.dumps({"messages": messages, **body}).encode()
            with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                             b"Content-Length: %d\r\n\r\n%b" % (len(text), text))  # fmt: skip
                assert eventually(lambda: bool(manner.asked))
                assert outputs < held() <= outputs + 20
            assert eventually(lambda: held() == 0)
            assert manner.asked.pop()["max_tokens"] == body.get("max_tokens", 300)


@pytest.mark.parametrize("text", ["{", "null", "7", "[]"])
def test_what_is_no_request_is_refused(stand: Stand, text: str) -> None:
    """400 from the gateway, and nothing on lease."""
    connection = http.client.HTTPConnection("127.0.0.1", stand.port, timeout=10)
    connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 400
    connection.close()
    assert stand.leased() == 0


def test_bad_requests_are_the_client_s_fault(stand: Stand) -> None:
    """A wrong model: the engine's own answer, and no lease left."""
    status, _, body = stand.post({"model": "other", "prompt": [1], "max_tokens": 5})
    assert (status, "does not exist" in body) == (404, True)
    assert eventually(lambda: stand.leased() == 0)
