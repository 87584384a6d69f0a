"""What a request gets: authentication, the table of routes, methods, faults of routes, compression, the guard."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from stepscope.runtime import http1
from stepscope.runtime.http1 import Request, Response
from stepscope.runtime.json_http import api_error
from stepscope.runtime.webauth import BasicAuth, Outcome

Route = Callable[[Request], Response]

_GZIP_ABOVE_BYTES = 1024  # below, the packet is as large compressed
_GZIP_LEVEL = 1  # field reports name compression as the exporter's cost; level 1 has most of the gain
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS  # "16 +" makes zlib write a gzip header
_COMPRESSIBLE = ("text/", "application/json", "application/openmetrics-text")
_CHALLENGE = (("WWW-Authenticate", 'Basic realm="stepscope", charset="UTF-8"'),)
# A service mesh hands on requests from elsewhere over loopback, and marks them with one of these.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via", "x-envoy-external-address")


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Answers every request; never raises. `auth` None: no users, everybody may read.

    A path that ends in `/*` stands for any one last segment. bearer_paths: routes that check a bearer token themselves;
    a request that shows one there is not asked for a user and password.
    """

    routes: Mapping[tuple[str, str], Route]
    auth: BasicAuth | None
    log: logging.Logger
    bearer_paths: frozenset[str] = frozenset()

    def respond(self, request: Request) -> Response:
        """The response to `request`: the route's own, or one line with 401, 404, 405, 429 or 500 (JSON below /v1/)."""
        return api_error(request.path, self._respond(request))

    def _respond(self, request: Request) -> Response:
        if self.auth is not None and not self._shows_bearer_token(request):
            outcome = self.auth.check(request.headers.get("authorization"))
            if outcome is Outcome.BUSY:
                return http1.line(429, "too many passwords are being checked", (("Retry-After", "1"),))
            if outcome is not Outcome.RIGHT:
                return http1.line(401, "a valid user and password are needed", _CHALLENGE)
            request = replace(request, authenticated=True)
        method = "GET" if request.method == "HEAD" else request.method
        route = self.routes.get((method, request.path)) or self.routes.get((method, parent_of(request.path)))
        if route is None:
            return self._no_route(request.path)
        try:
            response = route(request)
            http1.check(response)
        except Exception:
            self.log.exception("%s %s failed; the client got status 500", method, request.path)
            return http1.line(500, "internal error; the log says more")
        return compressed(response, request.headers.get("accept-encoding", ""))

    def _shows_bearer_token(self, request: Request) -> bool:
        scheme = request.headers.get("authorization", "").partition(" ")[0].lower()
        return scheme == "bearer" and not self.bearer_paths.isdisjoint((request.path, parent_of(request.path)))

    def _no_route(self, path: str) -> Response:
        methods = {method for method, known in self.routes if known in (path, parent_of(path))}
        if not methods:
            return http1.line(404, "no such page")
        if "GET" in methods:
            methods.add("HEAD")
        allowed = ", ".join(sorted(methods))
        return http1.line(405, f"only {allowed} here", (("Allow", allowed),))


def parent_of(path: str) -> str:
    """`/v1/leases/*` for `/v1/leases/abc`; "" where there is no last segment."""
    parent, _, last = path.rpartition("/")
    return f"{parent}/*" if last else ""


def loopback_or_authenticated(request: Request) -> Response | None:
    """The guard of routes that change something. None: go on; else the 403 to answer, with its reason.

    Authenticated clients pass from anywhere, others only directly from this host (in a pod: from the same pod). Two
    tricks of a web page in a browser on this host are refused: posting here (CSRF) gives itself away by Origin, a
    name that was made to resolve to this host (DNS rebinding) by Host.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin is not None and not _same_host(origin, host):
        return http1.line(403, "refused: the request comes from a page of another site (Origin is not this host)")
    if request.authenticated:
        return None
    if not (request.client_address == "::1" or request.client_address.startswith("127.")):
        return http1.line(403, "refused: only from loopback, or with authentication (--web.config.file)")
    if any(name in request.headers for name in _FORWARDED):
        return http1.line(403, "refused: the request came through a proxy and is not authenticated")
    if _split_host(f"http://{host}")[0] not in ("localhost", "127.0.0.1", "::1"):
        return http1.line(403, "refused: without authentication Host must be localhost, 127.0.0.1 or [::1]")
    return None


def compressed(response: Response, accept_encoding: str) -> Response:
    """The response with its body gzipped when the client takes that and it is worth the time."""
    if len(response.body) <= _GZIP_ABOVE_BYTES or not response.content_type.startswith(_COMPRESSIBLE):
        return response
    if any(name.lower() == "content-encoding" for name, _ in response.headers):
        return response
    headers = (*response.headers, ("Vary", "Accept-Encoding"))
    if not accepts_gzip(accept_encoding):
        return replace(response, headers=headers)
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    body = packer.compress(response.body) + packer.flush()
    return replace(response, body=body, headers=(*headers, ("Content-Encoding", "gzip")))


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip (RFC 9110, 12.5.3). An absent header does not."""
    weights: dict[str, float] = {}
    for item in accept_encoding.split(","):
        coding, _, parameter = item.partition(";")
        name, _, value = parameter.partition("=")
        try:
            weight = float(value) if name.strip().lower() == "q" else 1.0
        except ValueError:
            weight = 0.0
        weights[coding.strip().lower()] = weight
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0.0


def _same_host(origin: str, host: str) -> bool:
    scheme = origin.partition("://")[0].lower()
    if scheme not in ("http", "https"):
        return False  # "null" and the schemes of browser extensions
    ours = _split_host(f"{scheme}://{host}")
    return bool(ours[0]) and _split_host(origin) == ours


def _split_host(url: str) -> tuple[str, int]:
    """Host and port of a URL, the scheme's own port where none is written; ("", 0) when it is not a plain one."""
    try:
        split = urlsplit(url)
        port = split.port or (443 if split.scheme == "https" else 80)
    except ValueError:
        return "", 0
    if split.path or split.query or split.fragment or "@" in split.netloc:
        return "", 0
    return split.hostname or "", port
