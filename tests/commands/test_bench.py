"""`stepscope bench` as an operator runs it, on a simulated engine."""

from __future__ import annotations

import csv
import json
import signal
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from chat_server import Manner, chat_server
from flood_server import flood_server
from load_commands import BANDWIDTH, MODEL, quick_engine, start, stepscope
from sim_helpers import get, value
from stepscope.commands import bench
from stepscope.commands._bench_flags import Flags, read_flags, rows_of
from stepscope.errors import ConfigError

LAW = (*MODEL, f"--calibration.effective-bandwidth-bytes-per-second={BANDWIDTH:g}",
       "--calibration.prefill-cost-seconds-per-token=2.4e-5")  # fmt: skip


def flags_of(*arguments: str) -> Flags:
    parser = ArgumentParser()
    bench.add_arguments(parser)
    return read_flags(parser.parse_args(arguments))


def test_rows_are_inputs_times_concurrency() -> None:
    """Requests are shared out evenly; no more streams than requests."""
    rows = list(rows_of(flags_of("--concurrency=1,4", "--input-tokens=100,200", "--output-tokens=8", "--requests=6")))
    assert [row.name for row in rows] == ["1x100", "4x100", "1x200", "4x200"]
    assert [[work.requests for work in row.works] for row in rows] == [[6], [2, 2, 1, 1], [6], [2, 2, 1, 1]]
    assert {work.output_tokens for row in rows for work in row.works} == {8}
    few = next(rows_of(flags_of("--concurrency=8", "--requests=3")))
    assert [work.requests for work in few.works] == [1, 1, 1]
    assert (few.name, few.streams_asked) == ("3x512", 8)


def test_a_mix_is_one_row_of_several_classes() -> None:
    """Forty short chats plus two long sessions."""
    (row,) = rows_of(flags_of("--mix=40x2000,2x100000"))
    assert (row.name, len(row.works), row.is_mix) == ("40x2000+2x100000", 42, True)
    assert [work.label for work in row.works] == ["2000"] * 40 + ["100000"] * 2
    assert row.longest_tokens == 100_128


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--concurrency=0",), "--concurrency: "),
        (("--concurrency=5000",), "above the largest allowed, 1024"),
        (("--mix=40",), '--mix: "40" is not STREAMSxTOKENS (example: 40x2000,2x100000)'),
        (("--mix=1x0",), "--mix: "),
        (("--mix=4x100", "--concurrency=2"), "--mix: goes without --concurrency"),
        (("--mix=800x100,800x10",), "--mix: more than 1024 streams"),
        (("--output-tokens=1",), "--output-tokens: "),
        (("--input-tokens=1000000000000",), "above the largest allowed, 10000000"),
        (("--mix=1x1000000000000",), "above the largest allowed, 10000000"),
        (("--csv=/tmp",), "--csv: /tmp is a directory"),
        (("--csv=/nowhere/b.csv",), "--csv: /nowhere is not a directory"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: tuple[str, ...], says: str) -> None:
    """It names the flag."""
    with pytest.raises(ConfigError) as error:
        flags_of(*flags)
    assert says in str(error.value)


def test_client_engine_and_law_stand_side_by_side(tmp_path: Path) -> None:
    """Three views of the same rows agree on the simulator; fit reads them; CSV has a column for each figure."""
    points, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    with quick_engine() as server:
        status, out, err = stepscope(
            "bench", f"--engine.url={server.url}", "--concurrency=1,4", "--input-tokens=500", "--requests=8",
            "--output-tokens=150", "--gpu-price-per-hour=2", "--json", f"--points-output={points}", f"--csv={table}",
            *LAW,
        )  # fmt: skip
        assert status == 0, err
        assert value(get(server.url + "/metrics"), "vllm:num_requests_running") == 0.0
    report: dict[str, Any] = json.loads(out)
    assert [row["load"] for row in report["rows"]] == ["1x500", "4x500"]
    for row, concurrency in zip(report["rows"], (1, 4), strict=True):
        assert row["outcomes"] == {"ok": 8}
        assert row["steady"]
        assert row["sequences"] == pytest.approx(concurrency, rel=0.1)
        assert row["client_itl_seconds"] == pytest.approx(row["engine_counters"]["itl_seconds"], rel=0.1)
        assert abs(row["prediction_error"]) < 0.12
        assert row["itl"]["p50"] <= row["itl"]["p90"] <= row["itl"]["p99"]
        assert row["client_cpu_share"] < 1.0
        assert row["cost_per_million_tokens"] == pytest.approx(2 / 3600 / row["output_tokens_per_second"] * 1e6)
    assert report["provenance"]["engine_version"] == "0.32.0"
    assert "left of this row)" in err or "s left)" in err
    whole = tmp_path / "bench.json"
    whole.write_text(out)
    fits = [stepscope("fit", f"--points={path}", "--json") for path in (points, table, whole)]
    assert [(status, json.loads(out)["fit"]["n"]) for status, out, _ in fits] == [(0, 2)] * 3
    assert len({out for _, out, _ in fits}) == 1
    with table.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["load"] for line in lines] == ["1x500", "4x500"]
    assert float(lines[0]["ttft.p99"]) > 0.0
    assert lines[0]["stepscope_version"]
    assert lines[0]["engine_counters.observations"]


def test_a_mix_shows_what_each_class_gets() -> None:
    """Chats are replaced until the long session has been served; nothing is left running."""
    with quick_engine() as server:
        status, out, err = stepscope(
            "bench", f"--engine.url={server.url}", "--mix=4x200,1x20000", "--output-tokens=60", "--json", *LAW
        )
    assert status == 0, err
    (row,) = json.loads(out)["rows"]
    classes = {one["class"]: one for one in row["by_class"]}
    assert set(classes) == {"200", "20000"}
    assert classes["20000"]["ttft"]["p50"] > classes["200"]["ttft"]["p50"]
    assert classes["200"]["requests"] >= 4
    assert set(row["outcomes"]) <= {"ok", "aborted", "running"}


def test_the_table_is_for_people() -> None:
    """One line a row, and a line where there is something to know; without a law the prediction is missing."""
    with quick_engine() as server:
        status, out, err = stepscope(
            "bench", f"--engine.url={server.url}", "--concurrency=2", "--input-tokens=64", "--output-tokens=5",
            "--requests=2",
        )  # fmt: skip
    assert status == 0, err
    head, row, *rest = out.splitlines()
    assert head.split()[:3] == ["load", "ok", "failed"]
    assert row.split()[:3] == ["2x64", "2", "0"]
    assert any("never stood whole" in line for line in rest)
    assert "no prediction: " in err


def test_failures_are_told_apart_and_end_with_status_1() -> None:
    """Out of memory is not a rejection."""
    manner = Manner(takes_extras=True, page="up 1\n", error_event_after=100, error="CUDA out of memory")
    with chat_server(manner) as url:
        status, out, _ = stepscope(
            "bench", f"--engine.url={url}", "--concurrency=2", "--requests=2", "--output-tokens=200", *MODEL
        )
    assert status == 1
    assert "2 out of memory; first out_of_memory: CUDA out of memory" in out


@pytest.mark.parametrize(("good", "status"), [(4, 1), (16, 0)])
def test_a_row_of_which_most_failed_ends_with_status_1(good: int, status: int) -> None:
    """Whatever the few answers looked like; where most were good, the row stands and the failures are said."""
    forms = 5  # requests until a chat server's own form is found and its tokens are counted
    manner = Manner(takes_extras=True, page="up 1\n", good_requests=forms + good)
    with chat_server(manner) as url:
        found, out, _ = stepscope("bench", f"--engine.url={url}", "--concurrency=10", "--requests=20", *MODEL)
    assert found == status
    assert f"{20 - good} rejected; first rejected: HTTP 503: no more" in out


def test_an_engine_that_cannot_be_asked_ends_with_status_2() -> None:
    """One line with the flag; as for every command."""
    with chat_server(Manner(status=500, error="broken", page="up 1\n")) as url:
        status, out, err = stepscope("bench", f"--engine.url={url}", *MODEL)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == f"stepscope: --engine.url: {url}: failed: HTTP 500: broken"


def test_answers_that_end_early_are_said_and_not_blamed_on_the_client() -> None:
    """Two tokens of twenty: the client is late in making requests, not in reading tokens."""
    with chat_server(Manner(takes_extras=True, page="up 1\n", stop_after=2)) as url:
        status, out, err = stepscope(
            "bench", f"--engine.url={url}", "--concurrency=4", "--requests=40", "--output-tokens=20", *MODEL
        )
    assert status == 0, err
    assert "4x512: answers were shorter than asked for: 2 of 20 tokens" in out
    assert "CLIENT BOTTLENECK" not in out


def test_more_streams_than_requests_are_said() -> None:
    """The row is called by what ran."""
    with quick_engine() as server:
        status, out, err = stepscope(
            "bench", f"--engine.url={server.url}", "--concurrency=8", "--requests=1", "--output-tokens=5", "--json"
        )
    assert status == 0, err
    assert "1x512: not 8 streams: --requests=1 are for the whole row" in err
    (row,) = json.loads(out)["rows"]
    assert (row["load"], row["concurrency"]) == ("1x512", 1)


def test_an_interrupt_shows_what_there_is_and_leaves_the_engine_clean() -> None:
    """Exit 130; the row says that it was interrupted."""
    with quick_engine() as server:
        process = start(
            "bench", f"--engine.url={server.url}", "--concurrency=6", "--input-tokens=300", "--output-tokens=20000"
        )
        try:
            until = time.monotonic() + 20.0
            while time.monotonic() < until and value(get(server.url + "/metrics"), "vllm:num_requests_running") < 6:
                time.sleep(0.05)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 130
        assert "Traceback" not in err
        assert "6x300: interrupted" in out
        assert value(get(server.url + "/metrics"), "vllm:num_requests_running") == 0.0


def test_the_time_bounds_a_row() -> None:
    """What was not answered is said; exit 1 where nothing was."""
    with quick_engine() as server:
        began = time.monotonic()
        status, out, _ = stepscope(
            "bench", f"--engine.url={server.url}", "--concurrency=2", "--output-tokens=50000", "--max-seconds=3", *MODEL
        )
    assert time.monotonic() - began < 12.0
    assert status == 1
    assert "the time was over before all requests had been answered" in out
    assert "timeout" not in out  # we hung up: the engine did not fail


def test_an_engine_that_dies_is_given_up() -> None:
    """Rows are not tried to the end of the time on a port where nobody listens."""
    with quick_engine() as server:
        process = start(
            "bench", f"--engine.url={server.url}", "--concurrency=12", "--input-tokens=100", "--requests=1000",
            "--output-tokens=20000", "--max-seconds=60",
        )  # fmt: skip
        try:
            until = time.monotonic() + 20.0
            while time.monotonic() < until and value(get(server.url + "/metrics"), "vllm:num_requests_running") < 12:
                time.sleep(0.05)
            server.stop()
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 1, err
    assert "Traceback" not in err
    assert "given up: nothing but failures" in out


def test_a_file_that_cannot_be_written_costs_nobody_the_table() -> None:
    """The table is shown first; then one line and exit 2."""
    with quick_engine() as server:
        status, out, err = stepscope(
            "bench", f"--engine.url={server.url}", "--concurrency=1", "--output-tokens=5", "--csv=/dev/full"
        )
    assert status == 2
    assert "1x512" in out
    assert err.splitlines()[-1] == "stepscope: --csv: /dev/full: No space left on device"


@pytest.mark.parametrize(
    ("streams", "gap_seconds", "tokens", "is_bottleneck"), [(48, 0.0, 3000, True), (4, 0.2, 6, False)]
)
@pytest.mark.parametrize("counts", [False, True])
def test_a_client_that_cannot_keep_up_says_so(
    streams: int, gap_seconds: float, tokens: int, is_bottleneck: bool, counts: bool
) -> None:
    """Tokens as fast as connections take them overload it, tokens at 5/s do not; with and without engine counters."""
    with flood_server(gap_seconds, counts=counts) as url:
        status, out, err = stepscope(
            "bench", f"--engine.url={url}", f"--concurrency={streams}", f"--requests={streams}", "--input-tokens=16",
            f"--output-tokens={tokens}",
        )  # fmt: skip
    assert status == 0, err
    assert ("CLIENT BOTTLENECK: " in out) == is_bottleneck, out
