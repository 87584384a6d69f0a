"""What the example gateways declare for a request, and what no client can bring about. Most sidecars here only note."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from admission_helpers import leasing, simulated
from gateway_stand import gateway
from stepscope import settings as table
from waiting import eventually

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FULL = (429, {"reason": "speed", "error": "no room"})
GIVEN = (201, {"id": "a-lease"})


@dataclass
class Notes:
    """What a sidecar was asked, and what it answers: the next of the list, at last always the same."""

    posts: list[tuple[int, dict[str, Any]]] = field(default_factory=lambda: [FULL])
    deletes: list[int] = field(default_factory=lambda: [204])
    asked: list[dict[str, Any]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)


@contextmanager
def noting(notes: Notes) -> Iterator[str]:
    """The URL of such a sidecar."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notes.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, document = notes.posts.pop(0) if len(notes.posts) > 1 else notes.posts[0]
            self.answer(status, json.dumps(document).encode())

        def do_DELETE(self) -> None:
            notes.released.append(self.path)
            self.answer(notes.deletes.pop(0) if len(notes.deletes) > 1 else notes.deletes[0], b"")

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Not into the output of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def post(port: int, path: str, body: str | dict[str, Any], **headers: str) -> tuple[int, dict[str, str], str]:
    """One request to a gateway."""
    text = body if isinstance(body, str) else json.dumps(body)
    fields = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path, text, fields)
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read().decode()
    finally:
        connection.close()


def test_the_lease_covers_whatever_the_engine_may_generate(command: list[str]) -> None:
    """Prompts, answers to each of them, and only the limits that the engine goes by."""
    chat = {"messages": [{"role": "user", "content": "x" * 2976}]}  # 3,003 bytes in JSON with its brackets, near enough
    cases: list[tuple[str, dict[str, Any], int, int]] = [
        (COMPLETIONS, {"prompt": [1] * 50, "max_tokens": 3000}, 3050, 3050),
        (COMPLETIONS, {"prompt": [1] * 50, "max_tokens": 3000, "max_completion_tokens": 1}, 3050, 3050),
        (COMPLETIONS, {"prompt": [1] * 50, "max_tokens": 0}, 50, 50),
        (COMPLETIONS, {"prompt": [1] * 50}, 66, 66),
        (COMPLETIONS, {"prompt": [1] * 50, "max_tokens": 100, "n": 3}, 350, 350),
        (COMPLETIONS, {"prompt": [1] * 50, "max_tokens": 100, "n": 2, "best_of": 4}, 450, 450),
        (COMPLETIONS, {"prompt": [[1] * 50, [2] * 70], "max_tokens": 100, "n": 2}, 520, 520),
        (COMPLETIONS, {"prompt": ["x" * 298, "x" * 28], "max_tokens": 100}, 310, 310),
        (COMPLETIONS, {"prompt": "x" * 298, "messages": [], "max_tokens": 1.0}, 101, 101),
        (CHAT, {**chat, "max_tokens": 3000, "max_completion_tokens": 1}, 3990, 4020),
        (CHAT, {**chat, "max_tokens": 1, "max_completion_tokens": 3000}, 3990, 4020),
        (CHAT, {**chat, "prompt": [1], "max_completion_tokens": 1}, 990, 1020),
        (CHAT, {**chat, "tools": [{"type": "x" * 3000}], "max_completion_tokens": 1}, 1990, 2030),
        (CHAT, {**chat, "max_completion_tokens": 0}, 4990, 5120),
    ]
    notes = Notes()
    with noting(notes) as leases, gateway(command, "http://127.0.0.1:9", leases) as (port, _):
        for path, body, least, most in cases:
            assert post(port, path, body)[0] == 429
            assert least <= notes.asked.pop()["tokens"] <= most, body
    assert not notes.asked


def test_a_number_that_is_none_is_the_client_s_fault(command: list[str]) -> None:
    """400, and neither sidecar nor engine is asked."""
    wrong = [
        '"n": -1', '"n": 0', '"n": 1.5', '"n": "2"', '"n": true', '"max_tokens": 1e999', '"max_tokens": -5',
        '"max_tokens": 1e300', '"max_tokens": "3000"', '"max_tokens": [1]', '"best_of": -2',
        '"max_tokens": 1' + "0" * 400, '"prompt": ' + "[" * 100_000,
    ]  # fmt: skip
    notes = Notes()
    with noting(notes) as leases, gateway(command, "http://127.0.0.1:9", leases) as (port, _):
        for numbers in wrong:
            status, _, body = post(port, COMPLETIONS, f'{{"max_tokens": 5, {numbers}}}')
            assert (status, "error" in json.loads(body)) == (400, True), numbers[:40]
    assert not notes.asked


def test_a_class_that_nobody_knows_does_not_switch_admission_off(command: list[str]) -> None:
    """The default class counts instead, and refuses as for everybody."""
    with (
        simulated() as engine,
        leasing(engine.url, (table.ADMISSION_BUDGET_TOKENS, 1000.0)) as leases,
        gateway(command, engine.url, leases) as (port, _),
    ):
        body = {"prompt": [1] * 50, "max_tokens": 5000}
        for words in ("vip", "x" * 6000, 'a"b', "long"):
            status, headers, text = post(port, COMPLETIONS, body, X_Request_Class=words)
            assert (status, json.loads(text)["reason"]) == (429, "configured")
            assert "retry-after" not in headers  # 5,050 tokens will never fit into 1,000
        assert post(port, COMPLETIONS, {"prompt": [1] * 5, "max_tokens": 2}, X_Request_Class="vip")[0] == 200


def test_what_a_client_can_cause_never_lets_it_pass(command: list[str]) -> None:
    """Once more with the default class, then 400."""
    wrong = {"error": "tokens must be at most 1e15"}
    notes = Notes(posts=[(400, wrong), (400, wrong), (413, wrong)])
    with noting(notes) as leases, gateway(command, "http://127.0.0.1:9", leases) as (port, _):
        for _ in range(2):
            said = post(port, COMPLETIONS, {"prompt": [1], "max_tokens": 5}, X_Request_Class="vip")
            assert (said[0], json.loads(said[2])) == (400, wrong)
    assert [ask.get("class") for ask in notes.asked] == ["vip", None] * 2


def test_requests_pass_on_the_answers_that_a_client_cannot_cause(command: list[str]) -> None:
    """As the documentation lists them; nothing is released that was not leased."""
    notes = Notes(posts=[(status, {"error": "x"}) for status in (401, 403, 404, 405, 500, 503)])
    with simulated() as engine, noting(notes) as leases, gateway(command, engine.url, leases) as (port, _):
        for _ in range(6):
            assert post(port, COMPLETIONS, {"prompt": [1], "max_tokens": 2})[0] == 200
    assert len(notes.asked) == 6
    assert not notes.released


def test_a_release_that_failed_is_tried_once_more(command: list[str]) -> None:
    """Once: then the lease runs out."""
    notes = Notes(posts=[GIVEN])
    with simulated() as engine, noting(notes) as leases, gateway(command, engine.url, leases) as (port, _):
        for deletes, times in (([500, 204], 2), ([429, 429, 204], 2), ([404], 1), ([204], 1)):
            notes.deletes, notes.released = list(deletes), []
            assert post(port, COMPLETIONS, {"prompt": [1], "max_tokens": 2})[0] == 200
            assert eventually(lambda least=times: len(notes.released) >= least)
            assert not eventually(lambda least=times: len(notes.released) > least, 0.4)
            assert set(notes.released) == {"/v1/leases/a-lease"}
