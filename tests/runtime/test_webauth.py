"""Basic authentication: who gets in, who does not, and what it costs."""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Iterator

import bcrypt
import pytest

from stepscope.runtime.web import Response, WebServer
from stepscope.runtime.webauth import BasicAuth, Outcome
from stepscope.runtime.webconfig import WebConfig
from web_helpers import Client

COST = 4  # the least bcrypt allows: about 1 ms
USERS = {
    "alice": bcrypt.hashpw(b"opensesame", bcrypt.gensalt(COST)),
    "b\u00f6b": bcrypt.hashpw("p\u00e4:ss".encode(), bcrypt.gensalt(COST)).replace(b"$2b$", b"$2y$"),
}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A server that wants a password."""
    routes = {
        ("GET", "/metrics"): lambda request: Response(200, repr(request.authenticated).encode(), "text/plain"),
    }
    running = WebServer("127.0.0.1:0", routes, WebConfig(users=USERS), log=logging.getLogger("test_webauth"))
    running.start()
    yield running
    running.stop()


def test_right_wrong_and_missing_passwords_over_http(server: WebServer) -> None:
    """401 names the scheme, tells nothing about which paths exist, and leaves the connection usable."""
    with Client(server.port) as client:
        for path, headers in (
            ("/metrics", {}),
            ("/nothing", {}),
            ("/metrics", {"Authorization": basic("alice", "wrong")}),
            ("/metrics", {"Authorization": basic("mallory", "opensesame")}),
            ("/metrics", {"Authorization": "Bearer opensesame"}),
        ):
            reply = client.get(path, **headers)
            assert reply.status == 401
            assert reply.headers["www-authenticate"] == 'Basic realm="stepscope", charset="UTF-8"'
            assert reply.body == b"a valid user and password are needed\n"
        reply = client.get("/metrics", Authorization=basic("alice", "opensesame"))
        assert (reply.status, reply.body) == (200, b"True")


@pytest.mark.parametrize(
    ("header", "outcome"),
    [
        (basic("alice", "opensesame"), Outcome.RIGHT),
        (basic("alice", "opensesame").replace("Basic", "bAsIc"), Outcome.RIGHT),
        (basic("b\u00f6b", "p\u00e4:ss"), Outcome.RIGHT),
        (basic("alice", "opensesame2"), Outcome.WRONG),
        (basic("alice", ""), Outcome.WRONG),
        (basic("", "opensesame"), Outcome.WRONG),
        (basic("alice", "opensesame\0"), Outcome.WRONG),
        (basic("alice", "x" * 100), Outcome.WRONG),
        ("Basic " + base64.b64encode(b"alice").decode(), Outcome.WRONG),
        ("Basic " + base64.b64encode(b"\xff:\xff").decode(), Outcome.WRONG),
        ("Basic !!!", Outcome.WRONG),
        ("Basic", Outcome.WRONG),
        ("", Outcome.WRONG),
        (None, Outcome.WRONG),
    ],
)
def test_headers_of_all_shapes_are_judged(header: str | None, outcome: Outcome) -> None:
    """Nothing a client sends makes the check fail itself."""
    assert BasicAuth(USERS).check(header) is outcome


def test_bcrypt_reads_72_bytes_of_a_password() -> None:
    """What htpasswd and the exporter toolkit accept is accepted: later bytes do not count."""
    auth = BasicAuth({"alice": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(COST))})
    assert auth.check(basic("alice", "x" * 80)) is Outcome.RIGHT
    assert auth.check(basic("alice", "x" * 71)) is Outcome.WRONG


def seconds_of(auth: BasicAuth, header: str) -> float:
    started = time.perf_counter()
    auth.check(header)
    return time.perf_counter() - started


def test_a_known_login_is_cheap_and_an_unknown_user_costs_a_known_ones_check() -> None:
    """bcrypt once per login, not per scrape; the time of an answer does not say which users exist."""
    auth = BasicAuth({"alice": bcrypt.hashpw(b"opensesame", bcrypt.gensalt(8))})
    first = seconds_of(auth, basic("alice", "opensesame"))
    again = min(seconds_of(auth, basic("alice", "opensesame")) for _ in range(5))
    wrong = min(seconds_of(auth, basic("alice", "wrong")) for _ in range(5))
    unknown = min(seconds_of(auth, basic("nobody", "wrong")) for _ in range(5))
    assert again < first / 5
    assert wrong / 2 < unknown < wrong * 2


def test_the_memory_of_logins_is_bounded_and_holds_no_password() -> None:
    """Many users do not grow it without end, and what it holds is not what was sent."""
    hashed = bcrypt.hashpw(b"opensesame", bcrypt.gensalt(COST))
    auth = BasicAuth({f"user{index}": hashed for index in range(80)})
    for index in range(80):
        assert auth.check(basic(f"user{index}", "opensesame")) is Outcome.RIGHT
    assert len(auth._known) == 64
    assert all(len(digest) == 32 for digest in auth._known)
    assert not any(b"opensesame" in digest for digest in auth._known)


def test_a_flood_of_wrong_passwords_is_turned_away_and_known_logins_still_pass() -> None:
    """At most four checks are under way, one of them running; whoever is remembered needs none."""
    auth = BasicAuth({"alice": bcrypt.hashpw(b"opensesame", bcrypt.gensalt(9))})
    assert auth.check(basic("alice", "opensesame")) is Outcome.RIGHT
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(auth.check(basic("alice", "wrong")))) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert seconds_of(auth, basic("alice", "opensesame")) < 0.1
    assert auth.check(basic("alice", "opensesame")) is Outcome.RIGHT
    for thread in threads:
        thread.join()
    assert outcomes.count(Outcome.WRONG) >= 4
    assert outcomes.count(Outcome.BUSY) >= 1
    assert Outcome.RIGHT not in outcomes
