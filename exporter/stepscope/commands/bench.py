"""`stepscope bench`: puts load on an engine and sets what it did beside what the step law predicts."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from stepscope import __version__, config
from stepscope.commands import _load
from stepscope.commands._bench_beat import Beat
from stepscope.commands._bench_flags import Flags, Row, add_flags, read_flags, rows_of
from stepscope.commands._bench_text import table, write_csv, write_points
from stepscope.core.bench_report import LoadAsked, Outcome, row
from stepscope.core.engine_span import engine_span
from stepscope.core.load_trace import steady_window
from stepscope.runtime.load_crew import Crew
from stepscope.runtime.load_dialect import detect
from stepscope.runtime.load_probe import refresh_gauges
from stepscope.runtime.pages import finite

HELP = "Put load on an engine and set what it did beside what the step law predicts."

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 2.0  # what still runs when the time is over is hung up on; its own deadline would call that a failure
# Nothing but these from so many requests: the engine is gone, or knows us not, and more requests would not help.
_HOPELESS, _HOPELESS_REQUESTS = frozenset({"connection", "denied"}), 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say where the engine is and what is known of it, and those of the load."""
    config.add_arguments(parser, "bench")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """0; 1 where a row brought no answer at all, or the engine was busy. Raises ConfigError for wrong flags."""
    flags = read_flags(args)
    settings = config.load("bench", args, os.environ)
    until = time.monotonic() + flags.max_seconds
    progress = _load.Progress("bench")
    found: list[dict[str, Any]] = []
    with _load.TerminationAsInterrupt(), _load.opened(settings, until + _GRACE_SECONDS) as engine:
        busy = _load.wait_until_idle(engine, progress, wait=args.wait, until_seconds=until)
        if busy is not None:
            print(f"stepscope: bench: {busy}", file=sys.stderr)
            return 1
        for line in engine.missing:
            progress.note(f"no prediction: {line}")
        try:
            detect(engine.client)
            for asked in rows_of(flags):
                if asked.longest_tokens > (engine.room.max_model_len or sys.maxsize):
                    progress.note(f"{asked.name}: longer than the engine's {engine.room.max_model_len:,} tokens")
                found.append(_row(engine, asked, flags, progress, until))
                if found[-1]["interrupted"]:
                    raise KeyboardInterrupt
                if not found[-1]["finished"]:
                    break
        finally:
            progress.clear()
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C ends even this
                refresh_gauges(engine.client, engine.watch)
            _say(found, flags, engine)
    return 0 if found and all(one["outcomes"].get("ok") for one in found) else 1


def _say(found: Sequence[dict[str, Any]], flags: Flags, engine: _load.Opened) -> None:
    """Table or JSON, and the files; also what there is when somebody pressed Ctrl-C."""
    if not found:
        return
    rows = [finite(one | _provenance(engine)) for one in found]
    if flags.json:
        print(json.dumps({"rows": rows, "provenance": _provenance(engine)}, indent=1, allow_nan=False))
    else:
        print("\n".join(table(rows, flags.currency)))
    # After what people see: a full disk must not cost them that.
    if flags.points_output is not None:
        write_points(flags.points_output, rows)
    if flags.csv is not None:
        write_csv(flags.csv, rows)


def _row(engine: _load.Opened, asked: Row, flags: Flags, progress: _load.Progress, until: float) -> dict[str, Any]:
    """One load from its first request to its last, or to Ctrl-C; whatever happens, nothing is left running."""
    crew = Crew(engine.client, asked.works, keep=asked.is_mix)
    beat = Beat()
    engine.watch.readings.clear()
    cpu_began, began = time.process_time(), time.monotonic()
    finished = whole = interrupted = given_up = False
    try:
        engine.watch.start()
        began = time.monotonic()
        beat.start()
        crew.start()
        while not (finished := crew.wait(_POLL_SECONDS)) and time.monotonic() < until:
            if not whole and crew.started >= crew.size:
                whole = True
                engine.watch.read()
            if given_up := _hopeless(crew):
                break
            progress.left = _left(crew, asked, began, until)
            progress.show(f"{asked.name}: {sum(bool(s.outcome) for s in crew.streams)} requests ended")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        ended = time.monotonic()
        traces = crew.traces()
        beat.stop()
        crew.stop()
        engine.watch.read()
        engine.watch.stop()
    window = steady_window(traces, crew.size)
    span = engine_span(engine.watch.readings, engine.facts, *(window or (0.0, ended + 60.0)))
    if span is None and window is not None and len(engine.watch.readings) > 1:
        # Too short for two readings: then client and engine are both taken over the whole row.
        window, span = None, engine_span(engine.watch.readings, engine.facts, 0.0, ended + 60.0)
    outcome = Outcome(
        traces=tuple(traces),
        window=window,
        seconds=ended - began,
        cpu_seconds=time.process_time() - cpu_began,
        late_seconds=beat.mean_late_seconds,
        engine=span,
        finished=finished,
    )
    load = LoadAsked(asked.name, crew.size, len(traces), asked.mean_input_tokens, flags.output_tokens)
    price = flags.gpu_price_per_hour * engine.given.gpu_count if flags.gpu_price_per_hour is not None else None
    found = row(load, outcome, engine.facts, engine.given, family=engine.family, price_per_hour=price)
    failed = crew.failed
    found["interrupted"], found["given_up"] = interrupted, given_up
    found["first_failure"] = f"{failed[0].outcome}: {failed[0].reason}" if failed else None
    return found


def _hopeless(crew: Crew) -> bool:
    """The last requests of every stream all ended so, and none is being answered."""
    ended = [stream.outcome for stream in crew.streams if stream.outcome]
    last = ended[-max(_HOPELESS_REQUESTS, crew.size) :]
    enough = len(last) >= min(_HOPELESS_REQUESTS, crew.size)
    return enough and not crew.decoding and _HOPELESS.issuperset(last)


def _left(crew: Crew, asked: Row, began: float, until: float) -> str:
    """How much time is left, by the share of requests that have ended."""
    total = sum(work.requests for work in asked.works)
    done = sum(bool(stream.outcome) for stream in crew.streams)
    rest = until - time.monotonic()
    if done:
        rest = min(rest, max(0, total - done) * (time.monotonic() - began) / done)
        return f" (about {rest:.0f} s left of this row)"
    return f" (at most {rest:.0f} s left)"


def _provenance(engine: _load.Opened) -> dict[str, Any]:
    law = engine.facts.law
    return {
        "engine_version": engine.engine_version,
        "kv_capacity_tokens": engine.room.capacity_tokens,
        "max_model_len": engine.room.max_model_len,
        "calibration": law.identity if law is not None else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "stepscope_version": __version__,
    }
