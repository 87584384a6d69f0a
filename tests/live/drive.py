"""Plays the load of the live tests on a real engine, with the sidecar beside it, and keeps what both sides saw."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ground_truth import Stream
from live.client import Client, Request, all_answer
from live.engine import Engine
from live.sidecar import Sample, Sidecar

INTERVAL_SECONDS = 1.0
# Ten seconds, and half an interval: which pairs of samples belong to a window is never a matter of a millisecond.
WINDOW_SECONDS = 10.5
WARM_UP_SECONDS = 5.0
FLAGS = (
    f"--sample.interval={INTERVAL_SECONDS:g}s",
    f"--sample.window={WINDOW_SECONDS:g}s",
    f"--sample.warm-up={WARM_UP_SECONDS:g}s",
)

_FIRST_TOKENS_SECONDS = 120.0  # eight steps of 512 prompt tokens take 10 s on a quiet pair of cores
_STEADY_SECONDS = 15.0  # a whole window in which nobody came or went, and a few samples more
_NEVER = 8000  # new tokens: more than any phase lets anybody have

IDLE, SHORT, FOUR, CHATS, JOINER, CANCELLED = (
    "idle",
    "1 short stream",
    "4 x 1,500 tokens",
    "8 chats",
    "+ one of 6,000",
    "cancel all, idle",
)
PHASES = (IDLE, SHORT, FOUR, CHATS, JOINER, CANCELLED)


@dataclass
class Record:
    """What happened, on the monotonic clock."""

    marks: list[tuple[float, str]] = field(default_factory=list)  # (start, phase)
    streams: list[Stream] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    joiner: Stream | None = None
    exit_status: int | None = None
    log: str = ""

    def phase_of(self, at: float) -> str | None:
        """The phase at a moment; None before the first."""
        return next((name for start, name in reversed(self.marks) if start <= at), None)

    def start_of(self, phase: str) -> float:
        """When a phase began."""
        return next(start for start, name in self.marks if name == phase)

    def samples_in(self, phase: str, *, after_seconds: float = 0.0) -> list[Sample]:
        """The samples of a phase, without those of its first seconds."""
        start = self.start_of(phase) + after_seconds
        return [s for s in self.samples if self.phase_of(s.earliest) == phase and s.earliest >= start]


def drive(engine: Engine, hardware_flags: list[str]) -> Record:
    """About two minutes of load. Whatever happens, nothing is left running."""
    record = Record()
    client = Client(engine.url)
    sidecar = Sidecar(engine.url, *FLAGS, *hardware_flags)
    try:
        _play(client, record)
    finally:
        client.cancel_all()
        record.exit_status = sidecar.stop()
        record.samples, record.log = sidecar.samples, sidecar.log()
        record.streams, record.errors = client.streams, client.errors
    return record


def _play(client: Client, record: Record) -> None:
    def enter(name: str) -> None:
        record.marks.append((time.monotonic(), name))

    enter(IDLE)
    time.sleep(5.0)

    enter(SHORT)
    until = time.monotonic() + WINDOW_SECONDS
    while time.monotonic() < until and not client.errors:
        client.start(64, 200).wait(60.0)

    enter(FOUR)
    together = [client.start(1500, 400) for _ in range(4)]
    for request in together:
        request.wait(_FIRST_TOKENS_SECONDS)

    enter(CHATS)
    chats = _chats(client)
    time.sleep(_STEADY_SECONDS)

    enter(JOINER)
    joiner = client.start(6000, _NEVER)
    record.joiner = joiner.stream
    all_answer([joiner], _FIRST_TOKENS_SECONDS)
    time.sleep(_STEADY_SECONDS)

    enter(CANCELLED)
    for request in [*chats, joiner]:
        request.cancel()
    time.sleep(12.0)


def _chats(client: Client) -> list[Request]:
    chats = []
    for _ in range(8):
        chats.append(client.start(256, _NEVER))
        time.sleep(0.1)
    all_answer(chats, _FIRST_TOKENS_SECONDS)
    return chats
