"""Fits the step law to measured loads: robust, never negative, held by what the data sheet says.

Minimised is the sum of squared relative errors, each point's weight cut the further out it lies (Cauchy's weights,
iterated), plus the squared distance of each price from its prior in units of the prior's spread. How strong the prior
is, leave-one-out error decides where there are enough points; two points therefore give the data sheet, corrected.

Because the sum is linear in the prices, an online learner may hand in one weighted point per load bin, in tokens
instead of bytes: without model facts the overhead takes in the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from stepscope.core.law_terms import CORE, KV, OVERHEAD, TERMS, WEIGHTS, Point, law_of, quantities
from stepscope.core.nnls import Matrix, cholesky, nonnegative_least_squares, solve, solve_lower
from stepscope.core.score import Score, quantile, score
from stepscope.core.step_model import LoadRange, StepLaw, WeightBytes, predict

NOISE = 0.03  # relative error that one point of weight 1 stands for: the law's own on public sweeps (docs/accuracy.md)
SCALE_FLOOR = 0.01  # of the robust scale: sweeps repeat to about 1 % (the same load in two dumps of one series)
CAUCHY = 2.385  # in scales; 95 % efficient on normal errors (Holland and Welsch 1977)
ROUNDS = 9  # of reweighting; the prices move by less than 0.1 % after
MAD_TO_SIGMA = 1.4826  # of a normal distribution
LEVERAGE_LIMIT = 0.9  # leave-one-out errors grow without bound as a point's leverage nears 1
ERROR_CAP = 0.2  # one wild point does not choose the prior's strength
# Strength of the prior, chosen by leave-one-out error among two; with too few points for that, all of it.
STRENGTHS, FULL_STRENGTH, POINTS_TO_CHOOSE = (0.3, 0.1), 1.0, 8
EARNED = 0.98  # leave-one-out error of the weaker prior over that of the stronger one, or the stronger stays
MOST_SPREAD = 10.0  # of measured over predicted: beyond, a law says nothing
# Share of the ITL that a term may take at its largest before the prior pulls, where no data sheet is known.
CORE_SHARE, EXTRA_SHARE = 1.0, 0.3
KNOWN_TO = 0.15  # a price is identified if points alone fix its largest share of the ITL to this, one standard error


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of each price (order of TERMS) before measuring: centre, spread, and what it cannot be below."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    least: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law and how far to trust it.

    prices: one per term of TERMS. identifiable: by term, whether the points alone fix it (the others come from the
    prior, or are 0). score: on the points themselves. strength: of the prior. leave_one_out: mean capped error.
    """

    law: StepLaw
    prices: tuple[float, ...]
    identifiable: Mapping[str, bool]
    valid_range: LoadRange
    score: Score
    strength: float
    leave_one_out: float


def fit(points: Sequence[Point], prior: Prior | None = None, weights: WeightBytes | None = None) -> Fit:
    """The law that fits best. weights: how weight bytes grow with the batch, where known (mixture of experts).

    Raises ValueError without points, or for one that is not finite and positive where it must be.
    """
    for point in points:
        check(point)
    if not points:
        raise ValueError("no points to fit")
    constant = len({point.weight_bytes for point in points}) == 1
    rows = [[value / point.itl_seconds for value in quantities(point)] for point in points]
    if prior is None and constant:
        for row in rows:
            row[WEIGHTS] = 0.0  # the same in every step: cannot be told from overhead, split afterwards
    held = prior or _free(rows)
    best: tuple[tuple[float, ...], float, float] | None = None
    strengths = STRENGTHS if len(points) >= POINTS_TO_CHOOSE else (FULL_STRENGTH,)
    for strength in strengths:
        prices, left_out = _robust(rows, [point.weight for point in points], held, strength)
        if best is None or left_out < EARNED * best[1]:
            best = prices, left_out, strength
    assert best is not None  # there is always a strength to try
    prices, left_out, strength = best
    # Before the split: it gives the weights a price, and their column here is part of the constant.
    identifiable = _identifiable(rows, points, prices)
    if prior is None and constant:
        prices = _split_overhead(prices, points[0].weight_bytes or 0.0)
    per_token = _one({point.kv_bytes_per_token for point in points})
    law_weights = weights or WeightBytes(math.fsum(point.weight_bytes or 0.0 for point in points) / len(points))
    valid = LoadRange(
        max_sequences=max(point.sequences for point in points),
        max_tokens_in_flight=max(point.tokens_in_flight for point in points),
        max_prefill_tokens_per_step=max(point.prefill_tokens_per_step for point in points),
    )
    plain = law_of(prices, law_weights, per_token, source="file")
    errors = [relative_error(plain, point) for point in points]
    found = score(errors)
    law = law_of(
        prices,
        law_weights,
        per_token,
        source="file",
        valid_range=valid,
        residual_ratio=found.median_abs_error,
        samples=len(points),
        # predicted / measured = 1 + error, so the measured step is the predicted one over that.
        low_factor=1.0 / (1.0 + max(0.0, quantile(errors, 0.95))),
        high_factor=1.0 / max(1.0 + min(0.0, quantile(errors, 0.05)), 1.0 / MOST_SPREAD),
    )
    return Fit(law, prices, identifiable, valid, found, strength, left_out)


def check(point: Point) -> None:
    """Raises ValueError saying which figure of a point cannot be."""
    for name, value, least in (
        ("sequences", point.sequences, 0.0),
        ("tokens_in_flight", point.tokens_in_flight, 0.0),
        ("prefill_tokens_per_step", point.prefill_tokens_per_step, 0.0),
        ("itl_seconds", point.itl_seconds, 0.0),
        ("weight_bytes", point.weight_bytes, 0.0),
        ("kv_bytes_per_token", point.kv_bytes_per_token, 0.0),
        ("prompts_per_step", point.prompts_per_step, 0.0),
        ("weight", point.weight, 0.0),
    ):
        if value is None:
            continue
        if not math.isfinite(value) or value < least or (value == 0.0 and name in {"sequences", "itl_seconds"}):
            raise ValueError(f"{name} is {value}: must be a finite number {'above' if value == 0.0 else 'not below'} 0")


def relative_error(law: StepLaw, point: Point) -> float:
    """Predicted over measured, less 1."""
    step = predict(law, point.load)
    if step is None:
        raise ValueError("the law lacks KV bytes or a prefill cost")
    return step.itl_seconds / point.itl_seconds - 1.0


def _one(values: set[float | None]) -> float | None:
    """KV bytes per token of all points where they agree; 1 where tokens stand for bytes."""
    if len(values) != 1:
        return None
    (value,) = values
    return 1.0 if value is None else value


def _free(rows: Sequence[Sequence[float]]) -> Prior:
    """The prior where nothing is known of model and GPU: each term may take a share of the ITL, small terms less."""
    largest = [max(column) for column in zip(*rows, strict=True)]
    shares = [CORE_SHARE if term in (*CORE, WEIGHTS) else EXTRA_SHARE for term in range(len(TERMS))]
    spread = tuple(share / most if most > 0.0 else 1.0 for share, most in zip(shares, largest, strict=True))
    nothing = (0.0,) * len(TERMS)
    return Prior(mean=nothing, spread=spread, least=nothing)


def _robust(
    rows: Sequence[Sequence[float]], counts: Sequence[float], prior: Prior, strength: float
) -> tuple[tuple[float, ...], float]:
    """(prices, mean capped leave-one-out error). Rows are quantities over the measured ITL: each should sum to 1."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    least = prior.least
    pull = [(strength * NOISE / spread) ** 2 for spread in prior.spread]
    goal = [max(mean - low, 0.0) for mean, low in zip(prior.mean, least, strict=True)]
    open_part = [1.0 - sum(map(mul, row, least)) for row in rows]
    robust = list(counts)
    for turn in range(ROUNDS):
        weighted = [list(map(mul, column, robust)) for column in columns]
        gram = _gram(weighted, columns)
        for term, value in enumerate(pull):
            gram[term][term] += value
        moment = [
            sum(map(mul, column, open_part)) + value * wanted
            for column, value, wanted in zip(weighted, pull, goal, strict=True)
        ]
        beyond = nonnegative_least_squares(gram, moment)
        errors = [sum(map(mul, row, beyond)) - rest for row, rest in zip(rows, open_part, strict=True)]
        scale = max(MAD_TO_SIGMA * quantile([abs(error) for error in errors], 0.5), SCALE_FLOOR)
        if turn < ROUNDS - 1:
            robust = [
                count / (1.0 + (error / (CAUCHY * scale)) ** 2) for count, error in zip(counts, errors, strict=True)
            ]
    active = [term for term, value in enumerate(beyond) if value > 0.0]
    factor = cholesky([[gram[i][j] for j in active] for i in active])
    left_out = 0.0
    for row, weight, error in zip(rows, robust, errors, strict=True):
        reach = solve_lower(factor, [row[term] for term in active])
        leverage = min(weight * sum(map(mul, reach, reach)), LEVERAGE_LIMIT)
        left_out += min(abs(error) / (1.0 - leverage), ERROR_CAP)
    return tuple(low + value for low, value in zip(least, beyond, strict=True)), left_out / len(rows)


def _gram(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> Matrix:
    """left' right, symmetric: left is right with its rows weighted."""
    size = len(left)
    gram = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            gram[i][j] = gram[j][i] = sum(map(mul, left[i], right[j]))
    return gram


def _split_overhead(prices: tuple[float, ...], weight_bytes: float) -> tuple[float, ...]:
    """Gives the weights their part of the constant: read as fast as the KV cache, as far as the constant goes."""
    if weight_bytes <= 0.0:
        return prices
    split = list(prices)
    split[WEIGHTS] = min(prices[KV], prices[OVERHEAD] / weight_bytes)
    split[OVERHEAD] = max(0.0, prices[OVERHEAD] - split[WEIGHTS] * weight_bytes)
    return tuple(split)


def _identifiable(
    rows: Sequence[Sequence[float]], points: Sequence[Point], prices: Sequence[float]
) -> Mapping[str, bool]:
    """Which prices the points alone fix.

    The plain terms are judged among themselves (what the small terms share with them is a choice of form, not missing
    data), a small term together with all plain ones. A term is known if the standard error of its largest share of
    the ITL is at most KNOWN_TO, given the scatter of the points.
    """
    errors = [abs(sum(map(mul, row, prices)) - 1.0) for row in rows]
    scale = max(MAD_TO_SIGMA * quantile(errors, 0.5), SCALE_FLOOR)
    columns = [
        [value * math.sqrt(point.weight) for value, point in zip(column, points, strict=True)]
        for column in zip(*rows, strict=True)
    ]
    largest = [max(column) for column in zip(*rows, strict=True)]
    known = {}
    for term, name in enumerate(TERMS):
        others = [other for other in CORE if other != term and largest[other] > 0.0]
        unexplained = _unexplained(columns[term], [columns[other] for other in others])
        enough = largest[term] > 0.0 and len(points) > len(others)
        known[name] = enough and unexplained > 0.0 and scale * largest[term] <= KNOWN_TO * math.sqrt(unexplained)
    return known


def _unexplained(column: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Sum of squares of what the others cannot make of a column."""
    own = sum(value * value for value in column)
    if not others:
        return own
    shrunk = [[value / math.sqrt(sum(x * x for x in other)) for value in other] for other in others]
    right = [sum(map(mul, other, column)) for other in shrunk]
    explained = sum(map(mul, right, solve(cholesky(_gram(shrunk, shrunk)), right)))
    left = own - explained
    return left if left > 1e-9 * own else 0.0  # below, rounding
