"""Sockets that end at the deadline or at a stop, whatever the other side does: name lookup, IPv6, proxies."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from runtime.hostile_server import PAGE, Behaviour, HostileServer, answer, hanging, head, trickling
from stepscope.errors import ScrapeError
from stepscope.runtime.scrape import ScrapeOptions, Scraper

DEADLINE_SECONDS = 0.4
SLACK_SECONDS = 0.5  # a busy two-core machine; every behaviour below would last for many seconds without a deadline

HEAD = head()
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SLOW: dict[str, Behaviour] = {
    "silence": hanging(),
    "status line a byte at a time": trickling(b"", HEAD),
    "headers a byte at a time": trickling(HEAD[:20], HEAD[20:]),
    "body a byte at a time": trickling(HEAD, PAGE.encode()),
    "silence in the body": hanging(HEAD + PAGE[:100].encode()),
    "chunks a byte at a time": trickling(CHUNKED, b"1\r\nx\r\n" * 200),
    "endless interim answers": trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.01),
    "endless trailers": trickling(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 200, 0.01
    ),
}


def fetch_failing(scraper: Scraper) -> tuple[ScrapeError, float]:
    """The error of a fetch that must fail, and how long it took in seconds."""
    started = time.monotonic()
    with pytest.raises(ScrapeError) as caught:
        scraper.fetch()
    return caught.value, time.monotonic() - started


@pytest.mark.parametrize("behave", SLOW.values(), ids=SLOW.keys())
def test_a_slow_server_costs_the_deadline_and_no_more(behave: Behaviour) -> None:
    with HostileServer(behave) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=DEADLINE_SECONDS))
        error, seconds = fetch_failing(scraper)
        assert error.outcome == "timeout"
        assert "no whole answer within 0.4 s" in str(error)
        assert DEADLINE_SECONDS - 0.05 <= seconds < DEADLINE_SECONDS + SLACK_SECONDS
        server.behave = answer()
        assert scraper.fetch().text == PAGE
        scraper.close()


def test_a_server_that_never_accepts_costs_the_connect_timeout() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        # Linux completes backlog + 1 handshakes by itself and leaves the rest unanswered.
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        scraper = Scraper(
            ScrapeOptions(f"http://127.0.0.1:{address[1]}", deadline_seconds=5.0, connect_timeout_seconds=0.3)
        )
        error, seconds = fetch_failing(scraper)
        scraper.close()
    assert (error.outcome, "no connection within 0.3 s" in str(error)) == ("timeout", True)
    assert seconds < 0.3 + SLACK_SECONDS


ABORTED: dict[str, Behaviour] = {
    "before the answer": hanging(),
    "in the body": hanging(HEAD + PAGE[:100].encode()),
    "before a body without length": hanging(b"HTTP/1.0 200 OK\r\n\r\n"),
    "in a body without length": hanging(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE.encode()),
    "in a chunk": hanging(CHUNKED + b"400\r\nabc"),
}


@pytest.mark.parametrize("behave", ABORTED.values(), ids=ABORTED.keys())
def test_a_stop_from_another_thread_ends_a_hung_fetch_at_once_and_all_later_ones(behave: Behaviour) -> None:
    with HostileServer(behave) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=20.0))
        timer = threading.Timer(0.2, scraper.abort)
        timer.start()
        error, seconds = fetch_failing(scraper)
        timer.join()
        assert (error.outcome, "stopping" in str(error)) == ("connection", True)
        assert seconds < 0.2 + SLACK_SECONDS
        server.behave = answer()
        error, seconds = fetch_failing(scraper)
        assert (error.outcome, seconds < SLACK_SECONDS) == ("connection", True)
        assert len(server.asked) == 1
        scraper.close()


def test_a_close_from_another_thread_is_a_stop_too() -> None:
    with HostileServer(hanging()) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=20.0))
        timer = threading.Timer(0.2, scraper.close)
        timer.start()
        error, seconds = fetch_failing(scraper)
        timer.join()
    assert (error.outcome, seconds < 0.2 + SLACK_SECONDS) == ("connection", True)


def test_a_signal_handler_may_stop_the_fetch_of_its_own_thread() -> None:
    program = (
        "import signal, sys\n"
        "from stepscope.errors import ScrapeError\n"
        "from stepscope.runtime.scrape import Scraper, ScrapeOptions\n"
        "scraper = Scraper(ScrapeOptions(sys.argv[1], deadline_seconds=20.0))\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: scraper.abort())\n"
        "try:\n"
        "    scraper.fetch()\n"
        "except ScrapeError as error:\n"
        "    print(error.outcome)\n"
    )
    with HostileServer(hanging()) as server:
        child = subprocess.Popen([sys.executable, "-c", program, server.url], stdout=subprocess.PIPE, text=True)
        until = time.monotonic() + 20
        while not server.asked and time.monotonic() < until:
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        started = time.monotonic()
        output, _ = child.communicate(timeout=10)
        assert time.monotonic() - started < 2
    assert (output, child.returncode) == ("connection\n", 0)


def test_no_thread_is_left_or_made_by_scrapes_of_an_address() -> None:
    with HostileServer() as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0))
        scraper.fetch()
        before = set(threading.enumerate())
        for _ in range(5):
            scraper.fetch()
        assert set(threading.enumerate()) <= before
        scraper.close()


def test_a_name_is_looked_up_and_each_of_its_addresses_tried() -> None:
    with HostileServer() as server:
        # Where localhost is ::1 first, that address refuses: the server listens on IPv4 only.
        scraper = Scraper(ScrapeOptions(f"http://localhost:{server.port}", deadline_seconds=5.0))
        assert scraper.fetch().text == PAGE
        assert server.asked[0].headers["host"] == f"localhost:{server.port}"
        scraper.close()


def test_a_name_that_does_not_exist_is_a_connection_failure_that_names_it() -> None:
    scraper = Scraper(ScrapeOptions("http://engine.invalid:8000", deadline_seconds=5.0, connect_timeout_seconds=4.0))
    error, _ = fetch_failing(scraper)
    scraper.close()
    if error.outcome == "timeout":
        pytest.skip("the resolver of this machine does not answer at all")
    assert error.outcome == "connection"
    assert "cannot resolve the host name engine.invalid" in str(error)


def test_a_lookup_that_hangs_ends_with_the_connect_timeout_and_is_not_started_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real: Callable[..., Any] = socket.getaddrinfo
    release = threading.Event()
    lookups: list[str] = []

    def slow(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "slow.invalid" or kwargs.get("flags"):
            return real(host, *args, **kwargs)
        lookups.append(host)
        release.wait(10)
        return real("127.0.0.1", *args, **kwargs)

    # A resolver that hangs cannot be had on demand; only the system's lookup is replaced.
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with HostileServer() as server:
        url = f"http://slow.invalid:{server.port}"
        scraper = Scraper(ScrapeOptions(url, deadline_seconds=5.0, connect_timeout_seconds=0.2))
        for _ in range(2):
            error, seconds = fetch_failing(scraper)
            assert (error.outcome, seconds < 0.2 + SLACK_SECONDS) == ("timeout", True)
        assert lookups == ["slow.invalid"]
        timer = threading.Timer(0.1, release.set)
        timer.start()
        assert scraper.fetch().text == PAGE
        timer.join()
        release.clear()
        scraper.close()
        stuck = Scraper(ScrapeOptions(url, deadline_seconds=20.0, connect_timeout_seconds=20.0))
        timer = threading.Timer(0.2, stuck.abort)
        timer.start()
        error, seconds = fetch_failing(stuck)
        assert (error.outcome, seconds < 0.2 + SLACK_SECONDS) == ("connection", True)
        release.set()
        timer.join()
        stuck.close()


def test_an_engine_on_ipv6_is_reached() -> None:
    try:
        server = HostileServer(host="::1")
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0))
        assert scraper.fetch().text == PAGE
        assert server.asked[0].headers["host"] == f"[::1]:{server.port}"
        scraper.close()


def test_proxies_and_bundles_named_in_the_environment_are_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostileServer() as server, HostileServer(answer("proxied 1\n")) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0))
        assert scraper.fetch().text == PAGE
        assert proxy.connections == 0
        scraper.close()
