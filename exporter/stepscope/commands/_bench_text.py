"""The results of a bench: the table for people, lines for `stepscope fit`, and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.core.bench_report import UNFAILED, failures
from stepscope.errors import ConfigError
from stepscope.runtime.sentences import milliseconds

_NEEDED = ("sequences", "tokens_in_flight", "prefill_tokens_per_step", "itl_seconds")
_HEAD = (
    "load", "ok", "failed", "TTFT p50", "p99", "TPOT p50", "p99", "ITL", "engine", "predicted", "error", "tokens/s",
)  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]], currency: str) -> Iterator[str]:
    """The table, and below it what one should know before believing it."""
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    for line in cells:
        yield "  " + "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
    for row in rows:
        for one in row["by_class"]:
            speed = one["tokens_per_second_per_user"]
            yield (
                f"  {row['load']}: prompts of {one['class']} tokens: TTFT p50 {_time(one['ttft'], 'p50')}, "
                f"{'-' if speed is None else format(speed, '.1f')} tokens/s for each"
            )
        if row["cost_per_million_tokens"] is not None:
            yield f"  {row['load']}: {row['cost_per_million_tokens']:.3g} {currency} per million output tokens"
        yield from (f"  {row['load']}: {line}" for line in _warnings(row))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    ok = row["outcomes"].get("ok", 0)
    counters, error = row["engine_counters"], row["prediction_error"]
    return (
        row["load"],
        str(ok),
        str(failures(row["outcomes"])),
        *(_time(row["ttft"], share) for share in ("p50", "p99")),
        *(_time(row["tpot"], share) for share in ("p50", "p99")),
        milliseconds(row["client_itl_seconds"]),
        milliseconds(counters["itl_seconds"] if counters else None),
        milliseconds(row["predicted_itl_seconds"]),
        "-" if error is None else f"{error:+.1%}",
        "-" if row["output_tokens_per_second"] is None else f"{row['output_tokens_per_second']:,.0f}",
    )


def _warnings(row: Mapping[str, Any]) -> Iterator[str]:
    outcomes = {word: count for word, count in row["outcomes"].items() if word not in UNFAILED}
    if outcomes:
        said = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in outcomes.items())
        yield f"{said}; first {row['first_failure']}"
    if row["short_answers"]:
        yield row["short_answers"]
    if row["client_bottleneck"]:
        yield f"CLIENT BOTTLENECK: {row['client_bottleneck']}"
    if row["late_delivery"]:
        yield row["late_delivery"]
    if row["interrupted"]:
        yield "interrupted"
    elif row["given_up"]:
        yield "given up: nothing but failures, and more requests would not help"
    elif not row["finished"]:
        yield "the time was over before all requests had been answered"
    if not row["steady"]:
        yield "the load never stood whole for two readings: figures include its start and its end"
    counters = row["engine_counters"]
    if counters and counters["preemptions"]:
        yield f"{counters['preemptions']:.0f} preemptions: the KV cache was too small for this load"


def _time(figures: Mapping[str, float] | None, share: str) -> str:
    return milliseconds(None if figures is None else figures[share])


def write_points(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows that say what `stepscope fit` needs, a line of JSON each. Raises ConfigError."""
    lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows if all(row[name] is not None for name in _NEEDED)]
    _write(path, "--points-output", "".join(lines))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows; nested figures get a column each (`ttft.p99`). Raises ConfigError."""
    flat = [dict(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    _write(path, "--csv", text.getvalue())


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield prefix + name, value


def _write(path: Path, flag: str, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag}: {path}: {error.strerror or error}") from None
