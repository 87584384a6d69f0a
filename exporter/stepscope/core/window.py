"""From raw counters to differences: pairs of samples, and the window of recent pairs.

A pair is two consecutive samples of one engine life; a window is the pairs of the last seconds. The first value after a
counter reset is a baseline, never a difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from stepscope.core.sample import EngineSample
from stepscope.core.step_model import StepTime

# A fall of any of these means that the engine began a new life. prompt_tokens_computed is not among them: before
# vLLM 0.18 it is a difference of two counters that may shrink after a preemption (vllm#25780).
_COUNTERS = (
    "engine_steps",
    "generation_tokens",
    "finished_prompt_tokens",
    "finished_generation_tokens",
    "preemptions",
    "drafts",
    "read_bytes",
)
_counters = attrgetter(*_COUNTERS)


PREFILL_SHARE_LIMIT = 1.0 / 3.0  # of the predicted ITL; beyond it a pair or window says little about decoding


@dataclass(frozen=True, slots=True)
class Pair:
    """What happened between two consecutive samples of one engine life. None: the engine cannot say."""

    first: EngineSample
    last: EngineSample
    start_seconds: float
    end_seconds: float
    observations: float  # N: inter-token gaps observed
    itl_sum_seconds: float  # S
    steps: float | None  # K
    sequences: float | None  # mean sequences per step
    prefill_tokens: float  # prompt tokens computed in the pair, as far as they can be placed in time
    prefill_accounted: bool  # False: somebody is in prefill and its tokens cannot be placed
    open_prompt_tokens: float  # prompt tokens scheduled and not yet booked, at the end
    positions_per_sequence: float = 1.0  # 1 + drafted tokens per draft
    predicted: StepTime | None = None
    comparable: bool = False  # its observations may be set against `predicted`
    gauges_moved: bool = True  # False: usage and running stand still although the requests must have grown
    holds_long_prompt: bool = False  # a prompt that fills a large part of the pair is open at one of its ends
    shared_tokens: float = 0.0  # cached prefixes that several requests may read, beyond the tokens in flight
    most: StepTime | None = None  # where prefixes are shared: with all of them read, `predicted` with none
    holds_waits: bool = False  # gaps of preempted requests, which hold their time in the queue
    prefill_seen: float = 1.0  # share of the prompt tokens that can have slowed decoding requests, see prefill.py

    @property
    def seconds(self) -> float:
        """Length."""
        return self.end_seconds - self.start_seconds

    @property
    def prompt_dominated(self) -> bool:
        """True if prompt chunks take so large a part of its steps that it says little about decoding."""
        step = self.predicted
        return step is not None and step.prefill_seconds > PREFILL_SHARE_LIMIT * step.itl_seconds

    @property
    def decoding_is_hidden(self) -> bool:
        """True if the pair is not to be judged: what prompt chunks took of it is large, or a guess."""
        return self.prompt_dominated or self.holds_long_prompt

    @property
    def prefill_tokens_per_step(self) -> float:
        """Computed prompt tokens per engine step; 0 where there were no steps."""
        return self.prefill_tokens / self.steps if self.steps else 0.0

    @property
    def prefill_seen_tokens_per_step(self) -> float:
        """The same as the gaps of decoding requests saw it: what a prediction of the mean gap needs."""
        return self.prefill_seen * self.prefill_tokens_per_step


def is_reset(first: EngineSample, last: EngineSample) -> bool:
    """True if a counter fell, so that `last` belongs to a new life of the engine."""
    for before, after in ((first.itl_seconds, last.itl_seconds), (first.ttft_seconds, last.ttft_seconds)):
        if before is not None and after is not None and (after.count < before.count or after.sum < before.sum):
            return True
    return any(
        before is not None and after is not None and after < before
        for before, after in zip(_counters(first), _counters(last), strict=True)
    )


def has_moved(first: EngineSample, last: EngineSample) -> bool:
    """True if any counter, the usage or the running gauge changed."""
    return (
        first.kv_usage != last.kv_usage
        or first.requests_running != last.requests_running
        or first.prefix_queries != last.prefix_queries
        or first.prompt_tokens_computed != last.prompt_tokens_computed
        or (first.itl_seconds and first.itl_seconds.count) != (last.itl_seconds and last.itl_seconds.count)
        or _counters(first) != _counters(last)
    )


def overlap(observations: float, itl_sum_seconds: float, steps: float | None, seconds: float) -> float | None:
    """Mean gap x steps over the time they took: 1 where steps follow each other and gaps are steps.

    Less where steps gave nobody a token or nobody ran; more proves gaps longer than steps. None without steps.
    """
    if not steps or observations <= 0.0 or seconds <= 0.0:
        return None
    return itl_sum_seconds / observations * steps / seconds


def still_blocks(first: EngineSample, last: EngineSample) -> float | None:
    """KV blocks that each running request filled while usage and running stood still; None if they moved."""
    if first.kv_usage != last.kv_usage or first.requests_running != last.requests_running or not last.block_size:
        return None
    if not last.requests_running:
        return None
    return increase(first.generation_tokens, last.generation_tokens) / (last.block_size * last.requests_running)


def increase(before: float | None, after: float | None) -> float:
    """Growth of a counter within one life, 0 where it is unknown; never negative."""
    return max(0.0, after - before) if before is not None and after is not None else 0.0


def observed(first: EngineSample, last: EngineSample) -> tuple[float, float]:
    """(N, S): inter-token gaps observed between two samples of one life, and their sum in seconds."""
    if first.itl_seconds is None or last.itl_seconds is None:
        return 0.0, 0.0
    return last.itl_seconds.count - first.itl_seconds.count, last.itl_seconds.sum - first.itl_seconds.sum


def batch(
    first: EngineSample, last: EngineSample, seconds: float, single_process: bool
) -> tuple[float | None, float | None]:
    """(steps K, sequences per step n) between two samples.

    n = N/K. With several API servers on one page K is summed over processes: n is then S/T, the mean number of decoding
    requests, held to the running gauge, and K = N/n.
    """
    observations, total = observed(first, last)
    if single_process and first.engine_steps is not None and last.engine_steps is not None:
        steps = last.engine_steps - first.engine_steps
        return steps, (observations / steps if steps > 0 else None)
    if observations <= 0 or seconds <= 0:
        return None, None
    running = max(first.requests_running or 0.0, last.requests_running or 0.0)
    sequences = total / seconds
    sequences = max(1.0, min(sequences, running) if running else sequences)
    return observations / sequences, sequences


@dataclass(frozen=True, slots=True)
class Window:
    """Sums over the pairs of the last seconds. Means are None without observations."""

    pairs: tuple[Pair, ...]
    seconds: float
    observations: float
    itl_sum_seconds: float
    predicted_observations: float  # of the comparable pairs
    predicted_sum_seconds: float
    compared_observations: float  # of the comparable pairs that prompt chunks do not dominate
    compared_sum_seconds: float
    sequences: float | None
    prefill_tokens_per_step: float | None
    prefill_seen_tokens_per_step: float  # as the gaps of decoding requests saw it
    prefill_accounted: bool
    prefill_dominated_sum_seconds: float  # part of the ITL sum from pairs that are mostly prompt chunks
    preemptions: float
    tokens_per_step: float | None  # emitted per sequence and step; None without drafts
    ttft_mean_seconds: float | None
    predicted: StepTime | None  # observation-weighted mean over the comparable pairs
    compared: StepTime | None  # the same over those that prompt chunks do not dominate
    compared_most: StepTime | None = None  # the same at most, where prefixes are shared

    @property
    def itl_mean_seconds(self) -> float | None:
        """S/N: exact, request-weighted."""
        return self.itl_sum_seconds / self.observations if self.observations > 0 else None


def gather(pairs: tuple[Pair, ...]) -> Window:
    """Sum up the pairs of a window (possibly none)."""
    observations = total = compared = compared_sum = explained = explained_sum = seconds = 0.0
    sequence_steps = steps = prefill = preemptions = drafts = accepted = ttft_sum = ttft_count = 0.0
    dominated = seen = 0.0
    accounted = True
    weights: list[tuple[float, StepTime]] = []
    decoding: list[tuple[float, StepTime]] = []
    at_most: list[tuple[float, StepTime]] = []
    is_shared = False
    for pair in pairs:
        seconds += pair.end_seconds - pair.start_seconds
        observations += pair.observations
        total += pair.itl_sum_seconds
        first, last = pair.first, pair.last
        prefill += pair.prefill_tokens
        seen += pair.prefill_seen * pair.prefill_tokens
        if pair.steps:
            steps += pair.steps
            sequence_steps += (pair.sequences or 0.0) * pair.steps
        accounted = accounted and pair.prefill_accounted
        is_dominated = pair.prompt_dominated
        if is_dominated:
            dominated += pair.itl_sum_seconds
        if first.preemptions != last.preemptions:
            preemptions += increase(first.preemptions, last.preemptions)
        if first.drafts != last.drafts:
            drafts += increase(first.drafts, last.drafts)
            accepted += increase(first.accepted_tokens, last.accepted_tokens)
        if first.ttft_seconds and last.ttft_seconds:
            ttft_sum += last.ttft_seconds.sum - first.ttft_seconds.sum
            ttft_count += last.ttft_seconds.count - first.ttft_seconds.count
        if pair.comparable and pair.predicted is not None and pair.observations > 0:
            weights.append((pair.observations, pair.predicted))
            explained += pair.observations
            explained_sum += pair.itl_sum_seconds
            if not pair.decoding_is_hidden:
                decoding.append((pair.observations, pair.predicted))
                at_most.append((pair.observations, pair.most or pair.predicted))
                is_shared = is_shared or pair.most is not None
                compared += pair.observations
                compared_sum += pair.itl_sum_seconds
    return Window(
        pairs=pairs,
        seconds=seconds,
        observations=observations,
        itl_sum_seconds=total,
        predicted_observations=explained,
        predicted_sum_seconds=explained_sum,
        compared_observations=compared,
        compared_sum_seconds=compared_sum,
        sequences=sequence_steps / steps if steps > 0 and observations > 0 else None,
        prefill_tokens_per_step=prefill / steps if steps > 0 else None,
        prefill_seen_tokens_per_step=seen / steps if steps > 0 else 0.0,
        prefill_accounted=accounted,
        prefill_dominated_sum_seconds=dominated,
        preemptions=preemptions,
        tokens_per_step=1.0 + accepted / drafts if drafts > 0 else None,
        ttft_mean_seconds=ttft_sum / ttft_count if ttft_count > 0 else None,
        predicted=_weighted(weights, explained),
        compared=_weighted(decoding, compared),
        compared_most=_weighted(at_most, compared) if is_shared else None,
    )


def _weighted(weights: Iterable[tuple[float, StepTime]], total: float) -> StepTime | None:
    if total <= 0:
        return None
    parts = [0.0] * 7
    for weight, step in weights:
        parts[0] += weight * step.overhead_seconds
        parts[1] += weight * step.weights_seconds
        parts[2] += weight * step.kv_cache_seconds
        parts[3] += weight * step.sequences_seconds
        parts[4] += weight * step.prefill_seconds
        parts[5] += weight * step.decode_low_seconds
        parts[6] += weight * step.decode_high_seconds
    return StepTime(*(part / total for part in parts))


def median_bucket(pairs: tuple[Pair, ...]) -> tuple[float, float, float] | None:
    """(lower bound, upper bound, interpolated median) of the bucket that holds the window's median gap, in seconds.

    The bounds are sound; the interpolation is a guess inside the bucket (the same that histogram_quantile makes). An
    upper bound of +inf has no interpolation: the lower bound stands in, as in PromQL.
    """
    counts: dict[float, float] = {}
    start = 0
    for at, pair in enumerate(pairs):
        is_last_of_run = at + 1 == len(pairs) or pairs[at + 1].first is not pair.last
        if not is_last_of_run:
            continue
        first, last = pairs[start].first.itl_seconds, pair.last.itl_seconds
        start = at + 1
        if first is None or last is None:
            continue
        before = dict(first.buckets)
        for bound, value in last.buckets:
            counts[bound] = counts.get(bound, 0.0) + value - before.get(bound, 0.0)
    cumulative = sorted(counts.items())
    if not cumulative or cumulative[-1][1] <= 0:
        return None
    half, lower, below = cumulative[-1][1] / 2.0, 0.0, 0.0
    for bound, count in cumulative:
        if count >= half:
            if bound == float("inf"):
                return lower, bound, lower
            share = (half - below) / (count - below) if count > below else 1.0
            return lower, bound, lower + (bound - lower) * share
        lower, below = bound, count
    return None
