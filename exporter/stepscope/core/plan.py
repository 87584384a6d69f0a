"""A capacity plan: the step law asked before the engine exists. How long a step, a prompt, a first token takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stepscope.core.plan_demand import Demand, Replica
from stepscope.core.step_model import Load, StepTime, predict


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds with their low and high by the law's own spread."""

    best: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One concurrency. Seconds; low and high by the law's own spread. None: not known.

    itl: mean inter-token latency of those that decode. ttft: without queue. prompts_queue: prompts come faster than a
    chunk in each step takes, so that only decoding_requests decode at once and the first token comes later than ttft.
    tokens_per_second: all users together.
    """

    requests: int
    tokens_in_flight: float
    step_seconds: float
    step_low_seconds: float
    step_high_seconds: float
    memory_seconds: float
    compute_seconds: float
    communication_seconds: float
    prefill_tokens_per_step: float
    itl: Span | None
    ttft: Span | None
    prompts_queue: bool
    decoding_requests: float
    tokens_per_second: Span | None  # tokens/s; low is the slow end
    fits_memory: bool | None
    bound_by: str  # memory bandwidth or compute: the longer one


def step(replica: Replica, demand: Demand, requests: float, prefill_tokens: float = 0.0) -> StepTime | None:
    """A step of so many requests of the mix's mean context; None where the law cannot say."""
    return _at_least_arithmetic(replica, Load(requests, requests * demand.mean_tokens, prefill_tokens))


def step_alone(replica: Replica, context_tokens: float) -> StepTime | None:
    """A step of one request of that context."""
    return _at_least_arithmetic(replica, Load(1.0, context_tokens))


def _at_least_arithmetic(replica: Replica, load: Load) -> StepTime | None:
    """The law's step, never shorter than the arithmetic in it: a fitted law without a roof knows no batch beyond it."""
    time = predict(replica.law_for(load.sequences), load)
    least = replica.compute_seconds(load.sequences)
    if time is None or replica.law.compute_flops_per_second or time.decode_low_seconds >= least:
        return time
    return replace(
        time,
        sequences_seconds=time.sequences_seconds + max(0.0, least - time.decode_seconds),
        decode_low_seconds=least,
        decode_high_seconds=max(time.decode_high_seconds, least),
    )


def prefill_seconds(
    replica: Replica, demand: Demand, *, linear: bool = False, prompt: float | None = None
) -> float | None:
    """Computing one prompt (None: the longest) in chunks, without the decode steps that the chunks share.

    With the quadratic attention term unless `linear` or not known.
    """
    prompt, chunk = demand.prompt_tokens if prompt is None else prompt, demand.chunk_tokens
    if prompt <= 0.0:
        return 0.0
    whole, rest = divmod(prompt, chunk)
    total = 0.0
    for count, tokens in ((whole, chunk), (1.0, rest)):
        if count and tokens:
            load = Load(1.0, prompt, prefill_tokens_per_step=tokens, prompts_per_step=tokens / prompt)
            part = predict(replica.law_for(tokens), load)
            if part is None:
                return None
            total += count * (part.prefill_seconds + replica.added_seconds(tokens))
    return total if linear else total * attention_factor(replica, demand, prompt)


def attention_factor(replica: Replica, demand: Demand, prompt: float) -> float:
    """How many times as long a prompt takes with the quadratic part of attention; 1 where that is not known."""
    if demand.shape is None or not replica.params:
        return 1.0
    return 1.0 + demand.shape.attention_share(prompt, replica.params)


def mean_attention_factor(replica: Replica, demand: Demand) -> float:
    """The same for the prompt tokens of the mix: each class counts by the tokens it brings."""
    tokens = sum(requests * prompt for requests, prompt in demand.prompts)
    if not tokens:
        return 1.0
    parts = (requests * prompt * attention_factor(replica, demand, prompt) for requests, prompt in demand.prompts)
    return sum(parts) / tokens


def itl(replica: Replica, demand: Demand, requests: float) -> Span | None:
    """Mean inter-token latency among so many: the decode step and the prompts of others; None: the law cannot say.

    Where prompts queue only so many decode as a chunk in each step keeps up with.
    """
    decoding = min(requests, 1.0 + demand.most_decoding)
    mixed = step(replica, demand, decoding, demand.prefill_per_step(requests))
    if mixed is None:
        return None
    prefill, law = mixed.prefill_seconds * mean_attention_factor(replica, demand), replica.law
    return Span(
        mixed.decode_seconds + prefill,
        mixed.decode_low_seconds + prefill * law.low_factor,
        mixed.decode_high_seconds + prefill * law.high_factor,
    )


def itl_seconds(replica: Replica, demand: Demand, requests: float) -> float | None:
    """The best guess of `itl`."""
    span = itl(replica, demand, requests)
    return None if span is None else span.best


def ttft(replica: Replica, demand: Demand, requests: float) -> Span | None:
    """Prompt in chunks among `requests` decoding ones: each chunk shares its step with a decode step. No queueing."""
    prompt, decode = prefill_seconds(replica, demand), step(replica, demand, requests)
    if prompt is None or decode is None:
        return None
    chunks, law = math.ceil(demand.prompt_tokens / demand.chunk_tokens), replica.law
    return Span(
        prompt + chunks * decode.decode_seconds,
        prompt * law.low_factor + chunks * decode.decode_low_seconds,
        prompt * law.high_factor + chunks * decode.decode_high_seconds,
    )


def ttft_seconds(replica: Replica, demand: Demand, requests: float) -> float | None:
    """The best guess of `ttft`."""
    span = ttft(replica, demand, requests)
    return None if span is None else span.best


def _rate(replica: Replica, demand: Demand, requests: float, gap: Span) -> Span:
    """Generated tokens/s of so many requests in a closed loop.

    Little's law: requests x output tokens over output x ITL + the request's own prompt, whose chunks share steps with
    those that decode. Where prompts queue a chunk's worth of requests decodes at any time. Without output tokens nobody
    starts anew: requests / ITL.
    """
    if not demand.output_tokens or demand.prefill_tokens_per_step is not None:
        return Span(requests / gap.best, requests / gap.high, requests / gap.low)
    if demand.prompts_queue(requests):
        most = demand.most_decoding
        return Span(most / gap.best, most / gap.high, most / gap.low)
    parts = [(count, prefill_seconds(replica, demand, prompt=prompt) or 0.0) for count, prompt in demand.prompts]
    prompt, law = sum(count * seconds for count, seconds in parts) / demand.requests, replica.law
    decode, chunks = step(replica, demand, requests), demand.mean_prompt_tokens / demand.chunk_tokens
    steps = (decode.decode_seconds, decode.decode_low_seconds, decode.decode_high_seconds) if decode else (0.0,) * 3
    best, low, high = (
        requests / (seconds + (prompt * factor + chunks * one) / demand.output_tokens)
        for seconds, factor, one in zip(
            (gap.best, gap.low, gap.high), (1.0, law.low_factor, law.high_factor), steps, strict=True
        )
    )
    return Span(best, high, low)


def row(replica: Replica, demand: Demand, requests: int) -> Row | None:
    """What `requests` at once would see; None where the law cannot say."""
    decode = step(replica, demand, requests)
    if decode is None:
        return None
    tokens = requests * demand.mean_tokens
    memory = decode.weights_seconds + decode.kv_cache_seconds
    compute = replica.compute_seconds(requests)
    room, gap = replica.kv_room_bytes, itl(replica, demand, requests)
    return Row(
        requests=requests,
        tokens_in_flight=tokens,
        step_seconds=decode.decode_seconds,
        step_low_seconds=decode.decode_low_seconds,
        step_high_seconds=decode.decode_high_seconds,
        memory_seconds=memory,
        compute_seconds=compute,
        communication_seconds=replica.communication_seconds(requests),
        prefill_tokens_per_step=demand.prefill_per_step(requests),
        itl=gap,
        ttft=ttft(replica, demand, requests),
        prompts_queue=demand.prompts_queue(requests),
        decoding_requests=min(float(requests), demand.most_decoding) if demand.prompts_queue(requests) else requests,
        tokens_per_second=None if gap is None else _rate(replica, demand, requests, gap),
        fits_memory=None if room is None else tokens * replica.kv_bytes_per_token <= room,
        bound_by="compute" if compute > memory else "bandwidth",
    )
