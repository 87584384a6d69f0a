"""What the threads share: the last snapshot, swapped in whole, and a short history of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from stepscope.core.snapshot import Snapshot

HISTORY_SECONDS = 900.0
# At most one a second, so that a fast sampler does not grow it. A tenth of slack: samples one second apart come a few
# milliseconds early or late, and none of them is to be lost.
_LEAST_GAP_SECONDS = 0.9
_HISTORY_POINTS = round(HISTORY_SECONDS / _LEAST_GAP_SECONDS)


class State:
    """The last snapshot and fifteen minutes of history. Replacing a reference is atomic: readers keep theirs."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY_POINTS)
        self._last_point_seconds = float("-inf")

    @property
    def snapshot(self) -> Snapshot:
        """What was published last."""
        return self._snapshot

    def publish(self, snapshot: Snapshot, at_unix_seconds: float | None = None) -> None:
        """Swap in a snapshot; with a time it also enters the history."""
        self._snapshot = snapshot
        if at_unix_seconds is None or at_unix_seconds - self._last_point_seconds < _LEAST_GAP_SECONDS:
            return
        self._last_point_seconds = at_unix_seconds
        self._history.append(history_point(snapshot, at_unix_seconds))

    def history(self, now_unix_seconds: float) -> Sequence[dict[str, Any]]:
        """The points of the last fifteen minutes, oldest first."""
        return [p for p in tuple(self._history) if now_unix_seconds - p["time_unix_seconds"] <= HISTORY_SECONDS]


def history_point(snapshot: Snapshot, at_unix_seconds: float) -> dict[str, Any]:
    """One moment as plain JSON: what a graph of the last minutes needs."""
    return {
        "time_unix_seconds": round(at_unix_seconds, 3),
        "engine_up": snapshot.engine_up,
        "engines": [
            {
                "model_name": view.model_name,
                "engine": view.engine,
                "state": view.state,
                "cause": view.cause,
                "itl_mean_seconds": view.itl_mean_seconds,
                "measured_step_seconds": view.measured_step_seconds,
                "predicted_step_seconds": view.predicted.decode_seconds if view.predicted else None,
                "predicted_itl_seconds": view.predicted_itl_seconds,
                "components_seconds": _components(view.predicted) if view.prefill_known else None,
                "kv_usage_ratio": view.kv_usage_ratio,
                "itl_median_lower_bound_seconds": view.itl_median_lower_bound_seconds,
                "itl_median_upper_bound_seconds": view.itl_median_upper_bound_seconds,
                "target_itl_seconds": view.target_itl_seconds,
                "target_step_seconds": view.target_step_seconds,
                "tokens_in_flight": view.tokens_in_flight,
                "speed_budget_tokens": view.speed_budget_tokens,
                "memory_budget_tokens": view.memory_budget_tokens,
                "decode_batch_size": view.decode_batch_size,
                "token_headroom_tokens": view.token_headroom_tokens,
                "drift_ratio": view.drift_ratio,
            }
            for view in snapshot.engines
        ]
        if snapshot.engine_up
        else [],
    }


def _components(step: Any) -> dict[str, float] | None:
    if step is None:
        return None
    return {
        "overhead": step.overhead_seconds,
        "weights": step.weights_seconds,
        "kv_cache": step.kv_cache_seconds,
        "sequences": step.sequences_seconds,
        "prefill": step.prefill_seconds,
    }
