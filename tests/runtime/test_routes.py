"""The guard of the routes that change something, and the reading of Accept-Encoding."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.http1 import Headers, Request
from stepscope.runtime.routes import accepts_gzip, loopback_or_authenticated
from stepscope.runtime.web import Response, WebServer
from stepscope.runtime.webconfig import WebConfig
from web_helpers import Client

OTHER_SITE = "refused: the request comes from a page of another site (Origin is not this host)"
REMOTE = "refused: only from loopback, or with authentication (--web.config.file)"
PROXIED = "refused: the request came through a proxy and is not authenticated"
REBOUND = "refused: without authentication Host must be localhost, 127.0.0.1 or [::1]"


def verdict(address: str, headers: dict[str, str], *, authenticated: bool = False) -> str:
    request = Request("POST", "/-/reload", {}, Headers(headers), address, authenticated)
    response = loopback_or_authenticated(request)
    if response is None:
        return ""
    assert response.status == 403
    return response.body.decode().rstrip("\n")


@pytest.mark.parametrize("host", ["localhost", "localhost:10094", "LOCALHOST:1", "127.0.0.1:10094", "[::1]", "[::1]:1"])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.6", "::1"])
def test_direct_requests_from_this_host_pass(address: str, host: str) -> None:
    """curl, a script in the pod, and a page that this very server sent."""
    assert verdict(address, {"Host": host}) == ""
    assert verdict(address, {"Host": host, "Origin": f"http://{host}"}) == ""


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Host": "evil.example"}, REBOUND),
        ({"Host": "127.0.0.1.evil.example"}, REBOUND),
        ({"Host": "localhost@evil.example"}, REBOUND),
        ({"Host": "localhost/evil"}, REBOUND),
        ({"Host": "localhost:port"}, REBOUND),
        ({"Host": "[::1"}, REBOUND),
        ({"Host": ""}, REBOUND),
        ({}, REBOUND),
        ({"Host": "localhost", "Origin": "http://evil.example"}, OTHER_SITE),
        ({"Host": "localhost:10094", "Origin": "http://localhost:3000"}, OTHER_SITE),
        ({"Host": "localhost", "Origin": "null"}, OTHER_SITE),
        ({"Host": "localhost", "Origin": ""}, OTHER_SITE),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, REBOUND),
        ({"Host": "localhost", "X-Forwarded-For": "203.0.113.9"}, PROXIED),
        ({"Host": "localhost", "Forwarded": "for=203.0.113.9"}, PROXIED),
    ],
)
def test_tricks_through_a_browser_or_proxy_of_this_host_do_not_pass(headers: dict[str, str], reason: str) -> None:
    """Each with its reason."""
    assert verdict("127.0.0.1", headers) == reason


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::2", "1127.0.0.1", "::2"])
def test_others_need_authentication(address: str) -> None:
    """A header cannot make a remote client local; with authentication every Host is fine, another site still not."""
    assert verdict(address, {"Host": "localhost"}) == REMOTE
    for host, origin, expected in (
        ("stepscope.example:10094", None, ""),
        ("stepscope.example:443", "https://stepscope.example", ""),
        ("stepscope.example", "https://evil.example", OTHER_SITE),
    ):
        headers = {"Host": host} if origin is None else {"Host": host, "Origin": origin}
        assert verdict(address, headers, authenticated=True) == expected


def test_the_guard_works_in_a_route_of_a_real_server() -> None:
    """A guarded route answers 403 or does its work."""

    def reload(request: Request) -> Response:
        return loopback_or_authenticated(request) or Response(200, b"reloaded\n", "text/plain")

    server = WebServer(":0", {("POST", "/-/reload"): reload}, WebConfig(), log=logging.getLogger("test_routes"))
    server.start()
    try:
        with Client(server.port) as client:
            assert client.get("/-/reload", method="POST").body == b"reloaded\n"
            reply = client.get("/-/reload", method="POST", Host="evil.example")
            assert (reply.status, reply.body.decode()) == (403, REBOUND + "\n")
            assert client.get("/-/reload").status == 405
    finally:
        server.stop()


@given(st.text(alphabet="gzip;q=0.15, *x-deflatebr\t", max_size=60))
def test_any_accept_encoding_is_read_without_failing(header: str) -> None:
    """Where gzip is not mentioned and nothing stands for all, it is not used."""
    if "gzip" not in header and "*" not in header:
        assert not accepts_gzip(header)
    else:
        assert accepts_gzip(header) in (True, False)


def test_a_star_stands_for_one_last_segment() -> None:
    """Neither for none nor for two; other methods of it are 405, and a plain route of the same path wins."""

    def say(word: bytes) -> Callable[[Request], Response]:
        return lambda request: Response(200, word + request.path.encode(), "text/plain")

    routes = {("DELETE", "/v1/things/*"): say(b"any "), ("GET", "/v1/things/one"): say(b"one ")}
    server = WebServer(":0", routes, WebConfig(), log=logging.getLogger("test_routes"))
    server.start()
    try:
        with Client(server.port) as client:
            assert client.get("/v1/things/abc", method="DELETE").body == b"any /v1/things/abc"
            assert client.get("/v1/things/one").body == b"one /v1/things/one"
            for path in ("/v1/things/", "/v1/things", "/v1/things/a/b", "/v1/other/a"):
                assert client.get(path, method="DELETE").status == 404, path
            refused = client.get("/v1/things/one", method="PATCH")
            assert (refused.status, refused.headers["allow"]) == (405, "DELETE, GET, HEAD")
    finally:
        server.stop()
