"""Is the engine there: down, starting, stuck."""

from __future__ import annotations

from dataclasses import replace

from rules.promtool import Case, Firing, silence
from rules.sidecar import DOWN, GOOD, STALE_GAUGES, STARTING, WARMING, Moment, Sidecar

_DOWN = Firing("StepscopeEngineDown", engine=None)
_STARTING = Firing("StepscopeEngineStarting", engine=None)
_STUCK = Firing("StepscopeEngineStuck")
_NO_METRICS = Firing("StepscopeNoEngineMetrics", engine=None)
_UNKNOWING = replace(DOWN, sidecar_knows_engine=False)
_FORGETFUL = replace(_UNKNOWING, is_new_sidecar=True)


def _at(moment: Moment, scrape: str) -> Moment:
    return replace(moment, scrape=scrape)  # type: ignore[arg-type]  # one of the literals, by hand below


CASES: dict[str, tuple[Case, ...]] = {
    "StepscopeEngineDown": (
        Case(
            "It fires three minutes after an engine went away, and resolves with its first good page",
            [Sidecar.of((10, GOOD), (10, DOWN), (1, WARMING), (10, GOOD))],
            {12.0: (), 12.75: (), 13.5: (_DOWN,), 19.5: (_DOWN,), 20.25: (), 30.0: ()},
        ),
        Case("It stays quiet before the first good page", [Sidecar.of((25, STARTING))], {5.0: (), 24.0: ()}),
        Case(
            "An engine that restarts in two minutes is left alone",
            [Sidecar.of((10, GOOD), (2, DOWN), (1, WARMING), (5, GOOD))],
            silence(20, 36, 2),
        ),
        Case(
            "One good page in two minutes shows that it lives",
            [Sidecar.of((5, GOOD), *(((1.5, DOWN), (0.25, GOOD)) * 6))],
            silence(5, 15),
        ),
        Case(
            "It goes on while the sidecar restarts and has forgotten the first good page",
            [
                Sidecar.of(
                    (10, GOOD),
                    (5, DOWN),
                    (0.25, _at(DOWN, "failed")),
                    (0.25, _FORGETFUL),
                    (20, _UNKNOWING),
                )
            ],
            {14.0: (_DOWN,), 16.0: (_DOWN,), 20.0: (_DOWN,), 33.0: (_DOWN,)},
        ),
        Case(
            "A failed scrape of the sidecar does not reset it",
            [Sidecar.of((10, GOOD), (2.5, DOWN), (0.25, _at(DOWN, "failed")), (5, DOWN))],
            {12.75: (), 13.5: (_DOWN,)},
        ),
        Case(
            "Both ranks down are one alert",
            [Sidecar({"0": ((10, GOOD), (10, DOWN)), "1": ((10, GOOD), (10, DOWN))})],
            {15.0: (_DOWN,)},
        ),
        Case(
            "An engine that answers without its series is left to StepscopeNoEngineMetrics",
            [Sidecar.of((5, GOOD), (14, replace(DOWN, engine="no_metrics")))],
            {7.75: (), 9.0: (), 11.0: (), 13.75: (), 15.0: (_NO_METRICS,), 18.0: (_NO_METRICS,)},
        ),
        Case(
            "A pod that is gone is not down for long",
            [Sidecar.of((10, GOOD), (0.75, DOWN), (0.25, _at(DOWN, "failed")), (5, _at(DOWN, "missed")))],
            silence(40, 64, 4),
        ),
    ),
    "StepscopeEngineStarting": (
        Case(
            "It fires after half an hour without a first page, and resolves when the engine is up",
            [Sidecar.of((40, STARTING), (1, WARMING), (5, GOOD))],
            {15.0: (), 29.5: (), 30.5: (_STARTING,), 39.0: (_STARTING,), 40.5: ()},
        ),
        Case(
            "Failed scrapes of the sidecar do not reset it",
            [Sidecar.of((20, STARTING), (0.5, _at(STARTING, "failed")), (15, STARTING))],
            {29.5: (), 30.5: (_STARTING,)},
        ),
        Case(
            "A pod deleted while it loads is forgotten",
            [Sidecar.of((20, STARTING), (0.25, _at(STARTING, "failed")))],
            silence(1, 90),
        ),
        Case(
            "A page without engine series is left to StepscopeNoEngineMetrics",
            [Sidecar.of((35, replace(STARTING, engine="no_metrics", sidecar_knows_engine=False)))],
            {4.0: (), 12.0: (_NO_METRICS,), 34.0: (_NO_METRICS,)},
        ),
        Case(
            "It takes over from StepscopeEngineDown without a gap when a restarted sidecar has forgotten the engine",
            [Sidecar.of((5, GOOD), (5, DOWN), (0.25, _FORGETFUL), (95, _UNKNOWING))],
            {40.0: (_DOWN,), 60.0: (_DOWN,), 69.0: (_DOWN,), 101.0: (_STARTING,)},
        ),
    ),
    "StepscopeEngineStuck": (
        Case(
            "It fires when no counter moves for five minutes while requests run, and resolves",
            [Sidecar.of((10, GOOD), (10, STALE_GAUGES), (8, GOOD))],
            {13.0: (), 14.75: (), 15.5: (_STUCK,), 19.0: (_STUCK,), 22.0: ()},
        ),
        Case(
            "Three minutes of frozen gauges in five are too few",
            [Sidecar.of((10, GOOD), *(((3, STALE_GAUGES), (2, GOOD)) * 3))],
            silence(10, 25),
        ),
        Case(
            "A failed scrape delays nothing",
            [Sidecar.of((10, GOOD), (3, STALE_GAUGES), (0.25, _at(STALE_GAUGES, "failed")), (4, STALE_GAUGES))],
            {14.75: (), 15.5: (_STUCK,)},
        ),
    ),
}
