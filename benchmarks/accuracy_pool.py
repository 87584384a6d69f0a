"""Fits the table of defaults: prices that carry over between machines, pooled over public series."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from operator import mul

from accuracy_data import ABSENT, REPOSITORY, Series, load, shared_folder
from accuracy_scatter import scatters

from stepscope.core.defaults import (
    ANY,
    COEFFICIENTS,
    LEAST_READS,
    Machine,
    Pooled,
    Scatter,
    coefficients,
    prices_of,
    row_of,
)
from stepscope.core.law_terms import Point, quantities
from stepscope.core.nnls import nonnegative_least_squares
from stepscope.core.score import quantile

TABLE = REPOSITORY / "exporter" / "stepscope" / "core" / "defaults_table.py"
ENGINES = ("vllm", "trtllm", "sglang", "fastertransformer", ANY)
GENERATIONS = ("ampere", "hopper", "blackwell", ANY)
# What a series of another engine, or another GPU generation, counts for: chosen on dense series left out, from
# 0.05, 0.15, 0.4, 1 and 0.1, 0.3, 1.
OTHER_ENGINE, OTHER_GENERATION = 0.05, 0.3
# FasterTransformer's static batches speak for its own kind, and for a generation on which nothing newer was measured.
OLD_ENGINE, OLD_GENERATION = "fastertransformer", "ampere"
RIDGE = 0.02  # keeps apart what the pool cannot: share of the ITL at which a coefficient starts to be pulled to 0
ROUNDS, CAUCHY, SCALE_FLOOR = 9, 2.385, 0.03
UNITS = [[float(i == j) for j in range(len(COEFFICIENTS))] for i in range(len(COEFFICIENTS))]


def coefficient_quantities(point: Point, machine: Machine) -> list[float]:
    """What each coefficient of a row is multiplied with for this point: prices are linear in them."""
    load_ = quantities(point)
    return [sum(map(mul, prices_of(unit, machine), load_)) for unit in UNITS]


def fit_pool(members: Sequence[tuple[Series, float]]) -> tuple[float, ...]:
    """Coefficients from series with weights; each series counts as one, whatever its number of points."""
    rows, counts = [], []
    for series, weight in members:
        for point in series.points:
            rows.append([value / point.itl_seconds for value in coefficient_quantities(point, series.machine)])
            counts.append(weight / len(series.points))
    columns = [list(column) for column in zip(*rows, strict=True)]
    # Nothing is read faster than the data sheet says, where the bytes are known.
    reads = 0.0 if members[0][0].machine.moe else LEAST_READS
    least = [reads if name in ("weight_reads", "kv_reads") else 0.0 for name in COEFFICIENTS]
    goal = [1.0 - sum(map(mul, row, least)) for row in rows]
    scale = [max(column) or 1.0 for column in columns]
    columns = [[value / most for value in column] for column, most in zip(columns, scale, strict=True)]
    pull = RIDGE**2 * sum(counts)
    robust = counts
    solved: list[float] = []
    for _ in range(ROUNDS):
        weighted = [list(map(mul, column, robust)) for column in columns]
        gram = [[sum(map(mul, one, other)) for other in columns] for one in weighted]
        for i in range(len(gram)):
            gram[i][i] += pull
        solved = nonnegative_least_squares(gram, [sum(map(mul, column, goal)) for column in weighted])
        errors = [sum(map(mul, row, solved)) - rest for row, rest in zip(zip(*columns, strict=True), goal, strict=True)]
        width = max(1.4826 * quantile([abs(error) for error in errors], 0.5), SCALE_FLOOR)
        robust = [count / (1.0 + (error / (CAUCHY * width)) ** 2) for count, error in zip(counts, errors, strict=True)]
    return tuple(low + value / most for low, value, most in zip(least, solved, scale, strict=True))


def pool_for(
    everything: Iterable[Series], engine: str, generation: str, moe: bool, without: Series | None = None
) -> list[tuple[Series, float]]:
    """The series that speak for an engine on a generation, with weights; `without` leaves out one and its copies."""
    members = []
    for series in everything:
        if series.machine.moe != moe or not series.sound or series.file == "dynamo_decode":
            continue
        old = series.machine.engine == OLD_ENGINE
        if old and engine != OLD_ENGINE and generation != OLD_GENERATION:
            continue
        if without is not None and (series.name == without.name or series.is_copy_of(without)):
            continue
        weight = 1.0
        if engine not in (ANY, series.machine.engine):
            weight *= OTHER_ENGINE
        if generation not in (ANY, series.machine.generation):
            weight *= OTHER_GENERATION
        members.append((series, weight))
    return members


def pooled_errors(row: Pooled, series: Series) -> list[float]:
    """Relative errors of pooled coefficients on a series."""
    prices = prices_of(coefficients(row), series.machine)
    return [sum(map(mul, prices, quantities(point))) / point.itl_seconds - 1.0 for point in series.points]


def left_out(everything: Sequence[Series]) -> tuple[dict[str, Pooled], dict[str, Scatter]]:
    """For each series the row of a pool that never saw it; for each kind how all its series scatter.

    The scatter of a series' row leaves out the series and its copies. The pools that the others scatter around did see
    it: leaving it out of those too changed the shares of dense series by 2 points at most, either way.
    """
    plain = {
        one.name: row_of(
            fit_pool(pool_for(everything, one.machine.engine, one.machine.generation, one.machine.moe, one))
        )
        for one in everything
    }
    kinds, without = scatters(everything, plain)
    return {name: replace(row, scatter=without[name]) for name, row in plain.items()}, kinds


def table(
    everything: Sequence[Series], unseen: dict[str, Pooled], kinds: dict[str, Scatter]
) -> dict[tuple[str, str, str], Pooled]:
    """One row per engine, generation and kind; spread from the left-out errors of the series that match best."""
    rows = {}
    for kind in ("dense", "moe"):
        for engine in ENGINES:
            for generation in GENERATIONS:
                pool = pool_for(everything, engine, generation, kind == "moe")
                own = [one for one, weight in pool if weight == 1.0]
                nearest = max(weight for _, weight in pool)
                judges = own or [one for one, weight in pool if weight == nearest]
                errors = [error for one in judges for error in pooled_errors(unseen[one.name], one)]
                row = row_of(
                    fit_pool(pool),
                    low=1.0 / (1.0 + max(0.0, quantile(errors, 0.95))),
                    high=1.0 / (1.0 + min(0.0, quantile(errors, 0.05))),
                    series=len(own),
                    points=sum(len(one.points) for one in own),
                )
                rows[(engine, generation, kind)] = replace(row, scatter=kinds[kind])
    return rows


HEADER = '''"""Generated by `make accuracy`: do not edit. Prices of engines nobody calibrated, for core/defaults.py.

Sources: vLLM, SGLang and TensorRT-LLM on H100, H200, B200, B300 from silicon_sample.csv of ai-dynamo/aiconfigurator
(Apache-2.0; InferenceX and NVIDIA sweeps); FasterTransformer on A100-80GB from NVIDIA/FasterTransformer's guides
(Apache-2.0). `series` and `points` say how many were of that engine and generation; where there are none the others
stand in. low and high: 5th and 95th percentile of measured over predicted on series left out of the pool.
"""

from stepscope.core.defaults import Pooled, Scatter

# fmt: off
# How prices of single series scatter around a row (order of TERMS in core/law_terms.py): width, correlation.
{scatters}
# Per row: {columns}.
TABLE: dict[tuple[str, str, str], Pooled] = {{
'''


def scatter_text(kind: str, scatter: Scatter) -> str:
    """A distribution as Python."""
    lines = [", ".join(f"{value:.2f}" for value in row) for row in scatter.correlation]
    correlation = "".join(f"    ({line}{',' if line and ',' not in line else ''}),\n" for line in lines)
    return f"{kind.upper()} = Scatter(({', '.join(f'{value:.2f}' for value in scatter.width)}), (\n{correlation}))"


def table_text(rows: dict[tuple[str, str, str], Pooled]) -> str:
    """The table as a Python module."""
    names = [field.name for field in fields(Pooled)]
    kinds = {kind: row.scatter for (_, _, kind), row in rows.items() if row.scatter is not None}
    columns = textwrap.fill(", ".join(names), 118, subsequent_indent="# ", initial_indent=" " * 11).strip()
    lines = [HEADER.format(columns=columns, scatters="\n".join(scatter_text(*one) for one in kinds.items()))]
    for (engine, generation, kind), row in rows.items():
        prices = ", ".join(f"{getattr(row, name):.3g}" for name in COEFFICIENTS)
        numbers = f"{prices}, {row.low:.2f}, {row.high:.2f}, {row.series}, {row.points}, {kind.upper()}"
        lines.append(f'    ("{engine}", "{generation}", "{kind}"): Pooled(\n        {numbers}),\n')
    lines.append("}\n")
    return "".join(lines)


def main() -> int:
    """Writes the table anew, or with --check says whether it is what the measurements give."""
    shared = shared_folder()
    if shared is None:
        sys.stdout.write(ABSENT)
        return 0
    everything = load(shared)
    text = table_text(table(everything, *left_out(everything)))
    if "--check" in sys.argv[1:]:
        return int(text != TABLE.read_text(encoding="utf-8"))
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
