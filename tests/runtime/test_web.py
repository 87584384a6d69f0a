"""The HTTP server against real sockets: every client, however slow or rude, leaves room for the next one."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from contextlib import ExitStack

import pytest

from stepscope.errors import ConfigError
from stepscope.runtime.web import Limits, Request, Response, WebServer
from stepscope.runtime.webconfig import WebConfig
from waiting import eventually
from web_helpers import LOG, PAGE, ROUTES, Client, serving, text

QUICK = Limits(request_seconds=0.4, write_seconds=0.4, idle_seconds=0.8, linger_seconds=0.3)
OK_STATUS = 200


def web_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stepscope-web")]


def test_idle_and_trickling_clients_do_not_keep_a_scrape_out() -> None:
    """200 silent connections and 100 that send a byte a second: pages still come at once, threads stay bounded."""
    stop = threading.Event()

    def trickle(port: int) -> None:
        clients: list[socket.socket | None] = [None] * 100
        while not stop.is_set():
            for index, sock in enumerate(clients):
                try:
                    if sock is None:
                        clients[index] = sock = socket.create_connection(("127.0.0.1", port), timeout=1)
                    sock.sendall(b"G")
                except OSError:  # shut by the server: come back, as an attacker would
                    clients[index] = None
            stop.wait(1.0)
        for sock in clients:
            if sock is not None:
                sock.close()

    with serving() as server, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(Client(server.port))
        attacker = threading.Thread(target=trickle, args=(server.port,))
        attacker.start()
        try:
            seconds = []
            for _ in range(20):
                started = time.monotonic()
                with Client(server.port) as client:
                    assert client.get("/metrics").body == PAGE
                seconds.append(time.monotonic() - started)
                assert web_threads().count("stepscope-web-connection") <= 2 * Limits().connections
                time.sleep(0.05)
        finally:
            stop.set()
            attacker.join()
    assert statistics.median(seconds) < 0.1, seconds
    assert max(seconds) < 1.0, seconds


def test_when_full_the_longest_waiting_connection_makes_room() -> None:
    """The oldest goes, the younger stay, and the newcomer is served."""
    with serving(limits=Limits(connections=3)) as server, ExitStack() as stack:
        old, *young = [stack.enter_context(Client(server.port)) for _ in range(3)]
        assert all(client.get().status == 200 for client in (old, *young))
        time.sleep(0.1)
        assert all(client.get().status == 200 for client in young)
        with Client(server.port) as newcomer:
            assert newcomer.get().status == 200
            assert old.closed_within(0.5)
            assert all(client.get().status == 200 for client in young)


def test_more_clients_than_places_at_once_are_all_served() -> None:
    """A burst of honest clients queues for the places instead of pushing each other out."""
    statuses: list[int] = []

    def ask(port: int) -> None:
        with Client(port) as client:
            statuses.append(client.get(Connection="close").status)

    with serving(limits=Limits(connections=4)) as server:
        threads = [threading.Thread(target=ask, args=(server.port,)) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 40


def test_a_request_must_be_complete_in_time() -> None:
    """A trickled head or body is answered 408 at the deadline however often a byte arrives; silence is just closed."""
    with serving(limits=QUICK) as server:
        for start in (b"GET /metrics HTTP/1.1\r\nX: ", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n"):
            with Client(server.port) as client:
                started = time.monotonic()
                client.send(start)
                client.sock.settimeout(0.05)
                reply = None
                while reply is None and time.monotonic() - started < 3:
                    try:
                        client.send(b"a")
                        reply = client.reply()
                    except TimeoutError:
                        continue
                assert reply is not None
                assert reply.status == 408
                assert 0.3 < time.monotonic() - started < 1.5
        with Client(server.port) as silent:
            assert silent.closed_within(1.5)
        with Client(server.port) as idle:
            assert idle.get().status == 200
            time.sleep(0.5)  # longer than a request may take, shorter than a connection may idle
            assert idle.get().status == 200
            assert idle.closed_within(2.0)


def test_a_slow_reader_loses_its_connection_and_its_thread() -> None:
    """A client that asks for a large page and does not read it holds a thread for the write timeout only."""
    with serving(limits=QUICK) as server, Client(server.port) as slow:
        slow.send(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        assert eventually(lambda: "stepscope-web-connection" in web_threads())
        started = time.monotonic()
        assert eventually(lambda: "stepscope-web-connection" not in web_threads())
        assert time.monotonic() - started < 1.5
        with Client(server.port) as other:
            assert other.get().status == 200


def test_slow_readers_on_all_places_make_room_too() -> None:
    """Where nobody waits for a request the oldest unread response is given up."""
    with serving(limits=Limits(connections=3)) as server, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(Client(server.port)).send(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.3)
        started = time.monotonic()
        with Client(server.port) as newcomer:
            assert newcomer.get().status == 200
        assert time.monotonic() - started < 1.0


def test_the_end_of_a_long_answer_arrives_although_the_client_sends_on() -> None:
    """Closing with unread input would reset the connection and destroy what the client has not read yet."""
    with serving() as server, Client(server.port) as client:
        client.send(b"GET /huge HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + b"unread input" * 100)
        assert len(client.reply().body) == 32 * 1024 * 1024


def test_stop_ends_all_connections_and_leaves_no_thread() -> None:
    """Idle, half-sent and unread connections end at once; a running request may finish first."""
    release = threading.Event()

    def slow(request: Request) -> Response:
        release.wait(0.3)
        return text(b"done\n")

    with serving({**ROUTES, ("GET", "/slow"): slow}) as server, ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port)) for _ in range(6)]
        assert clients[0].get().status == 200
        clients[1].send(b"GET /met")
        clients[2].send(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        clients[3].send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 2.0
        reply = clients[3].reply()
        assert (reply.status, reply.body, reply.headers["connection"]) == (200, b"done\n", "close")
        assert web_threads() == []
        with pytest.raises(ConnectionRefusedError):
            Client(server.port)
        server.stop()  # a second time does nothing


def test_stop_returns_in_time_from_a_route_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """A thread cannot be killed: the server says that one is left and returns."""
    release = threading.Event()

    def hang(request: Request) -> Response:
        release.wait(20)
        return text(b"late\n")

    with serving({("GET", "/"): hang}) as server, Client(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.1)
        started = time.monotonic()
        server.stop(0.5)
        assert time.monotonic() - started < 1.0
        release.set()
    assert "the web server stopped with 1 request(s) still running" in caplog.text
    assert eventually(lambda: not web_threads())


def test_a_used_port_is_one_clear_line() -> None:
    """The operator reads which address and why, for one family and for both."""
    with serving() as server:
        for listen in (f"127.0.0.1:{server.port}", f":{server.port}"):
            second = WebServer(listen, ROUTES, WebConfig(), log=LOG)
            with pytest.raises(ConfigError) as caught:
                second.start()
            assert str(caught.value) == (
                f"--web.listen-address: cannot listen on {listen}: port {server.port} is in use by another process"
            )


def test_a_restart_finds_its_port_free_again() -> None:
    """Closed connections of the old process (TIME_WAIT) do not block the new one."""
    with serving() as first, Client(first.port) as client:
        port = first.port
        assert client.get().status == 200
    with serving(listen=f"127.0.0.1:{port}") as second, Client(second.port) as client:
        assert client.get().status == 200
