"""Below /v1/ every error is JSON, whichever part of the server says it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from admission_helpers import ask, leasing
from stepscope import settings as table
from stepscope.runtime.web import Limits
from stepscope.runtime.webconfig import WebConfig
from web_helpers import ROUTES, Client, Reply, serving

NOBODY = "http://127.0.0.1:9"
LEASES = b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A sidecar with admission."""
    with leasing(NOBODY) as base:
        yield int(base.rpartition(":")[2])


def error_of(reply: Reply) -> str:
    assert reply.headers["content-type"].startswith("application/json")
    return str(json.loads(reply.body)["error"])


@pytest.mark.parametrize(
    ("data", "status", "line"),
    [
        (LEASES + b"Content-Length: 99999\r\n\r\n", 413, "the body is larger than 65536 bytes"),
        (LEASES + b"Content-Length: x\r\n\r\n", 400, "Content-Length is not a number"),
        (LEASES + b"Transfer-Encoding: gzip\r\n\r\n", 501, "of the transfer codings only chunked is supported"),
        (LEASES + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, "the size of a chunk is malformed"),
        (LEASES + b"Transfer-Encoding: chunked\r\n\r\n20000\r\n", 413, "the body is larger than 65536 bytes"),
        (LEASES + b"X: " + b"a" * 9000 + b"\r\n\r\n", 431, "a header line is longer than 8192 bytes"),
        (b"POST /v1/leases/" + b"a" * 9000 + b" HTTP/1.1\r\n", 414, "the request line is longer than 8192 bytes"),
        (b"PUT /v1/leases HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "only POST here"),
        (b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "no such page"),
        (LEASES.replace(b"localhost", b"evil.example") + b"\r\n", 403, "refused: without authentication Host must be "
         "localhost, 127.0.0.1 or [::1]"),
        (LEASES + b"\r\n", 400, "the body is not JSON"),
    ],
)  # fmt: skip
def test_every_error_of_the_lease_routes_is_json(port: int, data: bytes, status: int, line: str) -> None:
    """A gateway that reads `error` never trips over plain text."""
    with Client(port) as client:
        reply = client.send(data).reply()
    assert (reply.status, error_of(reply)) == (status, line)


def test_a_405_still_says_what_is_allowed(port: int) -> None:
    """The header stays."""
    with Client(port) as client:
        assert client.get("/v1/leases/x").headers["allow"] == "DELETE, PATCH"


def test_a_request_that_stops_in_its_middle_is_told_so() -> None:
    """408, within the head as within the body."""
    quick = Limits(request_seconds=0.3, linger_seconds=0.2)
    with serving(limits=quick) as server:
        for data in (LEASES, LEASES + b"Content-Length: 5\r\n\r\n", LEASES + b"Transfer-Encoding: chunked\r\n\r\n"):
            with Client(server.port) as client:
                reply = client.send(data).reply()
            assert (reply.status, error_of(reply)) == (408, "the request was not complete in time")


def test_a_password_asked_for_and_a_fault_are_json_too() -> None:
    """With the challenge, and without detail."""

    def broken(_: object) -> None:
        raise RuntimeError("secret detail")

    users = WebConfig(users={"reader": b"$2b$10$" + b"a" * 53})
    with serving(config=users) as server, Client(server.port) as client:
        reply = client.get("/v1/budget")
        assert (reply.status, error_of(reply)) == (401, "a valid user and password are needed")
        assert reply.headers["www-authenticate"].startswith("Basic")
    with serving({**ROUTES, ("GET", "/v1/broken"): broken}) as server, Client(server.port) as client:  # type: ignore[dict-item]
        assert error_of(client.get("/v1/broken")) == "internal error; the log says more"


def test_node_s_chunked_lease_is_given(port: int) -> None:
    """A status 501 would have let the request pass without a lease."""
    with Client(port) as client:
        body = b'{"tokens": 3000}'
        client.send(LEASES + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        reply = client.reply()
        assert (reply.status, json.loads(reply.body)["tokens"]) == (201, 3000)
        lease = json.loads(reply.body)["id"]
        shrink = b'{"tokens": 10}'
        head = f"PATCH /v1/leases/{lease} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.send(head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(shrink), shrink))
        assert json.loads(client.reply().body)["tokens"] == 10
        assert client.get(f"/v1/leases/{lease}", method="DELETE").status == 204


def test_what_is_wrong_with_a_renewal_is_told_apart_from_a_lease_that_would_grow(port: int) -> None:
    """400 for numbers that no lease can have, 409 for more than this one has."""
    base = f"http://127.0.0.1:{port}"
    where = f"{base}{ask(f'{base}/v1/leases', 'POST', {'tokens': 100}).headers['Location']}"
    for body, status in (
        ({"tokens": 0}, 400), ({"tokens": -1}, 400), ({"tokens": 1e300}, 400), ({"ttl_seconds": 0.01}, 400),
        ({"tokens": 101}, 409), ({"tokens": 100}, 200),
    ):  # fmt: skip
        assert ask(where, "PATCH", body).status == status, body
    assert ask(where, "DELETE").status == 204


def test_a_request_that_can_never_fit_is_given_no_time_to_come_back() -> None:
    """Neither header nor number."""
    with leasing(NOBODY, (table.ADMISSION_BUDGET_TOKENS, 1000.0)) as base:
        said = ask(f"{base}/v1/leases", "POST", {"tokens": 2000, "queue": True})
        assert (said.status, said.document["fits_when_empty"]) == (429, False)
        assert "Retry-After" not in said.headers
        assert (said.document["retry_after_seconds"], said.document["ticket"]) == (None, None)
    with leasing(NOBODY, (table.ADMISSION_WHEN_UNKNOWN, "refuse")) as base:
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1}).document["free_tokens"] is None
