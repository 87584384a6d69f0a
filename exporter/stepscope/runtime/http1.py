"""HTTP/1.x as this server speaks it: bytes to `Request`, `Response` to bytes. No socket in here.

Strict where leniency would let two programs read one request differently (RFC 9112, sections 2 to 7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

from stepscope import __version__

# The limits are those of nginx: large_client_header_buffers 4 x 8k.
MAX_LINE_BYTES = 8 * 1024
MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 64 * 1024  # the largest legitimate body is an empty POST
MAX_FIELDS = 100  # header fields and query parameters each; http.client has the same limit on fields

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(r"[\x21-\x7e]+")
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# Two of these in one request would leave open which one counts.
_ONCE = {"host", "content-length", "authorization", "origin"}
_OURS = {"content-length", "connection", "date", "server", "transfer-encoding"}
_NO_BODY = {204, 304}


class Headers(Mapping[str, str]):
    """Header fields by name, whatever the case. Repeated fields are joined with ", " in order."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = {name.lower(): value for name, value in fields.items()}

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request. `path` is percent-decoded; `client_address` is the peer's IP address without port.

    authenticated: a valid user and password, or a client certificate that verified.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    client_address: str
    authenticated: bool = False
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """What a route answers. Length, date, server and connection headers are added later."""

    status: int
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


class RequestError(Exception):
    """The bytes are not a request this server takes: answered with `status` and one line, then closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """A parsed request line with its header fields, and what they say about the connection."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Headers
    content_length: int  # bytes of body that follow; 0 with `chunked`
    keep_alive: bool
    expects_continue: bool
    chunked: bool = False  # the body says itself where it ends


def line(status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A one-line text answer."""
    return Response(status, message.encode() + b"\n", "text/plain; charset=utf-8", headers)


def parse_head(data: bytes) -> Head:
    """Parse everything before the blank line. Raises RequestError (400, 413, 414, 431, 501, 505)."""
    first, *rest = data.decode("latin-1").replace("\r\n", "\n").split("\n")
    if len(first) > MAX_LINE_BYTES:
        raise RequestError(414, f"the request line is longer than {MAX_LINE_BYTES} bytes")
    parts = first.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not re.fullmatch(r"HTTP/[0-9]\.[0-9]", parts[2]):
        raise RequestError(400, "not an HTTP/1.x request line")
    method, target, version = parts
    if not version.startswith("HTTP/1."):
        raise RequestError(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    fields = _fields(rest)
    path, query = _target(target, fields)
    if version != "HTTP/1.0" and "host" not in fields:
        raise RequestError(400, "the Host header is missing")
    options = {token.strip().lower() for token in fields.get("connection", "").split(",")}
    keep_alive = "keep-alive" in options if version == "HTTP/1.0" else "close" not in options
    expects = fields.get("expect", "").lower() == "100-continue" and version != "HTTP/1.0"
    chunked = _is_chunked(fields, version)
    length = 0 if chunked else _content_length(fields)
    return Head(method, path, query, Headers(fields), length, keep_alive, expects, chunked)


def check(response: Response) -> None:
    """Raise ValueError when a route's headers would break the message."""
    for name, value in (*response.headers, ("Content-Type", response.content_type)):
        if not _TOKEN.fullmatch(name) or _BAD_VALUE.search(value) or not value.isascii():
            raise ValueError(f"the response header {name!r} is not valid")
        if name.lower() in _OURS:
            raise ValueError(f"the response header {name!r} is the server's to set")
    if not 200 <= response.status <= 599:
        raise ValueError(f"{response.status} is not a final status")


def render(response: Response, *, method: str, keep_alive: bool, extra: tuple[tuple[str, str], ...]) -> bytes:
    """The bytes of a response. `extra` headers (the operator's) win over the route's, these over the defaults."""
    headers = {"x-content-type-options": ("X-Content-Type-Options", "nosniff")}
    for name, value in (("Content-Type", response.content_type), *response.headers, *extra):
        headers[name.lower()] = (name, value)
    reason = HTTPStatus(response.status).phrase if response.status in HTTPStatus._value2member_map_ else ""
    lines = [
        f"HTTP/1.1 {response.status} {reason}",
        f"Date: {formatdate(usegmt=True)}",
        f"Server: stepscope/{__version__}",
        *(f"{name}: {value}" for name, value in headers.values()),
    ]
    if response.status not in _NO_BODY:
        lines.append(f"Content-Length: {len(response.body)}")
    # Both words are sent: an HTTP/1.0 client keeps a connection only when it is told so.
    lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head if method == "HEAD" or response.status in _NO_BODY else head + response.body


def _fields(lines: list[str]) -> dict[str, str]:
    if len(lines) > MAX_FIELDS:
        raise RequestError(431, f"more than {MAX_FIELDS} header fields")
    fields: dict[str, str] = {}
    for text in lines:
        if len(text) > MAX_LINE_BYTES:
            raise RequestError(431, f"a header line is longer than {MAX_LINE_BYTES} bytes")
        name, colon, value = text.partition(":")
        value = value.strip(" \t")
        if not colon or not _TOKEN.fullmatch(name) or _BAD_VALUE.search(value):
            raise RequestError(400, "a header line is malformed")
        name = name.lower()
        if name not in fields:
            fields[name] = value
        elif name in _ONCE:
            raise RequestError(400, f"the header {name} is given twice")
        else:
            fields[name] += f", {value}"
    return fields


def _target(target: str, fields: dict[str, str]) -> tuple[str, dict[str, list[str]]]:
    if not _TARGET.fullmatch(target):
        raise RequestError(400, "the request target has characters that need percent-encoding")
    if target.lower().startswith(("http://", "https://")):
        try:
            split = urlsplit(target)
        except ValueError:
            raise RequestError(400, "the request target is not a URL") from None
        # RFC 9112, 3.2.2: the authority of an absolute target replaces the Host header.
        fields["host"] = split.netloc
        path, query = split.path or "/", split.query
    else:
        path, _, query = target.partition("?")
    try:
        parameters = parse_qs(query, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise RequestError(400, f"more than {MAX_FIELDS} query parameters") from None
    return unquote(path), parameters


def _is_chunked(fields: dict[str, str], version: str) -> bool:
    coding = fields.get("transfer-encoding")
    if coding is None:
        return False
    # RFC 9112, 6.1: both together, or in HTTP/1.0, is how one request is passed off as two.
    if "content-length" in fields or version == "HTTP/1.0":
        raise RequestError(400, "Transfer-Encoding goes neither with Content-Length nor with HTTP/1.0")
    if coding.lower() != "chunked":
        raise RequestError(501, "of the transfer codings only chunked is supported")
    return True


def _content_length(fields: dict[str, str]) -> int:
    text = fields.get("content-length", "0")
    if not re.fullmatch(r"[0-9]+", text):
        raise RequestError(400, "Content-Length is not a number")
    # Judged by its digits first: a number of thousands of digits is slow to convert.
    if len(text.lstrip("0")) > 9 or int(text) > MAX_BODY_BYTES:
        raise RequestError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    return int(text)
