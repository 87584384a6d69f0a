"""Prefixes that running requests share: the usage gauge counts their blocks once, and each request reads them.

How many tokens a step really reads is then unknown (some attention kernels read a common prefix once, most do not), and
a prediction from the gauge alone would call a healthy engine far too slow. It is known only to lie between two bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepscope.core.compare import DRIFT_LIMIT
from stepscope.core.sample import EngineSample
from stepscope.core.step_model import StepTime
from stepscope.core.window import Pair, Window

_ENOUGH_REQUESTS = 5.0  # finished in the window; fewer say little about those that still run
_HALF = 0.5  # of a request: so far the mean of a pair and a gauge may differ
# A handful of requests scatter by more than what is looked for; what alerts look at, five minutes, evens that out.
_MEMORY_SECONDS = 300.0
# Of the drift that sharing alone would make: half of the limit, the other half is the law's own error. Once noticed, it
# is taken for gone at a quarter: a gauge on the brink would let just those samples through that lie beyond.
_FELT, _GONE = 0.5 * DRIFT_LIMIT, 0.25 * DRIFT_LIMIT


@dataclass(frozen=True, slots=True)
class Books:
    """What the counters say of the requests that run: how many got a first token and did not finish, and their tokens.

    Requests that were cancelled never finish and stay in here, and recomputed prompts may be counted twice.
    """

    requests: float = 0.0
    tokens: float = 0.0
    preemptions: float = 0.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """What is known of shared prefixes after a sample. Tokens that requests read beyond those in flight.

    excess_tokens: what requests hold beyond what the gauge shows; below 0 where they hold less. None: not known yet.
    most_tokens: more nobody shares.
    """

    excess_tokens: float | None = None
    most_tokens: float = 0.0
    seconds: float = 0.0  # of samples in which finished requests had to stand for those that run
    is_felt: bool = False  # it would make too much of a drift
    closed: Books = Books()  # left in the books when nobody ran
    is_closed: bool = True  # the books hold nothing else of requests that run no more

    @property
    def tokens(self) -> float:
        """Best guess: the excess, as far as it came from the cache; while it is not known, all of that."""
        if self.excess_tokens is None:
            return self.most_tokens
        return max(0.0, min(self.excess_tokens, self.most_tokens))

    def judged(self, predicted: StepTime, tokens_in_flight: float | None) -> Sharing:
        """With `is_felt` set from what reading the shared tokens for each request would take."""
        if not tokens_in_flight:
            return self
        share = predicted.kv_cache_seconds * self.tokens / tokens_in_flight / predicted.itl_seconds
        return replace(self, is_felt=share > (_GONE if self.is_felt else _FELT))


def advance(
    known: Sharing,
    first: EngineSample,
    last: EngineSample,
    tokens_in_flight: float | None,
    sequences: float | None,
    seconds: float,
) -> Sharing:
    """After another `seconds`. `first`..`last`: one engine life, about a window apart.

    Exact where every request in the books runs: what was computed, cached and generated less what finished is what they
    hold. Cancelled requests and preemptions spoil the books until nobody runs; then those that finished stand for them.
    """
    if not last.prefix_hits:
        return Sharing(closed=known.closed, is_closed=known.is_closed)
    books, running = _books(last), last.requests_running or 0.0
    if books is None:
        known, open_requests = replace(known, is_closed=False), 0.0
    elif running == 0.0 and not last.requests_waiting:
        return Sharing(closed=books)
    else:
        open_requests = books.requests - known.closed.requests
        spoilt = open_requests > running + _HALF or books.preemptions > known.closed.preemptions
        known = replace(known, is_closed=known.is_closed and not spoilt)
    if tokens_in_flight is None or sequences is None:
        return known
    if books is not None and known.is_closed:
        if abs(open_requests - running) > _HALF:  # somebody's prompt is being computed: as it was before
            return known
        excess = books.tokens - known.closed.tokens - tokens_in_flight
        most = max(0.0, excess + running * (last.block_size or 0.0))  # the gauge counts partly filled blocks in full
        return replace(known, excess_tokens=excess, most_tokens=most if running > 1.0 else 0.0, seconds=0.0)
    return _estimated(known, first, last, tokens_in_flight, sequences, seconds)


def _estimated(
    known: Sharing, first: EngineSample, last: EngineSample, tokens_in_flight: float, sequences: float, seconds: float
) -> Sharing:
    """Little's law: a request that came with i prompt tokens and left after o more held i + o/2 on average.

    So `sequences` of those that finished hold that many times i + o/2. It errs on the low side: long requests run for
    longer and finish more rarely. More than its cache hits nobody shares.
    """
    before, after = _totals(first), _totals(last)
    if before is None or after is None:
        return known
    if after[0] - before[0] < _ENOUGH_REQUESTS:  # long answers: what is known since the engine's start must do
        before = (0.0,) * len(after)
    finished, begun, prompts, outputs, hits = (b - a for a, b in zip(before, after, strict=True))
    if begun <= 0.0:
        return known
    most = sequences * hits / begun if sequences > 1.0 else 0.0
    if finished <= 0.0:
        return replace(known, most_tokens=most)
    excess = sequences * (prompts + 0.5 * outputs) / finished - tokens_in_flight
    total = min(known.seconds + seconds, _MEMORY_SECONDS)
    past = excess if known.excess_tokens is None or known.seconds == 0.0 else known.excess_tokens
    mean = past + (excess - past) * min(1.0, seconds / total)
    return replace(known, excess_tokens=mean, most_tokens=most, seconds=total)


def decided(now: Window) -> Window:
    """The window with what to compare: where prefixes are shared, only what no sharing could explain is compared.

    Slower than with every shared token read by each request, or faster than with none, and each by more than drift
    allows. What lies between could be either, and nothing of the window is compared.
    """
    least, most = now.compared, now.compared_most
    if most is None or least is None:
        return now
    mean = now.compared_sum_seconds / now.compared_observations
    if mean > (1.0 + DRIFT_LIMIT) * most.itl_seconds:
        return replace(now, compared=most)
    if mean < (1.0 - DRIFT_LIMIT) * least.itl_seconds:
        return now
    return replace(
        now,
        predicted_observations=0.0,
        predicted_sum_seconds=0.0,
        compared_observations=0.0,
        compared_sum_seconds=0.0,
        predicted=None,
        compared=None,
    )


def nearest(pair: Pair, predicted: StepTime) -> StepTime:
    """What to hold against a pair of a compared window: its own prediction, or the most where that is nearer."""
    if pair.most is None or pair.observations <= 0.0:
        return predicted
    middle = 0.5 * (predicted.itl_seconds + pair.most.itl_seconds)
    return pair.most if pair.itl_sum_seconds > middle * pair.observations else predicted


def _books(sample: EngineSample) -> Books | None:
    if sample.ttft_seconds is None:
        return None
    figures = (
        sample.finished_requests,
        sample.prompt_tokens_computed,
        sample.prefix_hits,
        sample.generation_tokens,
        sample.finished_prompt_tokens,
        sample.finished_generation_tokens,
    )
    known = tuple(figure for figure in figures if figure is not None)
    if len(known) != len(figures):
        return None
    finished, computed, hits, generated, prompts, outputs = known
    tokens = computed + hits + generated - prompts - outputs
    return Books(sample.ttft_seconds.count - finished, tokens, sample.preemptions or 0.0)


def _totals(sample: EngineSample) -> tuple[float, ...] | None:
    """Requests finished and begun, tokens of prompts and answers that finished, cache hits."""
    totals = (
        sample.finished_requests,
        sample.ttft_seconds.count if sample.ttft_seconds is not None else None,
        sample.finished_prompt_tokens,
        sample.finished_generation_tokens,
        sample.prefix_hits,
    )
    known = tuple(total for total in totals if total is not None)
    return known if len(known) == len(totals) else None
