"""Redirects, dead keep-alive connections and the bearer token."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.hostile_server import (
    PAGE,
    Asked,
    Behaviour,
    HostileServer,
    Peer,
    answer,
    by_path,
    hanging,
    raw,
    redirecting,
    trickling,
)
from stepscope.errors import ScrapeError
from stepscope.runtime.engine_client import EngineClient, Reply
from stepscope.runtime.scrape_options import ScrapeOptions

TOKEN = "tok-en.very_secret"


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


@pytest.fixture
def client(server: HostileServer) -> Iterator[EngineClient]:
    made = EngineClient(ScrapeOptions(server.url, deadline_seconds=5.0))
    yield made
    made.close()


def get(client: EngineClient, deadline_seconds: float = 5.0) -> Reply:
    return client.get(
        client.options.metrics_url,
        accept="text/plain",
        max_bytes=10_000,
        until_seconds=time.monotonic() + deadline_seconds,
    )


def failure(client: EngineClient, deadline_seconds: float = 5.0) -> ScrapeError:
    with pytest.raises(ScrapeError) as caught:
        get(client, deadline_seconds)
    return caught.value


@pytest.mark.parametrize("status", ["301 a", "302 b", "307 c", "308 d"])
def test_a_redirect_to_the_same_server_is_followed_on_the_same_connection(
    server: HostileServer, client: EngineClient, status: str
) -> None:
    server.behave = by_path({"/metrics": redirecting(f"{server.url}/metrics/", status), "/metrics/": answer()})
    assert get(client).body == PAGE.encode()
    assert [asked.path for asked in server.asked] == ["/metrics", "/metrics/"]
    assert server.connections == 1


def test_a_relative_redirect_is_followed_and_two_in_a_row_as_well(server: HostileServer, client: EngineClient) -> None:
    server.behave = by_path({"/metrics": redirecting("a/?x=1#part"), "/a/": redirecting("../b"), "/b": answer("b 1\n")})
    assert get(client).body == b"b 1\n"
    assert [asked.target for asked in server.asked] == ["/metrics", "/a/?x=1", "/b"]


def test_a_redirect_loop_ends_after_two(server: HostileServer, client: EngineClient) -> None:
    server.behave = redirecting("/metrics")
    error = failure(client)
    assert error.outcome == "http_status"
    assert "more than 2 redirects, the last (HTTP 307) to /metrics" in str(error)
    assert len(server.asked) == 3


def test_a_redirect_to_another_server_is_named_and_neither_followed_nor_given_the_token(
    server: HostileServer, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    with HostileServer() as other:
        client = EngineClient(ScrapeOptions(server.url, deadline_seconds=5.0, bearer_token_file=token_file))
        for place in (
            f"{other.url}/metrics",
            f"//localhost:{server.port}/metrics",
            f"https://127.0.0.1:{server.port}/",
        ):
            server.behave = redirecting(place)
            error = failure(client)
            assert error.outcome == "http_status"
            assert f"HTTP 307 redirects to another server, not followed: {place}" in str(error)
        client.close()
        assert other.connections == 0
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "behave",
    [
        redirecting("http://[broken/"),
        redirecting("http://127.0.0.1:99999999/"),
        redirecting("/metrics", "303 See Other"),
        answer("", status="307 Temporary Redirect"),
    ],
    ids=["broken host", "broken port", "303", "no location"],
)
def test_a_redirect_that_cannot_be_followed_is_a_status_failure(
    server: HostileServer, client: EngineClient, behave: Behaviour
) -> None:
    server.behave = behave
    error = failure(client)
    assert error.outcome == "http_status"
    assert "30" in str(error)


def test_the_body_of_a_redirect_is_not_read(server: HostileServer, client: EngineClient) -> None:
    slow = trickling(b"HTTP/1.1 307 T\r\nLocation: /b\r\nContent-Length: 99999999\r\n\r\n", b"x" * 1000)
    server.behave = by_path({"/metrics": slow, "/b": answer("b 1\n")})
    assert get(client).body == b"b 1\n"


def test_the_name_and_password_of_a_redirect_are_not_sent(server: HostileServer, client: EngineClient) -> None:
    server.behave = by_path({"/metrics": redirecting(f"http://u:p@127.0.0.1:{server.port}/b"), "/b": answer("b 1\n")})
    assert get(client).body == b"b 1\n"
    assert "authorization" not in server.asked[1].headers


def test_a_connection_closed_while_idle_is_replaced_unseen(server: HostileServer, client: EngineClient) -> None:
    get(client)
    server.drop_connections()
    time.sleep(0.05)
    assert get(client).body == PAGE.encode()
    assert server.connections == 2


def closing_on(*numbers: int) -> Behaviour:
    """Closes without an answer on the requests with these numbers, from 1; counts over all connections."""
    count = 0

    def behave(peer: Peer, asked: Asked) -> bool:
        nonlocal count
        count += 1
        return False if count in numbers else answer()(peer, asked)

    return behave


def test_a_connection_that_dies_as_it_is_used_again_is_tried_once_more_on_a_fresh_one(
    server: HostileServer, client: EngineClient
) -> None:
    server.behave = closing_on(2)
    assert get(client).body == PAGE.encode()
    assert get(client).body == PAGE.encode()
    assert [asked.connection for asked in server.asked] == [1, 1, 2]


def test_a_second_death_in_a_row_is_a_failure(server: HostileServer, client: EngineClient) -> None:
    server.behave = closing_on(2, 3)
    get(client)
    error = failure(client)
    assert (error.outcome, "closed without an answer" in str(error)) == ("connection", True)
    assert len(server.asked) == 3


def test_a_fresh_connection_that_dies_is_not_tried_again(server: HostileServer, client: EngineClient) -> None:
    server.behave = raw(b"")
    assert failure(client).outcome == "connection"
    assert len(server.asked) == 1


def test_an_answer_that_breaks_off_on_a_kept_connection_is_not_tried_again(
    server: HostileServer, client: EngineClient
) -> None:
    get(client)
    server.behave = raw(b"HTTP/1.1 2")
    assert failure(client).outcome == "connection"
    assert len(server.asked) == 2


def test_a_timeout_on_a_kept_connection_is_not_tried_again(server: HostileServer, client: EngineClient) -> None:
    get(client)
    server.behave = hanging()
    assert failure(client, 0.3).outcome == "timeout"
    assert len(server.asked) == 2


def test_cookies_are_not_kept(server: HostileServer, client: EngineClient) -> None:
    server.behave = answer(headers=["Set-Cookie: a=b; Path=/"])
    get(client)
    get(client)
    assert "cookie" not in server.asked[1].headers
    assert list(client._session.cookies) == []


def test_requests_from_two_threads_wait_for_each_other_within_their_deadlines(
    server: HostileServer, client: EngineClient
) -> None:
    server.behave = hanging()
    errors: list[ScrapeError] = []
    thread = threading.Thread(target=lambda: errors.append(failure(client, 0.8)))
    thread.start()
    while not server.asked:
        time.sleep(0.01)
    error = failure(client, 0.2)
    thread.join()
    assert (error.outcome, "another request" in str(error)) == ("timeout", True)
    assert [error.outcome for error in errors] == ["timeout"]


class TestBearerToken:
    """The token comes from a file, follows it, and appears nowhere but in the header."""

    @pytest.fixture
    def token_file(self, tmp_path: Path) -> Path:
        path = tmp_path / "token"
        path.write_text(TOKEN + "\n")
        return path

    @pytest.fixture
    def client(self, server: HostileServer, token_file: Path) -> Iterator[EngineClient]:
        made = EngineClient(ScrapeOptions(server.url, deadline_seconds=5.0, bearer_token_file=token_file))
        yield made
        made.close()

    def test_a_rotated_token_is_used_for_the_next_request(
        self, server: HostileServer, client: EngineClient, token_file: Path
    ) -> None:
        get(client)
        get(client)
        fresh = token_file.with_name("fresh")
        fresh.write_text("another")
        os.replace(fresh, token_file)
        get(client)
        sent = [asked.headers["authorization"] for asked in server.asked]
        assert sent == [f"Bearer {TOKEN}", f"Bearer {TOKEN}", "Bearer another"]

    def test_it_stays_in_redirects_to_the_same_server(self, server: HostileServer, client: EngineClient) -> None:
        server.behave = by_path({"/metrics": redirecting("/metrics/"), "/metrics/": answer()})
        get(client)
        assert [asked.headers["authorization"] for asked in server.asked] == [f"Bearer {TOKEN}"] * 2

    def test_a_server_that_echoes_it_cannot_put_it_into_a_message(
        self, server: HostileServer, client: EngineClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        for behave in (
            redirecting(f"http://elsewhere.invalid/?{TOKEN}"),
            raw(f"{TOKEN}\r\n\r\n".encode()),
            answer("", status=f"401 {TOKEN}"),
            answer("", headers=[f"Content-Encoding: {TOKEN}"]),
        ):
            server.behave = behave
            assert TOKEN not in str(failure(client)).casefold()
        assert TOKEN not in caplog.text
        assert TOKEN not in repr(client) + repr(client.options) + repr(vars(client))

    def test_its_error_can_be_sent_elsewhere_without_it(self, server: HostileServer, client: EngineClient) -> None:
        server.behave = answer("", status="401 Unauthorized")
        assert TOKEN.encode() not in pickle.dumps(failure(client).args)

    @pytest.mark.parametrize("text", ["", " \n", "two words", "line\nbreak: x", "caf\u00e9"])
    def test_a_file_without_a_usable_token_is_named_and_nothing_is_sent(
        self, server: HostileServer, client: EngineClient, token_file: Path, text: str
    ) -> None:
        token_file.write_text(text)
        error = failure(client)
        assert (error.outcome, f"bearer token file {token_file} is not one" in str(error)) == ("connection", True)
        assert server.asked == []

    def test_a_file_that_is_missing_is_named_and_its_return_heals(
        self, server: HostileServer, client: EngineClient, token_file: Path
    ) -> None:
        token_file.unlink()
        error = failure(client)
        assert error.outcome == "connection"
        assert f"No such file or directory: {token_file}" in str(error)
        token_file.write_text("back")
        get(client)
        assert server.asked[0].headers["authorization"] == "Bearer back"
