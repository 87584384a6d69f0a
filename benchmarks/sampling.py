"""What one sample costs from the page in hand to the snapshot published, against parsing the same page whole."""

from __future__ import annotations

import logging
import time
from statistics import median

from measure import Spread, say
from pages import Tape, recorded, shared_tapes, simulated
from prometheus_client.parser import text_string_to_metric_families
from report import Check, Table, spread_ms
from subject import SETTINGS

from stepscope import settings as table
from stepscope.runtime.facts import FactsKeeper
from stepscope.runtime.sampler import Pipeline, Sampler
from stepscope.runtime.scrape import RawPage, Scraper
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.runtime.sidecar import first_snapshot, policy_of
from stepscope.runtime.state import State

_PARSES_PER_ROUND = 5  # by prometheus_client; one is 10 to 100 ms
_SETTLED_SAMPLES = 30  # before that the window of 30 s is not full, and a sample is cheaper than later


class _TapeScraper(Scraper):
    """Hands over the pages of a tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(ScrapeOptions(url=SETTINGS[table.ENGINE_URL], deadline_seconds=1.0))
        self._rows = iter(tape.rows)
        self.at_seconds = 0.0
        self.text = ""

    def advance(self) -> bool:
        """Take the next page in hand; False at the end of the tape."""
        row = next(self._rows, None)
        if row is None:
            return False
        self.at_seconds, self.text = row
        return True

    def fetch(self, names: frozenset[str] | None = None) -> RawPage:
        """The page in hand, whole."""
        del names
        return RawPage(self.text, self.at_seconds, 0.0, False, len(self.text))


def sample_seconds(tape: Tape) -> list[float]:
    """CPU seconds of each sample of a tape once the window is full."""
    scraper = _TapeScraper(tape)
    log = logging.getLogger("stepscope.bench")
    log.setLevel(logging.CRITICAL)
    state = State(first_snapshot())
    sampler = Sampler(
        Pipeline(
            scraper=scraper,
            facts=FactsKeeper(SETTINGS, scraper.client, {}),
            policy=policy_of(SETTINGS),
            hold_seconds=SETTINGS[table.SAMPLE_HOLD],
        ),
        state,
        log,
        # Seconds of the tape: each sample also enters the history, as it would once a second.
        unix_clock=lambda: 1.7e9 + scraper.at_seconds,
    )
    spent = []
    while scraper.advance():
        before = state.snapshot
        began = time.process_time()
        sampler.sample()
        spent.append(time.process_time() - began)
        if state.snapshot is before or len(state.snapshot.engines) != tape.engines:
            raise RuntimeError(f"{tape.name}: a sample was not published")
    return spent[_SETTLED_SAMPLES:]


def parse_seconds(text: str) -> float:
    """CPU seconds of prometheus_client's parser for one page."""
    began = time.process_time()
    for _ in text_string_to_metric_families(text):
        pass
    return time.process_time() - began


def measure(repeats: int) -> Table:
    """Both, alternating, so that other work on the machine hits both alike."""
    rows, checks = [], []
    for tape in (recorded(), *shared_tapes(), simulated(1), simulated(16)):
        say(f"sample cost: {tape.name}")
        ours: list[float] = []
        theirs: list[float] = []
        ratios: list[float] = []
        for _ in range(repeats):
            samples = sample_seconds(tape)
            parses = [parse_seconds(text) for _, text in tape.rows[-_PARSES_PER_ROUND:]]
            ratios.append(median(parses) / median(samples))
            ours += samples
            theirs += parses
        own, whole, ratio = Spread.of(ours), Spread.of(theirs), Spread.of(ratios)
        kilobytes, lines = tape.size[0] / 1e3, tape.size[1]
        rows.append(
            (
                tape.name,
                f"{kilobytes:.0f} kB, {lines} lines",
                spread_ms(own),
                spread_ms(whole),
                f"{ratio.median:.1f} ({ratio.low:.1f} - {ratio.high:.1f})",
            )
        )
        checks.append(Check(f"sample against whole parse, {tape.name}", ratio.median, 8.0, "times less", at_least=True))
        if tape.engines == 1:
            checks.append(Check(f"one sample, {tape.name}", own.median * 1e3, 1.5, "ms CPU"))
    return Table(
        "One sample: from the page in hand to the snapshot published",
        "CPU time (`time.process_time`) of `Sampler.sample` on whole pages with moving counters, one a second, with a "
        "full window of 30 s: scan, read, pairs, prediction, verdict, accounts, history. Against it "
        "`prometheus_client` parses the same page and does nothing with it. Milliseconds: median (10th - 90th "
        "percentile) over all samples; the ratio is taken round by round.",
        ("page", "size", "stepscope", "prometheus_client", "ratio"),
        tuple(rows),
        tuple(checks),
    )
