"""What is refused before anything is sent, and which addresses follow from the one that is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import ConfigError
from stepscope.runtime.scrape_options import ScrapeOptions


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8000", "localhost", "", "ftp://h/", "http://", "http://:80", "tcp://10.0.0.1:80", "http://h:0"],
)
def test_an_address_without_scheme_or_host_is_refused_and_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ScrapeOptions(url, deadline_seconds=1.0)
    assert str(caught.value) == f"engine URL {url!r} is not of the form http://HOST:PORT or https://HOST:PORT"


@pytest.mark.parametrize("url", ["http://h:port", "http://h:99999", "http://[::1", "http://h h/"])
def test_an_address_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="engine URL is not an address: "):
        ScrapeOptions(url, deadline_seconds=1.0)


@pytest.mark.parametrize("url", ["http://user:geheim@h:1", "http://user:geheim/x@h:1", "http://u:geheim@h h/"])
def test_a_password_in_the_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ScrapeOptions(url, deadline_seconds=1.0)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"deadline_seconds": 0.0},
        {"connect_timeout_seconds": -1.0},
        {"max_bytes": 0},
        {"deadline_seconds": float("nan")},
    ],
)
def test_limits_must_be_above_zero(settings: dict[str, float]) -> None:
    values = {"deadline_seconds": 1.0, **settings}
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} must be above 0"):
        ScrapeOptions("http://h:1", **values)  # type: ignore[arg-type]  # one of them is an int


def test_a_client_key_needs_its_certificate() -> None:
    with pytest.raises(ConfigError, match="/k is given without its certificate"):
        ScrapeOptions("https://h", deadline_seconds=1.0, client_key_file=Path("/k"))


@pytest.mark.parametrize(
    ("url", "metrics", "version"),
    [
        ("http://h:8000", "http://h:8000/metrics", "http://h:8000/version"),
        ("http://h:8000/", "http://h:8000/metrics", "http://h:8000/version"),
        ("https://[::1]/metrics", "https://[::1]/metrics", "https://[::1]/version"),
        ("http://h/vllm/metrics/", "http://h/vllm/metrics/", "http://h/vllm/version"),
        ("http://h/stats?a=1#x", "http://h/stats?a=1", "http://h/version"),
    ],
)
def test_the_page_and_the_api_stand_where_the_address_says(url: str, metrics: str, version: str) -> None:
    options = ScrapeOptions(url, deadline_seconds=1.0)
    assert (options.metrics_url, options.api_url("/version")) == (metrics, version)
