"""Reads the engine's metrics page: the whole page, or only the wanted samples where the server honours the filter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode, urlsplit

from stepscope.errors import ScrapeError
from stepscope.runtime.engine_client import EngineClient, Reply
from stepscope.runtime.scrape_options import ScrapeOptions

__all__ = ["RawPage", "ScrapeOptions", "Scraper"]

_ACCEPT = "text/plain;version=0.0.4"  # OpenMetrics would rename vllm: to vllm_ (client_python#1177)
_NOT_METRICS_TYPES = frozenset({"text/html", "application/json"})
_MAX_QUERY_BYTES = 7 * 1024  # nginx refuses request lines above 8 KiB (large_client_header_buffers 4 8k)

# What is known about the server-side filter. "after_failure": the engine may be another one, read a whole page first.
_Filter = Literal["unknown", "honoured", "refused", "after_failure"]


@dataclass(frozen=True, slots=True)
class RawPage:
    """One answer of the engine, not yet parsed; not empty, not HTML, not JSON.

    at_seconds: the scraper's clock when the request that brought this page was sent.
    duration_seconds: the whole fetch, with redirects, a retry and a refused filter: at + duration need not be its end.
    filtered: only samples that were asked for are on the page. content_bytes: size of the body, unpacked.
    """

    text: str
    at_seconds: float
    duration_seconds: float
    filtered: bool
    content_bytes: int


class Scraper:
    """Fetches the page, from one thread at a time; `abort` and `close` may come from any thread."""

    def __init__(self, options: ScrapeOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` stamps the pages; deadlines always run on real monotonic time. Raises ConfigError, opens nothing."""
        self._options = options
        self._clock = clock
        self._client = EngineClient(options, clock=clock)
        self._filter: _Filter = "unknown"
        self._filter_request: tuple[frozenset[str], str | None] = (frozenset(), None)

    @property
    def client(self) -> EngineClient:
        """The client whose connection, rules and stop the engine's other endpoints share."""
        return self._client

    def fetch(self, names: frozenset[str] | None = None) -> RawPage:
        """One page. `names`: the sample names wanted, as spelled on an earlier whole page; None: the whole page.

        With names the page may still be whole: the server may not honour the filter, and after a failed fetch the
        first page is always whole. Raises ScrapeError: timeout, connection, http_status, not_metrics, too_large.
        """
        started = self._clock()
        until = time.monotonic() + self._options.deadline_seconds
        try:
            reply, text, filtered = self._fetch(names, until)
        except ScrapeError:
            self._filter = "after_failure"
            raise
        return RawPage(text, reply.sent_seconds, self._clock() - started, filtered, len(reply.body))

    def abort(self) -> None:
        """Ends a fetch in flight at once (ScrapeError "connection") and every later one: to stop, not to pause."""
        self._client.abort()

    def close(self) -> None:
        """`abort`, and close the connection."""
        self._client.close()

    def _fetch(self, names: frozenset[str] | None, until: float) -> tuple[Reply, str, bool]:
        if names and self._filter in ("unknown", "honoured"):
            url = self._filter_url(names)
            if url is not None:
                found = self._fetch_filtered(url, names, until)
                if found is not None:
                    return *found, True
                self._filter = "refused"
        reply, text = self._page(self._options.metrics_url, until)
        if self._filter == "after_failure":
            self._filter = "unknown"
        return reply, text, False

    def _fetch_filtered(self, url: str, names: frozenset[str], until: float) -> tuple[Reply, str] | None:
        """The filtered page, or None where the server does not honour the filter."""
        probing = self._filter == "unknown"
        if probing:
            # A server that hangs on the query must leave time for the whole page.
            until = (until + time.monotonic()) / 2
        try:
            reply, text = self._page(url, until)
        except ScrapeError as error:
            if probing or error.outcome in ("http_status", "not_metrics"):
                return None
            raise
        if probing and sample_names(text, names) != names:
            return None
        self._filter = "honoured"
        return reply, text

    def _page(self, url: str, until: float) -> tuple[Reply, str]:
        reply = self._client.get(url, accept=_ACCEPT, max_bytes=self._options.max_bytes, until_seconds=until)
        place = "GET " + urlsplit(url)._replace(query="").geturl()
        if reply.content_type in _NOT_METRICS_TYPES:
            raise ScrapeError("not_metrics", f"{place}: the answer is {reply.content_type}, not a metrics page")
        if not reply.body or reply.body.isspace():
            raise ScrapeError("not_metrics", f"{place}: the page is empty")
        return reply, reply.body.decode("utf-8", errors="replace")

    def _filter_url(self, names: frozenset[str]) -> str | None:
        """The address that asks for `names` only; None where the path is not a metrics page or the list is too long."""
        if self._filter_request[0] != names:
            self._filter_request = (names, _filter_url(self._options.metrics_url, names))
        return self._filter_request[1]


def _filter_url(metrics_url: str, names: frozenset[str]) -> str | None:
    parts = urlsplit(metrics_url)
    path = parts.path.rstrip("/")
    query = urlencode([("name[]", name) for name in sorted(names)], safe=":")
    if parts.query:
        query = f"{parts.query}&{query}"
    if not path.endswith("/metrics") or len(query) > _MAX_QUERY_BYTES:
        return None
    # Without the slash the engine answers with a redirect to it, which may lose the query.
    return parts._replace(path=path + "/", query=query, fragment="").geturl()


def sample_names(text: str, wanted: frozenset[str]) -> frozenset[str]:
    """The sample names on a page; the reading stops at the first that is not wanted, so a whole page costs little."""
    found: set[str] = set()
    start, end = 0, len(text)
    while start < end:
        stop = text.find("\n", start)
        if stop < 0:
            stop = end
        if text[start] not in "#\n":
            brace = text.find("{", start, stop)
            space = text.find(" ", start, stop)
            cut = min(at for at in (brace, space, stop) if at >= 0)
            name = text[start:cut]
            found.add(name)
            if name not in wanted:
                break
        start = stop + 1
    return frozenset(found)
