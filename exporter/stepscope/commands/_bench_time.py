"""The end of a bench's time, whatever the program waits for just then."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeOver(BaseException):
    """The time is over. As KeyboardInterrupt it is no Exception: what deals with failures must not take it for one."""


@contextmanager
def time_limit(until_seconds: float) -> Iterator[None]:
    """Raises TimeOver at `until_seconds` (time.monotonic) into what runs inside. Main thread only, never nested.

    Every wait of the main thread (a page, a name lookup, a lock, a thread's end) would need a deadline of its own
    otherwise, and the sum of many short ones is long.
    """
    left = until_seconds - time.monotonic()
    if left <= 0.0:
        raise TimeOver
    before = signal.signal(signal.SIGALRM, _ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, left)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _ring(_number: int, _frame: FrameType | None) -> None:
    raise TimeOver
