"""The engine's page is read while load is on it, and tells whether somebody else is there."""

from __future__ import annotations

import time

import pytest

from chat_server import Manner, chat_server
from sim_helpers import small
from stepscope.runtime import load_watch
from stepscope.runtime.load_client import LoadClient
from stepscope.runtime.load_crew import Crew, Work
from stepscope.runtime.load_watch import Watch
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.sim.server import SimServer


def watch_of(url: str, interval_seconds: float = 0.05) -> Watch:
    return Watch(Scraper(ScrapeOptions(url, 4.0)), interval_seconds)


def test_readings_follow_each_other_until_it_is_stopped() -> None:
    """In order, with the time at which each was asked for."""
    server = SimServer(small())
    server.start()
    try:
        watch = watch_of(server.url)
        watch.start()
        time.sleep(0.5)
        watch.stop()
        count = len(watch.readings)
        times = [reading.at_seconds for reading in watch.readings]
        time.sleep(0.2)
        assert 4 <= count == len(watch.readings)
        assert times == sorted(times)
        assert watch.reason is None
    finally:
        server.stop()


def test_an_engine_is_idle_busy_or_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gauges that say busy while nothing moves are left over from cancelled requests."""
    monkeypatch.setattr(load_watch, "_LOOK_SECONDS", 0.1)
    server = SimServer(small())
    server.start()
    try:
        watch = watch_of(server.url)
        assert watch.state() == ("idle", 0.0)
        crew = Crew(LoadClient(ScrapeOptions(server.url, 4.0), "Qwen/Qwen3-8B"), [Work(64, 50_000)] * 2)
        crew.start()
        until = time.monotonic() + 5.0
        while crew.decoding < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert watch.state() == ("busy", 2.0)
        server.set_faults(frozen_gauges=True)
        crew.stop()
        time.sleep(0.2)
        assert watch.state() == ("left over", 2.0)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("page", "state"),
    [
        (None, ("unknown", 0.0)),
        ("some_other_metric 1\n", ("unknown", 0.0)),
        ('sglang:num_running_reqs{model_name="m"} 3.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n', ("busy", 4.0)),
        ("tgi_batch_current_size 0\ntgi_queue_size 0\n", ("idle", 0.0)),
    ],
)
def test_other_engines_say_at_least_whether_they_are_busy(page: str | None, state: tuple[str, float]) -> None:
    """By the names of their own pages; without a page nothing is known."""
    with chat_server(Manner(page=page)) as url:
        watch = watch_of(url)
        assert watch.state() == state
        assert watch.readings == []
        assert watch.reason
