"""How many context tokens fit: the step law turned round."""

from __future__ import annotations

import math
from dataclasses import replace

from stepscope.core.step_model import Load, StepLaw, predict, sequences_seconds


def speed_budget_tokens(
    law: StepLaw, load: Load, target_step_seconds: float, kv_bytes_per_token: float | None = None
) -> float | None:
    """Tokens in flight at which the predicted decode step of `load.sequences` sequences reaches the target.

    0 if not even an empty cache meets it. `kv_bytes_per_token` stands in for the law's own on hybrid models (pool bytes
    over capacity). None without KV bytes per token, and where tokens cost nothing. With t tokens the KV cache takes
    a t + b t^2 seconds (b is 0 unless the law knows a context cost), so the inverse is exact: below the compute roof
    nothing is paid for KV, above it each byte counts.
    """
    per_token = kv_bytes_per_token if kv_bytes_per_token is not None else law.kv_bytes_per_token
    if per_token is None or per_token <= 0.0:
        return None
    empty = replace(load, tokens_in_flight=0.0, kv_bytes=0.0, read_bytes=None, prefill_tokens_per_step=0.0)
    step = predict(law, empty)
    if step is None or step.decode_seconds > target_step_seconds:
        return 0.0
    # Time that compute exceeds the weights by is free for KV reads.
    spare = step.sequences_seconds - sequences_seconds(law, load)
    seconds = target_step_seconds - step.decode_seconds + spare
    sequences = max(load.sequences, 1.0)
    linear = per_token / (law.kv_bandwidth_bytes_per_second or law.effective_bandwidth_bytes_per_second)
    square = per_token * law.kv_context_cost_seconds_per_byte_token * (1.0 - 1.0 / sequences) / sequences
    # The root that is left when `square` vanishes, in the form that does not cancel.
    divisor = linear + math.sqrt(linear * linear + 4.0 * square * seconds)
    return 2.0 * seconds / divisor if divisor > 0.0 else None
