"""Which prices of a fit its points fix, and which only the prior says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul

from stepscope.core.law_terms import CORE, TERMS
from stepscope.core.nnls import cholesky, gram_of, solve


def known_terms(
    rows: Sequence[Sequence[float]], counts: Sequence[float], scale: float, known_to: float
) -> Mapping[str, bool]:
    """By term, whether the points alone fix its price.

    rows: quantities over the measured ITL, one row per point; counts: what each point counts for; scale: one standard
    deviation of their relative errors. The plain terms are judged among themselves (what the small terms share with
    them is a choice of form, not missing data), a small term together with all plain ones. A term is known if the
    standard error of its largest share of the ITL is at most known_to.
    """
    columns = [
        [value * math.sqrt(count) for value, count in zip(column, counts, strict=True)]
        for column in zip(*rows, strict=True)
    ]
    largest = [max(column) for column in zip(*rows, strict=True)]
    known = {}
    for term, name in enumerate(TERMS):
        others = [other for other in CORE if other != term and largest[other] > 0.0]
        unexplained = _unexplained(columns[term], [columns[other] for other in others])
        enough = largest[term] > 0.0 and len(rows) > len(others)
        known[name] = enough and unexplained > 0.0 and scale * largest[term] <= known_to * math.sqrt(unexplained)
    return known


def _unexplained(column: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Sum of squares of what the others cannot make of a column."""
    own = sum(value * value for value in column)
    if not others:
        return own
    shrunk = [[value / math.sqrt(sum(x * x for x in other)) for value in other] for other in others]
    right = [sum(map(mul, other, column)) for other in shrunk]
    explained = sum(map(mul, right, solve(cholesky(gram_of(shrunk, shrunk)), right)))
    left = own - explained
    return left if left > 1e-9 * own else 0.0  # below, rounding
