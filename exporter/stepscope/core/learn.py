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
from stepscope.core.fit import CORE_SHARE, Prior, fit
from stepscope.core.law_terms import CORE, KV, OVERHEAD, PREFILL, TERMS, WEIGHTS, Point, law_of, quantities
from stepscope.core.load_bins import Bin, Episode, Key, binned, extended, is_over, may_enter
from stepscope.core.memory import Memory
from stepscope.core.step_model import Load, LoadRange, StepLaw, WeightBytes, predict
from stepscope.core.window import PREFILL_SHARE_LIMIT

LEARN_SECONDS = 600.0  # in episodes before the first fit, so that 15 minutes of varied load are enough
LEAST_BINS = 8  # twice the number of prices
LEAST_SPREAD = 2.0  # largest over smallest batch and tokens of the bins; with less no fit can tell prices apart
RETRY_SECONDS = 60.0  # between two fits
RETRY_GROWTH = 1.25  # and so much more time must have been gathered: a fit costs as much CPU as a dozen samples
MEDIAN_LIMIT, P90_LIMIT = 0.05, 0.15  # a small residual: well below the drift limit, and at most that for nine in ten
EDGE_EPISODES = 4  # in a row, beyond the range and in agreement, before the range grows to them
EDGE_RATIO = 0.1  # agreement; below the drift limit, so that no fault hides at the edge
NEVER = 1e-12  # largest share of the ITL, in spreads of its prior, of a term that is not learned


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
    baseline, lacks = fitted(bins, learner.reach, facts, _bytes_per_token(memories, facts))
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
    bins: Sequence[Bin], reach: LoadRange, facts: Facts, kv_bytes_per_token: float | None
) -> tuple[Baseline, str]:
    """The law that the bins give, and why it cannot be a baseline; an empty reason: it can.

    kv_bytes_per_token: None without a model; then tokens stand for bytes and the overhead holds the weights. Raises
    ValueError without bins.
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
        )
        for b in bins
    ]
    grows = weights.experts > 0
    found = fit(points, _prior(points, grows), weights)
    judged = [point for point in points if not _is_mostly_prefill(found.law, point)]
    if LEAST_BINS <= len(judged) < len(points):
        points = judged
        found = fit(points, _prior(points, grows), weights)
    has_prefill = any(point.prefill_tokens_per_step > 0.0 for point in points)
    unknown = [TERMS[term] for term in CORE if not found.identifiable[TERMS[term]]]
    if not has_prefill:
        unknown.remove(TERMS[PREFILL])
    score, lacks = found.score, ""
    if unknown:
        lacks = f"the load so far does not tell apart: {', '.join(unknown)}"
    elif score.median_abs_error > MEDIAN_LIMIT or score.p90_abs_error > P90_LIMIT:
        lacks = (
            f"the law fits badly so far: off by {score.median_abs_error:.0%}, one in ten by {score.p90_abs_error:.0%}"
        )
    prices = found.prices if grows or in_tokens else _split(found.prices, weights.read_bytes(1.0))
    hybrid = not in_tokens and facts.model is not None and facts.model.hybrid
    law = law_of(
        prices,
        weights,
        1.0 if in_tokens else None if hybrid else kv_bytes_per_token,
        source="learned",
        valid_range=reach,
        residual_ratio=score.median_abs_error,
        samples=len(points),
        low_factor=found.law.low_factor,
        high_factor=found.law.high_factor,
    )
    if not has_prefill:
        law = replace(law, prefill_cost_seconds_per_token=None)
    middle = sorted(points, key=lambda point: point.tokens_in_flight)[len(points) // 2]
    load = Load(middle.sequences, middle.tokens_in_flight, kv_bytes=middle.kv_bytes)
    return Baseline(law, in_tokens, load, not in_tokens and _is_slow_from_birth(law, load, facts.law)), lacks


def _is_mostly_prefill(law: StepLaw, point: Point) -> bool:
    """True for a load that is never judged: prompt chunks take so much of it that their price is no longer linear."""
    step = predict(law, point.load)
    return step is not None and step.prefill_seconds > PREFILL_SHARE_LIMIT * step.itl_seconds


def _is_slow_from_birth(law: StepLaw, load: Load, datasheet: StepLaw | None) -> bool:
    if datasheet is None or datasheet.source != "datasheet":
        return False
    ours, theirs = predict(law, load), predict(datasheet, load)
    return ours is not None and theirs is not None and ours.decode_seconds > theirs.decode_high_seconds


def _after_sample(learner: Learner, engine: str, memory: Memory, facts: Facts, warm_up_seconds: float) -> Learner:
    """The learner after one engine's last pair."""
    pair = memory.pairs[-1] if memory.pairs else None
    before = learner.open.get(engine)
    if pair is None or pair.end_seconds != memory.at_seconds or not may_enter(pair, memory, warm_up_seconds):
        episode = None  # what broke the row may have tainted what it cut off
    else:
        episode = extended(before, pair, kv_state(pair.last, replace(facts, law_in_tokens=True)))
    others = {name: value for name, value in learner.open.items() if name != engine}
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
    return _widest(reach, LoadRange(load.sequences, load.tokens_in_flight, load.prefill_tokens_per_step))


def _widest(one: LoadRange, other: LoadRange) -> LoadRange:
    return LoadRange(
        max(one.max_sequences or 0.0, other.max_sequences or 0.0),
        max(one.max_tokens_in_flight or 0.0, other.max_tokens_in_flight or 0.0),
        max(one.max_prefill_tokens_per_step or 0.0, other.max_prefill_tokens_per_step or 0.0),
    )


def _prior(points: Sequence[Point], weights_grow: bool) -> Prior:
    """Room for the plain prices, and for that of the weights where they grow with the batch; none for other terms.

    With them the recorded tapes and unseen loads of the simulator are predicted no better (docs/learning.md).
    """
    wanted = (*CORE, WEIGHTS) if weights_grow else CORE
    largest = [0.0] * len(TERMS)
    for point in points:
        shares = [value / point.itl_seconds for value in quantities(point)]
        largest = list(map(max, largest, shares))
    spread = tuple(
        (CORE_SHARE if term in wanted else NEVER) / most if most > 0.0 else 1.0 for term, most in enumerate(largest)
    )
    nothing = (0.0,) * len(TERMS)
    return Prior(mean=nothing, spread=spread, least=nothing)


def _split(prices: Sequence[float], weight_bytes: float) -> tuple[float, ...]:
    """Gives weights that are the same in every step their part of the overhead: read as fast as the KV cache."""
    split = list(prices)
    split[WEIGHTS] = min(prices[KV], prices[OVERHEAD] / weight_bytes) if weight_bytes > 0.0 else 0.0
    split[OVERHEAD] = max(0.0, prices[OVERHEAD] - split[WEIGHTS] * weight_bytes)
    return tuple(split)


def _bytes_per_token(memories: Mapping[str, Memory], facts: Facts) -> float | None:
    """Bytes of KV that a token in flight stands for; None where no model says so."""
    if facts.model is None:
        return None
    if not facts.model.hybrid:
        return facts.model.kv_read_bytes_per_token(facts.gpu_count)
    known = (kv_state(memory.sample, facts).bytes_per_token for memory in memories.values())
    return next((value for value in known if value is not None), None)
