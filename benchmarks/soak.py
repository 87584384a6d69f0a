"""The parts of `stepscope serve` in a process of their own, on a fast clock: each sample counts as one second.

    python benchmarks/soak.py ENGINE_URL SAMPLES

Everything is real: APScheduler, HTTP to the engine, the web server. Only time is not: at a real second each, 10,000
samples take three hours. Prints its port, then `SAMPLES MIB` after every 100 samples.
"""

from __future__ import annotations

import os
import sys
import threading

from measure import resident_mib
from subject import SETTINGS

# Not used here: what `stepscope serve` loads is part of what is measured.
import stepscope.cli
import stepscope.commands.serve  # noqa: F401
from stepscope import settings as table
from stepscope.runtime.collector import SnapshotCollector, make_registry
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.log import make_logger
from stepscope.runtime.pages import make_routes
from stepscope.runtime.sampler import Pipeline, Sampler
from stepscope.runtime.schedule import Schedule
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.runtime.sidecar import first_snapshot, policy_of
from stepscope.runtime.state import State
from stepscope.runtime.web import WebServer
from stepscope.runtime.webconfig import WebConfig

_INTERVAL_SECONDS = 0.004  # between samples in real time: about as long as one takes here
_REPORT_SAMPLES = 100
_EPOCH_SECONDS = 1.7e9


class _FastClock:
    """Seconds that pass by the sample."""

    def __init__(self) -> None:
        self.now_seconds = 0.0

    def monotonic(self) -> float:
        return self.now_seconds

    def unix(self) -> float:
        return _EPOCH_SECONDS + self.now_seconds


def main(url: str, samples: int) -> None:
    """Sample and report, then serve until ended."""
    clock = _FastClock()
    log = make_logger("error", "text")
    state = State(first_snapshot())
    scraper = Scraper(ScrapeOptions(url=url, deadline_seconds=SETTINGS[table.ENGINE_TIMEOUT]), clock=clock.monotonic)
    facts = FactsKeeper(SETTINGS, scraper.client, os.environ, clock=clock.monotonic)
    hold_seconds = SETTINGS[table.SAMPLE_HOLD]
    sampler = Sampler(
        Pipeline(scraper, facts, policy_of(SETTINGS), hold_seconds),
        state,
        log,
        clock=clock.monotonic,
        unix_clock=clock.unix,
    )
    registry = make_registry(SnapshotCollector(lambda: state.snapshot, clock.monotonic, hold_seconds))
    routes = make_routes(
        state, registry, SETTINGS.as_dict, lambda: None, lambda: None, unix_clock=clock.unix, clock=clock.monotonic
    )
    web = WebServer("127.0.0.1:0", routes, WebConfig(), log=log)
    done = threading.Event()

    def sample() -> None:
        if done.is_set():
            return
        clock.now_seconds += 1.0
        sampler.sample()
        taken = int(clock.now_seconds)
        if taken % _REPORT_SAMPLES == 0:
            _print(f"{taken} {resident_mib(os.getpid()):.3f}")
        if taken >= samples:
            done.set()

    web.start()
    _print(str(web.port))
    schedule = Schedule(sample, _INTERVAL_SECONDS)
    schedule.start()
    done.wait()
    if state.snapshot.scrapes[0] != samples:
        _print(f"only {state.snapshot.scrapes[0]} of {samples} samples were good: {state.snapshot.last_error}")
    threading.Event().wait()  # serves until it is ended, so that the last values can be read


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
