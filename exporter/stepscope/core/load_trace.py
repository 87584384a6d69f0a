"""What a client saw of its own requests: the window in which the load stood still, and the means over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from stepscope.core.prefill import seen_share
from stepscope.core.score import quantile


@dataclass(frozen=True, slots=True)
class Trace:
    """One request. Times on one clock in seconds. arrivals: (when, tokens so far) of each event that brought tokens.

    outcome: ok, or a word for what went wrong (runtime/load_client.py has the list). label: whose request it was.
    """

    sent_seconds: float
    prompt_tokens: float
    arrivals: tuple[tuple[float, float], ...]
    ended_seconds: float
    outcome: str = "ok"
    label: str = ""

    @property
    def output_tokens(self) -> float:
        """Tokens that came."""
        return self.arrivals[-1][1] if self.arrivals else 0.0

    @property
    def ttft_seconds(self) -> float | None:
        """From sending to the first token; None without one."""
        return self.arrivals[0][0] - self.sent_seconds if self.arrivals else None

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per token after the first event; None where there was no second one."""
        if len(self.arrivals) < 2:
            return None
        (begun, first), (ended, last) = self.arrivals[0], self.arrivals[-1]
        return (ended - begun) / (last - first)

    @property
    def gaps_seconds(self) -> tuple[float, ...]:
        """Between tokens; tokens that came in one event share the time since the last one."""
        return tuple(
            (after - before) / (now - had)
            for (before, had), (after, now) in pairwise(self.arrivals)
            for _ in range(round(now - had))
        )


@dataclass(frozen=True, slots=True)
class ClientSpan:
    """Means over a window while at least one request decoded. Tokens in flight: context of those that decode."""

    seconds: float  # in which somebody decoded
    observations: float  # gaps between tokens
    itl_seconds: float
    sequences: float
    tokens_in_flight: float
    prompt_tokens: float  # of the prompts that ended in the window
    prompts: int
    at_once_most: float = float("inf")  # requests under way at the same time

    @property
    def steps(self) -> float:
        """Decode steps, as far as a client can tell: the time over the mean gap."""
        return self.seconds / self.itl_seconds

    @property
    def prefill_tokens_per_step(self) -> float:
        """Prompt tokens per step, as the gaps of decoding requests saw them."""
        return seen_share(self.sequences, self.at_once_most) * self.prompt_tokens / self.steps


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one figure over many requests or gaps, in its own unit."""

    mean: float
    p50: float
    p90: float
    p99: float


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """None without values."""
    if not values:
        return None
    p50, p90, p99 = (quantile(values, share) for share in (0.5, 0.9, 0.99))
    return Percentiles(sum(values) / len(values), p50, p90, p99)


def steady_window(traces: Sequence[Trace], concurrency: int) -> tuple[float, float] | None:
    """(start, end) in which the whole load stood; None where it never did.

    It begins when `concurrency` requests have had a first token and ends when the first request ends (or fails) that
    nobody follows. Prompts still computed at its start belong to requests that follow others.
    """
    firsts = sorted(trace.arrivals[0][0] for trace in traces if trace.arrivals)
    if len(firsts) < concurrency:
        return None
    start, last_sent = firsts[concurrency - 1], max(trace.sent_seconds for trace in traces)
    end = min((trace.ended_seconds for trace in traces if trace.ended_seconds > last_sent), default=start)
    return (start, end) if end > start else None


def client_span(traces: Sequence[Trace], start: float, end: float) -> ClientSpan | None:
    """The client's means over (start, end]; None where it saw no gap there."""
    observations = total = decoding = context = prompt_tokens = 0.0
    prompts = 0
    intervals = []
    for trace in traces:
        if trace.arrivals and start < trace.arrivals[0][0] <= end:
            prompt_tokens += trace.prompt_tokens
            prompts += 1
        for (before, had), (after, now) in pairwise(trace.arrivals):
            if start < after <= end:
                observations += now - had
                total += after - before
            begin, stop = max(before, start), min(after, end)
            if stop > begin:
                decoding += stop - begin
                context += (stop - begin) * (trace.prompt_tokens + had)
                intervals.append((begin, stop))
    busy = sum(stop - begin for begin, stop in _union(intervals))
    if observations <= 0.0 or total <= 0.0 or busy <= 0.0:
        return None
    return ClientSpan(
        seconds=busy,
        observations=observations,
        itl_seconds=total / observations,
        sequences=decoding / busy,
        tokens_in_flight=context / busy,
        prompt_tokens=prompt_tokens,
        prompts=prompts,
        at_once_most=_most_at_once([(max(t.sent_seconds, start), min(t.ended_seconds, end)) for t in traces]),
    )


def _union(intervals: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    begin, stop = 0.0, 0.0
    for next_begin, next_stop in sorted(intervals):
        if next_begin > stop:
            if stop > begin:
                yield begin, stop
            begin, stop = next_begin, next_stop
        else:
            stop = max(stop, next_stop)
    if stop > begin:
        yield begin, stop


def _most_at_once(intervals: Sequence[tuple[float, float]]) -> float:
    """The largest number of intervals that hold one moment; one that begins where another ends does not meet it."""
    changes = sorted(
        (at, change) for begin, stop in intervals if stop > begin for at, change in ((begin, 1), (stop, -1))
    )
    return float(max(accumulate(change for _, change in changes), default=0))
