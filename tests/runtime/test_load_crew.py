"""Workers keep a load standing and can be taken away at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from chat_server import Manner, chat_server
from sim_helpers import small
from stepscope.runtime.load_client import Dialect, LoadClient
from stepscope.runtime.load_crew import Crew, Work
from stepscope.runtime.load_probe import refresh_gauges
from stepscope.runtime.load_watch import Watch
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.sim.server import SimServer


@pytest.fixture(scope="module")
def client() -> Iterator[LoadClient]:
    """Of a vLLM-shaped engine."""
    server = SimServer(small())
    server.start()
    yield LoadClient(ScrapeOptions(server.url, 4.0), "Qwen/Qwen3-8B")
    server.stop()


def test_each_worker_does_its_share(client: LoadClient) -> None:
    """One request after another; the first may be of another length."""
    crew = Crew(client, [Work(64, 6, 3, first_output_tokens=2, label="a"), Work(64, 4, 1, label="b")])
    crew.start()
    assert crew.wait(10.0)
    crew.stop()
    found = [(trace.label, trace.output_tokens, trace.outcome) for trace in crew.traces()]
    assert sorted(found) == [("a", 2, "ok"), ("a", 6, "ok"), ("a", 6, "ok"), ("b", 4, "ok")]
    assert (crew.failed, crew.started, crew.decoding) == ([], 4, 0)


def test_who_keeps_on_does_so_until_the_slowest_has_done_its_share(client: LoadClient) -> None:
    """The load stays whole: whoever was done early has begun again."""
    crew = Crew(client, [Work(64, 5, label="short"), Work(64, 60, label="long")], keep=True)
    crew.start()
    assert crew.wait(10.0)
    crew.stop()
    short = [trace for trace in crew.traces() if trace.label == "short"]
    assert len(short) > 3


def test_stop_hangs_up_on_everything(client: LoadClient) -> None:
    """Within a second, for twenty streams; no thread of ours is left, and the engine holds nothing more."""
    crew = Crew(client, [Work(64, 50_000)] * 20)
    crew.start()
    until = time.monotonic() + 10.0
    while crew.decoding < 20 and time.monotonic() < until:
        time.sleep(0.02)
    assert crew.decoding == 20
    began = time.monotonic()
    crew.stop()
    assert time.monotonic() - began < 1.0
    assert {stream.outcome for stream in crew.streams} == {"aborted"}
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("load-")]
    assert refresh_gauges(client, Watch(Scraper(client.options)))


def test_a_refusing_engine_is_not_asked_at_full_speed() -> None:
    """A worker pauses after a failure."""
    manner = Manner(status=503, error="full")
    with chat_server(manner) as url:
        client = LoadClient(ScrapeOptions(url, 4.0), "m")
        client.dialect = Dialect("/v1/chat/completions", token_ids=False, extras=False)
        crew = Crew(client, [Work(64, 5, 1000)])
        crew.start()
        assert not crew.wait(1.2)
        crew.stop()
    assert 1 <= len(manner.asked) <= 4
    assert {stream.outcome for stream in crew.failed} == {"rejected"}
