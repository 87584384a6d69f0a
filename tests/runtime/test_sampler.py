"""One sample after another against a real server: outcomes, the filter, engines that come and go, faults of our own."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recorded_pages import whole_page
from runtime.hostile_server import (
    Behaviour,
    HostileServer,
    answer,
    by_path,
    chunked,
    filtering,
    hanging,
    raw,
    trickling,
)
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.observer import Policy
from stepscope.core.snapshot import Snapshot
from stepscope.metrics import OUTCOMES
from stepscope.runtime.collector import SnapshotCollector, make_registry, render
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.sampler import MAX_ENGINES, Pipeline, Sampler
from stepscope.runtime.scrape import RawPage, Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.runtime.state import State
from vllm_pages import minimal, page

GOOD = page(minimal())
LOG = logging.getLogger("stepscope.test")
# Explicit numbers, so that no test asks the engine for its model.
SETTINGS = Settings.of(
    (table.MODEL_WEIGHT_BYTES, 1e10),
    (table.MODEL_KV_BYTES_PER_TOKEN, 1e5),
    (table.HARDWARE_GPU, "H100-SXM"),
    (table.KV_CAPACITY_TOKENS, 1e5),
)


class Watched:
    """A sampler on a server whose behaviour a test exchanges between two samples."""

    def __init__(self, server: HostileServer, *, deadline_seconds: float = 4.0, **changes: Any) -> None:
        self.server = server
        self.state = State(Snapshot("1.0", "rev", "3.11"))
        self.scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=deadline_seconds, max_bytes=100_000))
        facts = FactsKeeper(SETTINGS, self.scraper.client, {})
        policy = Policy(5.0, 30.0, 0.0)
        self.pipeline = Pipeline(self.scraper, facts, policy, hold_seconds=90.0, **changes)
        self.sampler = Sampler(self.pipeline, self.state, LOG)

    def sample(self, behave: Behaviour | None = None) -> Snapshot:
        if behave is not None:
            self.server.behave = behave
        self.sampler.sample()
        return self.state.snapshot

    def outcomes(self) -> dict[str, int]:
        return {name: n for name, n in zip(OUTCOMES, self.state.snapshot.scrapes, strict=True) if n}

    def pages_asked(self) -> list[tuple[str, int]]:
        return [(asked.path, len(asked.names)) for asked in self.server.asked if asked.path.startswith("/metrics")]


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer(answer(GOOD)) as running:
        yield running


@pytest.fixture
def watched(server: HostileServer) -> Iterator[Watched]:
    made = Watched(server)
    yield made
    made.scraper.close()


def test_a_good_page_is_published(watched: Watched) -> None:
    """The engine is up, was ever up, and its numbers are there."""
    snapshot = watched.sample()
    assert (snapshot.engine_up, snapshot.engine_ever_up, snapshot.last_error) == (True, True, None)
    (view,) = snapshot.engines
    assert (view.kv_usage_ratio, view.tokens_in_flight) == (0.25, 25_000.0)
    assert snapshot.scrape_duration_seconds is not None
    assert snapshot.last_sample_unix_seconds is not None
    assert watched.outcomes() == {"ok": 1}


FAULTS: list[tuple[str, Behaviour]] = [
    ("timeout", hanging()),
    ("timeout", trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", GOOD.encode(), 0.02)),
    ("connection", raw(b"")),
    ("not_metrics", chunked([GOOD.encode()], end=False)),
    ("http_status", answer("no", status="500 Internal Server Error")),
    ("http_status", answer("no", status="401 Unauthorized")),
    ("not_metrics", answer("<html></html>\n", content_type="text/html")),
    ("not_metrics", answer("<html></html>\n")),
    ("not_metrics", answer('{"error": 1}\n', content_type="application/json")),
    ("not_metrics", answer("")),
    ("not_metrics", answer(GOOD[:-3])),
    ("too_large", answer("x 1\n" * 100_000)),
    ("no_engine_metrics", answer("python_info 1.0\n")),
]


@pytest.mark.parametrize(("outcome", "fault"), FAULTS)
def test_each_failure_is_counted_and_recovered_from(server: HostileServer, outcome: str, fault: Behaviour) -> None:
    """The last good values stand meanwhile, and the next good page brings the engine up again."""
    # The deadline of the others is generous, so that a busy machine does not time out in their place.
    watched = Watched(server, deadline_seconds=1.0 if outcome == "timeout" else 4.0)
    good = watched.sample()
    failed = watched.sample(fault)
    assert watched.outcomes() == {"ok": 1, outcome: 1}
    assert (failed.engine_up, failed.engine_ever_up) == (False, True)
    assert failed.engines == good.engines
    assert failed.last_error
    assert failed.last_sample_unix_seconds == good.last_sample_unix_seconds
    back = watched.sample(answer(GOOD))
    assert (back.engine_up, back.last_error) == (True, None)
    assert watched.outcomes() == {"ok": 2, outcome: 1}
    watched.scraper.close()


def test_an_engine_that_still_starts_was_never_up(watched: Watched) -> None:
    """So that an alert can tell loading from dying."""
    snapshot = watched.sample(raw(b""))
    assert (snapshot.engine_up, snapshot.engine_ever_up, snapshot.engines) == (False, False, ())


def test_nothing_of_a_cut_page_is_used(watched: Watched) -> None:
    """Not even its first, whole lines."""
    watched.sample()
    cut = page(minimal(usage=0.75)).removesuffix("\n")[:-5]
    assert watched.sample(answer(cut)).engines[0].kv_usage_ratio == 0.25


def test_wanted_names_are_asked_for_and_decided_anew_after_a_failure(watched: Watched) -> None:
    """First the whole page; then the names seen on it; after a failure the engine may be another one."""
    behave = by_path({"/metrics": filtering(GOOD), "/metrics/": filtering(GOOD)})
    for _ in range(3):
        watched.sample(behave)
    assert [names > 0 for _, names in watched.pages_asked()] == [False, True, True]
    watched.sample(raw(b""))
    watched.server.asked.clear()
    newer = GOOD.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    renamed = by_path({"/metrics": filtering(newer), "/metrics/": filtering(newer)})
    assert watched.sample(renamed).engines[0].kv_usage_ratio == 0.25
    assert watched.sample().engines[0].kv_usage_ratio == 0.25
    assert [names > 0 for _, names in watched.pages_asked()] == [False, True]


def test_series_that_appear_with_the_first_request_are_not_missed(watched: Watched) -> None:
    """Some versions export a histogram from its first observation on: until then the whole page is read."""
    idle = "".join(text for text in GOOD.splitlines(keepends=True) if "inter_token" not in text)
    for _ in range(2):
        watched.sample(by_path({"/metrics": filtering(idle), "/metrics/": filtering(idle)}))
    for _ in range(3):
        watched.sample(by_path({"/metrics": filtering(GOOD), "/metrics/": filtering(GOOD)}))
    assert [names > 0 for _, names in watched.pages_asked()] == [False, False, False, True, True]
    sample = watched.sampler._memories["0"].sample
    assert sample.itl_seconds is not None
    assert sample.itl_seconds.count == 9.0


def test_the_filter_can_be_switched_off(server: HostileServer) -> None:
    """--engine.filter=off."""
    watched = Watched(server, filter_on_server=False)
    for _ in range(3):
        watched.sample(by_path({"/metrics": filtering(GOOD), "/metrics/": filtering(GOOD)}))
    watched.scraper.close()
    assert {names for _, names in watched.pages_asked()} == {0}


def test_a_fault_of_our_own_does_not_stop_the_sampling(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with its traceback, and the next sample is taken."""

    class Broken:
        def for_reading(self, reading: object) -> None:
            raise ZeroDivisionError("ours")

    before = watched.sample()
    good_facts, watched.pipeline.facts = watched.pipeline.facts, Broken()  # type: ignore[assignment]  # a fault of ours
    with caplog.at_level(logging.ERROR, logger="stepscope.test"):
        assert watched.sample() == before
    assert "ZeroDivisionError: ours" in caplog.text
    watched.pipeline.facts = good_facts
    assert watched.sample().scrapes[0] == 2


def test_a_failure_is_logged_once_while_it_lasts(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """And so is the recovery."""
    with caplog.at_level(logging.INFO, logger="stepscope.test"):
        for behave in (answer(GOOD), raw(b""), raw(b""), raw(b""), answer(GOOD), answer(GOOD)):
            watched.sample(behave)
    assert caplog.text.count("scrape failed (connection)") == 1
    assert caplog.text.count("engine page read") == 2


def test_a_restart_is_counted_and_the_engine_is_asked_again(watched: Watched) -> None:
    """Another process behind the same port: another version perhaps."""
    watched.sample()
    asked = [a.path for a in watched.server.asked].count("/version")
    restarted = GOOD.replace("1.7e+09", "1.8e+09", 1)
    assert watched.sample(answer(restarted)).engines[0].accounts.restarts == 1
    watched.sample()
    assert [a.path for a in watched.server.asked].count("/version") == asked + 1


def test_after_a_restart_the_names_are_decided_anew(watched: Watched) -> None:
    """Without a failed scrape in between: the new process may spell them otherwise."""
    both = by_path({"/metrics": filtering(GOOD), "/metrics/": filtering(GOOD)})
    watched.sample(both)
    watched.sample()
    later = GOOD.replace("1.7e+09", "1.8e+09", 1)
    renamed = later.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert watched.sample(by_path({"/metrics": filtering(renamed), "/metrics/": filtering(renamed)})).engine_up
    assert watched.sample().engines[0].kv_usage_ratio == 0.25
    assert [names > 0 for _, names in watched.pages_asked()] == [False, True, True, False]


def test_what_a_reload_publishes_during_a_sample_stands(watched: Watched) -> None:
    """The engine may take seconds to answer; a refused configuration must not look accepted for it."""
    state = watched.state

    class Reloaded:
        def __getattr__(self, name: str) -> Any:
            return getattr(facts, name)

        def for_reading(self, reading: Any) -> Any:
            state.publish(replace(state.snapshot, config_ok=False, config_errors=("--x: wrong",)))
            return facts.for_reading(reading)

    facts, watched.pipeline.facts = watched.pipeline.facts, Reloaded()  # type: ignore[assignment]  # interrupts it
    assert watched.sample().config_errors == ("--x: wrong",)


def test_more_engines_than_one_pod_has_are_left_out(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """And that is said once."""
    many = page(*(minimal(str(n)) for n in range(MAX_ENGINES + 3)))
    with caplog.at_level(logging.INFO, logger="stepscope.test"):
        assert len(watched.sample(answer(many)).engines) == MAX_ENGINES
        watched.sample()
    assert caplog.text.count(f"only the first {MAX_ENGINES} are watched") == 1


class Pages:
    """Stands for the scraper where ten thousand samples over a socket would take minutes: pages from memory."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.at = 0.0
        self.text = GOOD

    def fetch(self, names: frozenset[str] | None = None) -> RawPage:
        self.at += 5.0
        return RawPage(self.text, self.at, 0.001, names is not None, len(self.text))


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def test_engines_and_models_that_vanish_are_forgotten(watched: Watched) -> None:
    """Ten thousand samples, every tenth with a new model, every other with a new engine: flat."""
    pages = Pages(watched.scraper.client)
    watched.server.stop()  # the questions for version and model are refused at once
    sampler = Sampler(replace(watched.pipeline, scraper=pages), watched.state, LOG)  # type: ignore[arg-type]  # see Pages
    registry = make_registry(SnapshotCollector(lambda: watched.state.snapshot, lambda: pages.at, 90.0))
    series, resident = [], []
    for number in range(10_000):
        engine = "0" if number % 2 else f"rank-{number % 997}"
        pages.text = page(minimal(engine, model_name=f"model-{number // 10}"))
        sampler.sample()
        if number % 500 == 499:
            series.append(render(registry, "")[0].count(b"\nstepscope_"))
            resident.append(resident_kib())
    assert watched.state.snapshot.scrapes[0] == 10_000
    assert len(watched.state.snapshot.engines) <= 90 / 10 + 2
    assert max(series[1:]) - min(series[1:]) <= 130
    assert resident[-1] - resident[3] < 4096


def test_an_engine_that_left_the_page_is_held_and_then_forgotten(watched: Watched) -> None:
    """Ninety seconds of the samples' clock."""
    pages = Pages(watched.scraper.client)
    sampler = Sampler(replace(watched.pipeline, scraper=pages), watched.state, LOG)  # type: ignore[arg-type]  # see Pages
    pages.text = page(minimal("0"), minimal("1"))
    sampler.sample()
    pages.text = page(minimal("0"))
    for _ in range(18):
        sampler.sample()
    assert [view.engine for view in watched.state.snapshot.engines] == ["0", "1"]
    sampler.sample()
    assert [view.engine for view in watched.state.snapshot.engines] == ["0"]


def test_a_whole_recorded_page_goes_through(watched: Watched) -> None:
    """Over a real socket, filtered on the second time, with the same result."""
    behave = by_path({"/metrics": filtering(whole_page()), "/metrics/": filtering(whole_page())})
    first, second = watched.sample(behave), watched.sample()
    assert first.engines[0].tokens_in_flight == second.engines[0].tokens_in_flight
    assert [names > 0 for _, names in watched.pages_asked()] == [False, True]
