"""Measured against predicted: drift, too slow a prediction, a baseline that holds a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.promtool import Case, Firing, silence
from rules.sidecar import DOWN, GOOD, IDLE, STALE_GAUGES, WARMING, Moment, Sidecar
from rules.situations import FAST, PREFILLING, SLOW

_DRIFT = Firing("StepscopePredictionDrift")
_TOO_SLOW = Firing("StepscopePredictionTooSlow")
_BASELINE = Firing("StepscopeBaselineSuspect")
_MEMORY = Firing("StepscopeMemoryBudget")
_SHEET_SLOW = replace(SLOW, source="datasheet")
_UNJUDGED_SLOW = {
    "idle": replace(IDLE, itl_mean_seconds=0.05),
    "stale": replace(STALE_GAUGES, itl_mean_seconds=0.05),
    "warming up": replace(WARMING, itl_mean_seconds=0.05),
    "prefilling": replace(PREFILLING, itl_mean_seconds=0.0195, predicted_itl_seconds=0.0100),
    "seen too seldom": replace(SLOW, state="too_few_observations", cause=None),
}


def _fleet(*shares: float, gpus: Sequence[str] = (), sheet: Sequence[int] = ()) -> list[Sidecar]:
    """Engines of one model, by their share of peak bandwidth; those numbered in `sheet` were never calibrated."""
    moments = [
        replace(GOOD, bandwidth_share_ratio=share, source="datasheet" if at in sheet else "file")
        for at, share in enumerate(shares)
    ]
    if gpus:
        moments = [replace(moment, gpu=gpu) for moment, gpu in zip(moments, gpus, strict=True)]
    return [Sidecar.of((26, moment), instance=f"10.0.0.{at}:10094") for at, moment in enumerate(moments, 1)]


def _with(moment: Moment, scrape: str) -> Moment:
    return replace(moment, scrape=scrape)  # type: ignore[arg-type]  # one of the literals, by hand below


CASES: dict[str, tuple[Case, ...]] = {
    "StepscopePredictionDrift": (
        Case(
            "It fires once five minutes are more than 15 % slow, keeps firing five minutes, and resolves",
            [Sidecar.of((10, GOOD), (10, SLOW), (14, GOOD))],
            {12.0: (), 13.25: (), 14.25: (_DRIFT,), 19.0: (_DRIFT,), 26.0: (_DRIFT,), 31.0: ()},
        ),
        Case(
            "Ten per cent slow is no drift",
            [Sidecar.of((20, replace(SLOW, itl_mean_seconds=0.0154, cause="none")))],
            silence(1, 20),
        ),
        *(
            Case(
                f"An engine that is {name} has no drift",
                [Sidecar.of((5, GOOD), (5, moment))],
                silence(1, 10),
            )
            for name, moment in _UNJUDGED_SLOW.items()
        ),
        Case(
            "An engine that restarts has no drift, however slow its first minutes were",
            [Sidecar.of((5, GOOD), (1.5, DOWN), (1, replace(WARMING, itl_mean_seconds=0.2)), (10, GOOD))],
            silence(1, 17),
        ),
        Case(
            "A minute of measuring in five is too little",
            [Sidecar.of(*(((1, SLOW), (4, IDLE)) * 4))],
            silence(1, 20),
        ),
        Case(
            "A preempting engine has no drift: what little of it was compared proves nothing",
            [
                Sidecar.of(
                    (10, GOOD), *(((4.5, replace(SLOW, cause="preemption", compared_per_second=10.0)), (0.5, SLOW)) * 2)
                )
            ],
            {11.0: (), 15.0: (_MEMORY,), 17.0: (_MEMORY,), 19.0: (_MEMORY,)},
        ),
        Case(
            "A request a minute, in which one stall weighs all, is too little",
            [Sidecar.of((15, replace(SLOW, compared_per_second=1.0)))],
            silence(1, 15),
        ),
        Case(
            "A failed scrape delays nothing",
            [Sidecar.of((10, GOOD), (3, SLOW), (0.25, _with(SLOW, "failed")), (3, SLOW))],
            {13.25: (), 14.25: (_DRIFT,), 16.0: (_DRIFT,)},
        ),
        Case(
            "Flapping load does not make it flap",
            [Sidecar.of((5, GOOD), (5, SLOW), (4, IDLE), (5, SLOW))],
            {9.5: (_DRIFT,), 11.0: (_DRIFT,), 13.0: (_DRIFT,), 14.0: (_DRIFT,), 16.0: (_DRIFT,), 18.5: (_DRIFT,)},
        ),
        Case(
            "Of two ranks the one that is fine is left alone",
            [Sidecar({"0": ((10, GOOD), (10, SLOW)), "1": ((20, GOOD),)})],
            {16.0: (_DRIFT,)},
        ),
        Case(
            "Inside the spread of data-sheet parameters nothing is proven",
            [Sidecar.of((15, replace(_SHEET_SLOW, cause="none")))],
            silence(1, 15),
        ),
        Case(
            "Outside the spread of data-sheet parameters it fires",
            [Sidecar.of((15, _SHEET_SLOW))],
            {1.0: (), 5.0: (_DRIFT,), 10.0: (_DRIFT,)},
        ),
        Case(
            "With learned parameters the cause does not matter",
            [Sidecar.of((15, replace(SLOW, source="learned", cause="load")))],
            {5.0: (_DRIFT,)},
        ),
        Case(
            "It survives a restart of the sidecar",
            [
                Sidecar.of(
                    (8, SLOW), (0.25, _with(SLOW, "failed")), (1, replace(WARMING, is_new_sidecar=True)), (5, SLOW)
                )
            ],
            {7.0: (_DRIFT,), 9.0: (_DRIFT,), 11.0: (_DRIFT,), 14.0: (_DRIFT,)},
        ),
    ),
    "StepscopePredictionTooSlow": (
        Case(
            "It fires after a quarter of an hour faster than predicted, keeps firing, and resolves",
            [Sidecar.of((5, GOOD), (17, FAST), (20, GOOD))],
            {12.0: (), 17.5: (), 19.75: (_TOO_SLOW,), 25.0: (_TOO_SLOW,), 31.0: (_TOO_SLOW,), 41.0: ()},
        ),
        Case(
            "A failed scrape delays nothing",
            [Sidecar.of((5, GOOD), (6, FAST), (0.25, _with(FAST, "failed")), (10, FAST))],
            {17.5: (), 19.75: (_TOO_SLOW,)},
        ),
        Case(
            "Ten per cent fast is close enough",
            [Sidecar.of((20, replace(FAST, itl_mean_seconds=0.0126)))],
            silence(1, 20),
        ),
        Case(
            "Inside the spread of data-sheet parameters nothing is proven",
            [Sidecar.of((20, replace(FAST, source="datasheet", bound_low_seconds=0.0090)))],
            silence(1, 20),
        ),
        Case(
            "Below the spread of data-sheet parameters it fires",
            [Sidecar.of((20, replace(FAST, source="datasheet")))],
            {9.0: (), 13.0: (_TOO_SLOW,)},
        ),
        Case(
            "An engine measured for a minute in five is left alone",
            [Sidecar.of(*(((1, FAST), (4, IDLE)) * 5))],
            silence(1, 25),
        ),
        Case(
            "A preempting engine is left alone",
            [Sidecar.of((20, replace(FAST, cause="preemption")))],
            {10.0: (_MEMORY,), 19.0: (_MEMORY,)},
        ),
        Case(
            "A request a minute is too little",
            [Sidecar.of((20, replace(FAST, compared_per_second=1.0)))],
            silence(1, 20),
        ),
    ),
    "StepscopeBaselineSuspect": (
        Case(
            "It fires for the one engine of a fleet that was calibrated far below the median",
            _fleet(0.6, 0.4, 0.62),
            {14.5: (), 15.5: (replace(_BASELINE, instance="10.0.0.2:10094"),)},
        ),
        Case("Engines within a few per cent of each other are left alone", _fleet(0.6, 0.55, 0.62), {20.0: ()}),
        Case("Two engines have no median", _fleet(0.7, 0.3), {20.0: ()}),
        Case(
            "Data-sheet parameters are no calibration, to be suspected for their share alone or beside a fleet",
            _fleet(0.85, 0.84, 0.86, 0.6, 0.12, sheet=(3, 4)),
            {20.0: ()},
        ),
        Case(
            "Data-sheet parameters have no part in the median",
            _fleet(0.39, 0.42, 0.44, 0.6, 0.6, 0.6, sheet=(3, 4, 5)),
            {20.0: ()},
        ),
        Case("Data-sheet parameters make no fleet", _fleet(0.6, 0.35, 0.6, sheet=(2,)), {20.0: ()}),
        Case(
            "Engines on another GPU are another fleet",
            _fleet(0.6, 0.62, 0.61, 0.4, gpus=("H100-SXM", "H100-SXM", "H100-SXM", "B200-SXM")),
            {20.0: ()},
        ),
        Case(
            "It fires for a single engine with an implausible share of peak, and resolves after calibration",
            [Sidecar.of((20, replace(GOOD, bandwidth_share_ratio=0.12)), (10, GOOD))],
            {14.5: (), 15.5: (_BASELINE,), 22.0: ()},
        ),
        Case(
            "A failed scrape does not reset it",
            [
                Sidecar.of(
                    (8, replace(GOOD, bandwidth_share_ratio=0.12)),
                    (0.5, replace(GOOD, scrape="failed")),
                    (10, replace(GOOD, bandwidth_share_ratio=0.12)),
                )
            ],
            {14.5: (), 15.5: (_BASELINE,)},
        ),
        Case(
            "A GPU renamed meanwhile is no duplicate",
            [
                *_fleet(0.6, 0.62),
                Sidecar.of(
                    (13, replace(GOOD, bandwidth_share_ratio=0.4)),
                    (13, replace(GOOD, bandwidth_share_ratio=0.4, gpu="h100-sxm5")),
                    instance="10.0.0.3:10094",
                ),
            ],
            {14.0: (), 25.0: ()},
        ),
    ),
}
