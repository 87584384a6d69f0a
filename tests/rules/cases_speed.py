"""What users feel: over budget, prefill interference, memory, time to first token."""

from __future__ import annotations

from dataclasses import replace

from rules.promtool import Case, Firing, silence
from rules.sidecar import DOWN, GOOD, IDLE, STALE_GAUGES, WARMING, Moment, Sidecar
from rules.situations import NO_MEMORY, OVER, PREFILL, PREFILLING, SLOW_START, UNREACHABLE

_OVER = Firing("StepscopeOverBudget")
_PREFILL = Firing("StepscopePrefillInterference")
_MEMORY = Firing("StepscopeMemoryBudget")
_TTFT = Firing("StepscopeTTFTOverObjective")
_OVER_BY_SHEET = replace(OVER, source="datasheet")
_PREEMPTING = replace(GOOD, cause="preemption", usage_ratio=0.9)
_NO_FIRST_TOKEN = replace(GOOD, ttft_seconds=None)


def _at(moment: Moment, scrape: str) -> Moment:
    return replace(moment, scrape=scrape)  # type: ignore[arg-type]  # one of the literals, by hand below


CASES: dict[str, tuple[Case, ...]] = {
    "StepscopeOverBudget": (
        Case(
            "It fires after five minutes over budget, and resolves two minutes after the load is gone",
            [Sidecar.of((10, GOOD), (10, OVER), (10, GOOD))],
            {14.0: (), 14.75: (), 15.5: (_OVER,), 19.0: (_OVER,), 22.0: (), 29.0: ()},
        ),
        Case(
            "One scrape missed at minute three delays nothing",
            [Sidecar.of((10, GOOD), (3, OVER), (0.25, _at(OVER, "missed")), (7, OVER))],
            {14.75: (), 15.5: (_OVER,), 17.0: (_OVER,)},
        ),
        Case(
            "One scrape failed at minute three delays nothing",
            [Sidecar.of((10, GOOD), (3, OVER), (0.25, _at(OVER, "failed")), (7, OVER))],
            {14.75: (), 15.5: (_OVER,), 17.0: (_OVER,)},
        ),
        Case(
            "One sample under the line does not reset it",
            [Sidecar.of((10, GOOD), (5, OVER), (0.25, GOOD), (5, OVER))],
            {15.5: (_OVER,), 16.0: (_OVER,), 18.0: (_OVER,)},
        ),
        Case(
            "It stays quiet while three minutes of four are over budget",
            [Sidecar.of((10, GOOD), *(((3, OVER), (1, GOOD)) * 4))],
            silence(10, 26),
        ),
        Case(
            "Of two ranks the one that is fine is left alone",
            [Sidecar({"0": ((10, GOOD), (10, GOOD)), "1": ((10, GOOD), (10, OVER))})],
            {14.75: (), 16.0: (replace(_OVER, engine="1"),)},
        ),
        Case(
            "Of two engines the one that is fine is left alone",
            [Sidecar.of((20, GOOD)), Sidecar.of((10, GOOD), (10, OVER), instance="10.0.0.2:10094")],
            {16.0: (replace(_OVER, instance="10.0.0.2:10094"),)},
        ),
        Case(
            "A fresh sidecar says nothing before it has judged for three minutes",
            [Sidecar.of((1, WARMING), (10, OVER))],
            {3.0: (), 4.0: (), 4.75: (), 6.5: (_OVER,), 10.0: (_OVER,)},
        ),
        Case(
            "It goes on while the sidecar restarts",
            [
                Sidecar.of(
                    (5, GOOD),
                    (10, OVER),
                    (0.5, _at(OVER, "failed")),
                    (1, replace(WARMING, is_new_sidecar=True)),
                    (5, OVER),
                )
            ],
            {14.0: (_OVER,), 15.25: (_OVER,), 16.0: (_OVER,), 17.5: (_OVER,), 20.0: (_OVER,)},
        ),
        Case(
            "An engine that restarts under load is judged anew",
            [Sidecar.of((10, OVER), (1.5, DOWN), (1, WARMING), (2, GOOD))],
            {9.0: (_OVER,), 14.0: ()},
        ),
        Case(
            "It leaves an idle engine alone whose objective cannot be met",
            [Sidecar.of((10, UNREACHABLE))],
            silence(1, 10),
        ),
        Case(
            "It leaves an idle engine alone whose target shrank with the last draft",
            [
                Sidecar.of(
                    (5, replace(GOOD, target_step_seconds=0.036)), (20, replace(UNREACHABLE, floor_seconds=0.0200))
                )
            ],
            silence(1, 25),
        ),
        Case(
            "It leaves a busy engine alone whose objective cannot be met, whatever else slows it",
            [Sidecar.of((10, replace(OVER, floor_seconds=0.0200, cause="unexplained", predicted_itl_seconds=0.026)))],
            silence(1, 10),
        ),
        Case(
            "Experts whose weights grow with the batch are load, if a light hour kept the promise",
            [Sidecar.of((10, GOOD), (10, replace(OVER, floor_seconds=0.0200, cause="objective_unreachable")))],
            {14.75: (), 15.5: (_OVER,), 19.0: (_OVER,)},
        ),
        Case(
            "It is not made of data-sheet parameters that the measured step denies",
            [Sidecar.of((15, replace(_OVER_BY_SHEET, itl_mean_seconds=0.0262, measured_step_seconds=0.0170)))],
            silence(1, 15),
        ),
        Case(
            "It fires on data-sheet parameters that the measured step bears out",
            [Sidecar.of((15, _OVER_BY_SHEET))],
            {3.0: (), 5.5: (_OVER,), 14.0: (_OVER,)},
        ),
        Case(
            "A calibration is believed, even where the measured step lies a little below",
            [Sidecar.of((15, replace(OVER, predicted_step_seconds=0.0185, measured_step_seconds=0.0175)))],
            {3.0: (), 5.5: (_OVER,), 14.0: (_OVER,)},
        ),
        Case(
            "It resolves when the pod is gone",
            [Sidecar.of((10, OVER), (0.25, _at(OVER, "failed")), (8, _at(OVER, "missed")))],
            {9.0: (_OVER,), 16.0: ()},
        ),
    ),
    "StepscopePrefillInterference": (
        Case(
            "It fires when prompts push the mean over its target for most of five minutes, and resolves",
            [Sidecar.of((10, GOOD), (6, PREFILL), (12, GOOD))],
            {12.0: (), 13.25: (), 14.0: (_PREFILL,), 15.5: (_PREFILL,), 20.5: (_PREFILL,), 25.0: ()},
        ),
        Case(
            "It fires inside one long prefill too, which is not judged for drift",
            [Sidecar.of((10, GOOD), (6, PREFILLING))],
            {13.25: (), 15.0: (_PREFILL,)},
        ),
        Case(
            "Keep-firing bridges a minute between two bursts",
            [Sidecar.of((10, GOOD), (4, PREFILL), (4, GOOD), (4, PREFILL), (9, GOOD))],
            {14.5: (_PREFILL,), 17.0: (_PREFILL,), 18.5: (_PREFILL,), 30.0: ()},
        ),
        Case(
            "It stays quiet while the mean keeps its target",
            [Sidecar.of((5, GOOD), (10, replace(PREFILL, itl_mean_seconds=0.019, predicted_itl_seconds=0.019)))],
            silence(1, 15),
        ),
        Case(
            "It stays quiet where nobody promised a speed",
            [Sidecar.of((15, replace(PREFILL, target_itl_seconds=None, target_step_seconds=None)))],
            silence(1, 15),
        ),
        Case(
            "It leaves the case to StepscopeOverBudget when the decode step alone is too slow",
            [Sidecar.of((10, GOOD), (10, replace(OVER, cause="prefill")))],
            {14.75: (), 15.5: (_OVER,), 19.0: (_OVER,)},
        ),
        Case(
            "It stays quiet when half the time is over budget",
            [Sidecar.of((10, GOOD), (10, replace(PREFILL, over_share=0.5)))],
            silence(14, 20),
        ),
        Case(
            "Two minutes of prompt bursts are too short",
            [Sidecar.of((10, GOOD), (2, PREFILL), (10, GOOD))],
            silence(10, 22),
        ),
        Case(
            "A fresh sidecar says nothing before it has judged for three minutes",
            [Sidecar.of((1, WARMING), (10, PREFILL))],
            {3.0: (), 4.75: (), 6.5: (_PREFILL,)},
        ),
        Case(
            "A failed scrape delays nothing",
            [Sidecar.of((10, GOOD), (3, PREFILL), (0.25, _at(PREFILL, "failed")), (3, PREFILL))],
            {13.25: (), 14.0: (_PREFILL,)},
        ),
    ),
    "StepscopeMemoryBudget": (
        Case(
            "It fires when the cache is full on average over five minutes, and resolves",
            [Sidecar.of((10, GOOD), (10, NO_MEMORY), (6, GOOD))],
            {14.0: (), 15.0: (), 16.5: (), 17.25: (_MEMORY,), 19.0: (_MEMORY,), 22.0: ()},
        ),
        Case(
            "It fires when requests are preempted, and resolves",
            [Sidecar.of((10, GOOD), (5, _PREEMPTING), (8, GOOD))],
            {11.0: (), 13.5: (), 15.0: (_MEMORY,), 22.0: ()},
        ),
        Case(
            "Four preemptions in five minutes are no alarm",
            [Sidecar.of((10, GOOD), *(((0.5, _PREEMPTING), (0.75, GOOD)) * 8))],
            silence(10, 20),
        ),
        Case(
            "A single preemption is no alarm",
            [Sidecar.of((10, GOOD), (0.5, replace(GOOD, cause="preemption")), (10, GOOD))],
            silence(10, 20),
        ),
        Case(
            "A full cache whose gauges are frozen is not believed",
            [Sidecar.of((10, GOOD), (4, replace(STALE_GAUGES, usage_ratio=0.99)), (0.25, GOOD), (3, IDLE))],
            silence(10, 17),
        ),
        Case(
            "A full cache of an engine that hangs is left to StepscopeEngineStuck",
            [Sidecar.of((10, NO_MEMORY), (10, replace(STALE_GAUGES, usage_ratio=0.99)))],
            {9.0: (_MEMORY,), 13.0: (), 16.0: (Firing("StepscopeEngineStuck"),)},
        ),
        Case(
            "One scrape failed does not reset it",
            [Sidecar.of((4, NO_MEMORY), (0.25, _at(NO_MEMORY, "failed")), (6, NO_MEMORY))],
            {3.0: (), 5.0: (), 6.0: (_MEMORY,), 9.0: (_MEMORY,)},
        ),
        Case(
            "Of two ranks the one with room is left alone",
            [Sidecar({"0": ((20, NO_MEMORY),), "1": ((20, GOOD),)})],
            {10.0: (_MEMORY,)},
        ),
        Case(
            "A pod that is deleted with a full cache takes the alert along",
            [Sidecar.of((8, GOOD), (5, replace(NO_MEMORY, usage_ratio=1.0)), (0.25, _at(NO_MEMORY, "failed")))],
            {12.5: (), 15.25: (), 17.5: ()},
        ),
        Case(
            "A cache that is full for one minute of five is no alarm",
            [Sidecar.of((10, GOOD), *(((1, replace(NO_MEMORY, usage_ratio=1.0)), (4, GOOD)) * 3))],
            silence(10, 25),
        ),
    ),
    "StepscopeTTFTOverObjective": (
        Case(
            "It fires when the first token takes longer than promised for most of five minutes, and resolves",
            [Sidecar.of((10, GOOD), (10, SLOW_START), (8, GOOD))],
            {12.0: (), 14.0: (), 15.0: (_TTFT,), 19.0: (_TTFT,), 23.0: (), 27.0: ()},
        ),
        Case(
            "Where nobody promised a time there is nothing to break",
            [Sidecar.of((15, replace(SLOW_START, target_ttft_seconds=None)))],
            silence(1, 15),
        ),
        Case(
            "The promise is the engine's own",
            [
                Sidecar.of((15, replace(SLOW_START, target_ttft_seconds=5.0))),
                Sidecar.of((15, replace(GOOD, target_ttft_seconds=0.2)), instance="10.0.0.2:10094"),
            ],
            {3.0: (), 10.0: (replace(_TTFT, instance="10.0.0.2:10094"),)},
        ),
        Case(
            "One request that waited for minutes among many that did not is no alarm",
            [Sidecar.of((10, GOOD), (0.5, replace(SLOW_START, ttft_seconds=90.0)), (10, GOOD))],
            silence(10, 20),
        ),
        Case(
            "A lone slow request is no alarm",
            [Sidecar.of((10, _NO_FIRST_TOKEN), (0.5, replace(SLOW_START, ttft_seconds=30.0)), (10, _NO_FIRST_TOKEN))],
            silence(10, 20),
        ),
        Case(
            "Slow first tokens after an idle hour fire once they cover half of five minutes",
            [Sidecar.of((10, IDLE), (10, SLOW_START))],
            {12.0: (), 14.0: (), 15.5: (_TTFT,)},
        ),
        Case(
            "The ranks of one target are judged one by one",
            [Sidecar({"0": ((20, GOOD),), "1": ((20, SLOW_START),)})],
            {3.0: (), 5.0: (), 6.0: (replace(_TTFT, engine="1"),), 10.0: (replace(_TTFT, engine="1"),)},
        ),
        Case(
            "One scrape failed does not reset it",
            [Sidecar.of((4, SLOW_START), (0.25, _at(SLOW_START, "failed")), (6, SLOW_START))],
            {3.0: (), 5.0: (), 6.0: (_TTFT,), 9.0: (_TTFT,)},
        ),
    ),
}
