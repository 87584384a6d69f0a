"""What is going on with an engine, in words: is it slow, against what, why, what to do. Used by `check` and `/`."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.compare import DRIFT_LIMIT
from stepscope.core.snapshot import EngineView, Snapshot

_CAUSE_SENTENCES = {
    "preemption": "The engine preempted requests: KV memory is too small for the load, and they wait to be recomputed.",
    "prefill": "Prompt chunks share the steps: they add {interference} to each token.",
    "unexplained": "Slower than the load explains, by {drift}.",
    "objective_unreachable": "Weights and overhead alone take longer than the promised step: no load would meet it.",
    "context": "The requests hold more context than usual: each step reads {reads}.",
    "load": "More requests and context than {limit}: each step reads {reads}.",
    "none": "As fast as the load allows.",
}
_STATE_SENTENCES = {
    "asleep": "The engine sleeps.",
    "no_model": "Nothing to predict with: model or GPU facts are missing (see below).",
    "no_capacity": "The KV capacity is unknown, so tokens in flight cannot be told.",
    "idle": "Nobody is being served.",
    "stale": "The engine says that it is busy, but nothing moves.",
    "warming_up": "Too early for a verdict: that needs the first minute of an engine's life and fifty observations.",
    "prefilling": "Prompts are being computed; decoding cannot be judged meanwhile.",
    "too_few_observations": "Too few tokens in the window can be compared with a prediction for a verdict.",
    "out_of_range": "The load is beyond what the calibration has seen.",
    "measuring": "",
}
# Why nothing is compared although there is traffic.
_SHARED = (
    "Requests share cached prefixes: the engine counts those tokens once, each request reads them, some {tokens} more "
    "than are counted. How long that takes cannot be told."
)
_SHARED_ADVICE = "Nothing to do. The measured speed is right; the predicted step is the least that it can take."
# The gauge of running requests is 0, and that of waiting ones is not.
_ONLY_WAITING = "Nobody is being served, and requests wait: {requests}."
_ONLY_WAITING_ADVICE = "If it lasts, look into the engine's log: it admits nobody (no KV blocks left, or a leak)."
# Prompt tokens are counted when a prompt ends: at first there is a cause, and not yet its size.
_PREFILL_UNCOUNTED = "Prompt chunks share the steps; how much they add shows when the prompts end."
_PREFILL_COUNTED_SHARE = 0.1  # what chunks must add before the number says more than the rest of the window
_NOT_BROKEN = "The engine itself is as fast as this load allows."
# What drifts although its cause is "none": an uncalibrated law may leave so wide a range that slow is still inside it.
_WITHIN_SPREAD = "Slower than predicted by {drift}, which an uncalibrated prediction alone may account for."
# Cause and budget follow from the prediction: where that is far too slow, so are they.
_FASTER = "Faster than predicted by {drift}: this engine beats what was assumed of it, so budget and cause mislead."

_CAUSE_ADVICE = {
    "preemption": "Give the KV cache more room (--gpu-memory-utilization), admit fewer requests (--max-num-seqs), "
    "or add an engine.",
    "prefill": "Make prompt chunks smaller (--max-num-batched-tokens), send long prompts to an engine of their own, "
    "or let more of them hit the prefix cache.",
    "unexplained": "Look outside the load: GPU clocks (power or heat), a neighbour on the GPU or on the CPUs, "
    "logprobs, constrained output.",
    "objective_unreachable": "Promise less, or make a step cheaper: faster or more GPUs, smaller weights.",
    "context": "Send the longest sessions to an engine of their own, cap their length (--max-model-len), "
    "or add an engine{over}.",
    "load": "Add an engine, or admit fewer requests at a time (--max-num-seqs){over}.",
}
_STATE_ADVICE = {
    "asleep": "Wake it up when it is needed.",
    "no_model": "Give what is missing; the list below names the flags. Until then stepscope learns this engine by "
    "itself, which takes a quarter of an hour of varied load.",
    "no_capacity": "Give --kv.capacity-tokens.",
    "stale": "Look into the engine's log. If it stays like this, restart the engine: nobody gets a token.",
    "warming_up": "Wait a moment.",
    "too_few_observations": "Nothing to do: this needs more traffic, or steadier traffic.",
    "out_of_range": "Calibrate again, up to this load: beyond it the prediction is an extrapolation.",
}
_CALIBRATE = "Calibrate on this engine (stepscope calibrate), so that a fault can be told from a wide assumption."
_CALIBRATE_SLOW = "Calibrate on this engine (stepscope calibrate): until then the prediction stays too slow."


@dataclass(frozen=True, slots=True)
class Verdict:
    """One engine in four short texts. level: good, warning, bad, or unknown (nothing can or need be said)."""

    level: str
    headline: str
    why: str
    advice: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the whole sidecar that an operator must know. level: warning or bad."""

    level: str
    text: str
    advice: str


def milliseconds(value: float | None) -> str:
    """A time for reading."""
    return "-" if value is None else f"{value * 1e3:.1f} ms"


def tokens(value: float | None) -> str:
    """A count of tokens for reading."""
    return "-" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A ratio for reading."""
    return "-" if value is None else f"{value:+.0%}"


def sentence(view: EngineView) -> str:
    """What is going on, in words."""
    parts = [_STATE_SENTENCES[view.state]]
    if _is_shared(view):
        parts = [_SHARED.format(tokens=tokens(view.shared_prefix_tokens))]
    elif _waits_in_vain(view):
        parts = [_ONLY_WAITING.format(requests=tokens(view.requests_waiting))]
    if view.cause is not None:
        interference = view.prefill_interference_ratio
        # Share of the whole, told as what it adds to the rest.
        added = "-" if interference is None else f"{interference / max(1e-9, 1.0 - interference):.0%}"
        words = _CAUSE_SENTENCES[view.cause]
        if view.cause == "prefill" and view.state == "prefilling" and (interference or 0.0) < _PREFILL_COUNTED_SHARE:
            words = _PREFILL_UNCOUNTED
        limit = "fit at the promised speed" if view.target_itl_seconds is not None else "usual"
        parts.append(words.format(interference=added, drift=_share(view.drift_ratio), reads=_reads(view), limit=limit))
        if view.cause in ("context", "load") and view.drift_ratio is not None and abs(view.drift_ratio) <= DRIFT_LIMIT:
            parts.append(_NOT_BROKEN)
    return " ".join(part for part in parts if part)


def verdict(view: EngineView, *, engine_up: bool = True) -> Verdict:
    """Is it slow, against what, why, and what to do. `engine_up` False: what was true when it last answered."""
    said = _verdict(view)
    if engine_up:
        return said
    return Verdict("unknown", "Not known now", f"When the engine last answered: {said.headline}.", said.why)


def _verdict(view: EngineView) -> Verdict:
    level, word = _level(view)
    figures = [part for part in (_speed(view), _promise(view)) if part]
    headline = f"{word}: {'; '.join(figures)}" if figures and view.state not in ("idle", "asleep", "stale") else word
    why, advice = sentence(view), _advice(view)
    if view.cause == "none" and view.drift_ratio is not None and view.drift_ratio > DRIFT_LIMIT:
        why, advice = _WITHIN_SPREAD.format(drift=_share(view.drift_ratio)), _CALIBRATE
    elif _beats_prediction(view):
        why, advice = _FASTER.format(drift=_share(view.drift_ratio)), _CALIBRATE_SLOW
    return Verdict(level, headline, why, advice)


def notices(snapshot: Snapshot) -> tuple[Notice, ...]:
    """What is wrong with the configuration, the way to the engine, or the calibration."""
    found = [
        Notice("bad", f"Running on defaults, the configuration is wrong: {line}", "Correct it, then reload.")
        for line in snapshot.config_errors
    ]
    if not snapshot.engine_up:
        why = snapshot.last_error or "no answer yet"
        if snapshot.engine_ever_up:
            advice = "The last values stand below until it answers again; stepscope keeps asking."
            found.append(Notice("bad", f"The engine is not answering: {why}", advice))
        else:
            advice = "Loading a model takes minutes. If it lasts, check --engine.url; stepscope keeps asking."
            found.append(Notice("warning", f"The engine has not come up yet: {why}", advice))
    if snapshot.assumed.calibration_mismatch:
        text = "The calibration was made for something else, see what was assumed."
        found.append(Notice("warning", text, "Calibrate again."))
    return tuple(found)


def missing(snapshot: Snapshot) -> tuple[str, ...]:
    """What is missing and the flag that supplies it, whatever part of stepscope lacks it."""
    lines = list(snapshot.assumed.missing)
    if any(view.capacity_tokens is None for view in snapshot.engines):
        lines.append("KV capacity: give --kv.capacity-tokens")
    if snapshot.engines and all(view.target_itl_seconds is None for view in snapshot.engines):
        lines.append("a promise to hold the speed against: give --objective.tokens-per-second")
    return tuple(lines)


def _is_shared(view: EngineView) -> bool:
    return view.state == "too_few_observations" and view.shared_prefix_tokens is not None


def _waits_in_vain(view: EngineView) -> bool:
    """Running is 0 and waiting is not: an admission fault if it lasts (vllm-metal#479)."""
    return view.state == "idle" and bool(view.requests_waiting)


def _beats_prediction(view: EngineView) -> bool:
    """True if it is so much faster than predicted that the prediction is wrong."""
    return view.drift_ratio is not None and view.drift_ratio < -DRIFT_LIMIT


def _reads(view: EngineView) -> str:
    """What a step reads besides the weights, and how long that takes."""
    read = f"{tokens(view.tokens_in_flight)} tokens of KV"
    return f"{read}, which takes {milliseconds(view.predicted.kv_cache_seconds)}" if view.predicted else read


def _share(value: float | None) -> str:
    """A ratio whose direction the words around it say."""
    return "-" if value is None else f"{abs(value):.0%}"


def _level(view: EngineView) -> tuple[str, str]:
    """(level, the one word of the headline)."""
    quiet = {"asleep": "Asleep", "no_model": "Cannot predict", "no_capacity": "Cannot predict"}
    if view.state in quiet:
        return "unknown", quiet[view.state]
    if view.state == "idle":
        return ("warning", "Nobody is served") if _waits_in_vain(view) else ("good", "Idle")
    if view.state == "stale":
        return "bad", "Stuck"
    if view.state == "warming_up":
        return "unknown", "Watching"
    mean, target, step = view.itl_mean_seconds, view.target_itl_seconds, view.predicted
    if mean is not None and target is not None and mean > target:
        return "bad", "Slow"
    if view.cause == "unexplained":
        return "warning", "Slower than it should be"
    over = step is not None and view.target_step_seconds is not None and step.decode_seconds > view.target_step_seconds
    if over and not _beats_prediction(view):
        return "warning", "At the limit"
    if mean is None:
        return "unknown", "No tokens in the window"
    if view.cause in (None, "none") or target is not None or _beats_prediction(view):
        return "good", "Fast enough" if target is not None else "As expected"
    return "warning", "Slower than usual"


def _speed(view: EngineView) -> str:
    """The measured speed as a user sees it."""
    mean = view.itl_mean_seconds
    if not mean:
        return ""
    emitted = view.tokens_per_step or 1.0
    what = "token" if emitted < 1.05 else f"step of {emitted:.1f} tokens"  # below, decoding is not speculative
    return f"{milliseconds(mean)} per {what}, {emitted / mean:.0f} tokens/s for each user"


def _promise(view: EngineView) -> str:
    target = view.target_itl_seconds
    return f"{(view.tokens_per_step or 1.0) / target:.0f} promised" if target else ""


def _advice(view: EngineView) -> str:
    """What to do now."""
    if view.cause is not None and view.cause != "none":
        headroom = view.token_headroom_tokens
        over = f": {tokens(-headroom)} tokens are too many" if headroom is not None and headroom < 0.0 else ""
        advice = _CAUSE_ADVICE[view.cause].format(over=over)
        if view.cause == "prefill" and _level(view)[1] == "Fast enough":
            return f"Nothing to do yet. If it gets slow: {advice[0].lower()}{advice[1:]}"
        return advice
    if _is_shared(view):
        return _SHARED_ADVICE
    if _waits_in_vain(view):
        return _ONLY_WAITING_ADVICE
    if view.state in _STATE_ADVICE:
        return _STATE_ADVICE[view.state]
    headroom, target = view.token_headroom_tokens, view.target_itl_seconds
    if target is None:
        return "Nothing to do. With a promise (--objective.tokens-per-second) you would see how much more fits."
    if headroom is None or headroom < 0.0:
        return "Nothing to do."
    speed = (view.tokens_per_step or 1.0) / target
    if view.speed_budget_tokens is None or (view.memory_budget_tokens or float("inf")) < view.speed_budget_tokens:
        return f"Nothing to do. {tokens(headroom)} more context tokens fit into KV memory."
    return f"Nothing to do. {tokens(headroom)} more context tokens fit before users drop below {speed:.0f} tokens/s."
