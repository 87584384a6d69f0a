"""Carries the requests of a session to one origin over one kept connection, on a short path.

Between a session and the socket, requests and urllib3 serve proxies, pools, retries, redirects, cookies and encodings:
more than half of what a scrape of one engine would cost, for nothing that is used here. urllib3 still makes the
connection (TLS, names, certificates); on it the standard library's http.client speaks HTTP.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.connection import HTTPConnection, HTTPSConnection

from stepscope.runtime.transport import Guard, GuardedContext, TlsFiles

# RFC 9112: the status line of a success, then field lines without continuation, all of it in one piece.
_PLAIN_HEAD = re.compile(
    rb"HTTP/1\.1 200(?: ([^\r\n]*))?\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}:[^\r\n]*\r\n){1,100})\r\n"
)
_LENGTH = re.compile("[0-9]{1,15}")
_FRAMING = frozenset({"transfer-encoding", "connection"})  # what else decides where the body ends


class _GuardedConnection(HTTPConnection):
    def __init__(self, *args: Any, guard: Guard, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guard = guard

    def _new_conn(self) -> socket.socket:
        return self._guard.connect(self._dns_host, self.port)


class _GuardedTlsConnection(HTTPSConnection):
    def __init__(self, *args: Any, guard: Guard, contexts: Callable[[], GuardedContext], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guard = guard
        self._contexts = contexts

    def _new_conn(self) -> socket.socket:
        return self._guard.connect(self._dns_host, self.port)

    def connect(self) -> None:
        self.ssl_context = self._contexts()
        self.cert_reqs = self.ssl_context.verify_mode
        super().connect()
        # An operator who said insecure_skip_verify need not read a Python warning at each new connection.
        self.is_verified = True


class _Answer(http.client.HTTPResponse):
    """An answer whose head is read at once where it is plain, as nearly all are; http.client reads all others.

    Its general way through email.parser costs as much as the rest of the exchange.
    """

    def begin(self) -> None:
        """Read the head. Raises HTTPException or OSError."""
        if not self._begin_plainly():
            super().begin()

    def _begin_plainly(self) -> bool:
        found = _PLAIN_HEAD.match(self.fp.peek())
        if found is None:
            return False
        headers = http.client.HTTPMessage()
        length = None
        for line in found[2].decode("latin-1").split("\r\n")[:-1]:
            name, _, value = line.partition(":")
            lower, value = name.lower(), value.lstrip(" \t")
            if lower in _FRAMING or (
                lower == "content-length" and (length is not None or not _LENGTH.fullmatch(value))
            ):
                return False
            if lower == "content-length":
                length = int(value)
            headers.set_raw(name, value)
        if length is None:
            return False
        self.fp.read(found.end())
        self.version, self.status, self.reason = 11, 200, (found[1] or b"").decode("latin-1").strip()
        self.code, self.length = self.status, length
        self.headers = self.msg = headers
        self.chunked = self.will_close = False
        return True


class Body:
    """What `Response.raw` is here: reads the body in pieces; closed early, it gives up the connection."""

    def __init__(self, answer: http.client.HTTPResponse, connection: HTTPConnection) -> None:
        self._answer = answer
        self._connection = connection

    @property
    def length_remaining(self) -> int | None:
        """Bytes still to come; None where the server did not say how many."""
        return self._answer.length

    def read(self, size: int) -> bytes:
        """At most `size` bytes, as they came; empty at the end. Raises IncompleteRead for a body cut short."""
        piece = self._answer.read(size)
        if not piece and self._answer.length:
            raise http.client.IncompleteRead(piece, self._answer.length)
        return piece

    def close(self) -> None:
        """The rest of a body that nobody wants would be taken for the next answer."""
        if not self._answer.isclosed():
            self._connection.close()
            self._answer.close()


class _Response(requests.Response):
    def __init__(self, request: requests.PreparedRequest, answer: http.client.HTTPResponse, body: Body) -> None:
        # Not super().__init__(): it makes a cookie jar with its locks for each answer. The rest is the class's own.
        self._content = False  # type: ignore[assignment]  # "not read yet", as requests itself says it
        self._content_consumed = False
        self._next = None
        self.history = []
        self.encoding = None
        self.status_code = answer.status
        self.reason = answer.reason
        self.headers = CaseInsensitiveDict()
        for name, value in answer.headers.items():
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.raw = body
        self.request = request
        self.url = request.url or ""


class OneOriginAdapter(BaseAdapter):
    """Sends whatever it is given to one origin over at most one kept connection: nothing can reach another host."""

    def __init__(self, origin: SplitResult, guard: Guard, tls: TlsFiles) -> None:
        super().__init__()
        self._guard = guard
        self._tls = tls
        self._cached: tuple[object, GuardedContext] | None = None
        host = origin.hostname or ""
        self._connection: HTTPConnection
        if origin.scheme == "https":
            self._connection = _GuardedTlsConnection(host, origin.port or 443, guard=guard, contexts=self._context)
        else:
            self._connection = _GuardedConnection(host, origin.port or 80, guard=guard)

    def _context(self) -> GuardedContext:
        stamps = self._tls.stamps()
        if self._cached is None or self._cached[0] != stamps:
            self._cached = (stamps, self._tls.context(self._guard))
        return self._cached[1]

    def send(self, request: requests.PreparedRequest, *_args: Any, **_kwargs: Any) -> requests.Response:
        """The answer's head, its body unread. Timeouts are the guard's, TLS is settled by the context.

        Raises requests.ConnectionError, caused by the OSError or HTTPException that ended the exchange.
        """
        connection = self._connection
        try:
            answer = self._exchange(request)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise requests.ConnectionError(error, request=request) from error
        except BaseException:
            connection.close()
            raise
        return _Response(request, answer, Body(answer, connection))

    def _exchange(self, request: requests.PreparedRequest) -> http.client.HTTPResponse:
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        elif not connection.is_connected:  # the server closed it, or said something that nobody asked for
            connection.close()
            connection.connect()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # The server may have answered before it closed, for one with a refusal of the request's head.
            connection.sock.sendall(self._head(request))
        answer = _Answer(connection.sock, method=request.method)
        try:
            answer.begin()
        except BaseException:
            answer.close()
            raise
        if answer.will_close:
            connection.close()  # the socket itself lives until the body has been read
        return answer

    def _head(self, request: requests.PreparedRequest) -> bytes:
        """The request as it goes over the wire; a PreparedRequest has checked its URL and headers for line breaks."""
        host = urlsplit(request.url or "").netloc.rpartition("@")[2]
        lines = [f"{request.method} {request.path_url} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def close(self) -> None:
        """Give the connection back to the system."""
        self._connection.close()
