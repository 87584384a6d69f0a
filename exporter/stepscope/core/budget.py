"""How many context tokens fit: the step law turned round."""

from __future__ import annotations

from dataclasses import replace

from stepscope.core.step_model import Load, StepLaw, predict


def speed_budget_tokens(
    law: StepLaw, load: Load, target_step_seconds: float, kv_bytes_per_token: float | None = None
) -> float | None:
    """Tokens in flight at which the predicted decode step of `load.sequences` sequences reaches the target.

    0 if not even an empty cache meets it. `kv_bytes_per_token` stands in for the law's own on hybrid models (pool bytes
    over capacity). None without KV bytes per token. The law is piecewise linear in tokens, so the inverse is exact:
    below the compute roof nothing is paid for KV, above it each byte counts.
    """
    per_token = kv_bytes_per_token if kv_bytes_per_token is not None else law.kv_bytes_per_token
    if per_token is None or per_token <= 0.0:
        return None
    empty = replace(load, tokens_in_flight=0.0, kv_bytes=0.0, read_bytes=None, prefill_tokens_per_step=0.0)
    step = predict(law, empty)
    if step is None or step.decode_seconds > target_step_seconds:
        return 0.0
    # Time that compute exceeds the weights by is free for KV reads.
    spare = step.sequences_seconds - law.sequence_cost_seconds * load.sequences
    seconds = target_step_seconds - step.decode_seconds + spare
    return seconds * law.effective_bandwidth_bytes_per_second / per_token
