"""Whether the gauges at the ends of a pair stand for the steps within it: only then is a prediction a comparison.

A pair's observations carry the later sample's tokens. Where a load came and went between two samples the steps read
what no gauge ever showed, and a healthy engine would look too slow.
"""

from __future__ import annotations

from stepscope.core.compare import DRIFT_LIMIT
from stepscope.core.step_model import StepTime
from stepscope.core.window import PREFILL_SHARE_LIMIT, Pair

# The mean of a pair and a gauge at its end may differ by half a request through rounding alone.
_HALF_A_REQUEST = 0.5


def gauges_stand_for_steps(
    pair: Pair, predicted: StepTime, tokens_before: float | None, tokens_after: float | None, *, single_process: bool
) -> bool:
    """True if no figure of the pair is off by so much that it would make a drift by itself (15 %)."""
    return not _tokens_swung(predicted, tokens_before, tokens_after) and _batch_is_seen(pair, single_process)


def holds_long_prompt(pair: Pair, open_tokens_before: float, prefill_cost_seconds_per_token: float | None) -> bool:
    """True if a prompt is open at either end whose chunks fill a large part of the pair: how large is only a guess.

    Seconds by the law's own price; infinitely many open tokens (prefix caching off) say nothing of a length.
    """
    longest = max((t for t in (open_tokens_before, pair.open_prompt_tokens) if t != float("inf")), default=0.0)
    return pair.prefill_seen * longest * (prefill_cost_seconds_per_token or 0.0) > PREFILL_SHARE_LIMIT * pair.seconds


def _tokens_swung(predicted: StepTime, before: float | None, after: float | None) -> bool:
    """True if the tokens in flight changed too much: of cancelled requests the steps still read the context."""
    if before is None or after is None or before == after:
        return False
    if after <= 0.0:
        return True
    return predicted.kv_cache_seconds * abs(before - after) / after > DRIFT_LIMIT * predicted.itl_seconds


def _batch_is_seen(pair: Pair, single_process: bool) -> bool:
    """True if the running gauge at an end of the pair shows as many requests as decoded within it.

    With several API servers the batch is known only as S/T, the mean over the whole pair: where nothing ran for a part
    of it, S/T is far below the gauge and is not the batch.
    """
    gauges = [g for g in (pair.first.requests_running, pair.last.requests_running) if g is not None]
    if not gauges or pair.sequences is None:
        return True
    most = max(gauges)
    mean = pair.sequences if single_process else pair.itl_sum_seconds / pair.seconds
    if mean > (1.0 + DRIFT_LIMIT) * most + _HALF_A_REQUEST:
        return False
    return single_process or mean >= (1.0 - DRIFT_LIMIT) * most - _HALF_A_REQUEST
