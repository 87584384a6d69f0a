"""An HTTP server on a real socket that misbehaves as a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

PAGE = (
    "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    "# TYPE vllm:kv_cache_usage_perc gauge\n"
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
    "# TYPE vllm:inter_token_latency_seconds histogram\n"
    'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 4.0\n'
    'vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 9.0\n'
    'vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.5\n'
    'vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 9.0\n'
    "process_start_time_seconds 1.7e+09\n"
)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came in; header names in lower case."""

    target: str
    headers: dict[str, str]
    connection: int  # number of the connection it came on, from 1

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def names(self) -> list[str]:
        """What the server-side filter was asked for."""
        return parse_qs(urlsplit(self.target).query).get("name[]", [])


class Peer:
    """One connection as a behaviour sees it."""

    def __init__(self, sock: socket.socket, stopping: threading.Event) -> None:
        self.sock = sock
        self.stopping = stopping

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def trickle(self, data: bytes, pause_seconds: float = 0.05) -> None:
        """One byte at a time, each well within any read timeout, until the end, the stop or the client's departure."""
        for at in range(len(data)):
            if self.stopping.wait(pause_seconds):
                return
            self.sock.sendall(data[at : at + 1])

    def hang(self) -> None:
        """Say nothing until the client leaves or the server stops."""
        self.sock.settimeout(0.05)
        while not self.stopping.is_set():
            try:
                if not self.sock.recv(4096):
                    return
            except TimeoutError:
                continue


# Answers one request; True keeps the connection for the next one.
Behaviour = Callable[[Peer, Asked], bool]


def answer(
    body: str | bytes = PAGE,
    *,
    status: str = "200 OK",
    content_type: str | None = METRICS_TYPE,
    headers: Iterable[str] = (),
    keep: bool = True,
) -> Behaviour:
    """A well-formed answer."""
    return lambda peer, asked: _send(peer, head(body, status, content_type, headers) + _bytes(body), keep)


def head(
    body: str | bytes = PAGE,
    status: str = "200 OK",
    content_type: str | None = METRICS_TYPE,
    headers: Iterable[str] = (),
    length: int | None = None,
) -> bytes:
    """Status line and headers; `length` claims another size than the body's."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(_bytes(body)) if length is None else length}", *headers]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def raw(data: bytes) -> Behaviour:
    """Exactly these bytes, then the connection is closed."""
    return lambda peer, asked: _send(peer, data, False)


def trickling(before: bytes, slow: bytes, pause_seconds: float = 0.05) -> Behaviour:
    """`before` at once, then `slow` a byte at a time."""

    def behave(peer: Peer, asked: Asked) -> bool:
        peer.send(before)
        peer.trickle(slow, pause_seconds)
        return False

    return behave


def hanging(before: bytes = b"") -> Behaviour:
    """`before` at once, then silence."""

    def behave(peer: Peer, asked: Asked) -> bool:
        peer.send(before)
        peer.hang()
        return False

    return behave


def chunked(pieces: Iterable[bytes], *, end: bool = True) -> Behaviour:
    """A body in chunks; without `end` it is cut before the last one."""

    def behave(peer: Peer, asked: Asked) -> bool:
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if end:
            peer.send(b"0\r\n\r\n")
        return end

    return behave


def redirecting(location: str, status: str = "307 Temporary Redirect") -> Behaviour:
    return answer(b"", status=status, content_type=None, headers=[f"Location: {location}"])


def by_path(routes: dict[str, Behaviour]) -> Behaviour:
    """One behaviour per path; anything else is 404."""
    missing = answer("not found", status="404 Not Found", content_type="text/plain")
    return lambda peer, asked: routes.get(asked.path, missing)(peer, asked)


def filtering(page: str = PAGE) -> Behaviour:
    """As vLLM: /metrics is the whole page, /metrics/?name[]=... only the lines of the wanted samples."""

    def behave(peer: Peer, asked: Asked) -> bool:
        wanted = asked.names
        if not wanted:
            return answer(page)(peer, asked)
        lines = [line for line in page.splitlines(keepends=True) if line.split("{")[0].split(" ")[0] in wanted]
        return answer("# HELP x y\n" + "".join(lines))(peer, asked)

    return behave


class HostileServer:
    """Listens on a free port; `behave` may be exchanged at any time. A thread per connection, all ended by `stop`."""

    def __init__(
        self,
        behave: Behaviour | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.behave: Behaviour = behave or answer()
        self.asked: list[Asked] = []
        self.connections = 0
        self._tls = tls
        self._stopping = threading.Event()
        self._listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._listener.settimeout(0.05)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close everything at once; the port refuses afterwards."""
        self._stopping.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread on Linux
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(5)

    def drop_connections(self) -> None:
        """Close every open connection, as a restarting engine does to those that idle."""
        for sock in list(self._open):
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        # The client leaving in the middle is what half of the tests are about.
        with suppress(OSError), sock:
            sock.settimeout(30)
            wrapped = self._tls.wrap_socket(sock, server_side=True) if self._tls else sock
            self._open.add(wrapped)
            try:
                peer = Peer(wrapped, self._stopping)
                with wrapped, wrapped.makefile("rb") as reader:
                    while not self._stopping.is_set():
                        asked = _read(reader, number)
                        if asked is None:
                            return
                        self.asked.append(asked)
                        if not self.behave(peer, asked):
                            return
                        wrapped.settimeout(30)
            finally:
                self._open.discard(wrapped)


def _read(reader: Iterable[bytes], number: int) -> Asked | None:
    lines: list[str] = []
    for line in reader:
        if line in (b"\r\n", b"\n"):
            break
        lines.append(line.decode("latin-1").rstrip("\r\n"))
    if not lines:
        return None
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return Asked(lines[0].split(" ")[1], headers, number)


def _send(peer: Peer, data: bytes, keep: bool) -> bool:
    peer.send(data)
    return keep


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body
