"""Rows of measured loads come as JSON lines, as one JSON document and as CSV; what is wrong is named with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.errors import FactError
from stepscope.points import NEEDED, NUMBERS
from stepscope.points_file import records

ROWS = [
    {"sequences": 8, "tokens_in_flight": 8704.5, "prefill_tokens_per_step": 0.0, "itl_seconds": 0.018, "gpu": "4090"},
    {"sequences": 16, "tokens_in_flight": 17408, "prefill_tokens_per_step": 6e1, "itl_seconds": 2.5e-2, "gpu": "4090"},
]
HEAD = "sequences,tokens_in_flight,prefill_tokens_per_step,itl_seconds,gpu"
CSV = f"{HEAD}\n8,8704.5,0.0,0.018,4090\n16,17408,60.0,0.025,4090\n"


def read(text: str, name: str = "points") -> list[tuple[str, dict[str, Any]]]:
    return [(where, dict(fields)) for where, fields in records(name, text, NEEDED, NUMBERS)]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("\n".join(map(json.dumps, ROWS)), ["points:1", "points:2"]),
        ("\n" + json.dumps(ROWS[0]) + "\n\r\n" + json.dumps(ROWS[1]) + "\r\n", ["points:2", "points:4"]),
        (json.dumps(ROWS), ["points: row 1", "points: row 2"]),
        (json.dumps({"rows": ROWS, "provenance": {"date": "x"}}), ["points: row 1", "points: row 2"]),
        (json.dumps({"rows": ROWS}, indent=1), ["points: row 1", "points: row 2"]),
        (CSV, ["points:2", "points:3"]),
        (CSV.replace("\n", "\r\n"), ["points:2", "points:3"]),
        (CSV.replace("\n16", "\n\n16"), ["points:2", "points:4"]),
    ],
    ids=[
        "lines",
        "blank lines",
        "list",
        "bench in one line",
        "bench",
        "csv",
        "csv of a spreadsheet",
        "csv, blank line",
    ],
)
def test_each_form_brings_the_same_rows(text: str, places: list[str]) -> None:
    """With the place where each stands; a GPU that is called like a number stays a name."""
    found = read(text)
    assert [where for where, _ in found] == places
    assert [fields for _, fields in found] == ROWS


def test_one_row_is_a_file_too() -> None:
    """In one line and over many."""
    assert read(json.dumps(ROWS[0])) == [("points:1", ROWS[0])]
    assert read(json.dumps(ROWS[0], indent=1)) == [("points: row 1", ROWS[0])]


def test_an_empty_cell_is_no_value_and_a_quoted_one_may_hold_anything() -> None:
    """Lines are counted as an editor does."""
    text = f'{HEAD}\n8,,0,0.018,"a, ""b""\nc"\n16,1,0,1_8,\n'
    assert read(text) == [
        ("points:2", {"sequences": 8, "prefill_tokens_per_step": 0, "itl_seconds": 0.018, "gpu": 'a, "b"\nc'}),
        ("points:4", {"sequences": 16, "tokens_in_flight": 1, "prefill_tokens_per_step": 0, "itl_seconds": "1_8"}),
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "load,sequences\n1,2\n", "a.csv:1: the header has no column tokens_in_flight"),
        (
            "a.csv",
            HEAD.replace(",", ";"),
            "a.csv:1: the header has no column sequences (cells are",
        ),
        ("a", f"{HEAD},gpu\n", 'a:1: the header has two columns "gpu"'),
        ("a", f"{HEAD}\n1,2,3,4,x\n1,2,3\n", "a:3: has 3 cells, the header 5"),
        ("a", f'{HEAD}\n1,2,3,4,x\n1,2,3,4,"x\n1,2,3,4,x\n', "a:3: is not CSV: "),
        ("a", '{"rows": [{}, 7]}', "a: row 2: must be an object"),
        ("a", '{\n "rows": [\n  {"sequences": 8,}\n ]\n}', "a:3: is not JSON: "),
        ("a", "hello world\n", "a:1: is not JSON: "),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_place(name: str, text: str, says: str) -> None:
    """The line of the file, in a document the row."""
    with pytest.raises(FactError) as caught:
        read(text, name)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
