"""Whether source datasheet cries wolf on measured engines: each public series judged by a pool that never saw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from accuracy_data import Series, load, shared_folder
from accuracy_pool import fit_pool, pool_for

from stepscope.core.compare import Evidence, verdict
from stepscope.core.defaults import SLOWEST, default_law, find_row, row_of
from stepscope.core.defaults_table import TABLE
from stepscope.core.law_terms import Point
from stepscope.core.step_model import StepLaw, WeightBytes, predict

SWEEP = "dynamo_decode"  # vLLM as well, and never part of the pool
SLOWER = (1.0, 1.25, 1.4)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Loads of measured engines: all, those under which anybody was measured, and how many would be called drifting.

    called: as measured, 25 % and 40 % slower. worst: measured over predicted, within the loads that are judged.
    """

    name: str
    points: int
    judged: int
    called: tuple[int, ...]
    worst: float


def coverage() -> list[Coverage] | None:
    """Dense models on vLLM: the series of the pool, each left out of it, and the sweep. None without the data."""
    shared = shared_folder()
    if shared is None:
        return None
    everything = [series for series in load(shared) if not series.machine.moe]
    own = [series for series in everything if series.machine.engine == "vllm"]
    groups = (
        ("series of the pool, each left out", [series for series in own if series.file != SWEEP]),
        ("decode-only sweep", [series for series in own if series.file == SWEEP]),
    )
    return [_of(name, members, everything) for name, members in groups]


def _of(name: str, members: Sequence[Series], everything: Sequence[Series]) -> Coverage:
    ratios: list[float] = []
    called = [0] * len(SLOWER)
    points = 0
    for series in members:
        pool = pool_for(everything, series.machine.engine, series.machine.generation, False, series)
        known = find_row(TABLE, series.machine)
        row = row_of(fit_pool(pool), known.low, known.high)
        for point in series.points:
            points += 1
            law = default_law(row, series.machine, WeightBytes(point.weight_bytes or 0.0), point.kv_bytes_per_token)
            step = predict(law, point.load)
            if step is not None and _is_judged(point):
                ratios.append(point.itl_seconds / step.itl_seconds)
            called = [count + _is_called(law, point, slower) for count, slower in zip(called, SLOWER, strict=True)]
    return Coverage(name, points, len(ratios), tuple(called), max(ratios))


def _is_judged(point: Point) -> bool:
    return point.sequences <= SLOWEST.max_sequences and point.load.mean_context_tokens <= SLOWEST.max_context_tokens


def _is_called(law: StepLaw, point: Point, slower: float) -> bool:
    """Whether an engine that stays at this load, so many times slower, gets the cause `unexplained`."""
    predicted, itl = predict(law, point.load), slower * point.itl_seconds
    said = verdict(
        Evidence(
            state="measuring",
            itl_mean_seconds=itl,
            predicted=predicted,
            compared_mean_seconds=itl,
            compared=predicted,
            preemptions=0.0,
            target_step_seconds=math.inf,
            target_itl_seconds=math.inf,
            usual_step_seconds=None,
            usual_tokens_per_sequence=None,
            load=point.load,
            law=law,
        )
    )
    return said.cause == "unexplained"


def text(rows: Sequence[Coverage] | None) -> str:
    """A section for the document."""
    if rows is None:
        return "The public measurements are not on this machine: left out.\n"
    lines = [
        "| engines | loads | judged | slowest there, of the prediction | called drifting | 25 % slower | 40 % slower |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        healthy, quarter, more = (f"{count} of {row.judged}" for count in row.called)
        lines.append(f"| {row.name} | {row.points} | {row.judged} | {row.worst:.2f} | {healthy} | {quarter} | {more} |")
    return "\n".join(lines) + "\n"
