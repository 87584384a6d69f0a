"""What an engine's own counters say of a stretch of load: the same figures that the sidecar would compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepscope.core.estimate import Facts, kv_state
from stepscope.core.prefill import seen_share
from stepscope.core.sample import EngineSample, Reading
from stepscope.core.window import batch, has_moved, increase, is_reset, observed


@dataclass(frozen=True, slots=True)
class EngineSpan:
    """Means over all engines of a page, each weighted with its gaps between tokens; sums over all of them.

    sequences, tokens_in_flight: per engine. kv_bytes_per_token: only for hybrid models (pool bytes over capacity).
    None: the engine cannot say.
    """

    seconds: float
    observations: float
    itl_seconds: float
    sequences: float | None
    tokens_in_flight: float | None
    kv_bytes_per_token: float | None
    prefill_tokens_per_step: float | None  # as the gaps of decoding requests saw it, see prefill.seen_share
    tokens_per_step: float  # emitted per sequence and step; 1 unless speculative
    generation_tokens: float
    prompt_tokens: float  # computed, cache hits not counted
    cached_tokens: float
    preemptions: float
    running_most: float  # requests on all engines that moved, the highest reading
    waiting_most: float


def engine_span(readings: Sequence[Reading], facts: Facts, start: float, end: float) -> EngineSpan | None:
    """From the readings sent within [start, end]; None for fewer than two, without gaps, or over a restart."""
    inside = [reading for reading in readings if start <= reading.at_seconds <= end]
    if len(inside) < 2:
        return None
    sums = dict.fromkeys(
        ("n", "s", "steps", "prompt", "seen", "hits", "tokens", "preempted", "drafts", "accepted"), 0.0
    )
    sequences, in_flight, per_token = _Mean(), _Mean(), _Mean()
    most: dict[str, float] = {}
    for sample in (sample for reading in inside for sample in reading.engines):
        most[sample.engine] = max(most.get(sample.engine, 0.0), sample.requests_running or 0.0)
    for before, after in pairwise(inside):
        known = {sample.engine: sample for sample in before.engines}
        for sample in after.engines:
            first = known.get(sample.engine)
            if first is None or is_reset(first, sample):
                return None
            count, total = observed(first, sample)
            steps, n = batch(first, sample, after.at_seconds - before.at_seconds, after.single_process)
            sums["n"] += count
            sums["s"] += total
            sums["steps"] += steps or 0.0
            computed = increase(first.prompt_tokens_computed, sample.prompt_tokens_computed)
            sums["prompt"] += computed
            sums["seen"] += computed * seen_share(n or 0.0, most[sample.engine])
            sums["hits"] += increase(first.prefix_hits, sample.prefix_hits)
            sums["tokens"] += increase(first.generation_tokens, sample.generation_tokens)
            sums["preempted"] += increase(first.preemptions, sample.preemptions)
            sums["drafts"] += increase(first.drafts, sample.drafts)
            sums["accepted"] += increase(first.accepted_tokens, sample.accepted_tokens)
            sequences.add(n, count)
            ends = [kv_state(side, facts) for side in (first, sample)]
            in_flight.add(_middle([kv.tokens_in_flight for kv in ends]), count)
            per_token.add(ends[1].bytes_per_token, count)
    if sums["n"] <= 0.0:
        return None
    at_work = [active(before, after) for before, after in pairwise(inside)]
    return EngineSpan(
        seconds=inside[-1].at_seconds - inside[0].at_seconds,
        observations=sums["n"],
        itl_seconds=sums["s"] / sums["n"],
        sequences=sequences.value,
        tokens_in_flight=in_flight.value,
        kv_bytes_per_token=per_token.value,
        prefill_tokens_per_step=sums["seen"] / sums["steps"] if sums["steps"] > 0.0 else None,
        tokens_per_step=1.0 + sums["accepted"] / sums["drafts"] if sums["drafts"] > 0.0 else 1.0,
        generation_tokens=sums["tokens"],
        prompt_tokens=sums["prompt"],
        cached_tokens=sums["hits"],
        preemptions=sums["preempted"],
        running_most=max(running for running, _ in at_work),
        waiting_most=max(waiting for _, waiting in at_work),
    )


def requests(reading: Reading) -> float:
    """Requests that run or wait, on all engines of the page."""
    return _all(reading, "requests_running") + _all(reading, "requests_waiting")


def active(before: Reading, after: Reading) -> tuple[float, float]:
    """(running, waiting) requests at the second reading, on the engines that did anything since the first.

    An engine whose requests were all cancelled keeps its gauges until its next step: they would be counted as somebody.
    """
    known = {sample.engine: sample for sample in before.engines}
    moving = [
        sample for sample in after.engines if sample.engine not in known or has_moved(known[sample.engine], sample)
    ]
    return (
        sum(sample.requests_running or 0.0 for sample in moving),
        sum(sample.requests_waiting or 0.0 for sample in moving),
    )


class _Mean:
    """A weighted mean; what is unknown or weighs nothing does not enter."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float | None, weight: float) -> None:
        if value is not None and weight > 0.0:
            self._sum += weight * value
            self._weight += weight

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight > 0.0 else None


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _all(reading: Reading, field: str) -> float:
    return sum((getattr(sample, field) or 0.0) for sample in reading.engines)


def moved(before: Reading, after: Reading) -> bool:
    """Whether any engine did anything between two readings."""
    known: dict[str, EngineSample] = {sample.engine: sample for sample in before.engines}
    return any(sample.engine not in known or has_moved(known[sample.engine], sample) for sample in after.engines)
