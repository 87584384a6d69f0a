"""Workers that keep a load on an engine: each sends its next request when the last one has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.load_trace import Trace
from stepscope.runtime.load_client import LoadClient, Stream

_JOIN_SECONDS = 5.0  # for a thread to notice that its connection was shut; it takes milliseconds
_THREAD_BYTES = 256 * 1024  # of stack: a thousand workers then fit in a quarter of a gigabyte of address space
# After a failure a worker pauses, so that an engine that refuses at once is not asked a thousand times a second.
_PAUSE_AFTER_FAILURE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What one worker sends: `requests` of the same size, one after another. first_output_tokens: of the first one."""

    prompt_tokens: int
    output_tokens: int
    requests: int = 1
    first_output_tokens: int | None = None
    label: str = ""


class Crew:
    """One thread per worker, all started by `start`; `stop` hangs up on everything and waits for them.

    keep: a worker that has done its share goes on while others have not, so that the load stays whole.
    """

    def __init__(self, client: LoadClient, works: Sequence[Work], *, keep: bool = False) -> None:
        self._client = client
        self._keep = keep
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._stopping = threading.Event()
        self._finished = threading.Event()  # every worker has done its share
        self._shares = len(works)
        self.size = len(works)
        self._threads = [
            threading.Thread(target=self._work, args=(work,), name=f"load-{number}", daemon=True)
            for number, work in enumerate(works)
        ]

    def start(self) -> None:
        """Send the first requests, all at once."""
        before = threading.stack_size(_THREAD_BYTES)
        try:
            for thread in self._threads:
                thread.start()
        finally:
            threading.stack_size(before)

    def wait(self, seconds: float) -> bool:
        """Until every worker has done its share; False if that takes longer."""
        return self._finished.wait(seconds)

    def stop(self) -> None:
        """Hang up on what runs, send nothing more, and wait until no thread is left."""
        self._stopping.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.abort()
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    @property
    def streams(self) -> list[Stream]:
        """All requests so far, in the order they were sent."""
        with self._lock:
            return list(self._streams)

    @property
    def decoding(self) -> int:
        """Requests that have a first token and have not ended."""
        return sum(stream.decoding for stream in self.streams)

    @property
    def started(self) -> int:
        """Requests that ever had a first token."""
        return sum(bool(stream.arrivals) for stream in self.streams)

    @property
    def failed(self) -> list[Stream]:
        """Requests that ended otherwise than well or by our own hand."""
        return [stream for stream in self.streams if stream.outcome not in ("", "ok", "aborted")]

    def traces(self) -> list[Trace]:
        """What the client knows by now of every request that was sent."""
        now = self._client.clock()
        return [stream.trace(now) for stream in self.streams if stream.sent_seconds]

    def _work(self, work: Work) -> None:
        done = 0
        while not self._stopping.is_set():
            first = done == 0 and work.first_output_tokens is not None
            output = work.first_output_tokens if first and work.first_output_tokens else work.output_tokens
            stream = self._client.stream(work.prompt_tokens, output, work.label)
            with self._lock:
                if self._stopping.is_set():
                    return
                self._streams.append(stream)
            stream.run()
            done += 1
            if done == work.requests:
                self._share_done()
            if done >= work.requests and (not self._keep or self._finished.is_set()):
                return
            if stream.outcome != "ok":
                self._stopping.wait(_PAUSE_AFTER_FAILURE_SECONDS)

    def _share_done(self) -> None:
        with self._lock:
            self._shares -= 1
            if self._shares == 0:
                self._finished.set()
