"""Prefixes that running requests share: the usage gauge counts their blocks once, and each request reads them.

How many tokens a step really reads is then unknown (some attention kernels read a common prefix once, most do not), and
a prediction from the gauge alone would call a healthy engine far too slow.
"""

from __future__ import annotations

from stepscope.core.sample import EngineSample

_ENOUGH_REQUESTS = 5.0  # finished in the window; fewer say little about those that still run


def shared_tokens(first: EngineSample, last: EngineSample, tokens_in_flight: float | None, sequences: float) -> float:
    """Tokens that the requests may read beyond those in flight; 0 where nothing speaks for it.

    `first`..`last`: one engine life, about a window apart. Little's law without the gauge: a request that comes with i
    prompt tokens and leaves after o more holds i + o/2 on average, so `sequences` of those that finished hold that many
    times i + o/2. It errs on the low side: long requests run for longer and finish more rarely. More than its cache
    hits nobody shares.
    """
    if tokens_in_flight is None or sequences <= 1.0:
        return 0.0
    before, after = _totals(first), _totals(last)
    if before is None or after is None:
        return 0.0
    if after[0] - before[0] < _ENOUGH_REQUESTS:  # long answers: what is known since the engine's start must do
        before = (0.0,) * len(after)
    finished, begun, prompts, outputs, hits = (b - a for a, b in zip(before, after, strict=True))
    if finished <= 0.0 or begun <= 0.0:
        return 0.0
    context = (prompts + 0.5 * outputs) / finished
    return max(0.0, min(sequences * context - tokens_in_flight, sequences * hits / begun))


def _totals(sample: EngineSample) -> tuple[float, ...] | None:
    """Requests finished and begun, tokens of prompts and answers that finished, cache hits."""
    totals = (
        sample.finished_requests,
        sample.ttft_seconds.count if sample.ttft_seconds is not None else None,
        sample.finished_prompt_tokens,
        sample.finished_generation_tokens,
        sample.prefix_hits,
    )
    known = tuple(total for total in totals if total is not None)
    return known if len(known) == len(totals) else None
