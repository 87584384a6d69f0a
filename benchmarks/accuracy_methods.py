"""The ways of predicting a step that the accuracy benchmark compares, each judged on points it did not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import mul

from accuracy_data import Series, five_points
from accuracy_pool import pooled_errors

from stepscope.core.crossval import cross_validate, folds
from stepscope.core.defaults import Pooled, default_prior
from stepscope.core.fit import Prior, fit, relative_error
from stepscope.core.law_terms import TERMS, Point
from stepscope.core.nnls import nonnegative_least_squares

DATASHEET_SHARE = 0.6  # of peak bandwidth: the rule of thumb that a datasheet law starts from
FOLDS = 5
TURNS = 3  # different splits into folds: one alone moves a group's shares by a point or two


@dataclass(frozen=True, slots=True)
class Judged:
    """One prediction of a point: which, and predicted over measured less 1."""

    series: Series
    point: Point
    error: float


Unseen = dict[str, Pooled]  # what is pooled without the series and its copies, by series


def read_bytes(point: Point) -> float:
    """Weights and KV cache read in a step."""
    return (point.weight_bytes or 0.0) + point.kv_bytes


def datasheet(series: Series) -> list[Judged]:
    """(weights + KV) / (0.6 x peak bandwidth)."""
    bandwidth = DATASHEET_SHARE * series.machine.peak_bandwidth_bytes_per_second
    return [Judged(series, p, read_bytes(p) / bandwidth / p.itl_seconds - 1.0) for p in series.points]


def one_point(series: Series) -> list[Judged]:
    """(weights + KV) / bandwidth, the bandwidth measured at the lowest load: the published method."""
    lowest = min(series.points, key=lambda p: (p.sequences, p.tokens_in_flight))
    bandwidth = read_bytes(lowest) / lowest.itl_seconds
    rest = [p for p in series.points if p is not lowest]
    return [Judged(series, p, read_bytes(p) / bandwidth / p.itl_seconds - 1.0) for p in rest]


def least_squares(columns: Callable[[Point], Sequence[float]]) -> Callable[[Series], list[Judged]]:
    """Plain non-negative least squares on relative errors, cross-validated with the same folds as ours."""

    def judge(series: Series) -> list[Judged]:
        found = []
        splits = [fold for turn in range(TURNS) for fold in folds(len(series.points), FOLDS, turn)]
        for fold in splits:
            seen = [p for i, p in enumerate(series.points) if i not in set(fold)]
            rows = [[value / p.itl_seconds for value in columns(p)] for p in seen]
            gram = [[sum(row[i] * row[j] for row in rows) for j in range(len(rows[0]))] for i in range(len(rows[0]))]
            prices = nonnegative_least_squares(gram, [sum(column) for column in zip(*rows, strict=True)])
            for point in (series.points[i] for i in fold):
                found.append(Judged(series, point, sum(map(mul, prices, columns(point))) / point.itl_seconds - 1.0))
        return found

    return judge


batch_only = least_squares(lambda p: (1.0, p.sequences))
kv_only = least_squares(lambda p: (1.0, p.kv_bytes))
four_terms = least_squares(lambda p: (1.0, p.sequences, read_bytes(p), p.prefill_tokens_per_step))


def prior_without(series: Series, unseen: Unseen) -> Prior:
    """The data sheet's prior from a pool that never saw the series."""
    return default_prior(unseen[series.name], series.machine)


def from_five(series: Series, unseen: Unseen) -> list[Judged]:
    """Ours, fitted to five points as a calibration would measure them, judged on the others."""
    chosen = five_points(series.points)
    law = fit(chosen, prior_without(series, unseen), compute=series.machine.compute).law
    return [Judged(series, p, relative_error(law, p)) for p in series.points if p not in chosen]


def crossed(
    series: Series, unseen: Unseen, without: tuple[str, ...] = (), turns: int = TURNS, *, roof: bool = True
) -> list[Judged]:
    """Ours, cross-validated; `without` holds terms at 0, to see what they are worth."""
    prior = prior_without(series, unseen)
    for term in map(TERMS.index, without):
        prior = replace(
            prior,
            mean=_put(prior.mean, term, 0.0),
            spread=_put(prior.spread, term, 1e-9 * prior.spread[term]),
            least=_put(prior.least, term, 0.0),
        )
    found = []
    for turn in range(turns):
        errors = cross_validate(
            series.points, FOLDS, prior, turn=turn, compute=series.machine.compute if roof else None
        )
        found += [Judged(series, p, error) for p, error in zip(series.points, errors, strict=True)]
    return found


def uncalibrated(series: Series, unseen: Unseen) -> list[Judged]:
    """Ours, from the data sheet and the pool of other series alone."""
    errors = pooled_errors(unseen[series.name], series)
    return [Judged(series, p, error) for p, error in zip(series.points, errors, strict=True)]


def _put(values: tuple[float, ...], place: int, value: float) -> tuple[float, ...]:
    return (*values[:place], value, *values[place + 1 :])
