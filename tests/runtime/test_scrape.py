"""Fetching the page: which answers are pages, and when the server-side filter is believed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, start_http_server

from runtime.hostile_server import (
    PAGE,
    Behaviour,
    HostileServer,
    answer,
    by_path,
    chunked,
    filtering,
    hanging,
    head,
    raw,
    redirecting,
)
from stepscope import __version__
from stepscope.errors import ScrapeError
from stepscope.runtime.scrape import ScrapeOptions, Scraper, sample_names

NAMES = frozenset({"vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds_bucket"})


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


@pytest.fixture
def scraper(server: HostileServer) -> Iterator[Scraper]:
    made = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0))
    yield made
    made.close()


def failure(scraper: Scraper, names: frozenset[str] | None = None) -> ScrapeError:
    """The error of a fetch that must fail; its text is one short line."""
    with pytest.raises(ScrapeError) as caught:
        scraper.fetch(names)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return caught.value


def paths(server: HostileServer) -> list[str]:
    return [asked.path for asked in server.asked]


def test_a_page_comes_whole_and_is_stamped_when_its_request_went_out(server: HostileServer, scraper: Scraper) -> None:
    before = time.monotonic()
    page = scraper.fetch()
    after = time.monotonic()
    assert page.text == PAGE
    assert page.content_bytes == len(PAGE)
    assert not page.filtered
    assert before <= page.at_seconds <= after
    assert 0 < page.duration_seconds <= after - before


def test_the_request_names_the_text_format_asks_for_no_packing_and_says_who_asks(
    server: HostileServer, scraper: Scraper
) -> None:
    scraper.fetch()
    headers = server.asked[0].headers
    assert headers["accept"] == "text/plain;version=0.0.4"
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"] == f"stepscope/{__version__}"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert "authorization" not in headers
    assert "cookie" not in headers


def test_the_clock_that_is_passed_in_stamps_the_page(server: HostileServer) -> None:
    ticks = iter([100.0, 101.5, 104.0])
    scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0), clock=lambda: next(ticks))
    page = scraper.fetch()
    scraper.close()
    assert (page.at_seconds, page.duration_seconds) == (101.5, 4.0)


def test_one_connection_serves_all_scrapes(server: HostileServer, scraper: Scraper) -> None:
    for _ in range(5):
        scraper.fetch()
    assert server.connections == 1


@pytest.mark.parametrize(
    ("behave", "outcome", "words"),
    [
        (answer("<html>busy</html>", content_type="text/html; charset=utf-8"), "not_metrics", "text/html"),
        (answer('{"detail":"x"}', content_type="Application/JSON"), "not_metrics", "application/json"),
        (answer(""), "not_metrics", "empty"),
        (answer(" \n\n"), "not_metrics", "empty"),
        (answer("no", status="404 Not Found"), "http_status", "404 (Not Found)"),
        (answer("no", status="500 whatever the server calls it"), "http_status", "500 (Internal Server Error)"),
        (answer("no", status="401 Unauthorized"), "http_status", "401 (Unauthorized)"),
        (answer("no", status="503 Service Unavailable"), "http_status", "503"),
        (answer("no", status="799 Odd"), "http_status", "799"),
        (answer("", status="204 No Content"), "http_status", "204"),
        (raw(head(PAGE, length=len(PAGE) + 500) + PAGE.encode()), "not_metrics", "middle of the body"),
        (chunked([PAGE[:200].encode()], end=False), "not_metrics", "middle of the body"),
        (raw(b"220 mail.example ESMTP\r\n"), "connection", "not HTTP"),
        (raw(b""), "connection", "closed without an answer"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"X-Many: 1\r\n" * 200 + b"\r\n"), "connection", "headers"),
        (raw(b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n"), "connection", "header line"),
        (answer("x", headers=["Content-Encoding: br"]), "not_metrics", "br"),
        (answer("x", headers=["Content-Encoding: gzip"]), "not_metrics", "gzip"),
    ],
)
def test_what_is_not_a_page_has_its_outcome_and_one_line_that_says_why(
    server: HostileServer, scraper: Scraper, behave: Behaviour, outcome: str, words: str
) -> None:
    server.behave = behave
    error = failure(scraper)
    assert error.outcome == outcome
    assert words in str(error)
    assert f"GET {server.url}/metrics" in str(error)
    server.behave = answer()
    assert scraper.fetch().text == PAGE


def test_a_port_that_refuses_is_a_connection_failure_and_recovers_on_the_next_good_page() -> None:
    with HostileServer() as gone:
        url = gone.url
    scraper = Scraper(ScrapeOptions(url, deadline_seconds=5.0))
    error = failure(scraper)
    assert (error.outcome, str(error)) == ("connection", f"GET {url}/metrics: Connection refused")
    with HostileServer(port=gone.port):
        assert scraper.fetch().text == PAGE
    scraper.close()


def test_a_page_without_content_type_or_length_is_read_to_the_end_of_the_connection(
    server: HostileServer, scraper: Scraper
) -> None:
    server.behave = raw(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE.encode())
    assert scraper.fetch().text == PAGE


def test_a_page_in_chunks_is_put_together(server: HostileServer, scraper: Scraper) -> None:
    data = PAGE.encode()
    server.behave = chunked([data[at : at + 7] for at in range(0, len(data), 7)])
    assert scraper.fetch().text == PAGE
    assert scraper.fetch().content_bytes == len(data)
    assert server.connections == 1


def test_bytes_that_are_not_utf8_do_not_lose_the_page(server: HostileServer, scraper: Scraper) -> None:
    server.behave = answer(b'bad{name="\xff\xfe"} 1\n' + PAGE.encode())
    assert scraper.fetch().text == 'bad{name="��"} 1\n' + PAGE


def test_twenty_megabytes_are_read_in_bounded_time(server: HostileServer, scraper: Scraper) -> None:
    page = PAGE + 'config{everything="' + "x" * (20 * 2**20) + '"} 1\n'
    server.behave = answer(page)
    started = time.monotonic()
    assert scraper.fetch().text == page
    assert time.monotonic() - started < 3


def test_a_stated_size_above_the_cap_is_refused_before_any_of_it_is_read(server: HostileServer) -> None:
    scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, max_bytes=1000))
    server.behave = hanging(head(length=1001))
    started = time.monotonic()
    error = failure(scraper)
    scraper.close()
    assert (error.outcome, "1001 bytes" in str(error)) == ("too_large", True)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "behave",
    [
        chunked([b"a" * 400 for _ in range(50)]),
        raw(b"HTTP/1.0 200 OK\r\n\r\n" + b"a" * 20_000),
        answer(zlib.compress(b"a" * 20_000), headers=["Content-Encoding: deflate"]),
    ],
    ids=["chunked", "until close", "unpacked"],
)
def test_a_body_that_grows_above_the_cap_is_too_large(server: HostileServer, behave: Behaviour) -> None:
    scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, max_bytes=1000))
    server.behave = behave
    assert failure(scraper).outcome == "too_large"
    scraper.close()


def test_a_body_of_exactly_the_cap_is_read(server: HostileServer) -> None:
    scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, max_bytes=len(PAGE)))
    assert scraper.fetch().text == PAGE
    scraper.close()


def test_a_page_packed_without_being_asked_is_unpacked(server: HostileServer, scraper: Scraper) -> None:
    packer = zlib.compressobj(wbits=31)
    server.behave = answer(packer.compress(PAGE.encode()) + packer.flush(), headers=["Content-Encoding: gzip"])
    page = scraper.fetch()
    assert (page.text, page.content_bytes) == (PAGE, len(PAGE))


class TestFilter:
    """The server-side filter is used where it is honoured; decided once, decided anew after a failure."""

    def test_a_server_that_honours_it_is_asked_with_the_slash_and_nothing_else(
        self, server: HostileServer, scraper: Scraper
    ) -> None:
        server.behave = filtering()
        pages = [scraper.fetch(NAMES) for _ in range(3)]
        assert paths(server) == ["/metrics/"] * 3
        assert set(server.asked[0].names) == NAMES
        assert all(page.filtered for page in pages)
        assert sample_names(pages[0].text, NAMES) == NAMES
        assert pages[0].content_bytes < len(PAGE)

    def test_without_names_the_whole_page_comes(self, server: HostileServer, scraper: Scraper) -> None:
        server.behave = filtering()
        assert scraper.fetch(NAMES).filtered
        whole = [scraper.fetch(), scraper.fetch(frozenset())]
        assert [(page.text, page.filtered) for page in whole] == [(PAGE, False)] * 2
        assert paths(server) == ["/metrics/", "/metrics", "/metrics"]

    @pytest.mark.parametrize(
        "filtered",
        [
            answer("no", status="404 Not Found"),
            answer("no", status="400 Bad Request"),
            answer(""),
            answer(),
            answer("<html></html>", content_type="text/html"),
            answer("# HELP only comments\n"),
            answer('vllm:kv_cache_usage_perc{engine="0"} 0.5\n'),
            redirecting("http://elsewhere.invalid/"),
            raw(b""),
        ],
        ids=["404", "400", "empty", "ignored", "html", "comments", "partly", "redirected away", "cut off"],
    )
    def test_where_it_is_not_honoured_the_whole_page_comes_in_the_same_fetch_and_it_is_not_tried_again(
        self, server: HostileServer, scraper: Scraper, filtered: Behaviour
    ) -> None:
        server.behave = by_path({"/metrics/": filtered, "/metrics": answer()})
        pages = [scraper.fetch(NAMES) for _ in range(3)]
        assert [(page.text, page.filtered) for page in pages] == [(PAGE, False)] * 3
        assert paths(server) == ["/metrics/", "/metrics", "/metrics", "/metrics"]

    def test_a_server_that_hangs_on_it_still_gives_the_whole_page_within_the_deadline(
        self, server: HostileServer
    ) -> None:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=0.6))
        server.behave = by_path({"/metrics/": hanging(), "/metrics": answer()})
        started = time.monotonic()
        assert scraper.fetch(NAMES).text == PAGE
        assert time.monotonic() - started < 0.6
        assert scraper.fetch(NAMES).text == PAGE
        assert paths(server) == ["/metrics/", "/metrics", "/metrics"]
        scraper.close()

    def test_after_a_failed_scrape_a_whole_page_comes_first_and_then_it_is_tried_again(
        self, server: HostileServer, scraper: Scraper
    ) -> None:
        server.behave = by_path({"/metrics": answer()})
        assert not scraper.fetch(NAMES).filtered
        server.behave = raw(b"")
        assert failure(scraper, NAMES).outcome == "connection"
        server.behave = filtering()
        server.asked.clear()
        assert [scraper.fetch(NAMES).filtered for _ in range(3)] == [False, True, True]
        assert paths(server) == ["/metrics", "/metrics/", "/metrics/"]

    def test_a_server_that_stops_honouring_it_gives_the_whole_page_in_the_same_fetch(
        self, server: HostileServer, scraper: Scraper
    ) -> None:
        server.behave = filtering()
        assert scraper.fetch(NAMES).filtered
        server.behave = by_path({"/metrics/": answer(""), "/metrics": answer()})
        page = scraper.fetch(NAMES)
        assert (page.text, page.filtered) == (PAGE, False)
        server.behave = filtering()
        assert not scraper.fetch(NAMES).filtered

    def test_a_hang_of_an_honoured_filter_is_a_failed_scrape(self, server: HostileServer) -> None:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=0.4))
        server.behave = filtering()
        assert scraper.fetch(NAMES).filtered
        server.behave = hanging()
        assert failure(scraper, NAMES).outcome == "timeout"
        scraper.close()

    @pytest.mark.parametrize(
        ("path", "asked"),
        [
            ("/", ["/metrics/"]),
            ("/metrics", ["/metrics/"]),
            ("/metrics/", ["/metrics/"]),
            ("/ray/metrics", ["/ray/metrics/"]),
            ("/stats", ["/stats"]),
        ],
    )
    def test_a_path_of_ones_own_is_the_page_and_is_filtered_only_where_it_ends_in_metrics(
        self, server: HostileServer, path: str, asked: list[str]
    ) -> None:
        server.behave = filtering()
        scraper = Scraper(ScrapeOptions(server.url + path, deadline_seconds=5.0))
        assert scraper.fetch(NAMES).filtered == (path != "/stats")
        assert paths(server) == asked
        scraper.close()

    def test_the_metrics_library_that_engines_use_honours_it(self) -> None:
        registry = CollectorRegistry()
        Gauge("vllm:kv_cache_usage_perc", "x", ["engine"], registry=registry).labels("0").set(0.25)
        Gauge("vllm:num_requests_running", "x", ["engine"], registry=registry).labels("0").set(3)
        Histogram("vllm:inter_token_latency_seconds", "x", ["engine"], registry=registry).labels("0").observe(0.01)
        web, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
        try:
            url = f"http://127.0.0.1:{web.server_port}"
            scraper = Scraper(ScrapeOptions(url, deadline_seconds=5.0))
            page = scraper.fetch(NAMES)
            scraper.close()
        finally:
            web.shutdown()
            web.server_close()
            thread.join()
        assert page.filtered
        assert sample_names(page.text, NAMES) == NAMES

    def test_a_list_too_long_for_a_request_line_is_not_sent(self, server: HostileServer, scraper: Scraper) -> None:
        server.behave = filtering()
        many = frozenset(f"vllm:a_rather_long_name_of_a_series_number_{number}" for number in range(500))
        assert scraper.fetch(many).text == PAGE
        assert [asked.target for asked in server.asked] == ["/metrics"]


def test_sample_names_are_read_past_comments_and_escapes_and_stop_at_the_first_foreign_one() -> None:
    text = '# HELP a b\na{x="} c{y=\\"1\\"} 2 # \\n d"} 1\n\nb 2\nlast 3'
    assert sample_names(text, frozenset({"a", "b", "last"})) == {"a", "b", "last"}
    assert sample_names(text, frozenset({"b", "last"})) == {"a"}
    assert sample_names("", NAMES) == frozenset()
