"""Files of measured loads: what is read, what is refused with file and line, and what is known of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import FactError
from stepscope.points import group, knows_bytes, machine_of, measured, point_of, prior_of, read_rows

FOUR = {"sequences": 8, "tokens_in_flight": 8704, "prefill_tokens_per_step": 64.0, "itl_seconds": 0.018}
FACTS = {
    "weight_bytes_per_gpu": 16e9, "kv_bytes_per_token_per_gpu": 65536.0, "peak_bandwidth_bytes_per_second": 3.35e12,
    "peak_flops": 989e12, "active_params": 32e9, "tp": 2, "engine": "vLLM", "gpu": "H100-SXM", "weight_dtype": "bf16",
}  # fmt: skip


def written(folder: Path, *rows: dict[str, Any] | str) -> Path:
    path = folder / "points.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_the_four_figures_are_enough(tmp_path: Path) -> None:
    """A point in tokens, of a machine nobody knows."""
    rows = read_rows(written(tmp_path, FOUR))
    point = point_of(rows[0], in_bytes=knows_bytes(rows))
    assert (point.sequences, point.tokens_in_flight, point.itl_seconds) == (8.0, 8704.0, 0.018)
    assert (point.weight_bytes, point.kv_bytes_per_token, point.weight) == (None, None, 1.0)
    assert machine_of(rows) is None
    assert prior_of(None) is None


def test_facts_per_gpu_become_those_of_the_engine(tmp_path: Path) -> None:
    """Two GPUs: twice the bytes, the bandwidth and the arithmetic of one."""
    rows = read_rows(written(tmp_path, FOUR | FACTS))
    point, machine = point_of(rows[0], in_bytes=True), machine_of(rows)
    assert (point.weight_bytes, point.kv_bytes_per_token) == (32e9, 131072.0)
    assert machine is not None
    assert (machine.gpus, machine.peak_bandwidth_bytes_per_second, machine.peak_flops) == (2, 6.7e12, 2 * 989e12)
    assert (machine.engine, machine.generation, machine.moe, machine.four_bit) == ("vllm", "hopper", False, False)
    assert prior_of(machine) is not None


def test_weights_that_grow_with_the_batch_are_a_mixture_of_experts(tmp_path: Path) -> None:
    """Whether or not the row says so."""
    rows = read_rows(written(tmp_path, FOUR | FACTS, FOUR | FACTS | {"weight_bytes_per_gpu": 20e9}))
    machine = machine_of(rows)
    assert machine is not None
    assert machine.moe


def test_bytes_are_used_only_where_every_row_has_them(tmp_path: Path) -> None:
    """Else the series is fitted in tokens."""
    rows = read_rows(written(tmp_path, FOUR | FACTS, FOUR))
    assert not knows_bytes(rows)
    assert machine_of(rows) is None


def test_empty_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    """Line numbers are those of an editor."""
    path = written(tmp_path, FOUR, "", FOUR | {"itl_seconds": -1})
    rows = read_rows(path)
    assert len(rows) == 2
    with pytest.raises(FactError, match=r"points\.jsonl:3: itl_seconds is"):
        point_of(rows[1], in_bytes=False)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"sequences": NaN}', "sequences is"),
        (FOUR | {"itl_seconds": float("inf")}, "itl_seconds is"),
        (FOUR | {"tokens_in_flight": -5}, "tokens_in_flight is"),
        (FOUR | {"sequences": "8"}, "sequences is"),
        (FOUR | {"sequences": True}, "sequences is"),
        (FOUR | {"sequences": 0}, "sequences is 0.0: must be a finite number above 0"),
        (FOUR | {"itl_seconds": 0}, "itl_seconds is 0.0"),
        ({key: value for key, value in FOUR.items() if key != "tokens_in_flight"}, "tokens_in_flight is missing"),
        (FOUR | {"weight": -1}, "weight is"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_file_and_line(
    tmp_path: Path, row: dict[str, Any] | str, message: str
) -> None:
    """One clear sentence."""
    path = written(tmp_path, FOUR, row)
    second = read_rows(path)[1]
    with pytest.raises(FactError) as caught:
        point_of(second, in_bytes=False)
    assert str(caught.value).startswith(f"{path}:2: {message}")


@pytest.mark.parametrize("text", ["{", "[1]", "7", "[" * 100_000], ids=["cut", "list", "number", "deep"])
def test_a_line_that_is_no_object_is_refused_with_its_number(tmp_path: Path, text: str) -> None:
    """Also one nested deeper than the parser goes."""
    path = written(tmp_path, FOUR, text)
    with pytest.raises(FactError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_file_that_is_not_there_empty_or_no_text_is_named(tmp_path: Path) -> None:
    """The reason too."""
    with pytest.raises(FactError, match=r"nowhere: No such file"):
        read_rows(tmp_path / "nowhere")
    with pytest.raises(FactError, match="has no rows"):
        read_rows(written(tmp_path, "", ""))
    (tmp_path / "latin").write_bytes(b'{"a": "\xe4"}')
    with pytest.raises(FactError, match=r"latin: is not UTF-8 text"):
        read_rows(tmp_path / "latin")


def test_csv_gives_the_same_point_and_machine(tmp_path: Path) -> None:
    """Also after a byte order mark; what is no number is refused with its line."""
    fields = FOUR | FACTS
    text = ",".join(fields) + "\n" + ",".join(map(str, fields.values())) + "\n"
    path = tmp_path / "points.txt"
    path.write_text(text, encoding="utf-8-sig")
    rows, same = read_rows(path), read_rows(written(tmp_path, fields))
    assert (point_of(rows[0], in_bytes=True), machine_of(rows)) == (point_of(same[0], in_bytes=True), machine_of(same))
    for wrong, shown in (("nan", "nan"), ("8 ms", "8 ms"), ("-1", "-1")):
        path.write_text(text.replace("0.018", wrong))
        with pytest.raises(FactError) as caught:
            point_of(read_rows(path)[0], in_bytes=True)
        assert str(caught.value) == f'{path}:2: itl_seconds is "{shown}", must be a finite number not below 0'


def test_a_load_of_a_bench_that_brought_no_figures_is_left_out_and_said(tmp_path: Path) -> None:
    """Anybody else's row without a figure is refused when it is used."""
    silent = dict.fromkeys(FOUR) | {"stepscope_version": "1"}
    rows, note = measured(read_rows(written(tmp_path, FOUR, silent, FOUR)))
    assert len(rows) == 2
    assert note == f"{tmp_path}/points.jsonl:2: 1 of 3 rows measured no load and are left out"
    assert measured(rows) == (rows, None)
    with pytest.raises(FactError, match=r"points\.jsonl:1: neither this row nor any other measured a load"):
        measured(read_rows(written(tmp_path, silent)))
    foreign = read_rows(written(tmp_path, FOUR | {"itl_seconds": None}))
    assert measured(foreign) == (foreign, None)


def test_rows_are_told_apart_by_any_column_in_order_of_appearance(tmp_path: Path) -> None:
    """And without a column they are one series."""
    rows = read_rows(written(tmp_path, FOUR | {"tp": 8}, FOUR | {"tp": 1}, FOUR | {"tp": 8}))
    assert {name: len(some) for name, some in group(rows, "tp").items()} == {"8": 2, "1": 1}
    assert list(group(rows, None)) == ["all"]
    with pytest.raises(FactError, match=r"points\.jsonl:1: series is missing"):
        group(rows, "series")


def test_a_hold_out_row_without_the_bytes_of_its_series_is_refused(tmp_path: Path) -> None:
    """It could only be judged in the wrong unit."""
    rows = read_rows(written(tmp_path, FOUR | {"weight_bytes_per_gpu": 1e9}))
    with pytest.raises(FactError, match="kv_bytes_per_token_per_gpu is missing"):
        point_of(rows[0], in_bytes=True)
