"""Places prompt tokens in time. The engine books a prompt when it ENDS; the slow steps came before.

Two live signs say that a prompt is being computed: with prefix caching on, open prompt tokens = prefix queries - prefix
hits - booked tokens; and requests running that do not decode. While a prompt is open, tokens are conserved:

    tokens in flight grew by = computed + cache hits + generated - freed by finished requests

so that `computed` follows from the usage gauge and counters that move with every step. The sum over the life of a
prompt is what the engine books in the end, to within the rounding of KV blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepscope.core.sample import EngineSample
from stepscope.core.window import increase

# Fewer steps than this say nothing about who was decoding all the time.
_STEPS_TO_TRUST_BATCH = 3.0
# A request counts as being in prefill when running exceeds the decoding mean by more than this.
_SOMEBODY = 0.5
# At most this much of a request may be unexplained by rounding when we conclude that nobody is in prefill.
_NOBODY = 0.25


@dataclass(frozen=True, slots=True)
class PrefillLedger:
    """What is known of unfinished prompts at one sample. Tokens."""

    offset_tokens: float = 0.0  # left over by prompts that were aborted
    open_tokens: float = 0.0  # full length of the prompts being computed, without cached parts
    computed_tokens: float = 0.0  # of those, already computed
    settled_tokens: float | None = None  # scheduled and not booked, when everybody decoded at the last sample


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """Prompt tokens computed between two samples, and whether that can be trusted."""

    ledger: PrefillLedger
    computed_tokens: float
    accounted: bool


def advance(
    ledger: PrefillLedger,
    first: EngineSample,
    last: EngineSample,
    *,
    tokens_before: float | None,
    tokens_after: float | None,
    steps: float | None,
    sequences: float | None,
    decoding_before: float | None,
    block_tokens: float,
) -> PrefillStep:
    """Account the prompt tokens computed between two samples of one engine life.

    `tokens_*`: tokens in flight at the two samples. `sequences`: mean decoding requests in the pair, `decoding_before`
    the last known one. `block_tokens`: size of a KV block; the usage gauge moves in blocks.
    """
    booked = increase(first.prompt_tokens_computed, last.prompt_tokens_computed)
    running = last.requests_running or 0.0
    decoding = sequences if sequences is not None else decoding_before
    in_prefill = decoding is not None and running - decoding > _SOMEBODY
    scheduled = _scheduled(last)
    # Usage that stands still while everybody decodes shows a page that is not up to date: it proves nothing.
    settled = running == 0.0 or (tokens_before != tokens_after and _nobody_in_prefill(last, steps, sequences))
    offset = ledger.offset_tokens
    if scheduled is None:
        # Prefix caching is off: how long the open prompts are is unknown, only that there are some.
        open_tokens = float("inf") if in_prefill or (decoding is None and running > 0) else 0.0
    else:
        # An aborted prompt leaves an offset that never moves again. It is forgotten when nothing runs, or when twice in
        # a row everybody decodes while it stands still. Open tokens below zero only prove that the offset was too high.
        if running == 0.0 or (settled and scheduled == ledger.settled_tokens):
            offset = scheduled
        offset = min(offset, scheduled)
        open_tokens = scheduled - offset
    settled_tokens = scheduled if settled else None
    if open_tokens == 0.0:
        computed = max(0.0, booked - ledger.computed_tokens)
        return PrefillStep(PrefillLedger(offset, 0.0, 0.0, settled_tokens), computed, accounted=True)
    if tokens_before is None or tokens_after is None or last.finished_prompt_tokens is None:
        return PrefillStep(PrefillLedger(offset, open_tokens, 0.0, settled_tokens), booked, accounted=False)
    freed = increase(first.finished_prompt_tokens, last.finished_prompt_tokens) + increase(
        first.finished_generation_tokens, last.finished_generation_tokens
    )
    generated = increase(first.generation_tokens, last.generation_tokens)
    hits = increase(first.prefix_hits, last.prefix_hits)
    grown = tokens_after - tokens_before + freed - generated - hits
    # Blocks fill silently: each sequence may hide up to a block. Less than that in tokens lost means an abort.
    aborted = grown < -block_tokens * (max(running, first.requests_running or 0.0) + 1.0)
    computed_open = min(open_tokens, max(0.0, ledger.computed_tokens + grown - booked))
    computed = max(0.0, booked + computed_open - ledger.computed_tokens)
    return PrefillStep(
        PrefillLedger(offset, open_tokens, computed_open, settled_tokens), computed, accounted=not aborted
    )


def seen_share(sequences: float, running_most: float) -> float:
    """Share of the prompt tokens of a stretch of steps that can have made the gaps of decoding requests longer, 0..1.

    A request does not decode while its own prompt is computed: with at most R requests running, a step with a prompt
    chunk has at most R - 1 decoding ones, of n on the mean. Of chunks that take q_i seconds the mean gap then contains
    sum(n_i q_i) / N, at most (R - 1) / n of the sum(q_i) / K that tokens per step stand for. A lone request: nothing.
    """
    if sequences <= 0.0:
        return 1.0
    # n is below R in a step with a chunk and at most R in the others: where prompts were computed, R is above n, even
    # if no sample caught the request whose prompt it was.
    most = max(running_most, math.floor(sequences) + 1.0)
    return min(1.0, max(0.0, most - 1.0) / sequences)


def _nobody_in_prefill(sample: EngineSample, steps: float | None, sequences: float | None) -> bool:
    """True if everybody who runs decoded through the whole pair and nobody waits."""
    if steps is None or sequences is None or steps < _STEPS_TO_TRUST_BATCH or sample.requests_waiting:
        return False
    return abs((sample.requests_running or 0.0) - sequences) < _NOBODY


def _scheduled(sample: EngineSample) -> float | None:
    """Prompt tokens scheduled and not booked, aborted ones included; None when prefix caching does not count."""
    if sample.prefix_queries is None or sample.prompt_tokens_computed is None:
        return None
    if sample.prefix_queries == 0.0 and sample.prompt_tokens_computed > 0.0:
        return None  # the series exists, but caching is off
    return sample.prefix_queries - (sample.prefix_hits or 0.0) - sample.prompt_tokens_computed
