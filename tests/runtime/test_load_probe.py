"""A probe measures a load that stands still, and takes it away again whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chat_server import Manner, chat_server
from sim_helpers import get, small, value
from stepscope.core.estimate import Facts
from stepscope.core.model_spec import from_numbers
from stepscope.core.probes import Probe
from stepscope.runtime.load_client import Dialect, Limits, LoadClient
from stepscope.runtime.load_crew import Crew, Work
from stepscope.runtime.load_probe import Bench, ProbeError, measure, refresh_gauges
from stepscope.runtime.load_watch import Watch
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.sim.server import SimServer

FACTS = Facts(model=from_numbers(15.1e9, 147_456.0, None, name="q"))


@contextmanager
def bench_of(seconds: float = 30.0, **changes: object) -> Iterator[Bench]:
    """A bench on an engine of its own."""
    server = SimServer(small(**changes))
    server.start()
    options = ScrapeOptions(server.url, 4.0)
    until = time.monotonic() + seconds
    client = LoadClient(options, "Qwen/Qwen3-8B", limits=Limits(until_seconds=until))
    try:
        yield Bench(client, Watch(Scraper(options), 0.1), FACTS, until, 131_072, lambda _: None)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """One engine for the probes that need nothing special."""
    with bench_of(60.0) as found:
        yield found


def nothing_runs(bench: Bench) -> bool:
    client = LoadClient(bench.client.options, bench.client.model)
    return (
        refresh_gauges(client, bench.watch)
        and value(get(bench.client.options.api_url("/metrics")), "vllm:num_requests_running") == 0.0
    )


def test_streams_side_by_side_are_measured_without_their_prompts(bench: Bench) -> None:
    """The load of the law's own figures; engine and client agree on the time."""
    found = measure(bench, Probe("decode", 4, 1000), 0.6)
    point = found.point
    assert point.sequences == pytest.approx(4.0, rel=0.02)
    assert point.prefill_tokens_per_step == 0.0
    assert 4000 < point.tokens_in_flight < 4 * 1300
    assert found.client_tokens == pytest.approx(point.tokens_in_flight, rel=0.05)
    assert found.engine_itl_seconds == point.itl_seconds == pytest.approx(found.client_itl_seconds, rel=0.1)
    assert (point.weight_bytes, point.kv_bytes_per_token) == (15.1e9, 147_456.0)
    assert found.prefill_tokens_per_second > 1000.0
    assert nothing_runs(bench)


def test_prompts_mixed_in_are_counted_per_step(bench: Bench) -> None:
    """Each stream is replaced after its output: streams x prompt / output tokens of prompt in a step."""
    found = measure(bench, Probe("mixed", 4, 400, 16), 1.0)
    assert found.point.prefill_tokens_per_step == pytest.approx(4 * 400 / 16, rel=0.35)
    assert found.point.itl_seconds > 7.6e-3
    assert found.cached_tokens == 0.0
    assert nothing_runs(bench)


def test_ranks_behind_one_page_are_measured_per_rank() -> None:
    """One stream fills one rank, four are two each; an idle rank's old gauges are nobody."""
    with bench_of(data_parallel=2) as bench:
        four = measure(bench, Probe("decode", 4, 600), 0.5)
        one = measure(bench, Probe("decode", 1, 600), 0.5)
    assert four.point.sequences == pytest.approx(2.0, rel=0.05)
    assert one.point.sequences == pytest.approx(1.0, rel=0.05)
    assert 1200 < four.point.tokens_in_flight < 2 * 800
    assert 600 < one.point.tokens_in_flight < 800


def test_an_engine_that_runs_fewer_says_so() -> None:
    """How many it does run comes with the refusal."""
    with bench_of(max_num_seqs=3) as bench, pytest.raises(ProbeError) as error:
        measure(bench, Probe("decode", 5, 64), 0.3)
    assert (error.value.outcome, error.value.streams) == ("rejected", 3)


def test_somebody_else_on_the_engine_spoils_a_probe(bench: Bench) -> None:
    """It is noticed by the number of requests that run."""
    other = Crew(bench.client, [Work(64, 100_000)])
    other.start()
    try:
        with pytest.raises(ProbeError) as error:
            measure(bench, Probe("decode", 2, 64), 0.4)
    finally:
        other.stop()
    assert error.value.outcome == "foreign"
    assert "3 requests" in str(error.value)
    assert nothing_runs(bench)


def test_the_end_of_time_ends_a_probe_and_leaves_nothing() -> None:
    """Also while prompts are still computed."""
    with bench_of(0.5) as bench:
        with pytest.raises(ProbeError) as error:
            measure(bench, Probe("decode", 8, 10_000), 5.0)
        assert error.value.outcome in {"time", "timeout"}
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("load-")]


def test_gauges_are_waited_for_no_longer_than_allowed() -> None:
    """By an engine whose answer takes longer."""
    with chat_server(Manner(gap_seconds=3.0, page="")) as url:
        options = ScrapeOptions(url, 4.0)
        client = LoadClient(options, "m")
        client.dialect = Dialect("/v1/chat/completions", token_ids=False, extras=False)
        began = time.monotonic()
        refresh_gauges(client, Watch(Scraper(options)), 0.3)
    assert time.monotonic() - began < 1.0
