"""`stepscope calibrate`: measures the step law of an idle engine and writes calibration.yaml."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope import __version__, config
from stepscope import setting_kinds as kinds
from stepscope.commands import _load
from stepscope.commands._calibrate_report import document, point_rows, text
from stepscope.commands._flags import read_flag
from stepscope.config import Settings
from stepscope.core.calibrate import Measured, advice, bandwidths, calibration_of, spread
from stepscope.core.defaults import default_prior, find_row
from stepscope.core.defaults_table import TABLE
from stepscope.core.fit import Fit, fit
from stepscope.core.probes import Pace, Probe, after_refusal, plan, prefill_pace, shrink
from stepscope.errors import ConfigError
from stepscope.runtime.calibration_file import write_calibration
from stepscope.runtime.load_dialect import detect
from stepscope.runtime.load_probe import Bench, ProbeError, measure, refresh_gauges
from stepscope.settings import SETTINGS

HELP = "Measure the step law of an idle engine and write calibration.yaml."

_MEASURE_SECONDS = 4.0  # four readings a second apart
_MAX_SECONDS = 300.0
_REPEAT = 2  # two of a kind are what noise needs
_END_SECONDS = 2.0  # of the whole time, for the fit and the file
_WARM_UP_TOKENS, _WARM_UP_OUTPUT = 256, 16  # kernels are built and the pace is known; one prompt is 8 times as long
# A probe whose prompts take so many times as long as expected, and some, is given up and made smaller.
_PATIENCE, _PATIENCE_SECONDS = 2.5, 10.0
_FEWEST = 3  # measured probes, of at least two contexts: below, the law would be the data sheet's


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say where the engine is and what is known of it, and those of the measurement."""
    config.add_arguments(parser, "calibrate")
    add = parser.add_argument_group("measurement").add_argument
    add("--output", metavar="FILE", default="calibration.yaml", help="where to write. Default: calibration.yaml.")
    add("--points-output", metavar="FILE", help="also write each measured load as a line for stepscope fit --points")
    add("--streams", metavar="N", help="streams of the widest probe. Default: 32, or as many as memory and time allow.")
    add("--short-tokens", metavar="TOKENS", help="prompt of a short context. Default: 256.")
    add("--long-tokens", metavar="TOKENS", help="prompt of the longest context. Default: 16384, or what fits.")
    add("--probe-seconds", metavar="SECONDS", help="how long each load is measured at least. Default: 4.")
    add("--repeat", metavar="N", help="times each decode load is measured, as far as time allows. Default: 2.")
    add("--max-seconds", metavar="SECONDS", help="end of everything; loads shrink to fit. Default: 300.")
    add("--wait", action="store_true", help="wait, within the time, for a busy engine to become idle")
    add("--json", action="store_true", help="report as JSON")


@dataclass(frozen=True, slots=True)
class _Flags:
    output: Path
    points_output: Path | None
    streams: int | None
    short_tokens: int | None
    long_tokens: int | None
    probe_seconds: float
    repeat: int
    max_seconds: float


@dataclass(slots=True)
class _Run:
    """What has been measured so far, and why something was not."""

    measured: list[Measured] = field(default_factory=list)
    failure: str | None = None


def run(args: argparse.Namespace) -> int:
    """0 with a file written; 1, with one line, where the engine could not be measured. Raises ConfigError."""
    flags = _flags(args)
    settings = _without_calibration(config.load("calibrate", args, os.environ))
    began = time.monotonic()
    until = began + flags.max_seconds
    progress = _load.Progress("calibrate")
    with _load.TerminationAsInterrupt(), _load.opened(settings, until - _END_SECONDS) as engine:
        if engine.facts.model is None:
            raise ConfigError(f"calibrate: {'; '.join(engine.missing) or 'the engine names no model'}")
        busy = _load.wait_until_idle(engine, progress, wait=args.wait, until_seconds=until)
        if busy is not None:
            print(f"stepscope: calibrate: {busy}", file=sys.stderr)
            return 1
        try:
            done = _measure(engine, flags, progress, until - _END_SECONDS)
        finally:
            progress.clear()
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C ends even this
                refresh_gauges(engine.client, engine.watch)
        if flags.points_output is not None and done.measured:
            _write(flags.points_output, point_rows(done.measured, engine))
        if done.failure is not None:
            print(f"stepscope: calibrate: {done.failure}", file=sys.stderr)
            return 1
        return _report(engine, done.measured, flags, progress, time.monotonic() - began, as_json=args.json)


def _without_calibration(settings: Settings) -> Settings:
    """A pod's environment may name the very file that is to be written, and it need not be there yet."""
    return Settings({name: settings[row] for name, row in SETTINGS.items() if not name.startswith("calibration.")})


def _measure(engine: _load.Opened, flags: _Flags, progress: _load.Progress, until: float) -> _Run:
    """Warm up, then probe after probe, then again as far as time allows."""
    done = _Run()
    detect(engine.client)
    pace = _warm_up(engine)
    if isinstance(pace, str):
        done.failure = pace
        return done
    room = engine.room
    bench = Bench(engine.client, engine.watch, engine.facts, until, room.longest, progress.show)
    bench = replace(bench, longest_tokens=room.max_model_len or 2 * room.longest)
    todo = plan(room, streams=flags.streams, short=flags.short_tokens, long=flags.long_tokens)

    def one(probe: Probe) -> Measured:
        nonlocal pace
        assert isinstance(pace, Pace)
        patience = _PATIENCE * pace.prompt_seconds(probe) + _PATIENCE_SECONDS
        found = measure(bench, probe, flags.probe_seconds, patience)
        done.measured.append(found)
        pace = _new_pace(pace, found)
        return found

    def estimate(probes: Sequence[Probe]) -> float:
        assert isinstance(pace, Pace)
        return sum(pace.seconds(probe, flags.probe_seconds) for probe in probes)

    while todo:
        fitting, changed = shrink(todo, pace, flags.probe_seconds, until - time.monotonic())
        if changed:
            progress.note("loads were made smaller to fit --max-seconds")
        if not fitting:
            break
        probe, *todo = fitting
        progress.left = f" (about {min(estimate(fitting), until - time.monotonic()):.0f} s left)"
        failure = _attempt(one, probe, progress)
        if isinstance(failure, ProbeError):
            if failure.outcome == "time":
                break
            if failure.outcome == "slow":
                pace = pace.slower(_PATIENCE)
                todo = [probe, *todo] if done.measured else []
                continue
            if failure.outcome not in ("rejected", "out_of_memory"):
                done.failure = str(failure)
                return done
            todo = after_refusal(todo, probe, failure.streams)
    _again(one, estimate, done.measured, flags.repeat, until, progress)
    return done


def _attempt(one: Callable[[Probe], Measured], probe: Probe, progress: _load.Progress) -> ProbeError | None:
    try:
        one(probe)
    except ProbeError as error:
        progress.note(f"left out: {error}")
        return error
    return None


def _again(
    one: Callable[[Probe], Measured],
    estimate: Callable[[Sequence[Probe]], float],
    measured: Sequence[Measured],
    repeat: int,
    until: float,
    progress: _load.Progress,
) -> None:
    """Repeat what was measured, backwards (so that a slow drift of the machine shows), as far as time allows."""
    probes = [found.probe for found in measured if found.probe.kind == "decode"]
    for turn in range(1, repeat):
        for probe in reversed(probes) if turn % 2 else probes:
            seconds = estimate([probe])
            if time.monotonic() + seconds > until:
                continue
            progress.left = f" (repeating; about {seconds:.0f} s for this one)"
            if _attempt(one, probe, progress) is not None:
                return


def _warm_up(engine: _load.Opened) -> Pace | str:
    """The engine's pace from a short and a longer request; a line where one failed."""
    seen = []
    # The first of its kind is thrown away: kernels may have to be built.
    for tokens in (_WARM_UP_TOKENS, _WARM_UP_TOKENS, 8 * _WARM_UP_TOKENS):
        stream = engine.client.stream(min(tokens, engine.room.longest), _WARM_UP_OUTPUT)
        stream.run()
        trace = stream.trace(time.monotonic())
        if stream.outcome != "ok" or not trace.ttft_seconds or not trace.tpot_seconds:
            return f"a first request: {stream.outcome.replace('_', ' ')}: {stream.reason or 'too few tokens'}"
        seen.append((trace.prompt_tokens, trace.ttft_seconds, trace.tpot_seconds))
    (_, _, _), (few, few_seconds, step), (many, many_seconds, _) = seen
    model = engine.facts.model
    assert model is not None  # seen by run
    per_token = model.kv_read_bytes_per_token(engine.given.gpu_count) or engine.kv.bytes_per_token or 0.0
    read = model.weights.read_bytes(1.0) + per_token * few
    return Pace(step, read, per_token, *prefill_pace((few, few_seconds), (many, many_seconds)))


def _new_pace(pace: Pace, found: Measured) -> Pace:
    """A step no faster than was seen where most was read, and prompts as fast as the last large lot of them."""
    read = (found.point.weight_bytes or 0.0) + found.point.kv_bytes
    if found.probe.kind == "decode" and read > 0.0:
        seen = found.point.itl_seconds * pace.step_bytes / read
        pace = replace(pace, step_seconds=max(pace.step_seconds, seen))
    tokens = found.probe.streams * found.probe.prompt_tokens
    if tokens > 4 * _WARM_UP_TOKENS:
        pace = pace.slower(tokens / found.prefill_tokens_per_second / pace.prompt_seconds(found.probe))
    return pace


def _report(
    engine: _load.Opened,
    measured: Sequence[Measured],
    flags: _Flags,
    progress: _load.Progress,
    seconds: float,
    *,
    as_json: bool,
) -> int:
    contexts = {round(found.point.tokens_in_flight, -2) for found in measured if found.probe.kind == "decode"}
    if len(measured) < _FEWEST or len(contexts) < 2:
        print(
            f"stepscope: calibrate: {len(measured)} loads were measured, too few for a law: give more --max-seconds",
            file=sys.stderr,
        )
        return 1
    model, given = engine.facts.model, engine.given
    assert model is not None  # seen by run
    fitted, prior_known = _fit(engine, measured)
    found = bandwidths(measured, fitted, prior_known=prior_known)
    noise = spread(measured)
    calibration = calibration_of(
        fitted, [one.point for one in measured], given, model, engine_version=engine.engine_version, noise_ratio=noise,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(), stepscope_version=__version__,
    )  # fmt: skip
    write_calibration(flags.output, calibration)
    report = document(measured, fitted, found, calibration, engine, str(flags.output), seconds)
    report["advice"] = advice(found, measured, fitted, model, given, engine.kv)
    progress.clear()
    print(json.dumps(report, indent=1, allow_nan=False) if as_json else "\n".join(text(report)))
    return 0


def _fit(engine: _load.Opened, measured: Sequence[Measured]) -> tuple[Fit, bool]:
    """(the law, whether a data sheet held it)."""
    model, machine = engine.facts.model, engine.machine
    prior = None if machine is None else default_prior(find_row(TABLE, machine), machine)
    weights = model.weights if model is not None and model.weights.experts else None
    compute = None if machine is None else machine.compute
    return fit([one.point for one in measured], prior, weights, compute), prior is not None


def _flags(args: argparse.Namespace) -> _Flags:
    def read(name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
        return read_flag(args, name, kind, default)

    output = read("output", kinds.path)
    if not output.parent.is_dir():
        raise ConfigError(f"--output: {output.parent} is not a directory")
    return _Flags(
        output=output,
        points_output=read("points_output", kinds.path),
        streams=read("streams", kinds.whole_number(least=2)),
        short_tokens=read("short_tokens", kinds.whole_number(least=16)),
        long_tokens=read("long_tokens", kinds.whole_number(least=32)),
        probe_seconds=read("probe_seconds", kinds.number(above=0, most=600), _MEASURE_SECONDS),
        repeat=read("repeat", kinds.whole_number(least=1), _REPEAT),
        max_seconds=read("max_seconds", kinds.number(least=5, most=86400), _MAX_SECONDS),
    )


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    try:
        path.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--points-output: {path}: {error.strerror or error}") from None
