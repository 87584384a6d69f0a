"""Measured loads: refuses what cannot be, and knows model and machine where rows say so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.core.defaults import Machine, default_prior, find_row
from stepscope.core.defaults_table import TABLE
from stepscope.core.fit import Prior, check
from stepscope.core.law_terms import Point
from stepscope.errors import FactError
from stepscope.points_file import records
from stepscope.setting_kinds import quoted

NEEDED = ("sequences", "tokens_in_flight", "prefill_tokens_per_step", "itl_seconds")
# Per GPU, multiplied with tp; the names are those of public collections of measurements.
WEIGHTS, KV = "weight_bytes_per_gpu", "kv_bytes_per_token_per_gpu"
BANDWIDTH, FLOPS = "peak_bandwidth_bytes_per_second", "peak_flops"
# What may be a number in CSV, where everything is text; a GPU or a model may be called like a number.
NUMBERS = (*NEEDED, WEIGHTS, KV, BANDWIDTH, FLOPS, "tp", "prompts_per_step", "weight", "active_params", "layers")
BENCH = "stepscope_version"  # a column of every row that a bench wrote
# What makes an engine another one. Not its version: one that moved on is often fitted as a whole.
MACHINE = ("model", "engine", "gpu", "tp", "weight_dtype", BANDWIDTH, FLOPS)
SLOW_SECONDS = 2.0  # per token; 1.4 is the slowest of the public sweeps, 530e9 parameters at 256 sequences on A100
FOUR_BIT = ("fp4", "nvfp4", "mxfp4", "int4", "awq", "gptq", "w4")


@dataclass(frozen=True, slots=True)
class Row:
    """One measured load. `where` is file and line or row, for messages."""

    where: str
    fields: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """A figure above or at 0, None where the row has none. Raises FactError for anything else."""
        value = self.fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise FactError(f"{self.where}: {name} is {quoted(str(value))}, must be a finite number not below 0")
        return float(value)

    def text(self, name: str) -> str:
        """A text, empty where the row has none."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""

    @property
    def is_empty(self) -> bool:
        """A bench wrote it, of a load that brought no figures."""
        return BENCH in self.fields and any(self.fields.get(name) is None for name in NEEDED)

    @property
    def gpus(self) -> int:
        """GPUs the engine runs on."""
        return max(1, round(self.number("tp") or 1))


def read_rows(path: Path) -> list[Row]:
    """The rows of a file of JSON lines, of CSV with a header, or of one JSON document, whatever its name.

    A document is a list of rows or, as `stepscope bench --json` prints it, an object that holds them as `rows`. Empty
    lines are skipped. Raises FactError naming the file and the line, in a document the row.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets put a byte order mark before CSV
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise FactError(f"{path}: {reason}") from error
    rows = [Row(where, fields) for where, fields in records(str(path), text, NEEDED, NUMBERS)]
    if not rows:
        raise FactError(f"{path}: has no rows")
    return rows


def measured(rows: Sequence[Row]) -> tuple[list[Row], str | None]:
    """(rows that measured a load, one line on the others or None); raises FactError where no row did.

    A bench's JSON and CSV have a row for every load it tried, also where no answer came.
    """
    found = [row for row in rows if not row.is_empty]
    if not found:
        raise FactError(f"{rows[0].where}: neither this row nor any other measured a load")
    if len(found) == len(rows):
        return found, None
    first = next(row for row in rows if row.is_empty)
    return found, f"{first.where}: {len(rows) - len(found)} of {len(rows)} rows measured no load and are left out"


def group(rows: Sequence[Row], column: str | None) -> dict[str, list[Row]]:
    """Rows by the value of a column, in order of appearance; all under "all" without a column."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = "all" if column is None else row.fields.get(column)
        if name is None or isinstance(name, dict | list):
            raise FactError(f"{row.where}: {column} is missing, and rows are to be told apart by it")
        groups.setdefault(str(name), []).append(row)
    return groups


def doubts(groups: Mapping[str, Sequence[Row]], column: str | None) -> Iterator[str]:
    """What a reader of the fits should know of the rows: sentences without the final full stop."""
    for rows in groups.values():
        first = rows[0]
        other = next((row for row in rows if any(row.fields.get(n) != first.fields.get(n) for n in MACHINE)), None)
        if other is not None:
            name = next(name for name in MACHINE if other.fields.get(name) != first.fields.get(name))
            hint = "give --by with a column that tells engines apart" if column is None else "one law cannot fit both"
            yield f"{other.where}: {name} is another than in {first.where}: {hint}"
    if all((row.number("itl_seconds") or 0.0) > SLOW_SECONDS for rows in groups.values() for row in rows):
        yield f"every itl_seconds is above {SLOW_SECONDS:g}: are these milliseconds?"


def knows_bytes(rows: Sequence[Row]) -> bool:
    """Whether every row says how many bytes weights and KV cache take."""
    return all(row.number(WEIGHTS) and row.number(KV) for row in rows)


def point_of(row: Row, in_bytes: bool) -> Point:
    """The point a row describes, in bytes or, where those are not known, in tokens. Raises FactError."""
    figures = {name: row.number(name) for name in NEEDED}
    missing = [name for name, value in figures.items() if value is None]
    if missing:
        raise FactError(f"{row.where}: {missing[0]} is missing")
    weights, kv = row.number(WEIGHTS), row.number(KV)
    if in_bytes and not (weights and kv):
        raise FactError(f"{row.where}: {KV if weights else WEIGHTS} is missing, and the series was fitted with it")
    point = Point(
        sequences=figures["sequences"] or 0.0,
        tokens_in_flight=figures["tokens_in_flight"] or 0.0,
        prefill_tokens_per_step=figures["prefill_tokens_per_step"] or 0.0,
        itl_seconds=figures["itl_seconds"] or 0.0,
        weight_bytes=(weights or 0.0) * row.gpus if in_bytes else None,
        kv_bytes_per_token=(kv or 0.0) * row.gpus if in_bytes else None,
        prompts_per_step=row.number("prompts_per_step"),
        weight=1.0 if row.number("weight") is None else row.number("weight") or 0.0,
    )
    try:
        check(point)
    except ValueError as error:
        raise FactError(f"{row.where}: {error}") from error
    return point


def machine_of(rows: Sequence[Row]) -> Machine | None:
    """Model and hardware of a series, from its first row; None where bytes or bandwidth are not known."""
    first = rows[0]
    bandwidth = first.number(BANDWIDTH)
    if not bandwidth or not knows_bytes(rows):
        return None
    flops = first.number(FLOPS)
    growing = len({row.number(WEIGHTS) for row in rows}) > 1  # only a mixture of experts reads more with more sequences
    return Machine(
        engine=first.text("engine").lower(),
        gpu=first.text("gpu"),
        gpus=first.gpus,
        peak_bandwidth_bytes_per_second=bandwidth * first.gpus,
        peak_flops=flops * first.gpus if flops else None,
        active_params=first.number("active_params") or None,
        moe=growing or first.text("type") == "moe",
        four_bit=first.text("weight_dtype").lower().startswith(FOUR_BIT),
        layers=first.number("layers") or None,
    )


def prior_of(machine: Machine | None) -> Prior | None:
    """What the table of defaults says of a machine."""
    return None if machine is None else default_prior(find_row(TABLE, machine), machine)
