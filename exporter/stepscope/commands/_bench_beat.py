"""A thread that does nothing but wake up, and notes how late it came: so late the others stamp their tokens too."""

from __future__ import annotations

import threading
import time

_GAP_SECONDS = 0.01  # a hundred wake-ups a second: 0.2 % of a core, and a hundred figures in the shortest useful row


class Beat:
    """Runs from `start` to `stop`. A thread is late when the machine's cores or Python's interpreter lock are taken."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-beat", daemon=True)
        self._late_seconds = 0.0
        self._beats = 0

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def stop(self) -> None:
        """The thread has ended, or never runs."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    @property
    def mean_late_seconds(self) -> float | None:
        """Between the time it wanted to run and the time it ran; None before the first time."""
        return self._late_seconds / self._beats if self._beats else None

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = time.monotonic() + _GAP_SECONDS
            time.sleep(_GAP_SECONDS)
            self._late_seconds += max(0.0, time.monotonic() - due)
            self._beats += 1
