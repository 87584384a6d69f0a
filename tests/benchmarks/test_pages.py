"""The pages of the benchmark are whole, move, and are read by the sidecar."""

from __future__ import annotations

from pages import Tape, recorded, splice

from recorded_pages import whole_page
from stepscope.engines import read


def check(tape: Tape) -> None:
    """Every page is as long as a real one, and its counters grow."""
    readings = [read(text, at) for at, text in tape.rows]
    steps = [reading.engines[0].engine_steps or 0.0 for reading in readings if reading is not None]
    assert len(steps) == len(tape.rows)
    assert steps == sorted(steps)
    assert steps[-1] > steps[0] + 100
    assert {text.count("\n") for _, text in tape.rows} == {whole_page().count("\n")}


def test_the_recorded_pages_are_whole_and_move() -> None:
    """Whole pages out of cut ones: what the cut has moves, the rest stands."""
    check(recorded())


def test_splicing_replaces_values_and_nothing_else() -> None:
    """By the whole series, labels included."""
    whole = '# HELP a x\na{l="1"} 1\na{l="2"} 2\nb 3\n'
    assert splice(whole, '# HELP a y\na{l="2"} 20\nc 4\n') == '# HELP a x\na{l="1"} 1\na{l="2"} 20\nb 3\n'
