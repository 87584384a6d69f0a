"""What the running engine says about itself, for a plan: capacity, limits, and how its step compares with the law."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from stepscope import engines
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.estimate import Facts
from stepscope.core.observer import Policy, observe
from stepscope.core.plan_reality import Reality
from stepscope.core.sample import Reading
from stepscope.core.snapshot import EngineView
from stepscope.errors import ConfigError, NotMetricsError, ScrapeError
from stepscope.runtime.engine_api import fetch_models
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.sidecar import scraper_of


@dataclass(frozen=True, slots=True)
class Seen:
    """The first engine of the page, the facts found for it, and what is missing."""

    reality: Reality
    facts: Facts
    missing: tuple[str, ...]


def look(settings: Settings) -> Seen:
    """Two samples an interval apart. Raises ConfigError where the engine cannot be read."""
    scraper = scraper_of(settings)
    keeper = FactsKeeper(settings, scraper.client, os.environ)
    interval = settings[table.SAMPLE_INTERVAL]
    policy = Policy(interval_seconds=interval, window_seconds=2.0 * interval, warm_up_seconds=0.0)
    began = time.monotonic()
    try:
        reading = _read(scraper, settings)
        memories, _ = observe({}, reading, keeper.for_reading(reading), policy)
        time.sleep(max(0.0, began + interval - time.monotonic()))
        reading = _read(scraper, settings)
        facts = keeper.for_reading(reading)
        _, views = observe(memories, reading, facts, policy)
        models = fetch_models(scraper.client)
    except (ScrapeError, NotMetricsError) as error:
        raise ConfigError(f"--engine.url: {settings[table.ENGINE_URL]}: {error}") from None
    finally:
        scraper.close()
    bases = [model for model in models.value or [] if model.parent is None]
    lengths = [model.max_model_len for model in bases if model.max_model_len]
    served = tuple(dict.fromkeys(name for model in bases[:1] for name in (model.id, model.root) if name))
    reality = replace(_reality(reading, views[0], max(lengths, default=None)), served=served)
    return Seen(reality, facts, keeper.assumed.missing)


def _read(scraper: Scraper, settings: Settings) -> Reading:
    page = scraper.fetch(None)
    reading = engines.read(page.text, page.at_seconds)
    if reading is None:
        raise ConfigError(f"--engine.url: {settings[table.ENGINE_URL]}: the page has no engine series")
    return reading


def _reality(reading: Reading, view: EngineView, max_model_len: int | None) -> Reality:
    sample = reading.engines[0]
    measured, predicted = view.measured_step_seconds, view.predicted
    return Reality(
        capacity_tokens=view.capacity_tokens,
        capacity_source=view.capacity_source,
        block_size=sample.attention_block_size or sample.block_size,
        kv_dtype=sample.kv_cache_dtype,
        max_model_len=max_model_len,
        requests_running=sample.requests_running,
        requests_waiting=sample.requests_waiting,
        step_ratio=measured / predicted.decode_seconds if measured and predicted else None,
        observations=view.observations,
        preemptions=sample.preemptions,
    )
