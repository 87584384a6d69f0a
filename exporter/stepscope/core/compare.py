"""Measured against predicted: state, drift, interference, cause."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepscope.core.step_model import Load, StepLaw, StepTime, predict
from stepscope.core.window import PREFILL_SHARE_LIMIT, Window

DRIFT_LIMIT = 0.15  # beyond it the engine is slower than predicted (docs/physics.md)
INTERFERENCE_LIMIT = 0.25  # what counts as interference when nobody promised a speed
MIN_OBSERVATIONS = 10
WARM_UP_OBSERVATIONS = 50
STALE_SAMPLES = 3
STALE_SECONDS = 5.0
# A prompt chunk is one step of a second or two at most; a prompt left open by an abort must not hide a dead engine.
STALE_SECONDS_WITH_OPEN_PROMPTS = 30.0
USUAL_STEP_FACTOR = 1.25  # without an objective the target is this times the trailing hour's median step


@dataclass(frozen=True, slots=True)
class Situation:
    """What the state of an engine depends on, after one sample."""

    asleep: bool
    has_law: bool
    has_kv: bool  # tokens or bytes in flight can be known, or the law does not need them
    running: float
    observations_in_pair: float
    unmoved_samples: int
    unmoved_seconds: float
    open_prompt_tokens: float
    seconds_in_life: float
    observations_in_life: float
    warm_up_seconds: float
    window: Window
    in_range: bool


def state(now: Situation) -> str:
    """The first state that applies (docs/physics.md)."""
    if now.asleep:
        return "asleep"
    if not now.has_law:
        return "no_model"
    if not now.has_kv:
        return "no_capacity"
    if now.running == 0.0 and now.observations_in_pair == 0.0:
        return "idle"
    if (
        now.running > 0.0
        and now.unmoved_samples >= STALE_SAMPLES
        and now.unmoved_seconds >= (STALE_SECONDS_WITH_OPEN_PROMPTS if now.open_prompt_tokens else STALE_SECONDS)
    ):
        return "stale"
    if now.seconds_in_life < now.warm_up_seconds or now.observations_in_life < WARM_UP_OBSERVATIONS:
        return "warming_up"
    if _is_prefilling(now.window):
        return "prefilling"
    # Under steady preemption no pair can be compared, and yet the cause is plain.
    preempting = now.window.preemptions > 0.0 and now.window.observations >= MIN_OBSERVATIONS
    if now.window.compared_observations < MIN_OBSERVATIONS and not preempting:
        # There may be plenty of tokens, and prompts among all of them.
        hidden = now.window.predicted_observations - now.window.compared_observations
        return "prefilling" if hidden >= MIN_OBSERVATIONS else "too_few_observations"
    if not now.in_range:
        return "out_of_range"
    return "measuring"


def _is_prefilling(window: Window) -> bool:
    """True if prompt chunks take so large a part that the window says little about decoding.

    Besides the window's own prefill share, the part of its time that passed in pairs dominated by prompt chunks counts:
    a linear prefill cost is far off inside one very long prompt (attention grows with its context), and a window that
    has just left such a burst would blame the engine for it.
    """
    if not window.prefill_accounted:
        return True
    if window.prefill_dominated_sum_seconds > PREFILL_SHARE_LIMIT * window.itl_sum_seconds:
        return True
    predicted = window.predicted
    return predicted is not None and predicted.prefill_seconds > PREFILL_SHARE_LIMIT * predicted.itl_seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """Drift, interference and cause of one window."""

    drift_ratio: float | None
    interference_ratio: float | None
    measured_step_seconds: float | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict rests on. Seconds, tokens."""

    state: str
    itl_mean_seconds: float | None  # over the comparable observations
    predicted: StepTime | None
    compared_mean_seconds: float | None  # the same without pairs in which prompt chunks hide decoding
    compared: StepTime | None
    preemptions: float
    target_step_seconds: float | None  # objective's, absent without one
    target_itl_seconds: float | None
    usual_step_seconds: float | None  # trailing hour's median predicted decode step
    usual_tokens_per_sequence: float | None
    load: Load | None
    law: StepLaw | None


def verdict(evidence: Evidence) -> Verdict:
    """Judge one window: drift and cause only where the state allows, the rest wherever it is known."""
    mean, predicted = evidence.itl_mean_seconds, evidence.predicted
    if mean is None or predicted is None:
        return Verdict(None, None, None, _cause_without_comparison(evidence))
    step = mean - predicted.prefill_seconds
    drift = None
    if evidence.state == "measuring" and evidence.compared is not None and evidence.compared_mean_seconds is not None:
        drift = evidence.compared_mean_seconds / evidence.compared.itl_seconds - 1.0
    interference = predicted.prefill_seconds / predicted.itl_seconds
    cause = _cause(evidence, mean, predicted, drift, interference)
    return Verdict(drift, interference, step if step > 0.0 else None, cause)


def _cause_without_comparison(evidence: Evidence) -> str | None:
    """The cause where nothing could be compared: what the counters and the state alone say."""
    if evidence.state not in ("measuring", "prefilling"):
        return None
    if evidence.preemptions > 0.0:
        return "preemption"
    return "prefill" if evidence.state == "prefilling" else "none"


def _cause(
    evidence: Evidence, mean: float, predicted: StepTime, drift: float | None, interference: float
) -> str | None:
    """The first cause that applies (docs/physics.md)."""
    if evidence.state not in ("measuring", "prefilling"):
        return None
    if evidence.preemptions > 0.0:
        return "preemption"
    if evidence.state == "prefilling":
        return "prefill"
    is_slow = drift is not None and drift > DRIFT_LIMIT
    # Whether or not the parameters may be that wrong: prompts are not what makes the difference.
    if _prefill_is_to_blame(evidence, mean, predicted, interference) and not (
        is_slow and _would_do(evidence, predicted)
    ):
        return "prefill"
    if is_slow and not _within_spread(evidence):
        return "unexplained"
    target = evidence.target_step_seconds
    if target is None and evidence.usual_step_seconds is not None:
        target = USUAL_STEP_FACTOR * evidence.usual_step_seconds
    if target is None or predicted.decode_seconds <= target:
        return "none"
    if _is_data_sheet(evidence) and mean - predicted.prefill_seconds <= target:
        return "none"  # nobody is told about an error of the defaults
    if _least_step_seconds(evidence, predicted) > target:
        return "objective_unreachable"
    return "context" if _usual_context_would_do(evidence, target) else "load"


def _prefill_is_to_blame(evidence: Evidence, mean: float, predicted: StepTime, interference: float) -> bool:
    """Prompt chunks push the mean over its target, and without them it would be met.

    The last condition keeps a throttled engine (mean above target, hardly any prefill) from being called prefill.
    """
    if evidence.target_itl_seconds is None or evidence.target_step_seconds is None:
        return interference > INTERFERENCE_LIMIT
    return (
        mean > evidence.target_itl_seconds
        and predicted.decode_seconds <= evidence.target_step_seconds
        and mean - predicted.prefill_seconds <= evidence.target_itl_seconds
    )


def _would_do(evidence: Evidence, predicted: StepTime) -> bool:
    """True if the target would be met, prompt chunks and all, were the engine as fast as predicted."""
    return evidence.target_itl_seconds is not None and predicted.itl_seconds <= evidence.target_itl_seconds


def _within_spread(evidence: Evidence) -> bool:
    """True if data-sheet parameters alone may account for the difference.

    An engine that is slower than they say stays so: the verdict would last for its whole life. So it takes more than
    the published bounds, outside of which one measured load in twenty lies: no engine ever measured may be called slow,
    nor one of a kind, or under a load, that nobody measured. They know no drafter either.
    """
    law, load = evidence.law, evidence.load
    if law is None or not _is_data_sheet(evidence):
        return False
    mean, predicted = evidence.compared_mean_seconds, evidence.compared
    if law.slowest is None or load is None or mean is None or predicted is None or load.positions_per_sequence > 1.0:
        return True
    within_bounds = mean <= predicted.decode_high_seconds + predicted.prefill_seconds
    return within_bounds or law.slowest.may_explain(load, predicted, mean)


def _is_data_sheet(evidence: Evidence) -> bool:
    return evidence.law is not None and evidence.law.source == "datasheet"


def _least_step_seconds(evidence: Evidence, predicted: StepTime) -> float:
    """Overhead and weights of a single stream: a mixture of experts reads fewer experts then than in a busy step."""
    if evidence.law is None:
        return predicted.overhead_seconds + predicted.weights_seconds
    weights = evidence.law.weights.read_bytes(1.0) / evidence.law.effective_bandwidth_bytes_per_second
    return evidence.law.step_overhead_seconds + weights


def _usual_context_would_do(evidence: Evidence, target_seconds: float) -> bool:
    """True if the same number of sequences at the trailing hour's usual context length would meet the target."""
    load, law, usual = evidence.load, evidence.law, evidence.usual_tokens_per_sequence
    if load is None or law is None or usual is None or load.sequences <= 0.0:
        return False
    tokens = usual * load.sequences
    kv_bytes = load.kv_bytes
    if kv_bytes is not None:
        kv_bytes = kv_bytes * tokens / load.tokens_in_flight if load.tokens_in_flight > 0.0 else None
    step = predict(law, replace(load, tokens_in_flight=tokens, kv_bytes=kv_bytes, read_bytes=None))
    return step is not None and step.decode_seconds <= target_seconds
