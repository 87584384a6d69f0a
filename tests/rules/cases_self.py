"""Can stepscope do its work: engine series, facts, calibration, objective, configuration, a sidecar at all."""

from __future__ import annotations

from dataclasses import replace

from rules.promtool import Case, Firing, silence
from rules.sidecar import GOOD, IDLE, STARTING, Series, Sidecar
from rules.situations import OVER, UNREACHABLE

_NO_METRICS = Firing("StepscopeNoEngineMetrics", engine=None)
_CANNOT = Firing("StepscopeCannotPredict")
_STALE = Firing("StepscopeCalibrationStale")
_UNREACHABLE = Firing("StepscopeObjectiveUnreachable")
_DEGRADED = Firing("StepscopeConfigDegraded", engine=None)
_EMPTY_PAGE = replace(STARTING, engine="no_metrics", sidecar_knows_engine=False)
_NO_CAPACITY = replace(GOOD, state="no_capacity", cause=None, predicted_step_seconds=None, speed_budget_tokens=None)
_MISMATCH = replace(GOOD, mismatch=1.0)
_BAD_CONFIG = replace(GOOD, config_ok=0.0)


def _pods(*containers: tuple[str, str, str], minutes: int = 40, phase: str = "Running") -> Series:
    """kube-state-metrics' view: (pod, container, image) for `minutes`."""
    exporter = 'job="kube-state-metrics",instance="10.0.9.9:8080"'
    steps = minutes * 4
    series: Series = {}
    for pod, container, image in containers:
        of = f'{exporter},namespace="llm",pod="{pod}"'
        series[f'kube_pod_container_info{{{of},container="{container}",image="{image}"}}'] = [1.0] * steps
        for name in ("Running", "Pending"):
            series[f'kube_pod_status_phase{{{of},phase="{name}"}}'] = [float(name == phase)] * steps
    return series


def _in_pod(pod: str, sidecar: Sidecar) -> Sidecar:
    return replace(sidecar, target={"job": "llm/stepscope", "namespace": "llm", "pod": pod})


_ENGINE = ("engine-0", "vllm", "vllm/vllm-openai:v0.12.0")
_ABSENT = Firing("StepscopeAbsent", engine=None, instance=None, more=(("namespace", "llm"), ("pod", "engine-0")))

CASES: dict[str, tuple[Case, ...]] = {
    "StepscopeNoEngineMetrics": (
        Case(
            "It fires when the page holds no engine series for ten minutes, and resolves",
            [Sidecar.of((5, GOOD), (14, replace(_EMPTY_PAGE, sidecar_knows_engine=True)), (9, GOOD))],
            {10.0: (), 13.75: (), 14.75: (_NO_METRICS,), 18.5: (_NO_METRICS,), 22.0: ()},
        ),
        Case(
            "It fires on an engine that never showed any series",
            [Sidecar.of((14, _EMPTY_PAGE))],
            {4.5: (), 6.0: (_NO_METRICS,)},
        ),
        Case(
            "Half of the scrapes without engine series are too few",
            [Sidecar.of((5, GOOD), *(((0.5, replace(_EMPTY_PAGE, sidecar_knows_engine=True)), (0.5, GOOD)) * 15))],
            silence(5, 20),
        ),
    ),
    "StepscopeCannotPredict": (
        Case(
            "It fires after a quarter of an hour without capacity, and resolves once it is given",
            [Sidecar.of((5, GOOD), (20, _NO_CAPACITY), (10, GOOD))],
            {16.0: (), 19.5: (), 21.0: (_CANNOT,), 24.5: (_CANNOT,), 29.0: ()},
        ),
        Case(
            "Model facts missing count the same",
            [Sidecar.of((25, replace(_NO_CAPACITY, state="no_model")))],
            {12.0: (), 14.0: (), 16.0: (_CANNOT,)},
        ),
        Case(
            "The two together make up the time",
            [Sidecar.of((8, _NO_CAPACITY), (17, replace(_NO_CAPACITY, state="no_model")))],
            {14.0: (), 16.0: (_CANNOT,)},
        ),
        Case(
            "An engine that lacks its capacity for five minutes after the start is left alone",
            [Sidecar.of((5, _NO_CAPACITY), (25, GOOD))],
            silence(1, 30),
        ),
        Case(
            "Failed scrapes delay nothing",
            [
                Sidecar.of(
                    (5, GOOD), (8, _NO_CAPACITY), (0.5, replace(_NO_CAPACITY, scrape="failed")), (10, _NO_CAPACITY)
                )
            ],
            {19.5: (), 21.0: (_CANNOT,)},
        ),
    ),
    "StepscopeCalibrationStale": (
        Case(
            "It fires when the provenance has not matched for a quarter of an hour, and resolves",
            [Sidecar.of((5, GOOD), (17, _MISMATCH), (5, GOOD))],
            {14.0: (), 19.5: (), 20.5: (_STALE,), 23.0: ()},
        ),
        Case(
            "It fires on an engine with a foreign calibration from birth, and resolves",
            [Sidecar.of((15, _MISMATCH), (5, GOOD))],
            {9.5: (), 10.5: (_STALE,), 14.5: (_STALE,), 15.5: ()},
        ),
        Case(
            "A failed scrape does not reset it",
            [Sidecar.of((3, _MISMATCH), (0.25, replace(_MISMATCH, scrape="failed")), (9, _MISMATCH))],
            {9.5: (), 10.5: (_STALE,)},
        ),
        Case(
            "A matching calibration is left alone, even while the engine idles",
            [Sidecar.of((5, GOOD), (10, IDLE))],
            silence(1, 15),
        ),
    ),
    "StepscopeObjectiveUnreachable": (
        Case(
            "It fires on an idle engine that is over budget all the same, and resolves with another promise",
            [Sidecar.of((21, UNREACHABLE), (5, replace(IDLE, target_step_seconds=0.030)))],
            {10.0: (), 12.75: (), 14.25: (_UNREACHABLE,), 20.5: (_UNREACHABLE,), 22.0: ()},
        ),
        Case(
            "It fires on a busy engine, whatever else slows it",
            [Sidecar.of((20, replace(OVER, cause="prefill", floor_seconds=0.0200)))],
            {9.5: (), 12.75: (), 14.5: (_UNREACHABLE,)},
        ),
        Case(
            "Without tokens drafted the target is that of one token a step; it is judged by the best step of the hour",
            [
                Sidecar.of(
                    (10, replace(GOOD, floor_seconds=0.0200, target_step_seconds=0.036)),
                    (40, replace(IDLE, floor_seconds=0.0200, over_share=1.0)),
                )
            ],
            silence(1, 50),
        ),
        Case(
            "An engine over budget by its load is left to StepscopeOverBudget",
            [Sidecar.of((25, OVER))],
            {20.0: (Firing("StepscopeOverBudget"),)},
        ),
        Case("A night of idling within the promise is left alone", [Sidecar.of((25, IDLE))], {20.0: ()}),
        Case(
            "A sidecar that restarts again and again has judged too little",
            [
                Sidecar.of(
                    *(
                        (
                            (0.25, replace(UNREACHABLE, is_new_sidecar=True)),
                            (1, replace(UNREACHABLE, state="warming_up", over_share=0.0)),
                            (1, UNREACHABLE),
                        )
                        * 9
                    )
                )
            ],
            {18.0: ()},
        ),
    ),
    "StepscopeConfigDegraded": (
        Case(
            "It fires when the sidecar has run on defaults for ten minutes, and resolves",
            [Sidecar.of((5, GOOD), (12, _BAD_CONFIG), (4, GOOD))],
            {10.0: (), 11.5: (), 12.75: (_DEGRADED,), 16.5: (_DEGRADED,), 17.5: ()},
        ),
        Case(
            "A failed scrape does not reset it",
            [Sidecar.of((3, _BAD_CONFIG), (0.25, replace(_BAD_CONFIG, scrape="failed")), (5, _BAD_CONFIG))],
            {4.5: (), 5.5: (_DEGRADED,)},
        ),
        Case("A valid configuration is left alone", [Sidecar.of((20, GOOD))], {15.0: ()}),
    ),
    "StepscopeAbsent": (
        Case("It fires on an engine pod without a sidecar", [], {14.5: (), 15.5: (_ABSENT,)}, _pods(_ENGINE)),
        Case(
            "It stays quiet while the pod's sidecar is scraped",
            [_in_pod("engine-0", Sidecar.of((30, GOOD)))],
            {5.0: (), 29.0: ()},
            _pods(_ENGINE),
        ),
        Case(
            "A sidecar of another pod does not help, and it fires where a sidecar went missing",
            [
                _in_pod("engine-1", Sidecar.of((40, GOOD), instance="10.0.0.2:10094")),
                _in_pod("engine-0", Sidecar.of((5, GOOD), (0.25, replace(GOOD, scrape="failed")))),
            ],
            {14.0: (), 29.0: (), 31.0: (_ABSENT,)},
            _pods(_ENGINE, ("engine-1", *_ENGINE[1:])),
        ),
        Case(
            "It resolves when the sidecar is there",
            [replace(_in_pod("engine-0", Sidecar.of((15, GOOD))), begins_minutes=20)],
            {19.0: (_ABSENT,), 21.0: (), 34.0: ()},
            _pods(_ENGINE),
        ),
        Case("A pod that has not started is left alone", [], {20.0: ()}, _pods(_ENGINE, phase="Pending")),
        Case(
            "Pods that are no engine are left alone, a router least of all",
            [],
            {20.0: ()},
            _pods(("web-0", "web", "nginx:1.27"), ("router-0", "router", "lmcache/vllm-router:0.1")),
        ),
        Case("A pod that is gone after ten minutes is forgotten", [], {20.0: ()}, _pods(_ENGINE, minutes=10)),
    ),
}
