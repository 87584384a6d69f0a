"""Fits the plain prices of the step law to bins of load, and says how well each is known.

Unlike `fit`, which works on clean measurements, it takes prompt chunks for what a page makes of them: the price of a
prompt token differs from load to load (small chunks hide behind the weights, long prompts pay for their attention). A
load therefore counts the less, the more of it is prompt chunks: each is one rough measurement of that price, none
decides it alone, and what chunks leave open does not disturb the other prices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from stepscope.core.fit import CAUCHY, CORE_SHARE, KNOWN_TO, LEVERAGE_LIMIT, MAD_TO_SIGMA, NOISE, SCALE_FLOOR, check
from stepscope.core.law_terms import CORE, GROWTH, KV, OVERHEAD, PREFILL, SEQUENCE, TERMS, WEIGHTS, Point, quantities
from stepscope.core.nnls import Matrix, cholesky, nonnegative_least_squares, solve_lower
from stepscope.core.score import quantile
from stepscope.core.window import PREFILL_SHARE_LIMIT

# Of the price of a prompt token from load to load, relative: with 0.2, 0.5 and 1 unseen loads are predicted no better,
# and with 1 more laws have to wait (188 to 298 simulated runs with realistic physics).
PREFILL_SPREAD = 0.3
PULL = 0.1  # strength of the prior, the weaker one of `fit`: it keeps apart what the loads do not
# A step grows with the doublings of its batch: more sequences cost less and less more (captured batch sizes, idle
# compute), on the recorded tapes as well. A cost per sequence has to show clearly: at the largest batch it is believed
# to be nothing, to within this share of the ITL. Free, it takes what prompts or padding cost in few loads for its own,
# and is up to ten times too high at others. Experts grow with the batch in their own way.
SEQUENCE_SPREAD = 0.015
PLAIN, MIXTURE = (OVERHEAD, GROWTH, KV, PREFILL, SEQUENCE), (*CORE, WEIGHTS)
NEEDED = {PLAIN: (OVERHEAD, GROWTH, KV), MIXTURE: (OVERHEAD, SEQUENCE, KV)}
ROUNDING = 1e-4  # least scatter that is believed
ROUNDS, SETTLED = 25, 1e-3  # of reweighting at most; done when no price moves by more than this share of it


@dataclass(frozen=True, slots=True)
class BinFit:
    """What bins of load say of the law.

    prices: one per term of TERMS. unknown: names of the plain terms, but for that of prompt tokens, that the loads do
    not fix. prefill_error_seconds_per_token: standard error of the price of a prompt token; None without prompts.
    prefill_error_ratio: the largest error that it makes in the ITL of a load of the kind that is judged.
    judged: the loads that prompt chunks do not dominate. errors: of these, predicted over measured less 1;
    left_out_errors: the same, each predicted by the others.
    """

    prices: tuple[float, ...]
    unknown: tuple[str, ...]
    prefill_error_seconds_per_token: float | None
    prefill_error_ratio: float
    judged: tuple[Point, ...]
    errors: tuple[float, ...]
    left_out_errors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Solution:
    """Where the reweighting settled: a price per column, and of each row weight, predicted over measured, prompts."""

    prices: list[float]
    weights: list[float]
    predicted: list[float]
    prefill_shares: list[float]
    scatter: float  # of errors, in units of a point of weight 1


def fit_bins(points: Sequence[Point], *, weights_grow: bool) -> BinFit:
    """The prices that fit best. weights_grow: more weights are read for more sequences, so that they have a price.

    Raises ValueError without points, or for one that is not finite and positive where it must be.
    """
    if not points:
        raise ValueError("no points to fit")
    for point in points:
        check(point)
    values = [quantities(point) for point in points]
    wanted = MIXTURE if weights_grow else PLAIN
    terms = [term for term in wanted if any(row[term] > 0.0 for row in values)]
    rows = [[row[term] / point.itl_seconds for term in terms] for row, point in zip(values, points, strict=True)]
    at_prefill = terms.index(PREFILL) if PREFILL in terms else None
    base = [point.weight for point in points]
    spread = [SEQUENCE_SPREAD if wanted is PLAIN and term == SEQUENCE else CORE_SHARE / PULL for term in terms]
    found = _solve(rows, base, at_prefill, spread)
    columns = list(zip(*rows, strict=True))
    factor = cholesky(_held(columns, found.weights, spread, found.scatter))
    deviations = [max(found.scatter, SCALE_FLOOR) * _length(factor, _unit(at, len(terms))) for at in range(len(terms))]
    known = {
        term for term, error, column in zip(terms, deviations, columns, strict=True) if error * max(column) <= KNOWN_TO
    }
    prices = [0.0] * len(TERMS)
    for term, value in zip(terms, found.prices, strict=True):
        prices[term] = value
    prefill_error = None if at_prefill is None else deviations[at_prefill]
    judged = [i for i, share in enumerate(found.prefill_shares) if share <= PREFILL_SHARE_LIMIT]
    errors = [found.predicted[i] - 1.0 for i in judged]
    leverages = [min(found.weights[i] * _length(factor, rows[i]) ** 2, LEVERAGE_LIMIT) for i in judged]
    return BinFit(
        prices=tuple(prices),
        unknown=tuple(TERMS[term] for term in NEEDED[wanted] if term not in known),
        prefill_error_seconds_per_token=prefill_error,
        prefill_error_ratio=0.0
        if at_prefill is None
        else _prefill_error_ratio(found.prices[at_prefill], deviations[at_prefill], columns[at_prefill], found),
        judged=tuple(points[i] for i in judged),
        errors=tuple(errors),
        left_out_errors=tuple(error / (1.0 - leverage) for error, leverage in zip(errors, leverages, strict=True)),
    )


def _solve(
    rows: Sequence[Sequence[float]], base: Sequence[float], at_prefill: int | None, spread: Sequence[float]
) -> _Solution:
    """Least squares with weights that follow the solution. Rows are quantities over the ITL: each should sum to 1.

    at_prefill: the column of prompt tokens. spread: of the prior of each term, around nothing, as its largest share.
    """
    columns = list(zip(*rows, strict=True))
    tokens = (0.0,) * len(rows) if at_prefill is None else columns[at_prefill]
    solution = _Solution([0.0] * len(columns), list(base), [], [], 0.0)
    for _ in range(ROUNDS):
        moment = [sum(map(mul, column, solution.weights)) for column in columns]
        before = solution.prices
        prices = nonnegative_least_squares(_held(columns, solution.weights, spread, solution.scatter), moment)
        price = 0.0 if at_prefill is None else prices[at_prefill]
        predicted = [sum(map(mul, row, prices)) for row in rows]
        shares = [price * token / max(ratio, SCALE_FLOOR) for token, ratio in zip(tokens, predicted, strict=True)]
        noise = max(NOISE, solution.scatter)
        counts = [own / (1.0 + (PREFILL_SPREAD * share / noise) ** 2) for own, share in zip(base, shares, strict=True)]
        sizes = [abs(ratio - 1.0) * math.sqrt(count) for ratio, count in zip(predicted, counts, strict=True)]
        scatter = MAD_TO_SIGMA * quantile(sizes, 0.5)
        limit = CAUCHY * max(scatter, SCALE_FLOOR)
        weights = [count / (1.0 + (size / limit) ** 2) for count, size in zip(counts, sizes, strict=True)]
        solution = _Solution(prices, weights, predicted, shares, scatter)
        if all(abs(new - old) <= SETTLED * new for new, old in zip(prices, before, strict=True)):
            break
    return solution


def _prefill_error_ratio(price: float, error: float, tokens: Sequence[float], found: _Solution) -> float:
    """The largest error of the ITL that an error of the price makes in loads with as few prompt chunks as are judged.

    tokens: prompt tokens per step over the ITL. A load with more counts as if it were diluted to the limit.
    """
    return max(
        error * token if share <= PREFILL_SHARE_LIMIT else PREFILL_SHARE_LIMIT * error / price
        for token, share in zip(tokens, found.prefill_shares, strict=True)
    )


def _held(
    columns: Sequence[Sequence[float]], weights: Sequence[float], spread: Sequence[float], scatter: float
) -> Matrix:
    """Columns' weights columns, symmetric, and on its diagonal what the prior holds each price to nothing with."""
    size = len(columns)
    held = [[0.0] * size for _ in range(size)]
    for i, column in enumerate(columns):
        weighted = list(map(mul, column, weights))
        for j in range(i + 1):
            held[i][j] = held[j][i] = sum(map(mul, weighted, columns[j]))
        held[i][i] += (max(scatter, ROUNDING) * max(column) / spread[i]) ** 2
    return held


def _length(factor: Matrix, row: Sequence[float]) -> float:
    """Root of row' (gram)^-1 row: the standard error of what the row predicts, at a scatter of 1."""
    reach = solve_lower(factor, row)
    return math.sqrt(sum(map(mul, reach, reach)))


def _unit(at: int, size: int) -> list[float]:
    return [1.0 if i == at else 0.0 for i in range(size)]
