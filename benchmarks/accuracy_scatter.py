"""How the prices of single series scatter around the pooled ones, and together: what the prior of a fit is made of.

Expectation and maximisation (Dempster, Laird and Rubin 1977) for prices drawn around the pooled ones from one normal
distribution per kind: what each series says of its own prices given the distribution, then the distribution given that.
The unit of a price is the spread that core/defaults.py states for it, and the start, which the series have to argue
against, is prices that scatter by just that, each on its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

from accuracy_data import DENSE, Series

from stepscope.core.defaults import Pooled, Scatter, default_prior
from stepscope.core.fit import CAUCHY, MAD_TO_SIGMA, NOISE, SCALE_FLOOR
from stepscope.core.law_terms import TERMS, quantities
from stepscope.core.nnls import Matrix, cholesky, gram_of, inverse, solve
from stepscope.core.score import quantile

SIZE = len(TERMS)
ROUNDS = 12  # of expectation and maximisation; thirty give the same figures
ROBUST_ROUNDS = 6
START_COUNTS = 2.0  # series that the start counts for; 0.5 to 10 give about the same

Moments = tuple[Matrix, list[float]]  # what the points of a series say of its prices, less the pooled ones: X'X, X'y


def moments(series: Series, row: Pooled) -> Moments:
    """Of a series around a row that never saw it, in units of the stated spread and of the usual noise."""
    prior = default_prior(row, series.machine)
    rows = [[value / point.itl_seconds for value in quantities(point)] for point in series.points]
    rest = [(1.0 - sum(map(mul, prior.mean, one))) / NOISE for one in rows]
    columns = [
        [value * spread / NOISE for value in column]
        for column, spread in zip(zip(*rows, strict=True), prior.spread, strict=True)
    ]
    weights = [1.0] * len(rows)
    for turn in range(ROBUST_ROUNDS):
        weighted = [list(map(mul, column, weights)) for column in columns]
        gram, moment = gram_of(weighted, columns), [sum(map(mul, column, rest)) for column in weighted]
        if turn < ROBUST_ROUNDS - 1:
            held = [[value + (i == j) for j, value in enumerate(one)] for i, one in enumerate(gram)]
            prices = solve(cholesky(held), moment)
            errors = [sum(map(mul, prices, one)) - y for one, y in zip(zip(*columns, strict=True), rest, strict=True)]
            scale = max(MAD_TO_SIGMA * quantile([abs(error) for error in errors], 0.5), SCALE_FLOOR / NOISE)
            weights = [1.0 / (1.0 + (error / (CAUCHY * scale)) ** 2) for error in errors]
    return gram, moment


def scatter_of(members: Sequence[Moments]) -> Scatter:
    """The distribution that the members' prices are drawn from."""
    covariance = [[float(i == j) for j in range(SIZE)] for i in range(SIZE)]
    for _ in range(ROUNDS):
        precision = inverse(covariance)
        total = [[START_COUNTS * (i == j) for j in range(SIZE)] for i in range(SIZE)]
        for gram, moment in members:
            posterior = inverse([list(map(sum, zip(a, b, strict=True))) for a, b in zip(gram, precision, strict=True)])
            mean = [sum(map(mul, one, moment)) for one in posterior]
            for i, row in enumerate(total):
                row[:] = [value + posterior[i][j] + mean[i] * mean[j] for j, value in enumerate(row)]
        covariance = [[value / (len(members) + START_COUNTS) for value in row] for row in total]
    width = [math.sqrt(covariance[i][i]) for i in range(SIZE)]
    return Scatter(
        tuple(width),
        tuple(tuple(covariance[i][j] / (width[i] * width[j]) for j in range(i)) for i in range(SIZE)),
    )


def speaks(series: Series, *, moe: bool) -> bool:
    """Whether a series says how prices of a kind scatter: engines of today, with bytes that can be believed."""
    return series.sound and (series.machine.moe if moe else series.file in DENSE)


def scatters(everything: Sequence[Series], unseen: dict[str, Pooled]) -> tuple[dict[str, Scatter], dict[str, Scatter]]:
    """(by kind, by name of a series that it and its copies are left out for)."""
    said = {one.name: moments(one, unseen[one.name]) for one in everything}
    found: dict[tuple[str, ...], Scatter] = {}

    def of(members: Sequence[Series]) -> Scatter:
        names = tuple(one.name for one in members)
        if names not in found:
            found[names] = scatter_of([said[name] for name in names])
        return found[names]

    kinds = {kind: [one for one in everything if speaks(one, moe=kind == "moe")] for kind in ("dense", "moe")}
    without = {}
    for series in everything:
        members = kinds["moe" if series.machine.moe else "dense"]
        without[series.name] = of([one for one in members if one.name != series.name and not one.is_copy_of(series)])
    return {kind: of(members) for kind, members in kinds.items()}, without
