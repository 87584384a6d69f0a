"""The cached predictions of aiconfigurator: what is refused as a table, and that the committed one covers the data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shared_data import shared_path
from stepscope.core.defaults import Machine
from stepscope.core.law_terms import Point
from stepscope.errors import FactError

pytestmark = pytest.mark.usefixtures("benchmarks_importable")


def table(tmp_path: Path, series: Any, **more: Any) -> Path:
    """A table on disk with these series."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"package": "p", "version": "1.2.3", "series": series, **more}), encoding="utf-8")
    return path


def test_predictions_are_found_by_series_and_load_and_refusals_keep_their_reason(tmp_path: Path) -> None:
    """The key is what a measured point says of itself, so no row number can go out of step."""
    from accuracy_aiconfigurator import read_cached

    series = {"a": {"modes": "m", "points": [[8, 8704, 64.0, 0.0125], [8, 9000, 0, 0.02]]}, "b": {"refused": "no data"}}
    found = read_cached(table(tmp_path, series))
    assert found.version == "1.2.3"
    assert found.seconds == {("a", 8.0, 8704.0, 64.0): 0.0125, ("a", 8.0, 9000.0, 0.0): 0.02}
    assert found.refused == {"b": "no data"}


def test_only_points_that_both_cover_are_compared(tmp_path: Path) -> None:
    """Errors are predicted over measured less 1, in the order of the given points."""
    from accuracy_aiconfigurator import read_cached
    from accuracy_data import Series
    from accuracy_methods import Judged

    points = tuple(Point(n, 1000.0 * n, 0.0, 0.010, 1e9, 1e5) for n in (1.0, 2.0, 4.0))
    series = Series("a", "file", points, Machine("vllm", "H100-SXM", 1, 3.35e12, 989e12, 1e9, layers=32))
    cached = read_cached(table(tmp_path, {"a": {"points": [[4, 4000, 0, 0.008], [1, 1000, 0, 0.012]]}}))
    ours = [Judged(series, point, 0.5) for point in points]
    theirs, mine = cached.judge(ours)
    assert mine == [ours[0], ours[2]]
    assert [one.error for one in theirs] == pytest.approx([0.2, -0.2])
    assert [one.point for one in theirs] == [points[0], points[2]]


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "has no series"),
        ({"a": {}}, "a: must have either points or the reason"),
        ({"a": {"points": [[1, 2, 3, 4]], "refused": "why"}}, "a: must have either points or the reason"),
        ({"a": {"points": []}}, "a: points must be a list that is not empty"),
        ({"a": {"points": [[1, 2, 3]]}}, "a: a point is sequences, tokens in flight"),
        ({"a": {"points": [[1, 2, 3, 0]]}}, "seconds above 0, not [1, 2, 3, 0]"),
        ({"a": {"points": [[1, 2, True, 0.1]]}}, "a: a point is sequences, tokens in flight"),
        ({"a": {"points": [[1, 2, 3, math.nan]]}}, "a: a point is sequences, tokens in flight"),
        ({"a": {"points": [[1, -2, 3, 0.1]]}}, "a: a point is sequences, tokens in flight"),
        ({"a": {"points": [[1, 2, 3, 0.1, 5]]}}, "a: a point is sequences, tokens in flight"),
        ({"a": {"points": ["fast"]}}, 'not "fast"'),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_file_and_series(tmp_path: Path, series: Any, message: str) -> None:
    """A half-written table must not become a figure in the document."""
    from accuracy_aiconfigurator import read_cached

    path = table(tmp_path, series)
    with pytest.raises(FactError) as caught:
        read_cached(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_table_that_is_missing_says_how_to_make_it(tmp_path: Path) -> None:
    """Also one that is cut, or does not say which version predicted."""
    from accuracy_aiconfigurator import read_cached

    with pytest.raises(FactError, match=r"run_aiconfigurator\.py writes it"):
        read_cached(tmp_path / "none.json")
    cut = tmp_path / "cut.json"
    cut.write_text('{"series": {', encoding="utf-8")
    with pytest.raises(FactError, match="is not JSON"):
        read_cached(cut)
    with pytest.raises(FactError, match="does not say which version"):
        read_cached(table(tmp_path, {}, version=None))


def test_what_the_script_writes_can_be_read(tmp_path: Path) -> None:
    """One line per series, so that a difference can be read."""
    from accuracy_aiconfigurator import read_cached
    from run_aiconfigurator import text_of

    path = tmp_path / "table.json"
    written = text_of("0.12.0", {"a": {"modes": "m", "points": [[1, 2, 0, 0.1]]}, "b": {"refused": 'no "x"'}})
    path.write_text(written, encoding="utf-8")
    found = read_cached(path)
    assert (found.seconds, found.refused) == ({("a", 1.0, 2.0, 0.0): 0.1}, {"b": 'no "x"'})
    assert len([line for line in written.splitlines() if line.startswith("  ")]) == 2


def test_requests_are_given_as_long_as_they_were_served() -> None:
    """InferenceX draws lengths of 80-100 % of nominal; the tokens in flight say which was meant."""
    from run_aiconfigurator import lengths

    row = {"sequences": 64, "input_tokens": 8192, "output_tokens": 1024}
    assert lengths({**row, "tokens_in_flight": 64 * (8192 + 512)}) == (8192, 1024)
    assert lengths({**row, "tokens_in_flight": 0.9 * 64 * (8192 + 512)}) == (7373, 922)


def test_the_committed_table_answers_for_every_measured_load_it_could_model() -> None:
    """A point is predicted or its series refused: nothing was left out in silence, and nothing stale was kept."""
    from accuracy_aiconfigurator import CACHED, load_as_point, load_of, read_cached
    from accuracy_data import load
    from accuracy_methods import Judged

    cached = read_cached(CACHED)
    assert cached.version == "0.12.0"
    measured = [one for one in load(shared_path("")) if one.file != "fastertransformer"]
    loads = {load_of(Judged(series, point, 0.0)) for series in measured for point in series.points}
    refused = {one for one in loads if one[0] in cached.refused}
    assert {load_as_point(load) for load in cached.seconds} == loads - refused
    assert set(cached.refused) <= {series.name for series in measured}
