"""Learns the step law of an engine from its own pages, once, and then keeps it. Pure: learner in, learner out.

When the bins of load fix the plain prices of the law and little is left over, the law becomes the baseline and is
frozen: what comes later is judged by it and never learned, or a fault would become normal. Only its range grows, and
only to loads at which it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.core.estimate import Facts, kv_state
from stepscope.core.fit import MOST_SPREAD
from stepscope.core.law_terms import KV, OVERHEAD, PREFILL, TERMS, WEIGHTS, Point, law_of
from stepscope.core.learned_fit import BinFit, fit_bins
from stepscope.core.load_bins import Bin, Episode, Key, binned, extended, is_over, may_enter, shares_prefixes
from stepscope.core.memory import Memory
from stepscope.core.score import quantile
from stepscope.core.step_model import Load, LoadRange, StepLaw, WeightBytes, predict

LEARN_SECONDS = 600.0  # in episodes before the first fit, so that 15 minutes of varied load are enough
PROMPT_SECONDS = 1200.0  # in episodes that prompts have to tell their price; then the law holds for few of them
PROMPT_LIMIT = 0.1  # of the ITL that the error of that price may make, one standard error: below the drift limit
LEAST_BINS = 8  # twice the number of prices
BIN_EPISODES = 8.0  # of many the mean is no better: what is left is the law's own error at that load
LEAST_SPREAD = 2.0  # largest over smallest batch and tokens of the bins; with less no fit can tell prices apart
RETRY_SECONDS = 60.0  # between two fits
RETRY_GROWTH = 1.1  # and so much more time must have been gathered: a fit costs as much CPU as a dozen samples
MEDIAN_LIMIT, P90_LIMIT = 0.05, 0.15  # of loads left out: well below the drift limit, and at most that for nine in ten
OCTAVE_WEIGHT = 2.0  # of loads within a doubling of batch or tokens, before half of them off by P90_LIMIT is no chance
EDGE_EPISODES = 4  # in a row, beyond the range and in agreement, before the range grows to them; and so many learned
EDGE_RATIO = 0.1  # agreement; below the drift limit, so that no fault hides at the edge
_SHARING = "requests share prefixes, and how often a step reads those is not known: such load teaches nothing"


@dataclass(frozen=True, slots=True)
class Baseline:
    """An accepted law. in_tokens: tokens in flight stand for bytes, because no model was known."""

    law: StepLaw
    in_tokens: bool
    load: Load  # the middle of what it was learned on
    suspect: bool = False  # slower than the slowest that data-sheet parameters allow: perhaps slow from birth


@dataclass(frozen=True, slots=True)
class Edge:
    """Episodes in a row beyond the range of the baseline that agree with it."""

    episodes: int = 0
    reach: LoadRange = LoadRange()


@dataclass(frozen=True, slots=True)
class Learner:
    """What one process learned of its engines; those of one page run the same model on the same hardware."""

    bins: Mapping[Key, Bin] = field(default_factory=dict)
    open: Mapping[str, Episode] = field(default_factory=dict)  # by engine
    seconds: float = 0.0  # gathered in episodes
    reach: LoadRange = LoadRange()  # largest loads of any episode
    tried_at_seconds: float = -math.inf
    tried_seconds: float = 0.0  # gathered at the last fit
    lacks: str = ""  # what the last fit could not say
    baseline: Baseline | None = None
    edge: Edge = Edge()


def learned(
    learner: Learner, memories: Mapping[str, Memory], at_seconds: float, facts: Facts, warm_up_seconds: float
) -> Learner:
    """The learner after one reading of all engines. `facts`: without a learned law.

    Before there is a baseline: gathers, and fits at most once a minute, when there is enough new load. After: only
    watches the edge of the baseline's range.
    """
    for engine, memory in memories.items():
        if memory.at_seconds == at_seconds:
            learner = _after_sample(learner, engine, memory, facts, warm_up_seconds)
    if learner.baseline is not None or not _is_worth_a_fit(learner, at_seconds):
        return learner
    bins = tuple(learner.bins.values())
    known, last_call = _bytes_per_token(memories, facts), learner.seconds >= PROMPT_SECONDS
    baseline, lacks = fitted(bins, learner.reach, facts, known, last_call=last_call)
    if lacks:
        return replace(learner, tried_at_seconds=at_seconds, tried_seconds=learner.seconds, lacks=lacks)
    return Learner(baseline=baseline)


def with_baseline(facts: Facts, baseline: Baseline | None) -> Facts:
    """The facts with the learned law in place of data-sheet parameters or none; an operator's calibration stands."""
    if baseline is None or (facts.law is not None and facts.law.source == "file"):
        return facts
    if baseline.in_tokens:
        # A law in tokens must not meet bytes: neither the model's weights nor those of the pool.
        return replace(facts, law=baseline.law, model=None, law_in_tokens=True)
    if facts.model is None and baseline.law.kv_bytes_per_token is None:
        return facts  # learned on a hybrid model's bytes, and nobody says how many there are now
    return replace(facts, law=baseline.law)


def fitted(
    bins: Sequence[Bin], reach: LoadRange, facts: Facts, kv_bytes_per_token: float | None, *, last_call: bool = False
) -> tuple[Baseline, str]:
    """The law that the bins give, and why it cannot be a baseline; an empty reason: it can.

    kv_bytes_per_token: None without a model; then tokens stand for bytes and the overhead holds the weights. last_call:
    it was waited long enough for prompts that tell their price; the law then holds for as few of them as it may.
    Raises ValueError without bins.
    """
    in_tokens = kv_bytes_per_token is None
    weights = WeightBytes(0.0) if in_tokens or facts.model is None else facts.model.weights
    points = [
        Point(
            b.sequences,
            b.tokens_in_flight,
            b.prefill_tokens_per_step,
            b.itl_seconds,
            weight_bytes=None if in_tokens else weights.read_bytes(b.sequences),
            kv_bytes_per_token=kv_bytes_per_token,
            weight=b.episodes * (1.0 + BIN_EPISODES) / (b.episodes + BIN_EPISODES),
        )
        for b in bins
    ]
    grows = weights.experts > 0
    found = fit_bins(points, weights_grow=grows)
    reach = replace(reach, min_sequences=_smallest_batch(bins))
    if last_call and found.prefill_error_ratio > PROMPT_LIMIT:
        reach = _with_few_prompts(reach, found, points)
    prices = found.prices if grows or in_tokens else _split(found.prices, weights, facts.law)
    hybrid = not in_tokens and facts.model is not None and facts.model.hybrid
    errors = found.left_out_errors or (0.0,)
    law = law_of(
        prices,
        weights,
        1.0 if in_tokens else None if hybrid else kv_bytes_per_token,
        source="learned",
        valid_range=reach,
        residual_ratio=quantile([abs(error) for error in found.errors or (0.0,)], 0.5),
        samples=len(found.errors),
        # predicted / measured = 1 + error, so the measured step is the predicted one over that.
        low_factor=1.0 / (1.0 + max(0.0, quantile(errors, 0.95))),
        high_factor=1.0 / max(1.0 + min(0.0, quantile(errors, 0.05)), 1.0 / MOST_SPREAD),
    )
    if found.prefill_error_seconds_per_token is None:
        law = replace(law, prefill_cost_seconds_per_token=None)
    middle = sorted(points, key=lambda point: point.tokens_in_flight)[len(points) // 2]
    load = Load(middle.sequences, middle.tokens_in_flight, kv_bytes=middle.kv_bytes)
    baseline = Baseline(law, in_tokens, load, not in_tokens and _is_slow_from_birth(law, load, facts.law))
    return baseline, _lacks(found, last_call)


def _lacks(found: BinFit, last_call: bool) -> str:
    """Why a fit cannot be a baseline; empty if it can."""
    unknown = found.unknown
    if found.prefill_error_ratio > PROMPT_LIMIT and not last_call:
        unknown = (*unknown, TERMS[PREFILL])
    if unknown:
        return f"the load so far does not tell apart: {', '.join(unknown)}"
    if len(found.errors) < LEAST_BINS:
        return "the load so far is mostly prompts"
    errors = [(abs(error), point.weight) for error, point in zip(found.left_out_errors, found.judged, strict=True)]
    median, p90 = _weighted_quantile(errors, 0.5), _weighted_quantile(errors, 0.9)
    if median > MEDIAN_LIMIT or p90 > P90_LIMIT:
        return f"the law fits badly so far: off by {median:.0%}, one in ten by {p90:.0%}"
    for what, sizes in (
        ("sequences", [point.sequences for point in found.judged]),
        ("tokens in flight", [point.tokens_in_flight for point in found.judged]),
    ):
        octaves: dict[int, list[tuple[float, float]]] = {}
        for size, error in zip(sizes, errors, strict=True):
            octaves.setdefault(int(math.log2(max(size, 1.0))), []).append(error)
        for octave, own in octaves.items():
            if sum(weight for _, weight in own) >= OCTAVE_WEIGHT and _weighted_quantile(own, 0.5) > P90_LIMIT:
                return f"the law fits badly so far at {2**octave} to {2 ** (octave + 1)} {what}"
    return ""


def _weighted_quantile(errors: Sequence[tuple[float, float]], share: float) -> float:
    """The size that (size, weight) of `share` of all weight stay within."""
    left = share * sum(weight for _, weight in errors)
    for size, weight in sorted(errors):
        left -= weight
        if left <= 0.0:
            return size
    return 0.0


def _with_few_prompts(reach: LoadRange, found: BinFit, points: Sequence[Point]) -> LoadRange:
    """The range with as many prompt tokens per step as their price is known well enough for, in the middle load."""
    middle = quantile([point.itl_seconds for point in points], 0.5)
    most = PROMPT_LIMIT * middle / (found.prefill_error_seconds_per_token or 1.0)
    return replace(reach, max_prefill_tokens_per_step=min(reach.max_prefill_tokens_per_step or 0.0, most))


def _smallest_batch(bins: Sequence[Bin]) -> float:
    """The batch from which on there are enough episodes to have told what a small one costs."""
    episodes = 0.0
    for one in sorted(bins, key=lambda one: one.sequences):
        episodes += one.episodes
        if episodes >= EDGE_EPISODES:
            return one.sequences
    return max(one.sequences for one in bins)


def _is_slow_from_birth(law: StepLaw, load: Load, datasheet: StepLaw | None) -> bool:
    """True beyond the bounds of data-sheet parameters, and of the slowest engine measured where there is one."""
    if datasheet is None or datasheet.source != "datasheet":
        return False
    ours, theirs = predict(law, load), predict(datasheet, load)
    if ours is None or theirs is None or ours.decode_seconds <= theirs.decode_high_seconds:
        return False
    return datasheet.slowest is None or not datasheet.slowest.may_explain(load, theirs, ours.itl_seconds)


def _after_sample(learner: Learner, engine: str, memory: Memory, facts: Facts, warm_up_seconds: float) -> Learner:
    """The learner after one engine's last pair."""
    pair = memory.pairs[-1] if memory.pairs else None
    before = learner.open.get(engine)
    if pair is None or pair.end_seconds != memory.at_seconds or not may_enter(pair, memory, warm_up_seconds):
        episode = None  # what broke the row may have tainted what it cut off
    else:
        episode = extended(before, pair, kv_state(pair.last, replace(facts, law_in_tokens=True)))
    others = {name: value for name, value in learner.open.items() if name != engine}
    if learner.baseline is None and not learner.lacks and shares_prefixes(memory):
        learner = replace(learner, lacks=_SHARING)
    if episode is None or pair is None:
        return learner if before is None else replace(learner, open=others)
    if not is_over(episode, pair):
        return replace(learner, open={**others, engine: episode})
    learner = replace(learner, open=others)
    if learner.baseline is not None:
        return _at_the_edge(learner, learner.baseline, episode.load)
    return replace(
        learner,
        bins=binned(learner.bins, episode.load),
        seconds=learner.seconds + episode.seconds,
        reach=_reaching(learner.reach, episode.load),
    )


def _is_worth_a_fit(learner: Learner, at_seconds: float) -> bool:
    if learner.seconds < max(LEARN_SECONDS, RETRY_GROWTH * learner.tried_seconds):
        return False
    if len(learner.bins) < LEAST_BINS or at_seconds - learner.tried_at_seconds < RETRY_SECONDS:
        return False
    sequences = [b.sequences for b in learner.bins.values()]
    tokens = [b.tokens_in_flight for b in learner.bins.values()]
    return max(sequences) >= LEAST_SPREAD * min(sequences) and max(tokens) >= LEAST_SPREAD * min(tokens)


def _at_the_edge(learner: Learner, baseline: Baseline, load: Bin) -> Learner:
    """Lets the range of the baseline grow to loads at which it holds; its prices stay."""
    limits = baseline.law.valid_range
    at = Load(load.sequences, load.tokens_in_flight, load.prefill_tokens_per_step)
    if limits is None or limits.covers(at):
        return learner
    law, tokens = baseline.law, load.tokens_in_flight
    per_token = law.kv_bytes_per_token or (baseline.load.kv_bytes or 0.0) / (baseline.load.tokens_in_flight or 1.0)
    step = predict(law, replace(at, kv_bytes=tokens * per_token))
    if step is None or abs(load.itl_seconds / step.itl_seconds - 1.0) > EDGE_RATIO:
        return replace(learner, edge=Edge())
    edge = Edge(learner.edge.episodes + 1, _reaching(learner.edge.reach, load))
    if edge.episodes < EDGE_EPISODES:
        return replace(learner, edge=edge)
    wider = _widest(limits, edge.reach)
    return replace(learner, edge=Edge(), baseline=replace(baseline, law=replace(law, valid_range=wider)))


def _reaching(reach: LoadRange, load: Bin) -> LoadRange:
    seen = LoadRange(load.sequences, load.tokens_in_flight, load.prefill_tokens_per_step, load.sequences)
    return _widest(reach, seen)


def _widest(one: LoadRange, other: LoadRange) -> LoadRange:
    return LoadRange(
        max(one.max_sequences or 0.0, other.max_sequences or 0.0),
        max(one.max_tokens_in_flight or 0.0, other.max_tokens_in_flight or 0.0),
        max(one.max_prefill_tokens_per_step or 0.0, other.max_prefill_tokens_per_step or 0.0),
        min((least for least in (one.min_sequences, other.min_sequences) if least is not None), default=None),
    )


def _split(prices: Sequence[float], weights: WeightBytes, known: StepLaw | None) -> tuple[float, ...]:
    """Gives weights that are the same in every step their part of the overhead.

    The same part that they have in the law in use, where there is one: their share of the GPUs' peak is then as low as
    the constant is high, whatever the price of the cache came out as. Else they are read as fast as the cache.
    """
    weight_bytes, constant = weights.read_bytes(1.0), prices[OVERHEAD]
    if weight_bytes <= 0.0:
        return tuple(prices)
    price = min(prices[KV], constant / weight_bytes)
    if known is not None:
        reads = weight_bytes / known.effective_bandwidth_bytes_per_second
        price = constant / weight_bytes * reads / (reads + known.step_overhead_seconds) if reads > 0.0 else 0.0
    split = list(prices)
    split[WEIGHTS], split[OVERHEAD] = price, max(0.0, constant - price * weight_bytes)
    return tuple(split)


def _bytes_per_token(memories: Mapping[str, Memory], facts: Facts) -> float | None:
    """Bytes of KV that a token in flight stands for; None where no model says so."""
    if facts.model is None:
        return None
    if not facts.model.hybrid:
        return facts.model.kv_read_bytes_per_token(facts.gpu_count)
    known = (kv_state(memory.sample, facts).bytes_per_token for memory in memories.values())
    return next((value for value in known if value is not None), None)
