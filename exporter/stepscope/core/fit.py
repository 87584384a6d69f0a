"""Fits the step law to measured loads: robust, never negative, held by what the data sheet says.

Minimised is the sum of squared relative errors, each point's weight cut the further out it lies (Cauchy's weights,
iterated), plus the squared distance of the prices from the prior in units of its spread. How strong the prior is,
leave-one-out error decides where there are enough points; two points therefore give the data sheet, corrected. Below
POINTS_TO_CHOOSE no point is called an outlier either: so few agree by bending the law, whichever of them is wrong.

Because the sum is linear in the prices, an online learner may hand in one weighted point per load bin, in tokens
instead of bytes: without model facts the overhead takes in the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul

from stepscope.core import roof
from stepscope.core.identify import known_terms
from stepscope.core.law_terms import CORE, KV, OVERHEAD, TERMS, WEIGHTS, Point, law_of, quantities
from stepscope.core.nnls import Matrix, cholesky, gram_of, inverse, nonnegative_least_squares, solve_lower
from stepscope.core.roof import Compute, Solution
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
MOST = 1e15  # of any figure, and of steps per second: beyond, squares run out of floating-point numbers
MOST_SPREAD = 10.0  # of measured over predicted: beyond, a law says nothing
# Share of the ITL that a term may take at its largest before the prior pulls, where no data sheet is known.
CORE_SHARE, EXTRA_SHARE = 1.0, 0.3
ROOF = "compute_flops_per_second"  # the roof's name among what is identifiable, as in StepLaw
KNOWN_TO = 0.15  # a price is identified if points alone fix its largest share of the ITL to this, one standard error


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of each price (order of TERMS) before measuring: centre, spread, and what it cannot be below.

    correlation: below the diagonal, row by row: which prices run high together. None: each on its own.
    """

    mean: tuple[float, ...]
    spread: tuple[float, ...]
    least: tuple[float, ...]
    correlation: tuple[tuple[float, ...], ...] | None = None

    @property
    def precision(self) -> Matrix:
        """Inverse covariance."""
        size = len(self.spread)
        if self.correlation is None:
            return [[1.0 / self.spread[i] ** 2 if i == j else 0.0 for j in range(size)] for i in range(size)]
        lower = [[*row, 1.0] for row in self.correlation]
        whole = [[lower[max(i, j)][min(i, j)] for j in range(size)] for i in range(size)]
        return [
            [value / (self.spread[i] * self.spread[j]) for j, value in enumerate(row)]
            for i, row in enumerate(inverse(whole))
        ]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted law and how far to trust it.

    prices: one per term of TERMS. identifiable: by term, whether the points alone fix it (the others come from the
    prior, or are 0), and by ROOF whether they show the compute roof. score: on the points themselves. strength: of the
    prior. leave_one_out: mean capped error. decode_efficiency: share of the peak FLOP/s beyond the knee, None where no
    roof was seen.
    """

    law: StepLaw
    prices: tuple[float, ...]
    identifiable: Mapping[str, bool]
    valid_range: LoadRange
    score: Score
    strength: float
    leave_one_out: float
    decode_efficiency: float | None = None


def fit(
    points: Sequence[Point],
    prior: Prior | None = None,
    weights: WeightBytes | None = None,
    compute: Compute | None = None,
) -> Fit:
    """The law that fits best. weights: how weight bytes grow with the batch, where known (mixture of experts).

    compute: where known, and with a prior that tells weights from overhead, the compute roof is looked for too.
    Raises ValueError without points, or for one that is not finite and positive where it must be.
    """
    for point in points:
        check(point)
    if not points:
        raise ValueError("no points to fit")
    if not any(point.weight for point in points):
        raise ValueError("no point counts: every weight is 0")
    constant = len({point.weight_bytes for point in points}) == 1
    rows = [[value / point.itl_seconds for value in quantities(point)] for point in points]
    if prior is None and constant:
        for row in rows:
            row[WEIGHTS] = 0.0  # the same in every step: cannot be told from overhead, split afterwards
    held = prior or _free(rows)
    precision = held.precision
    counts = [point.weight for point in points]
    enough = math.fsum(counts) >= POINTS_TO_CHOOSE
    best: Solution | None = None
    for strength in STRENGTHS if enough else (FULL_STRENGTH,):
        tried = _robust(rows, counts, held, precision, strength)
        assert tried is not None  # only a roof can be impossible
        if best is None or tried.leave_one_out < EARNED * best.leave_one_out:
            best = tried
    assert best is not None  # there is always a strength to try
    share: float | None = None
    if compute is not None and prior is not None and enough:
        arithmetic = [compute.seconds_per_token * point.sequences / point.itl_seconds for point in points]
        flat = best
        roofed = None
        if roof.may_show(rows, prior.least, arithmetic):
            roofed = roof.best(
                lambda tried: _robust(rows, counts, held, precision, flat.strength, arithmetic, tried), flat
            )
        if roofed is not None:
            best, share = roofed
            beyond = roof.are_beyond(rows, best.prices, [busy / share for busy in arithmetic])
            rows = [roof.without_reads(row) if over else row for row, over in zip(rows, beyond, strict=True)]
    prices = best.prices
    if prior is None and constant:
        prices = _split_overhead(prices, points[0].weight_bytes or 0.0)
    law = law_of(
        prices,
        weights or WeightBytes(math.fsum(point.weight_bytes or 0.0 for point in points) / len(points)),
        _one({point.kv_bytes_per_token for point in points}),
        source="file",
        valid_range=LoadRange(
            max_sequences=max(point.sequences for point in points),
            max_tokens_in_flight=max(point.tokens_in_flight for point in points),
            max_prefill_tokens_per_step=max(point.prefill_tokens_per_step for point in points),
        ),
        samples=len(points),
    )
    if compute is not None and share is not None:
        law = replace(law, active_params=compute.active_params, compute_flops_per_second=share * compute.peak_flops)
    errors = [relative_error(law, point) for point in points]
    found = score(errors)
    law = replace(
        law,
        residual_ratio=found.median_abs_error,
        # predicted / measured = 1 + error, so the measured step is the predicted one over that.
        low_factor=1.0 / (1.0 + max(0.0, quantile(errors, 0.95))),
        high_factor=1.0 / max(1.0 + min(0.0, quantile(errors, 0.05)), 1.0 / MOST_SPREAD),
    )
    scale = max(MAD_TO_SIGMA * found.median_abs_error, SCALE_FLOOR)
    # In rows the weights are part of the constant where only the split gave them a price.
    known = {**known_terms(rows, counts, scale, KNOWN_TO), ROOF: share is not None}
    return Fit(law, prices, known, law.valid_range or LoadRange(), found, best.strength, best.leave_one_out, share)


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
        if value > MOST or (name == "itl_seconds" and value < 1.0 / MOST):
            raise ValueError(f"{name} is {value:g}: no engine's figure")


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
    rows: Sequence[Sequence[float]],
    counts: Sequence[float],
    prior: Prior,
    precision: Matrix,
    strength: float,
    arithmetic: Sequence[float] | None = None,
    share: float = 1.0,
) -> Solution | None:
    """Rows are quantities over the measured ITL: each should sum to 1. precision: the prior's.

    arithmetic: time of each point's arithmetic at peak FLOP/s, over its ITL, where the compute roof is tried at a share
    of them. None where the points then do not show both sides of the knee.
    """
    least = prior.least
    pull = [[(strength * NOISE) ** 2 * value for value in row] for row in precision]
    goal = [max(mean - low, 0.0) for mean, low in zip(prior.mean, least, strict=True)]
    held_by_prior = [sum(map(mul, row, goal)) for row in pull]
    busy = [value / share for value in arithmetic] if arithmetic is not None else None
    weights, scaled = list(counts), math.fsum(counts) >= POINTS_TO_CHOOSE
    prices = [max(mean, low) for mean, low in zip(prior.mean, least, strict=True)]
    used, open_part, beyond = _sides(rows, prices, least, busy)
    columns = [list(column) for column in zip(*used, strict=True)]
    for turn in range(ROUNDS if scaled or busy is not None else 1):
        if turn and busy is not None:
            used, open_part, beyond = _sides(rows, prices, least, busy)
            columns = [list(column) for column in zip(*used, strict=True)]
            if not roof.has_both_sides(rows, beyond):
                return None
        weighted = [list(map(mul, column, weights)) for column in columns]
        gram = gram_of(weighted, columns)
        for own, more in zip(gram, pull, strict=True):
            own[:] = [value + further for value, further in zip(own, more, strict=True)]
        moment = [sum(map(mul, column, open_part)) + held for column, held in zip(weighted, held_by_prior, strict=True)]
        extra = nonnegative_least_squares(gram, moment)
        prices = [low + value for low, value in zip(least, extra, strict=True)]
        errors = [sum(map(mul, row, extra)) - rest for row, rest in zip(used, open_part, strict=True)]
        if scaled and turn < ROUNDS - 1:
            scale = max(MAD_TO_SIGMA * quantile([abs(error) for error in errors], 0.5), SCALE_FLOOR)
            weights = [
                count / (1.0 + (error / (CAUCHY * scale)) ** 2) for count, error in zip(counts, errors, strict=True)
            ]
    active = [term for term, value in enumerate(extra) if value > 0.0]
    factor = cholesky([[gram[i][j] for j in active] for i in active])
    left_out = []
    for row, weight, error in zip(used, weights, errors, strict=True):
        reach = solve_lower(factor, [row[term] for term in active])
        leverage = min(weight * sum(map(mul, reach, reach)), LEVERAGE_LIMIT)
        left_out.append(min(abs(error) / (1.0 - leverage), ERROR_CAP))
    return Solution(tuple(prices), strength, tuple(left_out))


def _sides(
    rows: Sequence[Sequence[float]], prices: Sequence[float], least: Sequence[float], busy: Sequence[float] | None
) -> tuple[Sequence[Sequence[float]], list[float], tuple[bool, ...]]:
    """(rows, what the prices above the least have to explain, which points are beyond the knee) at these prices."""
    beyond: tuple[bool, ...] = (False,) * len(rows)
    if busy is not None:
        beyond = roof.are_beyond(rows, prices, busy)
        rows = [roof.without_reads(row) if over else row for row, over in zip(rows, beyond, strict=True)]
    rest = [1.0 - sum(map(mul, row, least)) for row in rows]
    if busy is not None:
        rest = [value - time if over else value for value, time, over in zip(rest, busy, beyond, strict=True)]
    return rows, rest, beyond


def _split_overhead(prices: tuple[float, ...], weight_bytes: float) -> tuple[float, ...]:
    """Gives the weights their part of the constant: read as fast as the KV cache, as far as the constant goes."""
    if weight_bytes <= 0.0:
        return prices
    split = list(prices)
    split[WEIGHTS] = min(prices[KV], prices[OVERHEAD] / weight_bytes)
    split[OVERHEAD] = max(0.0, prices[OVERHEAD] - split[WEIGHTS] * weight_bytes)
    return tuple(split)
