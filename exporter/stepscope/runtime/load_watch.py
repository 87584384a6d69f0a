"""Reads an engine's page while load is on it, and says whether the engine is idle before and after."""

from __future__ import annotations

import re
import threading
import time
from typing import Literal

from stepscope import engines
from stepscope.core.engine_span import moved, requests
from stepscope.core.sample import Reading
from stepscope.errors import NotMetricsError, ScrapeError
from stepscope.runtime.scrape import Scraper

State = Literal["idle", "busy", "left over", "unknown"]

# Requests at work or waiting, of engines whose pages stepscope does not read otherwise: SGLang's and TGI's own
# documentation of their metrics.
_FOREIGN = re.compile(
    r"^(?:sglang:num_running_reqs|sglang:num_queue_reqs|tgi_batch_current_size|tgi_queue_size)(?:\{.*\})? ([\d.e+]+)$",
    re.MULTILINE,
)
_LOOK_SECONDS = 1.0  # between two looks at a page that says busy
# vLLM's gauges stand as they were when the last requests are cancelled all together; a step of a long prompt may last
# seconds too, but the KV usage grows with each.
_STILL_LOOKS = 5


class Watch:
    """Readings of one engine's page, in a thread of their own between `start` and `stop`.

    An engine without a page that can be read gives none; `reason` then says why.
    """

    def __init__(self, scraper: Scraper, interval_seconds: float = 1.0) -> None:
        self._scraper = scraper
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()  # one reading at a time, in order
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._names: frozenset[str] | None = None
        self.readings: list[Reading] = []
        self.reason: str | None = None
        self.foreign_requests: float | None = None

    @property
    def latest(self) -> Reading | None:
        """The last good reading."""
        return self.readings[-1] if self.readings else None

    def read(self) -> Reading | None:
        """One reading now, kept with the others; None where the page cannot be read."""
        with self._lock:
            try:
                page = self._scraper.fetch(self._names)
                reading = engines.read(page.text, page.at_seconds)
            except (ScrapeError, NotMetricsError) as error:
                self.reason = str(error)
                return None
            if reading is None:
                found = [float(value) for value in _FOREIGN.findall(page.text)]
                self.foreign_requests = sum(found) if found else None
                self.reason = "the page has no series that stepscope reads"
                return None
            self._names = reading.names if not page.filtered else self._names
            self.reason = None
            self.readings.append(reading)
            return reading

    def start(self) -> None:
        """Read in the background; where the first reading failed, nothing is tried again."""
        if self.read() is None:
            return
        self._stopping.clear()
        self._thread = threading.Thread(target=self._loop, name="load-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the readings stay."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10.0)  # above any scrape's deadline
            self._thread = None

    def state(self) -> tuple[State, float]:
        """(state, requests at work). busy after one look; left over: the gauges say busy and nothing moves."""
        first = self.read()
        if first is None:
            count = self.foreign_requests
            return ("unknown" if count is None else "busy" if count else "idle"), count or 0.0
        if not requests(first):
            # Gauges are set at the end of a step: a first request may just have come.
            time.sleep(0.2)
            second = self.read()
            busy = second is not None and (requests(second) > 0 or moved(first, second))
            return ("busy" if busy else "idle"), requests(second) if second else 0.0
        for _ in range(_STILL_LOOKS):
            time.sleep(_LOOK_SECONDS)
            second = self.read()
            if second is None or moved(first, second):
                return ("busy" if second is None or requests(second) else "idle"), requests(second or first)
        return "left over", requests(first)

    def _loop(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            self.read()
