"""Failures that others reported around sidecars beside vLLM and that no test of a single module shows.

Each begins with a page on a real socket and ends with what stepscope publishes or says. The other kinds are tested
where their module is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.hostile_server import Behaviour, HostileServer, answer, by_path, filtering
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.observer import Policy
from stepscope.core.snapshot import EngineView, Snapshot
from stepscope.runtime.collector import SnapshotCollector, make_registry, render
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.sampler import Pipeline, Sampler
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.runtime.sentences import verdict
from stepscope.runtime.state import State
from vllm_pages import cache_config, histogram, line, page, sources

# A round law: 10 ms for weights, 1 ms for each 1,000 tokens in flight, 0.1 ms for each prompt token.
SETTINGS = Settings.of(
    (table.MODEL_WEIGHT_BYTES, 10e9),
    (table.MODEL_KV_BYTES_PER_TOKEN, 1e6),
    (table.CALIBRATION_EFFECTIVE_BANDWIDTH, 1e12),
    (table.CALIBRATION_PREFILL_COST, 1e-4),
    (table.OBJECTIVE_TOKENS_PER_SECOND, 25.0),
)
CAPACITY = 100_000


class Story:
    """A sidecar without its threads: a clock that the test moves, a server whose page it writes."""

    def __init__(self, server: HostileServer) -> None:
        self.now, self.at = 1000.0, 0.0
        self._server = server
        self.scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=10.0), clock=lambda: self.now)
        self.state = State(Snapshot("1.0", "rev", "3.11"))
        facts = FactsKeeper(SETTINGS, self.scraper.client, {})
        policy = Policy(5.0, 30.0, 5.0, objective_tokens_per_second=25.0)
        pipeline = Pipeline(self.scraper, facts, policy, hold_seconds=90.0)
        self.sampler = Sampler(pipeline, self.state, logging.getLogger("stepscope.test"), clock=lambda: self.now)

    def sees(self, text: str | Behaviour, seconds: float = 5.0) -> Snapshot:
        """`seconds` later the engine's page is `text`."""
        self.now += seconds
        whole = by_path({"/metrics": filtering(text), "/metrics/": filtering(text)}) if isinstance(text, str) else text
        self._server.behave = whole
        self.sampler.sample()
        return self.state.snapshot

    def view(self, text: str) -> EngineView:
        return self.sees(text).engines[0]

    def published(self) -> str:
        """Our own page."""
        collector = SnapshotCollector(lambda: self.state.snapshot, lambda: self.now, 90.0)
        return render(make_registry(collector), "")[0].decode()


@pytest.fixture
def story() -> Iterator[Story]:
    with HostileServer() as server:
        made = Story(server)
        yield made
        made.scraper.close()


def engine(at: float, **changes: Any) -> str:
    """Eight requests with 20,000 tokens between them, 30 ms a step, `at` seconds after the engine's start."""
    now: dict[str, Any] = {"running": 8, "waiting": 0, "tokens": 20_000 + at, "itl": 0.030, "prompts": 1000, **changes}
    steps = round(at / now["itl"])
    gaps = 8 * steps
    return page(
        line("vllm:num_requests_running", now["running"]),
        line("vllm:num_requests_waiting", now["waiting"]),
        line("vllm:kv_cache_usage_perc", now["tokens"] / CAPACITY),
        *histogram("vllm:inter_token_latency_seconds", ((0.025, 0), (0.05, gaps)), gaps * now["itl"]),
        line("vllm:iteration_tokens_total_count", steps),
        line("vllm:generation_tokens_total", gaps),
        line("vllm:prefix_cache_queries_total", now.get("queries", now["prompts"])),
        line("vllm:prefix_cache_hits_total", 0),
        line("vllm:external_prefix_cache_hits_total", now.get("external", 0)),
        sources({"local_compute": now["prompts"], "external_kv_transfer": now.get("external", 0)}),
        line("vllm:request_prompt_tokens_sum", 1000),
        line("vllm:request_generation_tokens_sum", 1000),
        cache_config(block_size="16", num_gpu_blocks="6250", kv_cache_size_tokens=str(CAPACITY)),
    )


def test_prompts_that_come_from_another_engine_are_not_prefill(story: Story) -> None:
    """Prefill and decode on separate engines: 20,000 tokens arrive by KV transfer, nobody computes them here."""
    for at in (0, 5, 10, 15):
        view = story.view(engine(at))
    assert (view.state, view.cause) == ("measuring", "none")
    arrived: dict[str, Any] = {"queries": 21_000, "external": 20_000}
    story.view(engine(20, tokens=40_000, itl=0.030, **arrived))
    for at in (25, 30):
        view = story.view(engine(at, tokens=21_000 + at, **arrived))
        assert (view.state, view.prefill_tokens_per_step) == ("measuring", 0.0)
    assert view.cause == "none"


def test_a_leak_that_lets_requests_wait_is_not_told_as_rest(story: Story) -> None:
    """No block in use, nobody runs, and three requests wait for capacity."""
    for at in (5, 5, 5):
        view = story.view(engine(at, running=0, waiting=3, tokens=0))
    assert view.state == "idle"
    assert verdict(view).headline == "Nobody is served"
    assert 'stepscope_requests{engine="0",model_name="m",phase="waiting"} 3.0' in story.published()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('sglang:num_running_reqs{model_name="m"} 1.0\n', "the page is of SGLang, stepscope reads vLLM"),
        ("tgi_request_count 1.0\n", "the page is of TGI, stepscope reads vLLM"),
        ("python_info 1.0\n", "the page has no engine series (is vLLM started with --disable-log-stats?)"),
        ('x{a="sglang:y 1"} 1.0\n', "the page has no engine series (is vLLM started with --disable-log-stats?)"),
    ],
)
def test_a_page_of_another_engine_is_named(story: Story, text: str, says: str) -> None:
    """Nobody looks for a flag of vLLM on a server that is none."""
    snapshot = story.sees(answer(text))
    assert snapshot.last_error == says
    assert 'stepscope_engine_scrapes_total{outcome="no_engine_metrics"} 1.0' in story.published()


def test_a_series_that_appears_late_is_found(story: Story) -> None:
    """Histograms that begin with the first request: an engine that was idle when we came is measured all the same."""
    idle = "".join(text for text in engine(0, running=0).splitlines(keepends=True) if "inter_token" not in text)
    for _ in range(3):
        assert story.view(idle).state == "idle"
    for at in (5, 10, 15, 20):
        view = story.view(engine(at))
    assert view.itl_mean_seconds == pytest.approx(0.030)
    assert view.state == "measuring"
