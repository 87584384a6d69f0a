"""The three forms in which rows of measured loads come: JSON lines, one JSON document, CSV with a header."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from stepscope.errors import FactError
from stepscope.setting_kinds import quoted

Record = tuple[str, Mapping[str, Any]]  # where it stands, and its fields


def records(name: str, text: str, needed: Sequence[str], numbers: Collection[str]) -> Iterator[Record]:
    """Rows of a file's text, told apart by content. Raises FactError naming the place.

    needed: the columns without which a CSV file is none. numbers: the columns of CSV that are read as numbers.
    """
    first = next((line for line in text.split("\n") if line.strip()), "")
    start = first.lstrip()[:1]
    if start not in ("{", "[") and (name.lower().endswith(".csv") or any(cell in needed for cell in first.split(","))):
        yield from _csv(name, text, needed, numbers)
        return
    # JSON lines fail at their second row, after little work; a single row is the same either way.
    try:
        document = json.loads(text) if start in ("{", "[") else None
    except (ValueError, RecursionError) as error:
        if first.strip() in ("{", "["):  # as printed over many lines: the first of them says nothing
            line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
            raise FactError(f"{name}:{line}: is not JSON: {quoted(str(error))}") from error
        document = None
    rows = document.get("rows") if isinstance(document, dict) else document
    if isinstance(rows, list):
        yield from _listed(name, rows)
    elif document is not None and "\n" in text.strip():
        yield f"{name}: row 1", document
    else:
        yield from _lines(name, text)


def _listed(name: str, rows: Sequence[Any]) -> Iterator[Record]:
    for number, fields in enumerate(rows, start=1):
        if not isinstance(fields, dict):
            raise FactError(f"{name}: row {number}: must be an object, {{...}}")
        yield f"{name}: row {number}", fields


def _lines(name: str, text: str) -> Iterator[Record]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FactError(f"{where}: is not JSON: {quoted(str(error))}") from error
        if not isinstance(fields, dict):
            raise FactError(f"{where}: must be an object, {{...}}")
        yield where, fields


def _csv(name: str, text: str, needed: Sequence[str], numbers: Collection[str]) -> Iterator[Record]:
    """An empty cell is no value. A cell that should be a number and is none stays text, for its reader to refuse."""
    header: list[str] = []
    # strict: a quote that is never closed would otherwise swallow the rest of the file without a word.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        where = f"{name}:{reader.line_num + 1}"  # a quoted cell may go over several lines: the first counts
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise FactError(f"{where}: is not CSV: {error}") from error
        if cells is None:
            return
        if not any(cell.strip() for cell in cells):
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            _check_header(where, header, needed)
            continue
        if len(cells) != len(header):
            raise FactError(f"{where}: has {len(cells)} cells, the header {len(header)}")
        pairs = zip(header, map(str.strip, cells), strict=True)
        yield where, {key: _number(cell) if key in numbers else cell for key, cell in pairs if cell}


def _check_header(where: str, header: Sequence[str], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in header]
    if missing:
        raise FactError(f"{where}: the header has no column {missing[0]} (cells are separated by commas)")
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise FactError(f"{where}: the header has two columns {quoted(twice)}")


def _number(cell: str) -> int | float | str:
    if "_" in cell:  # Python takes 1_000 for a number, nobody else does
        return cell
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
