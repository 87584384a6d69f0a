"""HTTP as a client sees it: methods, versions, bodies, bad requests, compression, headers."""

from __future__ import annotations

import gzip
import logging
import time
from collections.abc import Iterator

import pytest

from stepscope import __version__
from stepscope.runtime.web import WebServer
from stepscope.runtime.webconfig import WebConfig
from web_helpers import LONG, PAGE, Client, serving


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A server with the real limits and all routes."""
    with serving() as running:
        yield running


@pytest.fixture
def client(server: WebServer) -> Iterator[Client]:
    with Client(server.port) as connected:
        yield connected


def test_a_page_comes_with_its_headers_and_one_connection_serves_many_requests(client: Client) -> None:
    """Keep-alive is the default of HTTP/1.1, and Prometheus uses it."""
    for _ in range(5):
        reply = client.get("/metrics")
        assert (reply.status, reply.body) == (200, PAGE)
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["server"] == f"stepscope/{__version__}"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-length"] == str(len(PAGE))
    assert reply.headers["connection"] == "keep-alive"
    assert reply.headers["date"].endswith("GMT")


def test_head_answers_as_get_without_the_body(client: Client) -> None:
    """A HEAD answer has the length of the body that GET would send, and none of its bytes."""
    assert client.get("/metrics", method="HEAD").headers["content-length"] == str(len(PAGE))
    assert client.get("/metrics").body == PAGE


def test_http_1_0_is_answered_and_closed_unless_it_asks_to_stay(server: WebServer) -> None:
    """HTTP/1.0 has no Host header and no keep-alive by itself."""
    with Client(server.port) as client:
        reply = client.send(b"GET /metrics HTTP/1.0\r\n\r\n").reply()
        assert (reply.status, reply.headers["connection"], reply.body) == (200, "close", PAGE)
        assert client.closed_within(0.5)
    with Client(server.port) as client:
        for _ in range(2):
            reply = client.send(b"GET /metrics HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").reply()
            assert (reply.status, reply.headers["connection"]) == (200, "keep-alive")


def test_connection_close_is_honoured(client: Client) -> None:
    """A client that says so gets its answer and the end of the connection."""
    reply = client.get("/metrics", Connection="close")
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert client.closed_within(0.5)


def test_unknown_paths_and_methods_get_one_line(client: Client) -> None:
    """404 for a path nobody knows, 405 with Allow for a method a path does not have."""
    for path in ("/nothing", "/metrics/", "/../etc/passwd", "/%2e%2e/etc/passwd", "//metrics"):
        reply = client.get(path)
        assert (reply.status, reply.body) == (404, b"no such page\n")
    reply = client.get("/metrics", method="DELETE")
    assert (reply.status, reply.headers["allow"], reply.body) == (405, "GET, HEAD", b"only GET, HEAD here\n")
    reply = client.get("/echo")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/broken", "/bad-header"])
def test_a_route_that_fails_costs_only_its_own_answer(
    client: Client, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Status 500 in one line without detail, the detail in the log, and the connection goes on."""
    with caplog.at_level(logging.ERROR):
        reply = client.get(path)
    assert (reply.status, reply.body) == (500, b"internal error; the log says more\n")
    assert f"GET {path} failed" in caplog.text
    assert "Traceback" in caplog.text
    assert client.get("/metrics").status == 200


def test_bodies_and_queries_reach_the_route(client: Client) -> None:
    """The body arrives whole even when it comes in pieces; parameters are lists in order; names are decoded."""
    client.send(b"POST /ec%68o?name[]=a&name[]=b&empty= HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc")
    time.sleep(0.05)
    reply = client.send(b"def").reply()
    assert reply.body == b"abcdef[('empty', ['']), ('name[]', ['a', 'b'])]"


def test_expect_continue_is_answered_before_the_body(client: Client) -> None:
    """curl holds back larger bodies until it sees 100 Continue."""
    client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert client.reply().status == 100
    assert client.send(b"abc").reply().body == b"abc[]"


def test_the_client_address_is_plain_ipv4_and_header_names_have_no_case() -> None:
    """On a socket for both families IPv4 clients appear as ::ffff:127.0.0.1; routes must not see that."""
    with serving(listen=":0") as server, Client(server.port) as client:
        assert client.get("/whoami", x_nAmE="me").body == b"127.0.0.1 me"


def test_pipelined_requests_are_answered_in_order_and_garbage_ends_it(server: WebServer) -> None:
    """Requests sent without waiting are served one by one; what follows and is no request gets 400 and the end."""
    one = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with Client(server.port) as client:
        client.send(one + one.replace(b"/metrics", b"/nothing") + b"\x00\xff garbage\r\n\r\n" + one)
        assert [client.reply().status for _ in range(3)] == [200, 404, 400]
        assert client.closed_within(1.5)


MALFORMED = {
    "binary": (b"\x16\x03\x01\x02\x00\x01\n\n", 400),
    "http 0.9": (b"GET /metrics\r\n\r\n", 400),
    "http 2 preface": (b"PRI * HTTP/2.0\r\n\r\n", 505),
    "space in the target": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "control byte in the target": (b"GET /\x07 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400),
    "space before colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "no colon": (b"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", 400),
    "bare carriage return": (b"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", 400),
    "negative length": (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
    "two lengths": (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "another coding": (b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "too large a body": (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n" + b"x" * 65537, 413),
    "absurd length": (b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
    "long line": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "endless line": (b"a" * 100_000, 414),
    "long header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
    "long head": (b"GET / HTTP/1.1\r\nHost: a\r\n" + (b"X: " + b"a" * 4000 + b"\r\n") * 10 + b"\r\n", 431),
    "endless head": (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 20_000, 431),
    "many headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
    "many parameters": (b"GET /?" + b"a=1&" * 200 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_request_gets_one_line_and_the_end(server: WebServer, name: str) -> None:
    """The client can read why, even when it sent more than the server wanted to read."""
    data, status = MALFORMED[name]
    with Client(server.port) as client:
        reply = client.send(data).reply()
        assert reply.status == status
        assert reply.body.endswith(b"\n")
        assert reply.body.count(b"\n") == 1
        assert reply.headers["connection"] == "close"
        assert client.closed_within(1.5)


def test_lenient_line_ends_and_absolute_targets_are_taken(server: WebServer) -> None:
    """Hand-typed requests (netcat) and those meant for a proxy are requests too (RFC 9112, 2.2 and 3.2.2)."""
    with Client(server.port) as client:
        assert client.send(b"\r\nGET /metrics HTTP/1.1\nHost: x\n\n").reply().status == 200
        assert client.send(b"GET http://a:1/metrics HTTP/1.1\r\nHost: x\r\n\r\n").reply().status == 200


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("*", True), ("gzip;q=0, *", False), ("identity", False), ("", False)],
)
def test_text_is_gzipped_when_the_client_takes_it(client: Client, accepted: str, packed: bool) -> None:
    """Only what is longer than 1 KiB, text, and not encoded yet."""
    reply = client.get("/long", Accept_Encoding=accepted)
    assert (reply.headers.get("content-encoding") == "gzip") is packed
    assert (gzip.decompress(reply.body) if packed else reply.body) == LONG
    assert reply.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in client.get("/metrics", Accept_Encoding=accepted).headers
    assert "content-encoding" not in client.get("/picture", Accept_Encoding=accepted).headers
    assert gzip.decompress(client.get("/packed", Accept_Encoding=accepted).body) == LONG


def test_configured_headers_are_on_every_answer_and_win() -> None:
    """Errors carry them too, and the operator's value replaces the server's own."""
    config = WebConfig(headers=(("X-Frame-Options", "deny"), ("Content-Type", "text/x")))
    with serving(config=config) as server, Client(server.port) as client:
        for path in ("/metrics", "/nothing"):
            assert client.get(path).headers["x-frame-options"] == "deny"
        assert client.get("/metrics").headers["content-type"] == "text/x"
        assert client.send(b"rubbish\r\n\r\n").reply().headers["x-frame-options"] == "deny"
