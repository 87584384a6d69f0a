"""Bounded GET requests to one engine: a total deadline, a body cap, one retry on a dead keep-alive, two redirects."""

from __future__ import annotations

import http
import http.client
import re
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import requests

from stepscope import __version__
from stepscope.errors import ScrapeError
from stepscope.runtime.adapter import OneOriginAdapter
from stepscope.runtime.scrape_options import DEFAULT_PORTS, ScrapeOptions
from stepscope.runtime.transport import FileError, Guard, TlsFiles, file_stamp

_PIECE_BYTES = 256 * 1024  # one read; a vLLM page (54 kB) comes in one
_MAX_REDIRECTS = 2  # /metrics -> /metrics/ is one; a gateway in front may add another
_REDIRECTS = frozenset({301, 302, 307, 308})  # 303 answers a POST with another resource
_MAX_PREPARED = 8  # requests kept ready; a scraper uses three or four addresses
_MAX_TEXT = 160  # characters of foreign text in one message
_ZLIB_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 47}  # zlib's wbits: 31 gzip, 47 zlib or gzip by its header


@dataclass(frozen=True, slots=True)
class Reply:
    """A body with status 200. sent_seconds: the client's clock when the request that was answered went out."""

    body: bytes
    content_type: str  # lower case, without parameters; "" where the server does not say
    sent_seconds: float


class _Session(requests.Session):
    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """One exchange and no more: hooks, cookies and redirects are not for an engine.

        requests would read the body of a redirect without a bound, even when told not to follow.
        """
        return self.get_adapter(request.url or "").send(request, **kwargs)


class _Token:
    """A bearer token in a file, read again when the file changes. The token stays out of every text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self.secret = ""

    def header(self) -> str:
        """The header's value. Raises OSError that names the file."""
        stamp = file_stamp(self._path)
        if stamp != self._stamp:
            secret = self._path.read_bytes()[: 64 * 1024].strip()  # http.client itself refuses lines above 64 KiB
            if not re.fullmatch(rb"[\x21-\x7e]+", secret):
                raise FileError(f"bearer token file {self._path} is not one printable word")
            self._stamp, self.secret = stamp, secret.decode("ascii")
        return "Bearer " + self.secret


class EngineClient:
    """GET requests to the engine of `options`, one at a time; callers in other threads wait within their deadline."""

    def __init__(self, options: ScrapeOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._origin = urlsplit(options.metrics_url)
        self._guard = Guard(options.connect_timeout_seconds)
        self._lock = threading.Lock()
        self._token = _Token(options.bearer_token_file) if options.bearer_token_file else None
        self._prepared: dict[tuple[str, str], requests.PreparedRequest] = {}
        self._allowed_seconds = options.deadline_seconds
        self._session = _Session()
        self._session.trust_env = False
        tls = TlsFiles(options.ca_file, options.client_cert_file, options.client_key_file, options.insecure_skip_verify)
        adapter = OneOriginAdapter(self._origin, self._guard, tls)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def get(self, url: str, *, accept: str, max_bytes: int, until_seconds: float) -> Reply:
        """The whole body of an answer with status 200, before `until_seconds` (time.monotonic).

        Raises ScrapeError: timeout, connection, http_status, too_large, not_metrics (cut or unreadably packed body).
        """
        if not self._lock.acquire(timeout=max(0.0, until_seconds - time.monotonic())):
            raise ScrapeError("timeout", f"{_name(url)}: another request to the engine is still running")
        try:
            self._guard.start(until_seconds)
            self._allowed_seconds = self._guard.remaining_seconds()
            return self._follow(url, accept, max_bytes)
        except ScrapeError as error:
            raise ScrapeError(error.outcome, f"{_name(url)}: {self._clean(str(error))}") from None
        except Exception as error:
            # Whatever a hostile answer does to three layers of HTTP library, it is a failed scrape and nothing more.
            outcome, text = self._explain(error)
            raise ScrapeError(outcome, f"{_name(url)}: {self._clean(text)}") from None
        finally:
            self._lock.release()

    def abort(self) -> None:
        """End the request in flight at once and refuse all later ones, for good. Any thread, or a signal handler."""
        self._guard.abort()

    def close(self) -> None:
        """`abort`, and give the connection back to the system."""
        self._guard.abort()
        self._session.close()

    def _follow(self, url: str, accept: str, max_bytes: int) -> Reply:
        target = url
        for _ in range(_MAX_REDIRECTS + 1):
            sent, response = self._send(target, accept)
            with response:
                status = response.status_code
                if status == 200:
                    body = self._body(response, max_bytes)
                    # A body without a stated length ends where the connection does, also when we shut it ourselves.
                    self._guard.remaining_seconds()
                    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                    return Reply(body, kind, sent)
                location = response.headers.get("Location")
                if status not in _REDIRECTS or not location:
                    raise ScrapeError("http_status", f"HTTP status {status}{_phrase(status)}")
                target = self._redirect(target, status, location)
                if response.headers.get("Content-Length") == "0":
                    response.raw.read(1)  # frees the connection for the next hop
        raise ScrapeError(
            "http_status", f"more than {_MAX_REDIRECTS} redirects, the last (HTTP {status}) to {location}"
        )

    def _redirect(self, url: str, status: int, location: str) -> str:
        try:
            goal = urlsplit(urljoin(url, location))
            same = _origin(goal) == _origin(self._origin)
        except ValueError:
            same = False
        if not same:
            raise ScrapeError("http_status", f"HTTP {status} redirects to another server, not followed: {location}")
        return self._origin._replace(path=goal.path or "/", query=goal.query, fragment="").geturl()

    def _send(self, url: str, accept: str) -> tuple[float, requests.Response]:
        request = self._prepared.get((url, accept))
        if request is None:
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": f"stepscope/{__version__}"}
            request = self._prepared[url, accept] = requests.Request("GET", url, headers=headers).prepare()
        if self._token is not None:
            request.headers["Authorization"] = self._token.header()
        connects, received = self._guard.connects, self._guard.received_bytes
        while True:
            self._guard.remaining_seconds()
            sent = self._clock()
            try:
                return sent, self._session.send(request)
            except requests.ConnectionError as error:
                reused = self._guard.connects == connects
                silent = self._guard.received_bytes == received
                # The server may close an idle connection just as it is used again. Only then is a second try honest.
                if not (reused and silent) or any(isinstance(link, TimeoutError) for link in _chain(error)):
                    raise
                connects = -1

    def _body(self, response: requests.Response, max_bytes: int) -> bytes:
        stated = response.raw.length_remaining
        if stated is not None and stated > max_bytes:
            raise ScrapeError("too_large", f"body of {stated} bytes, above the limit of {max_bytes}")
        pieces: list[bytes] = []
        size = 0
        while piece := response.raw.read(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise ScrapeError("too_large", f"body above the limit of {max_bytes} bytes")
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        return body if encoding in ("identity", "") else _unpack(body, encoding, max_bytes)

    def _explain(self, error: Exception) -> tuple[str, str]:
        """(outcome, text) of what went wrong below us; the innermost cause says it best."""
        links = list(_chain(error))
        if self._guard.aborted:
            return "connection", "given up, because stepscope is stopping"
        if any(isinstance(link, TimeoutError) for link in links):
            if self._guard.connecting:
                allowed = min(self._guard.connect_timeout_seconds, self._allowed_seconds)
                return "timeout", f"no connection within {allowed:.3g} s"
            return "timeout", f"no whole answer within {self._allowed_seconds:.3g} s"
        for link in links:
            match link:
                case FileError():
                    return "connection", str(link)
                case http.client.IncompleteRead():
                    return "not_metrics", "the connection ended in the middle of the body"
                case socket.gaierror():
                    return "connection", f"cannot resolve the host name {self._origin.hostname}: {link.strerror}"
                case ssl.SSLCertVerificationError():
                    return "connection", f"TLS certificate not accepted: {link.verify_message}"
                case ssl.SSLError():
                    return "connection", f"TLS failed: {link.reason or link}"
                case http.client.RemoteDisconnected():
                    return "connection", "the connection was closed without an answer"
                case http.client.BadStatusLine():
                    return "connection", "the answer is not HTTP"
                case OSError() if link.strerror and not isinstance(link, requests.RequestException):
                    return "connection", link.strerror + (f": {link.filename}" if link.filename else "")
        return "connection", str(links[-1]) or type(links[-1]).__name__

    def _clean(self, text: str) -> str:
        if self._token is not None and self._token.secret:
            text = text.replace(self._token.secret, "<token>")  # a server may echo it
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, outermost first."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _unpack(body: bytes, encoding: str, max_bytes: int) -> bytes:
    if encoding not in _ZLIB_BITS:
        raise ScrapeError("not_metrics", f"the body is packed as {encoding}, although none was asked for")
    unpacker = zlib.decompressobj(_ZLIB_BITS[encoding])
    try:
        text = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ScrapeError("not_metrics", f"the body says {encoding} and is not: {error}") from None
    if len(text) > max_bytes:
        raise ScrapeError("too_large", f"unpacked body above the limit of {max_bytes} bytes")
    if not unpacker.eof:
        raise ScrapeError("not_metrics", f"the {encoding} body is cut")
    return text


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)


def _name(url: str) -> str:
    """The address as messages show it: the query may be long, or hold a secret."""
    return "GET " + urlsplit(url)._replace(query="").geturl()


def _phrase(status: int) -> str:
    try:
        return f" ({http.HTTPStatus(status).phrase})"
    except ValueError:
        return ""
