"""Takes one sample: fetch, read, observe, publish. Whatever the engine does, it ends with a snapshot."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from stepscope import engines
from stepscope.core.observer import Memory, Policy, observe
from stepscope.core.sample import Reading
from stepscope.core.snapshot import EngineView
from stepscope.errors import NotMetricsError, ScrapeError
from stepscope.metrics import OUTCOMES
from stepscope.runtime.baseline_file import Identity
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.learning import Learning
from stepscope.runtime.scrape import RawPage, Scraper
from stepscope.runtime.state import State

_OUTCOME_INDEX = {name: at for at, name in enumerate(OUTCOMES)}
# A page with more engines than this is not one pod's; the rest is left out and said so.
MAX_ENGINES = 128


@dataclass(slots=True)
class Pipeline:
    """What a reload replaces as a whole: where to scrape, what is assumed, how to judge."""

    scraper: Scraper
    facts: FactsKeeper
    policy: Policy
    hold_seconds: float
    filter_on_server: bool = True


class Sampler:
    """Owns the memory of the engines. `sample` is called by one thread at a time (the scheduler sees to it)."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: State,
        log: logging.Logger,
        *,
        learning: Learning | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.pipeline = pipeline
        self._state = state
        self._log = log
        self._learning = learning or Learning(log)
        self._clock = clock
        self._unix_clock = unix_clock
        self._memories: dict[str, Memory] = {}
        self._views: dict[str, EngineView] = {}
        self._names: frozenset[str] | None = None  # spelled as on the last whole page; None: ask for the whole page
        self._last_outcome: str | None = None
        self._said: set[str] = set()

    def sample(self) -> None:
        """One sample, published. Never raises: a fault of ours is logged and the last snapshot stands."""
        try:
            self._sample()
        except Exception:
            self._log.exception("a sample failed inside stepscope; the last good values stand")

    def _sample(self) -> None:
        pipeline = self.pipeline
        started = self._clock()
        try:
            page = pipeline.scraper.fetch(self._names if pipeline.filter_on_server else None)
            reading = _read(page)
        except ScrapeError as error:
            self._names = None
            self._publish_failure(error, self._clock() - started)
            return
        self._names = reading.names if _is_complete(reading) else None
        self._publish_success(pipeline, page, reading)

    def _publish_failure(self, error: ScrapeError, seconds: float) -> None:
        before = self._state.snapshot
        if error.outcome != self._last_outcome:
            self._log.warning("scrape failed (%s): %s", error.outcome, error)
        self._last_outcome = error.outcome
        self._state.publish(
            replace(
                before,
                engine_up=False,
                scrapes=_counted(before.scrapes, error.outcome),
                scrape_duration_seconds=seconds,
                last_error=str(error),
            ),
            self._unix_clock(),
        )

    def _publish_success(self, pipeline: Pipeline, page: RawPage, reading: Reading) -> None:
        unix_seconds = self._unix_clock()
        if self._last_outcome != "ok":
            self._log.info("engine page read: %d engine(s), %d bytes", len(reading.engines), page.content_bytes)
        self._last_outcome = "ok"
        if len(reading.engines) > MAX_ENGINES:
            self._say_once(f"the page has {len(reading.engines)} engines; only the first {MAX_ENGINES} are watched")
            reading = replace(reading, engines=reading.engines[:MAX_ENGINES])
        for note in reading.notes:
            self._say_once(note)
        own_facts = pipeline.facts.for_reading(reading)
        facts, assumed = self._learning.facts(own_facts, pipeline.facts.assumed, _identity(pipeline.facts, reading))
        for line in pipeline.facts.to_say():
            self._say_once(line)
        restarts = sum(view.accounts.restarts for view in self._views.values())
        self._memories, views = observe(self._memories, reading, facts, pipeline.policy)
        for view in views:
            self._views[view.engine] = view
        self._learning.after(self._memories, reading.at_seconds, own_facts, pipeline.policy.warm_up_seconds)
        self._forget(reading.at_seconds - pipeline.hold_seconds)
        if sum(view.accounts.restarts for view in self._views.values()) > restarts:
            self._log.info("the engine began a new life (counters fell, or another process or model answers)")
            pipeline.facts.engine_restarted()
            self._names = None  # another version may spell them otherwise
        # Read last: a reload may have published its config_ok while the engine was being asked.
        before = self._state.snapshot
        self._state.publish(
            replace(
                before,
                engine_up=True,
                engine_ever_up=True,
                scrapes=_counted(before.scrapes, "ok"),
                scrape_duration_seconds=page.duration_seconds,
                last_sample_unix_seconds=unix_seconds,
                last_error=None,
                engines=tuple(self._views[engine] for engine in sorted(self._views)),
                assumed=assumed,
                engine_version=pipeline.facts.engine_version,
                notes=reading.notes,
            ),
            unix_seconds,
        )

    def _forget(self, before_seconds: float) -> None:
        """Drop engines that good pages have not shown for a while, so that renamed ones do not pile up."""
        for engine in [e for e, view in self._views.items() if view.at_seconds < before_seconds]:
            del self._views[engine]
            self._memories.pop(engine, None)

    def _say_once(self, line: str) -> None:
        if line not in self._said and len(self._said) < 1000:
            self._said.add(line)
            self._log.info("%s", line)


def _read(page: RawPage) -> Reading:
    """The reading of a page. Raises ScrapeError: not_metrics, no_engine_metrics."""
    try:
        reading = engines.read(page.text, page.at_seconds)
    except NotMetricsError as error:
        raise ScrapeError("not_metrics", str(error)) from None
    if reading is None:
        raise ScrapeError("no_engine_metrics", engines.why_none(page.text))
    return reading


def _is_complete(reading: Reading) -> bool:
    """False while series that will be needed are not there yet: asked for by name, they would never be seen.

    An engine may export a histogram only from its first observation on.
    """
    return all(e.itl_seconds is not None and e.kv_usage is not None for e in reading.engines)


def _identity(facts: FactsKeeper, reading: Reading) -> Identity:
    """What runs on what, as far as it is known."""
    first, hardware = reading.engines[0], dict(facts.assumed.hardware_labels)
    count = hardware.get("count")
    return Identity(
        model_name=first.model_name,
        engine_version=facts.engine_version,
        kv_cache_dtype=first.kv_cache_dtype,
        gpu=hardware.get("gpu"),
        gpu_count=int(count) if count else None,
    )


def _counted(scrapes: tuple[int, ...], outcome: str) -> tuple[int, ...]:
    at = _OUTCOME_INDEX[outcome]
    return (*scrapes[:at], scrapes[at] + 1, *scrapes[at + 1 :])
