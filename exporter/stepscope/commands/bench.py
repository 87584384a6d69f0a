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
from stepscope.commands._bench_served import checked
from stepscope.commands._bench_text import table, write_csv, write_points
from stepscope.commands._bench_time import TimeOver, time_limit
from stepscope.core.bench_report import LoadAsked, Outcome, failures, row
from stepscope.core.engine_span import engine_span
from stepscope.core.load_trace import steady_window
from stepscope.errors import ConfigError
from stepscope.runtime.load_client import Limits
from stepscope.runtime.load_crew import Crew
from stepscope.runtime.load_dialect import detect
from stepscope.runtime.load_probe import refresh_gauges
from stepscope.runtime.pages import finite

HELP = "Put load on an engine and set what it did beside what the step law predicts."

_POLL_SECONDS = 0.1
# The load ends so long before the time does: to hang up, read the page once more and see the engine idle, which takes
# some steps. Of a short time a share.
_CLOSING_SECONDS, _CLOSING_SHARE = 1.0, 0.1
_INTERRUPT_SECONDS = 0.4  # twice after Ctrl-C, for the same: people wait for their prompt
_GAUGE_SECONDS = 5.0  # for the engine to notice that everybody hung up, where there is time
# Nothing but these from so many requests: the engine is gone, or knows us not, and more requests would not help.
_HOPELESS, _HOPELESS_REQUESTS = frozenset({"connection", "denied"}), 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say where the engine is and what is known of it, and those of the load."""
    config.add_arguments(parser, "bench")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """0; 1 where most requests of a row failed, a row brought no answer at all, or the engine was busy.

    Raises ConfigError for wrong flags and for an engine that cannot be asked, or not within the time.
    """
    flags = read_flags(args)
    settings = config.load("bench", args, os.environ)
    until = time.monotonic() + flags.max_seconds
    load_until = until - min(_CLOSING_SECONDS, _CLOSING_SHARE * flags.max_seconds)
    progress = _load.Progress("bench")
    found: list[dict[str, Any]] = []
    with _load.TerminationAsInterrupt(), contextlib.ExitStack() as stack:
        engine: _load.Opened | None = None
        clean_until = until
        try:
            with time_limit(until):
                engine, note = checked(stack.enter_context(_load.opened(settings, load_until)), settings)
                busy = _load.wait_until_idle(engine, progress, wait=args.wait, until_seconds=load_until)
                if busy is not None:
                    print(f"stepscope: bench: {busy}", file=sys.stderr)
                    clean_until = 0.0  # not ours
                    return 1
                for line in (*([note] if note else ()), *(f"no prediction: {line}" for line in engine.missing)):
                    progress.note(line)
                detect(engine.client)
            engine.client.limits = Limits(until_seconds=until)  # what runs at the end is hung up on: no failure
            _rows(engine, flags, progress, found, load_until)
        except TimeOver:
            left = "" if engine else ": its page, /version and /v1/models had not all been answered"
            raise ConfigError(f"--max-seconds: {flags.max_seconds:g} s were over before the first row{left}") from None
        except KeyboardInterrupt:
            clean_until = min(until, time.monotonic() + _INTERRUPT_SECONDS)
            raise
        finally:
            progress.clear()
            if engine is not None:
                _leave(engine, clean_until)
                _say(found, flags, engine)
    return 0 if found and all(map(_is_good, found)) else 1


def _rows(
    engine: _load.Opened, flags: Flags, progress: _load.Progress, found: list[dict[str, Any]], load_until: float
) -> None:
    """Each row is in `found` as soon as it has ended. Raises KeyboardInterrupt after an interrupted one."""
    for asked in rows_of(flags):
        if time.monotonic() >= load_until:
            progress.note(f"{asked.name}: not begun: the time was over")
            continue
        if asked.longest_tokens > (engine.room.max_model_len or sys.maxsize):
            progress.note(f"{asked.name}: longer than the engine's {engine.room.max_model_len:,} tokens")
        if asked.streams_asked > len(asked.works):
            progress.note(
                f"{asked.name}: not {asked.streams_asked} streams: --requests={flags.requests} are for the whole row"
            )
        found.append(_row(engine, asked, flags, progress, load_until))
        if found[-1]["interrupted"]:
            raise KeyboardInterrupt
        if found[-1]["given_up"]:
            break


def _leave(engine: _load.Opened, until: float) -> None:
    """See that the engine's gauges come down, as far as the time allows; a second Ctrl-C ends even this."""
    with contextlib.suppress(KeyboardInterrupt, TimeOver), time_limit(until):
        refresh_gauges(engine.client, engine.watch, min(_GAUGE_SECONDS, until - time.monotonic()))


def _is_good(found: dict[str, Any]) -> bool:
    """At least as many requests were answered as failed, and one was."""
    answered = found["outcomes"].get("ok", 0)
    return bool(answered) and answered >= failures(found["outcomes"])


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
    """One load from its first request to its last, to `until` or to Ctrl-C; nothing is left running in any case."""
    crew = Crew(engine.client, asked.works, keep=asked.is_mix)
    beat = Beat()
    engine.watch.readings.clear()
    cpu_began, began = time.process_time(), time.monotonic()
    finished = whole = interrupted = given_up = False
    try:
        with time_limit(until):
            engine.watch.start()
            began = time.monotonic()
            beat.start()
            crew.start()
            while not (finished := crew.wait(_POLL_SECONDS)):
                if not whole and crew.started >= crew.size:
                    whole = True
                    engine.watch.read()
                if given_up := _hopeless(crew):
                    break
                progress.left = _left(crew, asked, began, until)
                progress.show(f"{asked.name}: {sum(bool(s.outcome) for s in crew.streams)} requests ended")
    except TimeOver:
        pass
    except KeyboardInterrupt:
        interrupted = True
    finally:
        ended = time.monotonic()
        traces = crew.traces()
        last = engine.client.limits.until_seconds
        with contextlib.suppress(TimeOver), time_limit(min(last, ended + _INTERRUPT_SECONDS) if interrupted else last):
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
        "served_model": engine.client.model,
        "engine_version": engine.engine_version,
        "kv_capacity_tokens": engine.room.capacity_tokens,
        "max_model_len": engine.room.max_model_len,
        "calibration": law.identity if law is not None else None,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "stepscope_version": __version__,
    }
