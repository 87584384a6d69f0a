"""State and cause: the first that applies, in the documented order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.compare import Evidence, Situation, state, verdict
from stepscope.core.step_model import Load, Slowest, StepLaw, StepTime, WeightBytes, predict
from stepscope.core.window import Window, gather
from stepscope.metrics import CAUSES, STATES


def step(decode: float = 0.010, prefill: float = 0.0, *, overhead: float = 0.0, weights: float = 0.0) -> StepTime:
    rest = decode - overhead - weights
    return StepTime(overhead, weights, rest, 0.0, prefill, decode * 0.5, decode * 2.0)


def window(**fields: Any) -> Window:
    whole: dict[str, Any] = {"compared_observations": 100.0, "itl_sum_seconds": 1.0, "predicted": step(), **fields}
    return replace(gather(()), **whole)


QUIET = Situation(
    asleep=False,
    has_law=True,
    has_kv=True,
    running=8.0,
    observations_in_pair=100.0,
    unmoved_samples=0,
    unmoved_seconds=0.0,
    open_prompt_tokens=0.0,
    seconds_in_life=600.0,
    observations_in_life=5000.0,
    warm_up_seconds=60.0,
    window=window(),
    in_range=True,
)
# Each is reason enough for its state, in the order in which they are asked.
REASONS: list[tuple[str, dict[str, Any]]] = [
    ("asleep", {"asleep": True}),
    ("no_model", {"has_law": False}),
    ("no_capacity", {"has_kv": False}),
    ("idle", {"running": 0.0, "observations_in_pair": 0.0}),
    ("stale", {"unmoved_samples": 3, "unmoved_seconds": 5.0}),
    ("warming_up", {"seconds_in_life": 59.0}),
    ("prefilling", {"window": window(predicted=step(0.01, 0.0051))}),
    ("too_few_observations", {"window": window(compared_observations=9.0)}),
    ("out_of_range", {"in_range": False}),
]


def test_an_engine_with_nothing_special_is_measured() -> None:
    """The last state of the list."""
    assert state(QUIET) == "measuring"


def test_the_reasons_are_asked_in_the_published_order() -> None:
    """The metric table lists the states as they are decided."""
    assert (*(name for name, _ in REASONS), "measuring") == STATES


@pytest.mark.parametrize(("expected", "reason"), REASONS)
def test_each_reason_alone_gives_its_state(expected: str, reason: dict[str, Any]) -> None:
    """One at a time."""
    assert state(replace(QUIET, **reason)) == expected


@pytest.mark.parametrize("first", range(len(REASONS)))
def test_the_first_of_several_reasons_wins(first: int) -> None:
    """With every later reason given too."""
    both: dict[str, Any] = {}
    for _, reason in reversed(REASONS[first:]):
        both.update(reason)
    assert state(replace(QUIET, **both)) == REASONS[first][0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"unmoved_samples": 2, "unmoved_seconds": 60.0}, "measuring"),
        ({"unmoved_samples": 9, "unmoved_seconds": 4.9}, "measuring"),
        ({"unmoved_samples": 3, "unmoved_seconds": 29.0, "open_prompt_tokens": 1.0}, "measuring"),
        ({"unmoved_samples": 3, "unmoved_seconds": 30.0, "open_prompt_tokens": 1.0}, "stale"),
        ({"unmoved_samples": 3, "unmoved_seconds": 5.0, "running": 0.0, "observations_in_pair": 0.0}, "idle"),
        ({"running": 0.0}, "measuring"),
        ({"observations_in_pair": 0.0}, "measuring"),
        ({"seconds_in_life": 60.0}, "measuring"),
        ({"observations_in_life": 49.0}, "warming_up"),
        ({"observations_in_life": 50.0}, "measuring"),
        ({"window": window(prefill_accounted=False)}, "prefilling"),
        ({"window": window(predicted=step(0.01, 0.0049))}, "measuring"),
        ({"window": window(prefill_dominated_sum_seconds=0.34)}, "prefilling"),
        ({"window": window(prefill_dominated_sum_seconds=0.33)}, "measuring"),
        ({"window": window(compared_observations=10.0)}, "measuring"),
        # Tokens there are, and prompt chunks among nearly all of them.
        ({"window": window(compared_observations=9.0, predicted_observations=19.0)}, "prefilling"),
        ({"window": window(compared_observations=9.0, predicted_observations=18.0)}, "too_few_observations"),
    ],
)
def test_the_edges_of_each_state(change: dict[str, Any], expected: str) -> None:
    """Three samples and five seconds, a minute, fifty and ten observations, a third of prefill."""
    assert state(replace(QUIET, **change)) == expected


LAW = StepLaw(WeightBytes(10e9), 1e12, 1e6, source="file")
SHEET = replace(LAW, source="datasheet", slowest=Slowest(1.9, max_sequences=128.0, max_context_tokens=8000.0))
MET = Evidence(
    state="measuring",
    itl_mean_seconds=0.0101,
    predicted=step(0.010),
    compared_mean_seconds=0.0101,
    compared=step(0.010),
    preemptions=0.0,
    target_step_seconds=0.018,
    target_itl_seconds=0.020,
    usual_step_seconds=0.010,
    usual_tokens_per_sequence=250.0,
    load=Load(8.0, 4000.0),
    law=LAW,
)


def evidence(**fields: Any) -> Evidence:
    """`MET` with changes; what is compared is the whole window unless it is given."""
    changed = replace(MET, **fields)
    whole = {"compared_mean_seconds": changed.itl_mean_seconds, "compared": changed.predicted}
    return replace(changed, **{key: fields.get(key, value) for key, value in whole.items()})


def caused(**fields: Any) -> str | None:
    return verdict(evidence(**fields)).cause


def loaded(tokens: float, sequences: float) -> dict[str, Any]:
    """Evidence of an engine that does what the law says under a load."""
    load = Load(sequences, tokens)
    predicted = predict(LAW, load)
    assert predicted is not None
    return {"load": load, "predicted": predicted, "itl_mean_seconds": predicted.itl_seconds}


# Each is reason enough for its cause, in the order in which they are asked; the later ones hold for the earlier too.
CAUSED: list[tuple[str, dict[str, Any]]] = [
    ("preemption", {"preemptions": 1.0}),
    ("prefill", {"itl_mean_seconds": 0.0201, "predicted": step(0.015, 0.004)}),
    ("unexplained", {"itl_mean_seconds": 0.0116}),
    # 10 ms of weights alone, against a target of 9.9 ms.
    ("objective_unreachable", {**loaded(tokens=20_000, sequences=8), "target_step_seconds": 0.0099}),
    ("context", loaded(tokens=20_000, sequences=8)),
    ("load", loaded(tokens=20_000, sequences=40)),
    ("none", {}),
]


def test_the_causes_are_asked_in_the_published_order() -> None:
    """The metric table lists them as they are decided."""
    assert tuple(name for name, _ in CAUSED) == CAUSES


@pytest.mark.parametrize(("expected", "fields"), CAUSED)
def test_each_cause_in_its_situation(expected: str, fields: dict[str, Any]) -> None:
    """One at a time, with an objective of 50 tokens a second."""
    assert caused(**fields) == expected


@pytest.mark.parametrize(("_", "fields"), CAUSED)
def test_a_preemption_comes_before_everything(_: str, fields: dict[str, Any]) -> None:
    """Its wait sits inside the gaps, so nothing else can be said."""
    assert caused(**{**fields, "preemptions": 2.0}) == "preemption"


def test_prefill_comes_before_unexplained() -> None:
    """20 % over the prediction, but the chunks alone push what is predicted over the target."""
    slow: dict[str, Any] = {"itl_mean_seconds": 0.025, "predicted": step(0.0145, 0.0062)}
    assert verdict(evidence(**slow)).drift_ratio == pytest.approx(0.208, abs=0.001)
    assert caused(**slow) == "prefill"


def test_a_slow_engine_is_not_blamed_on_prompts_that_it_could_bear() -> None:
    """Chunks and all the target would be met, were the engine as fast as predicted; it is 26 % slower."""
    slow: dict[str, Any] = {"itl_mean_seconds": 0.0201, "predicted": step(0.012, 0.004)}
    assert verdict(evidence(**slow)).drift_ratio == pytest.approx(0.256, abs=0.001)
    assert caused(**slow) == "unexplained"
    # Data sheets may be that wrong: then nobody is blamed.
    assert caused(**slow, law=SHEET) == "none"


def test_drift_leaves_out_what_prompt_chunks_hide() -> None:
    """A linear price per prompt token is far off inside one very long prompt: the rest of the window is compared."""
    whole: dict[str, Any] = {"itl_mean_seconds": 0.024, "predicted": step(0.010, 0.006)}
    decoding: dict[str, Any] = {"compared_mean_seconds": 0.0102, "compared": step(0.010)}
    found = verdict(evidence(**whole, **decoding, target_itl_seconds=0.030))
    assert (found.drift_ratio, found.cause) == (pytest.approx(0.02), "none")
    assert found.interference_ratio == pytest.approx(0.375)


def test_data_sheet_parameters_know_no_drafter() -> None:
    """More than twice as slow as they say is unexplained, but not while the engine decodes speculatively."""
    law = SHEET
    slow: dict[str, Any] = {"itl_mean_seconds": 0.021, "law": law}
    assert caused(**slow, load=Load(8.0, 4000.0)) == "unexplained"
    assert caused(**slow, load=Load(8.0, 4000.0, positions_per_sequence=4.0)) == "none"
    assert caused(**(slow | {"law": LAW}), load=Load(8.0, 4000.0, positions_per_sequence=4.0)) == "unexplained"


def test_unexplained_comes_before_the_objective() -> None:
    """A throttled engine is not to blame on its load."""
    fields = {**loaded(tokens=20_000, sequences=40), "itl_mean_seconds": 0.040}
    assert caused(**fields) == "unexplained"


def test_data_sheets_that_the_measured_step_denies_blame_nobody() -> None:
    """They say that the step is over its target, and the engine keeps it."""
    over: dict[str, Any] = {**loaded(tokens=20_000, sequences=40), "law": SHEET}
    assert caused(**over) == "load"
    assert caused(**(over | {"itl_mean_seconds": 0.018})) == "none"
    assert caused(**(over | {"itl_mean_seconds": 0.018, "law": LAW})) == "load"


def test_an_unreachable_objective_comes_before_context() -> None:
    """When even weights and overhead exceed the target no context would do."""
    fields = loaded(tokens=20_000, sequences=8)
    assert caused(**fields, target_step_seconds=0.0099, target_itl_seconds=0.011) == "objective_unreachable"


def test_a_busy_mixture_of_experts_is_not_called_unreachable_for_its_batch() -> None:
    """Many tokens read many experts; a single stream, which reads few, would meet the target."""
    law = replace(LAW, weights=WeightBytes(1e9, 1e7, experts=64, experts_per_token=2, moe_layers=32))
    load = Load(64, 20_000)
    predicted = predict(law, load)
    assert predicted is not None
    target = predicted.weights_seconds * 0.9
    fields = {"load": load, "predicted": predicted, "itl_mean_seconds": predicted.itl_seconds, "law": law}
    assert caused(**fields, target_step_seconds=target, target_itl_seconds=target / 0.9) == "load"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"itl_mean_seconds": 0.0115}, "none"),
        ({"itl_mean_seconds": 0.005}, "none"),
        # A throttled engine with hardly any prefill: the chunks are not what pushed it over.
        ({"itl_mean_seconds": 0.040, "predicted": step(0.015, 0.001)}, "unexplained"),
        # Data-sheet parameters: only outside of their own spread, here twice the step.
        ({"itl_mean_seconds": 0.019, "law": SHEET}, "none"),
        ({"itl_mean_seconds": 0.0201, "law": SHEET}, "unexplained"),
        # Nor below the slowest engine measured, prompts and all (here 1.9 times 10 + 1.5 ms).
        ({"itl_mean_seconds": 0.0217, "predicted": step(0.010, 0.0015), "law": SHEET, "target_itl_seconds": 1}, "none"),
        # A kind that nobody measured may take any time, and so may loads beyond those measured.
        ({"itl_mean_seconds": 0.2, "law": replace(SHEET, slowest=None)}, "none"),
        ({"itl_mean_seconds": 0.2, "law": SHEET, "load": Load(129.0, 4000.0)}, "none"),
        ({"itl_mean_seconds": 0.2, "law": SHEET, "load": Load(8.0, 8.1 * 8000.0)}, "none"),
        ({"itl_mean_seconds": 0.2, "law": SHEET, "load": Load(8.0, 8.0 * 8000.0)}, "unexplained"),
        ({"itl_mean_seconds": 0.0201, "law": replace(LAW, source="learned")}, "unexplained"),
        # At the target itself it is met.
        ({"predicted": step(0.018), "itl_mean_seconds": 0.018}, "none"),
        # Without a usual context nothing can be said about context.
        ({**loaded(20_000, 8), "usual_tokens_per_sequence": None}, "load"),
    ],
)
def test_the_edges_of_each_cause(fields: dict[str, Any], expected: str) -> None:
    """15 % of drift, the spread of data sheets, the target itself."""
    assert caused(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"predicted": step(0.0075, 0.0025), "itl_mean_seconds": 0.010}, "none"),
        ({"predicted": step(0.0074, 0.0026), "itl_mean_seconds": 0.010}, "prefill"),
        ({"predicted": step(0.0125), "itl_mean_seconds": 0.0125}, "none"),
        (loaded(tokens=20_000, sequences=8), "context"),
        (loaded(tokens=20_000, sequences=40), "load"),
        ({**loaded(20_000, 8), "usual_step_seconds": None}, "none"),
    ],
)
def test_without_an_objective_the_usual_step_is_the_promise(fields: dict[str, Any], expected: str) -> None:
    """1.25 times the trailing hour's median; interference counts above a quarter."""
    assert caused(**{"target_step_seconds": None, "target_itl_seconds": None, **fields}) == expected


def test_context_is_told_from_load_in_bytes_too() -> None:
    """Hybrid models: the bytes shrink with the tokens."""
    fields = loaded(tokens=20_000, sequences=8)
    fields["load"] = replace(fields["load"], kv_bytes=20e9)
    assert caused(**fields) == "context"


@pytest.mark.parametrize("name", [name for name in STATES if name not in ("measuring", "prefilling")])
def test_other_states_have_neither_cause_nor_drift(name: str) -> None:
    """What is measured is still said."""
    found = verdict(evidence(state=name, preemptions=1.0))
    assert (found.cause, found.drift_ratio) == (None, None)
    assert found.measured_step_seconds == pytest.approx(0.0101)
    assert found.interference_ratio == 0.0


def test_prefilling_has_a_cause_and_no_drift() -> None:
    """Prefill, unless requests were preempted."""
    found = verdict(evidence(state="prefilling", predicted=step(0.01, 0.03)))
    assert (found.cause, found.drift_ratio) == ("prefill", None)
    assert found.interference_ratio == pytest.approx(0.75)
    assert caused(state="prefilling", preemptions=1.0) == "preemption"


def test_drift_compares_both_with_prefill() -> None:
    """Mean over predicted inter-token latency; the measured step is the mean less the prefill part."""
    found = verdict(evidence(itl_mean_seconds=0.018, predicted=step(0.010, 0.005)))
    assert found.drift_ratio == pytest.approx(0.2)
    assert found.measured_step_seconds == pytest.approx(0.013)
    assert found.interference_ratio == pytest.approx(1 / 3)


def test_a_measured_step_is_never_negative() -> None:
    """Where the prefill model takes more than there is, nothing is said."""
    assert verdict(evidence(itl_mean_seconds=0.004, predicted=step(0.010, 0.005))).measured_step_seconds is None


def test_without_observations_there_is_no_verdict() -> None:
    """Inside one long prefill nothing decodes, and the cause is known all the same."""
    silent: dict[str, Any] = {"itl_mean_seconds": None, "predicted": None}
    assert verdict(evidence(state="idle", **silent)).cause is None
    assert caused(state="prefilling", **silent) == "prefill"
    assert caused(state="prefilling", preemptions=1.0, **silent) == "preemption"
