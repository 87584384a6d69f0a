"""The client's own truth for each sample of the sidecar, over exactly the window that the sidecar looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ground_truth import Stream, steps_between
from live.drive import WINDOW_SECONDS, Record
from live.engine import Pool
from live.sidecar import Sample

MIN_OBSERVATIONS = 50
# The engine books a token before its client has read it: a local socket and a thread that waits for its turn on a busy
# processor. Ordinary scheduling slices are 3 to 4 ms; this is a dozen of them.
_DELIVERY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Span:
    """A truth that is known up to the moment at which the page was made: lowest, best guess, highest."""

    low: float
    best: float
    high: float

    def times(self, factor: float) -> Span:
        """The same in another unit."""
        return Span(factor * self.low, factor * self.best, factor * self.high)

    def deviation(self, ours: float) -> float:
        """How far outside the span, as a share of its nearer end; 0 inside."""
        if ours < self.low:
            return ours / self.low - 1.0 if self.low else -1.0
        if ours > self.high:
            return ours / self.high - 1.0 if self.high else float("inf")
        return 0.0


@dataclass(frozen=True, slots=True)
class Truth:
    """One sample set against what the clients saw. None: nothing to compare (too few gaps, or a prompt in prefill)."""

    sample: Sample
    itl_mean_seconds: Span | None = None
    steps: Span | None = None
    first_tokens: int = 0  # in the window
    batch: Span | None = None
    tokens: Span | None = None
    held_tokens: Span | None = None  # the same in whole blocks

    @property
    def view(self) -> dict[str, Any]:
        """What the sidecar said."""
        return self.sample.view

    @property
    def our_steps(self) -> float:
        """Steps in the sidecar's window: its observations over its batch."""
        return float(self.view["observations"] / self.view["decode_batch_size"])


def truths(record: Record, pool: Pool) -> list[Truth]:
    """Every sample with what can be compared, in order."""
    known = [stream for stream in record.streams if stream.arrivals]
    before: list[Sample] = []
    found = []
    for sample in record.samples:
        window = _window(before, sample)
        before.append(sample)
        truth = Truth(sample)
        decoding = _decoding(record.streams, sample)
        if decoding:
            tokens, held = _tokens(decoding, sample), _held(decoding, sample, pool.block_tokens)
            truth = replace(truth, tokens=tokens, held_tokens=held)
        view = sample.view
        if window is not None and view["itl_mean_seconds"] is not None and view["observations"] >= MIN_OBSERVATIONS:
            truth = _over_window(known, window, truth)
        found.append(truth)
    return found


def _window(before: Sequence[Sample], last: Sample) -> Sample | None:
    """The sample at which the window of `last` begins; None where one of its samples was not caught."""
    inside = [s for s in before if last.at - s.at <= WINDOW_SECONDS]
    run = [*inside, last]
    if not inside or any(b.number - a.number != 1 for a, b in pairwise(run)):
        return None
    # The first sample of all begins a short window; any other must have a predecessor that lies outside.
    return inside[0] if inside[0].number == 1 or len(before) > len(inside) else None


def _moments(sample: Sample) -> tuple[float, float, float]:
    return sample.earliest, sample.at, sample.latest + _DELIVERY_SECONDS


def _over_window(known: list[Stream], first: Sample, truth: Truth) -> Truth:
    means: list[float] = []
    steps: list[float] = []
    batches: list[float] = []
    for start in _moments(first):
        for end in _moments(truth.sample):
            gaps = gaps_between(known, start, end)
            taken = steps_between(known, start, end)
            if not gaps or not taken:
                return truth
            means.append(sum(gaps) / len(gaps))
            steps.append(taken)
            batches.append(len(gaps) / taken)
    firsts = sum(1 for s in known if first.earliest < s.arrivals[0] <= truth.sample.latest + _DELIVERY_SECONDS)
    return replace(truth, itl_mean_seconds=_span(means), steps=_span(steps), first_tokens=firsts, batch=_span(batches))


def gaps_between(known: Sequence[Stream], start: float, end: float) -> list[float]:
    """Seconds between two tokens of one request, for every second token that came in (start, end]."""
    return [b - a for stream in known for a, b in pairwise(stream.arrivals) if start < b <= end]


def _decoding(streams: Sequence[Stream], sample: Sample) -> list[Stream]:
    """The requests that decode; none while a prompt is computed: its client cannot know how far it is.

    Also none around a hang-up or an end: whether the engine has noticed is not for the client to know.
    """
    earliest, latest = sample.earliest - _DELIVERY_SECONDS, sample.latest + _DELIVERY_SECONDS
    running = []
    for stream in streams:
        if stream.started > latest or stream.ended < earliest:
            continue
        if not stream.arrivals or stream.arrivals[0] > earliest or stream.arrivals[-1] <= latest:
            return []
        running.append(stream)
    return running


def _tokens(decoding: Sequence[Stream], sample: Sample) -> Span:
    return Span(*(float(sum(s.tokens_at(moment) for s in decoding)) for moment in _moments(sample)))


def _held(decoding: Sequence[Stream], sample: Sample, block_tokens: int) -> Span:
    """Tokens of the blocks they hold.

    The newest token's KV comes with the next step, so one token less may be held; a scheduler that plans the next step
    while one runs holds up to two more.
    """
    ahead = (-1, 0, 2)
    blocks = [
        sum(-(-(s.tokens_at(moment) + more) // block_tokens) for s in decoding)
        for moment, more in zip(_moments(sample), ahead, strict=True)
    ]
    return Span(*(float(count * block_tokens) for count in blocks))


def _span(values: list[float]) -> Span:
    """The middle value is the one of the best guesses for both ends."""
    return Span(min(values), values[len(values) // 2], max(values))
