"""One client's connection: TLS handshake, request after request, every wait with a deadline."""

from __future__ import annotations

import contextlib
import enum
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.runtime import http1
from stepscope.runtime.http1 import Request, RequestError, Response
from stepscope.runtime.json_http import api_error
from stepscope.runtime.web_chunks import ChunkedBody

if TYPE_CHECKING:
    import ssl

_HEAD_END = re.compile(rb"\n\r?\n")
_READ_BYTES = 16 * 1024
_TLS_HANDSHAKE = b"\x16"  # content type of a handshake record, RFC 8446, 5.1


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client, and all of them together, may take. Seconds, except `connections`."""

    connections: int = 32
    request_seconds: float = 5.0  # from the connect, or the first byte of a later request, to its last byte
    write_seconds: float = 5.0  # for a whole response
    idle_seconds: float = 120.0  # between two requests; Prometheus keeps a connection longer than its interval
    linger_seconds: float = 1.0  # for the client to read the last response before the socket closes


class Phase(enum.Enum):
    """What a connection is doing; only the first two can be shut to make room."""

    WAITING = "waiting"  # no whole request yet
    WRITING = "writing"
    HANDLING = "handling"
    SHUT = "shut"


class Connection:
    """Serves one accepted socket on the calling thread; `shut` and `finish` may come from any other."""

    def __init__(self, sock: socket.socket, client_address: str, limits: Limits) -> None:
        self._sock = sock
        self._client_address = client_address
        self._limits = limits
        self._lock = threading.Lock()
        self._finishing = False
        self._buffer = bytearray()
        self._target = ""  # of the request being read, as far as it is known
        self._deadline = 0.0  # of the request being read
        self._verified_peer = False
        self.phase = Phase.WAITING
        self.since_seconds = time.monotonic()  # when the phase began

    def serve(
        self,
        respond: Callable[[Request], Response],
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        extra_headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Answer requests until the client leaves, misbehaves or is shut. Network errors end it quietly."""
        try:
            self._serve(respond, tls, extra_headers)
        except OSError:
            # The client went away or was too slow: nobody is left to tell.
            if self.phase is not Phase.WAITING:
                self._drop_unsent()

    def shut(self) -> None:
        """End the connection now: blocked reads and writes of its thread return at once."""
        with self._lock:
            self._shut()

    def finish(self) -> None:
        """End the connection after the response in progress, at once when there is none."""
        with self._lock:
            self._finishing = True
            if self.phase is Phase.WAITING:
                self._shut()

    def close(self) -> None:
        """Give the socket back. Only for the thread that serves."""
        with self._lock:
            self.phase = Phase.SHUT
            self._sock.close()

    def _serve(
        self,
        respond: Callable[[Request], Response],
        tls: Callable[[], ssl.SSLContext] | None,
        extra_headers: tuple[tuple[str, str], ...],
    ) -> None:
        deadline = self.since_seconds + self._limits.request_seconds
        if tls is not None and not self._handshake(tls, deadline):
            return
        while True:
            method = "GET"
            keep_alive = False
            try:
                head = self._read_head(deadline)
                if head is None:
                    return
                method, keep_alive = head.method, head.keep_alive
                request = self._read_request(head)
            except RequestError as error:
                response = api_error(self._target, http1.line(error.status, str(error)))
                keep_alive = False
            else:
                if not self._enter(Phase.HANDLING):
                    return
                response = respond(request)
            if not self._enter(Phase.WRITING):
                return
            keep_alive = keep_alive and not self._finishing
            started_seconds = self.since_seconds
            data = http1.render(response, method=method, keep_alive=keep_alive, extra=extra_headers)
            self._send(data, started_seconds + self._limits.write_seconds)
            if not self._enter(Phase.WAITING):
                return
            if not keep_alive:
                self._linger(started_seconds + self._limits.write_seconds)
                return
            deadline = 0.0  # a later request: counted from its first byte

    def _read_head(self, deadline: float) -> http1.Head | None:
        """The next request's head; None when the client closed or stayed idle. `deadline` 0: from the first byte."""
        if not deadline:
            if not self._buffer and not self._fill(time.monotonic() + self._limits.idle_seconds, idle=True):
                return None
            deadline = time.monotonic() + self._limits.request_seconds
        self._deadline = deadline
        self._target = ""
        scanned = 0
        while True:
            if self._buffer.startswith(b"\r\n"):  # RFC 9112, 2.2: an empty line before the request line is ignored
                del self._buffer[:2]
                scanned = 0
            self._target = self._target or _target_of(self._buffer)
            found = _HEAD_END.search(self._buffer, max(0, scanned - 2))
            end = found.start() if found else len(self._buffer)
            if end > http1.MAX_HEAD_BYTES:
                raise RequestError(431, f"the request head is longer than {http1.MAX_HEAD_BYTES} bytes")
            if found:
                data = bytes(self._buffer[:end]).removesuffix(b"\r")
                del self._buffer[: found.end()]
                return http1.parse_head(data)
            if end > http1.MAX_LINE_BYTES and self._buffer.find(b"\n", 0, http1.MAX_LINE_BYTES + 1) < 0:
                raise RequestError(414, f"the request line is longer than {http1.MAX_LINE_BYTES} bytes")
            scanned = end
            if not self._fill(deadline):
                return None

    def _read_request(self, head: http1.Head) -> Request:
        if head.expects_continue and (head.content_length > len(self._buffer) or (head.chunked and not self._buffer)):
            self._send(http1.CONTINUE, self._deadline)
        body = self._read_chunks() if head.chunked else self._read_body(head.content_length)
        request = Request(head.method, head.path, head.query, head.headers, self._client_address, body=body)
        return replace(request, authenticated=True) if self._verified_peer else request

    def _read_body(self, length: int) -> bytes:
        while len(self._buffer) < length:
            self._fill_on()
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _read_chunks(self) -> bytes:
        chunks = ChunkedBody()
        while not chunks.take(self._buffer):
            self._fill_on()
        return bytes(chunks.body)

    def _fill_on(self) -> None:
        """Read on within a request."""
        if not self._fill(self._deadline, within=True):
            raise ConnectionAbortedError("the client closed before the end of its request")

    def _fill(self, deadline: float, *, idle: bool = False, within: bool = False) -> bool:
        """Read what is there. False: the client closed, or stayed silent where it may."""
        try:
            self._sock.settimeout(_left(deadline))
            data = self._sock.recv(_READ_BYTES)
        except TimeoutError:
            if idle or not (self._buffer or within):
                return False
            raise RequestError(408, "the request was not complete in time") from None
        self._buffer += data
        return bool(data)

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._sock.settimeout(_left(deadline))
            view = view[self._sock.send(view[: 4 * _READ_BYTES]) :]

    def _handshake(self, tls: Callable[[], ssl.SSLContext], deadline: float) -> bool:
        self._sock.settimeout(_left(deadline))
        first = self._sock.recv(1, socket.MSG_PEEK)
        if first != _TLS_HANDSHAKE:
            if first:
                answer = http1.line(400, "this port speaks HTTPS, the request was plain HTTP")
                self._send(http1.render(answer, method="GET", keep_alive=False, extra=()), deadline)
                self._linger(deadline)
            return False
        context = tls()
        with self._lock:
            if self.phase is Phase.SHUT:
                return False
            secure = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
            self._sock = secure
        secure.settimeout(_left(deadline))
        try:
            secure.do_handshake()
        except TimeoutError:
            raise
        except OSError:
            self._linger(deadline)  # so that the alert that says why reaches the client
            raise
        self._verified_peer = bool(secure.getpeercert())
        return True

    def _linger(self, deadline: float) -> None:
        """Let the client read the last bytes: a close with unread input would destroy them on their way."""
        deadline = min(deadline, time.monotonic() + self._limits.linger_seconds)
        self._sock.settimeout(_left(deadline))
        socket.socket.shutdown(self._sock, socket.SHUT_WR)
        try:
            # Below any TLS, which takes no more bytes after a failed handshake.
            while socket.socket.recv(self._sock, _READ_BYTES):
                self._sock.settimeout(_left(deadline))
        except TimeoutError:
            pass  # what it has not read by now, the kernel delivers

    def _enter(self, phase: Phase) -> bool:
        """Change the phase. False: shut meanwhile, or finishing with nothing left to do."""
        with self._lock:
            if self.phase is Phase.SHUT or (self._finishing and phase is Phase.WAITING):
                return False
            self.phase = phase
            self.since_seconds = time.monotonic()
            return True

    def _shut(self) -> None:
        if self.phase is not Phase.SHUT:
            self.phase = Phase.SHUT
            with contextlib.suppress(OSError):  # the client may have been faster
                # The plain method: that of a TLS socket would first strip the encryption off a running write.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _drop_unsent(self) -> None:
        """Have the kernel forget the bytes that a slow reader did not take."""
        with self._lock:
            if self._sock.fileno() >= 0:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _target_of(buffer: bytearray) -> str:
    """The target of a request line as far as it has arrived, shortened."""
    return bytes(buffer[:256]).decode("latin-1").partition(" ")[2].partition(" ")[0]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("deadline passed")
    return left
