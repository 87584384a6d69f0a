"""Least squares with parameters that cannot be negative, from the normal equations, in plain Python.

Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, in the form that works on A'A and A'b alone
(Bro and de Jong, J. Chemometrics 11 (1997) 393): a dozen parameters, so a Cholesky factor costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

Matrix = list[list[float]]

TOLERANCE = 1e-10  # of the gradient, with unknowns scaled to unit diagonal
PIVOT = 1e-12  # a column that others explain to within this share of its square is dependent


def cholesky(matrix: Sequence[Sequence[float]]) -> Matrix:
    """Lower factor L of a symmetric positive matrix; a dependent column gets a tiny pivot, never a root of minus."""
    size = len(matrix)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        row = lower[i]
        for j in range(i):
            done = lower[j]
            row[j] = (matrix[i][j] - sum(map(mul, row[:j], done[:j]))) / done[j]
        pivot = matrix[i][i] - sum(map(mul, row[:i], row[:i]))
        row[i] = math.sqrt(max(pivot, PIVOT * matrix[i][i], 1e-300))
    return lower


def solve_lower(lower: Matrix, right: Sequence[float]) -> list[float]:
    """y of L y = right."""
    solution: list[float] = []
    for i, row in enumerate(lower):
        solution.append((right[i] - sum(map(mul, row[:i], solution))) / row[i])
    return solution


def solve(lower: Matrix, right: Sequence[float]) -> list[float]:
    """x of L L' x = right."""
    middle = solve_lower(lower, right)
    size = len(lower)
    solution = [0.0] * size
    for i in reversed(range(size)):
        later = sum(lower[j][i] * solution[j] for j in range(i + 1, size))
        solution[i] = (middle[i] - later) / lower[i][i]
    return solution


def inverse(matrix: Sequence[Sequence[float]]) -> Matrix:
    """Of a symmetric positive matrix."""
    lower = cholesky(matrix)
    return [solve(lower, [float(i == j) for j in range(len(lower))]) for i in range(len(lower))]


def gram_of(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> Matrix:
    """left' right, symmetric: left is right with its rows weighted."""
    size = len(left)
    gram = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            gram[i][j] = gram[j][i] = sum(map(mul, left[i], right[j]))
    return gram


def nonnegative_least_squares(gram: Sequence[Sequence[float]], moment: Sequence[float]) -> list[float]:
    """x >= 0 that minimises x' gram x / 2 - moment' x.

    gram: A'A, symmetric, positive on its diagonal wherever a parameter matters (a zero row leaves its parameter 0).
    moment: A'b. Every optimum meets the Karush-Kuhn-Tucker conditions: the gradient is 0 where x > 0 and not negative
    where x = 0.
    """
    size = len(moment)
    scale = [1.0 / math.sqrt(gram[i][i]) if gram[i][i] > 0.0 else 0.0 for i in range(size)]
    scaled = [[gram[i][j] * scale[i] * scale[j] for j in range(size)] for i in range(size)]
    target = [moment[i] * scale[i] for i in range(size)]
    limit = TOLERANCE * max(map(abs, target), default=0.0)
    unknowns = [0.0] * size
    passive: list[int] = []
    for _ in range(3 * size + 3):  # Lawson and Hanson's bound; in practice about one round per positive parameter
        gradient = [target[i] - sum(map(mul, scaled[i], unknowns)) for i in range(size)]
        free = [i for i in range(size) if i not in passive and scale[i] > 0.0 and gradient[i] > limit]
        if not free:
            break
        passive.append(max(free, key=lambda i: gradient[i]))
        while passive:
            best = _on(passive, scaled, target)
            if min(best) > 0.0:
                break
            # As far as the first parameter that would turn negative; that one leaves.
            step = min(
                unknowns[i] / (unknowns[i] - wanted) for i, wanted in zip(passive, best, strict=True) if wanted <= 0.0
            )
            for i, wanted in zip(passive, best, strict=True):
                unknowns[i] += step * (wanted - unknowns[i])
            smallest = min(unknowns[i] for i in passive)
            passive = [i for i in passive if unknowns[i] > max(smallest, 0.0)]
            unknowns = [value if i in passive else 0.0 for i, value in enumerate(unknowns)]
        for i, value in zip(passive, _on(passive, scaled, target) if passive else [], strict=True):
            unknowns[i] = value
    return [value * factor for value, factor in zip(unknowns, scale, strict=True)]


def _on(passive: Sequence[int], gram: Matrix, moment: Sequence[float]) -> list[float]:
    """The unconstrained optimum of the passive parameters, the others at 0."""
    part = [[gram[i][j] for j in passive] for i in passive]
    return solve(cholesky(part), [moment[i] for i in passive])
