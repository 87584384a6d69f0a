"""Non-negative least squares against every way of choosing which parameters are 0, and against its own conditions."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.nnls import cholesky, inverse, nonnegative_least_squares, solve

Matrix = list[list[float]]


def gram_of(rows: Matrix) -> Matrix:
    return [[math.fsum(row[i] * row[j] for row in rows) for j in range(len(rows[0]))] for i in range(len(rows[0]))]


def moment_of(rows: Matrix, right: list[float]) -> list[float]:
    return [math.fsum(row[i] * value for row, value in zip(rows, right, strict=True)) for i in range(len(rows[0]))]


def cost(gram: Matrix, moment: list[float], x: list[float]) -> float:
    size = range(len(x))
    return 0.5 * sum(x[i] * gram[i][j] * x[j] for i in size for j in size) - sum(moment[i] * x[i] for i in size)


def best_of_all_subsets(gram: Matrix, moment: list[float]) -> float:
    """The least cost over every choice of free parameters whose unconstrained optimum is feasible."""
    best = 0.0
    for count in range(1, len(moment) + 1):
        for chosen in itertools.combinations(range(len(moment)), count):
            part = solve(cholesky([[gram[i][j] for j in chosen] for i in chosen]), [moment[i] for i in chosen])
            if min(part) >= 0.0:
                x = [0.0] * len(moment)
                for i, value in zip(chosen, part, strict=True):
                    x[i] = value
                best = min(best, cost(gram, moment, x))
    return best


_number = st.floats(-5, 5, allow_subnormal=False)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Matrix, list[float]]:
    """Up to five parameters and nine equations, held by a small ridge as every fit here is."""
    size = draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(_number, min_size=size, max_size=size), min_size=1, max_size=9))
    right = draw(st.lists(_number, min_size=len(rows), max_size=len(rows)))
    gram = gram_of(rows)
    for i in range(size):
        gram[i][i] += 0.01
    return gram, moment_of(rows, right)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_no_choice_of_zeros_does_better(problem: tuple[Matrix, list[float]]) -> None:
    """An oracle that shares nothing with the algorithm but the Cholesky factor: it tries all subsets."""
    gram, moment = problem
    x = nonnegative_least_squares(gram, moment)
    assert min(x) >= 0.0
    assert cost(gram, moment, x) == pytest.approx(best_of_all_subsets(gram, moment), rel=1e-6, abs=1e-7)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_result_meets_the_conditions_of_an_optimum(problem: tuple[Matrix, list[float]]) -> None:
    """Karush, Kuhn and Tucker: gradient 0 where a parameter is free, not negative where it is held at 0."""
    gram, moment = problem
    x = nonnegative_least_squares(gram, moment)
    size = 1e-6 * max(1.0, *map(abs, moment))
    for i, value in enumerate(x):
        gradient = sum(a * b for a, b in zip(gram[i], x, strict=True)) - moment[i]
        assert gradient >= -size * max(1.0, math.sqrt(gram[i][i]))
        if value > 0.0:
            assert abs(gradient) <= size * max(1.0, math.sqrt(gram[i][i]))


def test_an_exact_positive_solution_is_found() -> None:
    """Three equations that (1, 2) solves."""
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    assert nonnegative_least_squares(gram_of(rows), moment_of(rows, [1.0, 2.0, 3.0])) == pytest.approx([1.0, 2.0])


def test_columns_of_very_different_size_are_solved_alike() -> None:
    """A second and a picosecond per byte stand in one law."""
    rows = [[1.0, 1e12], [1.0, 3e12], [1.0, 9e12]]
    x = nonnegative_least_squares(gram_of(rows), moment_of(rows, [3.0 + 2.0, 3.0 + 6.0, 3.0 + 18.0]))
    assert x == pytest.approx([3.0, 2e-12], rel=1e-6)


def test_a_column_of_zeros_and_a_twin_do_no_harm() -> None:
    """The unused parameter stays 0; twins share what one of them would get."""
    rows = [[1.0, 0.0, 1.0], [2.0, 0.0, 2.0]]
    x = nonnegative_least_squares(gram_of(rows), moment_of(rows, [2.0, 4.0]))
    assert x[1] == 0.0
    assert x[0] + x[2] == pytest.approx(2.0)


def test_a_moment_that_points_away_gives_nothing() -> None:
    """All parameters 0 is the best there is."""
    assert nonnegative_least_squares([[1.0, 0.5], [0.5, 1.0]], [-1.0, -2.0]) == [0.0, 0.0]


def test_an_inverse_undoes_its_matrix() -> None:
    """A symmetric positive matrix times its inverse is the identity."""
    matrix = [[4.0, 1.0, -0.5], [1.0, 3.0, 0.2], [-0.5, 0.2, 2.0]]
    product = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in inverse(matrix)] for row in matrix]
    assert [value for row in product for value in row] == pytest.approx([1, 0, 0, 0, 1, 0, 0, 0, 1], abs=1e-12)
