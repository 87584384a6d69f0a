"""Situations in which no alert may fire: everyday life of engines, sidecars and Prometheus."""

from __future__ import annotations

from dataclasses import replace

from rules.promtool import Case, silence
from rules.sidecar import DOWN, GOOD, IDLE, STALE_GAUGES, STARTING, WARMING, Sidecar

OVER = replace(
    GOOD,
    over_share=1.0,
    cause="context",
    itl_mean_seconds=0.0285,
    predicted_itl_seconds=0.0284,
    predicted_step_seconds=0.0282,
    measured_step_seconds=0.0282,
    bound_low_seconds=0.0250,
    usage_ratio=0.75,
    tokens=280000.0,
    decoding=42.0,
)
SLOW = replace(GOOD, cause="unexplained", itl_mean_seconds=0.0182, measured_step_seconds=0.0180)  # 30 % over predicted
PREFILL = replace(GOOD, cause="prefill", itl_mean_seconds=0.0260, predicted_itl_seconds=0.0262, interference_ratio=0.47)
PREFILLING = replace(PREFILL, state="prefilling", itl_mean_seconds=0.0600, interference_ratio=0.2)
NO_MEMORY = replace(GOOD, usage_ratio=0.98)
SLOW_START = replace(GOOD, ttft_seconds=3.0)
FAST = replace(GOOD, itl_mean_seconds=0.0105, measured_step_seconds=0.0103)  # 25 % under predicted
UNREACHABLE = replace(IDLE, over_share=1.0, floor_seconds=0.0200)
# Everything that is ever wrong, for what must be short or short-lived.
TROUBLES = (
    OVER,
    SLOW,
    PREFILL,
    PREFILLING,
    NO_MEMORY,
    replace(GOOD, cause="preemption"),
    SLOW_START,
    FAST,
    UNREACHABLE,
    STARTING,
    STALE_GAUGES,
    replace(STARTING, engine="no_metrics", sidecar_knows_engine=False),
    replace(GOOD, state="no_capacity", cause=None),
    replace(GOOD, mismatch=1.0),
    replace(GOOD, bandwidth_share_ratio=0.12),
    replace(GOOD, config_ok=0.0),
)
MISSED, FAILED = replace(GOOD, scrape="missed"), replace(GOOD, scrape="failed")
AGAIN_UP = ((1, WARMING), (20, GOOD))  # after a new life of the engine: a minute of warm-up


def _quiet(says: str, *sidecars: Sidecar, until: int = 30) -> Case:
    return Case(says, sidecars, silence(1, until + 1))


QUIET = (
    _quiet("A healthy engine is left alone", Sidecar.of((31, GOOD))),
    _quiet("An idle engine is left alone", Sidecar.of((3, GOOD), (28, IDLE))),
    _quiet("An engine idle from birth is left alone", Sidecar.of((31, IDLE))),
    _quiet("A model that loads for ten minutes is left alone", Sidecar.of((10, STARTING), *AGAIN_UP)),
    _quiet("An engine that restarts within two minutes is left alone", Sidecar.of((5, GOOD), (2, DOWN), *AGAIN_UP)),
    _quiet(
        "An engine slow for the minute of its warm-up is left alone",
        Sidecar.of((5, GOOD), (1, DOWN), (1, replace(WARMING, itl_mean_seconds=0.2)), (20, GOOD)),
    ),
    _quiet(
        "A sidecar that restarts beside a healthy engine is left alone",
        Sidecar.of(
            (8, GOOD), (0.5, replace(GOOD, scrape="failed")), (1, replace(WARMING, is_new_sidecar=True)), (20, GOOD)
        ),
    ),
    _quiet(
        "A pod rescheduled under a new name is left alone",
        Sidecar.of((8, GOOD), (0.5, DOWN), (0.25, replace(DOWN, scrape="failed")), instance="10.0.0.1:10094"),
        Sidecar({"0": ((4, STARTING), *AGAIN_UP)}, instance="10.0.0.2:10094", begins_minutes=8),
    ),
    _quiet(
        "A pod that is scaled down, its engine ending first, is left alone",
        Sidecar.of((8, GOOD), (0.75, DOWN), (0.25, replace(DOWN, scrape="failed"))),
    ),
    _quiet(
        "Scrapes that Prometheus misses are nobody's fault",
        Sidecar.of(
            (8, GOOD),
            (0.25, replace(GOOD, scrape="missed")),
            (8, GOOD),
            (1, replace(GOOD, scrape="failed")),
            (14, GOOD),
        ),
    ),
    _quiet("Values that are not numbers fire nothing", Sidecar.of((5, GOOD), (26, replace(GOOD, is_nan=True)))),
    _quiet(
        "Two minutes of everything at once are too short",
        Sidecar.of((10, GOOD), (0.5, OVER), (0.5, SLOW), (0.5, PREFILLING), (0.5, NO_MEMORY), (19, GOOD)),
    ),
    _quiet("Two minutes over budget are too short", Sidecar.of((10, GOOD), (2, OVER), (19, GOOD))),
    _quiet("A minute of frozen gauges is too short", Sidecar.of((10, GOOD), (1, STALE_GAUGES), (19, GOOD))),
    _quiet(
        "A sleeping engine with a full cache is left alone",
        Sidecar.of((3, GOOD), (28, replace(IDLE, state="asleep", usage_ratio=0.99))),
    ),
    _quiet(
        "Both ranks of a healthy data-parallel engine are left alone", Sidecar({"0": ((31, GOOD),), "1": ((31, IDLE),)})
    ),
    _quiet(
        "A pod deleted after two minutes is not mourned, whatever it suffered from",
        *(
            Sidecar.of((2, moment), (0.25, replace(moment, scrape="failed")), instance=f"10.0.1.{at}:10094")
            for at, moment in enumerate(TROUBLES, 1)
        ),
        until=70,
    ),
    _quiet("A Prometheus that sees no series at all fires nothing"),
)
