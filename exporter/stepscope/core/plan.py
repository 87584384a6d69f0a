"""A capacity plan: the step law asked before the engine exists. How long a step, a prompt, a first token takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stepscope.core.collectives import Collective
from stepscope.core.model_shape import Shape
from stepscope.core.step_model import Load, StepLaw, StepTime, predict


@dataclass(frozen=True, slots=True)
class ContextClass:
    """Requests alike. tokens: context of each while it decodes, prompt and what was generated so far."""

    requests: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine on `gpu_count` GPUs under tensor parallelism. Bytes per GPU, except the weights: all GPUs together.

    capacity_tokens: what a running engine says it holds; it replaces the memory sum. collective: None where the law
    already contains the all-reduces, or they are not known. reduce_seconds_per_sequence: the part of the law's own
    sequence cost that is all-reduces. active_params and compute_flops_per_second: for the constraint of compute and for
    attention, also where the law has compute in its other terms; None: the law's own.
    """

    law: StepLaw
    gpu_count: int
    resident_weight_bytes: float
    kv_bytes_per_token: float
    memory_bytes: float | None
    utilization: float
    overhead_bytes: float = 0.0
    capacity_tokens: float | None = None
    collective: Collective | None = None
    reduce_seconds_per_sequence: float = 0.0
    active_params: float | None = None
    compute_flops_per_second: float | None = None

    @property
    def params(self) -> float | None:
        """Parameters that work on one token; None where they are not known."""
        return self.active_params or self.law.active_params

    def compute_seconds(self, sequences: float) -> float:
        """What the arithmetic of a decode step alone takes; 0 where it is not known."""
        flops = self.law.compute_flops_per_second or self.compute_flops_per_second
        return 2.0 * self.params * sequences / flops if self.params and flops else 0.0

    @property
    def kv_room_bytes(self) -> float | None:
        """Bytes left for KV, all GPUs; negative where the weights do not fit; None without the GPUs' memory."""
        if self.capacity_tokens is not None:
            return self.capacity_tokens * self.kv_bytes_per_token
        if self.memory_bytes is None:
            return None
        return (
            self.gpu_count * (self.memory_bytes * self.utilization - self.overhead_bytes) - self.resident_weight_bytes
        )

    def communication_seconds(self, sequences: float) -> float:
        """All-reduces of a decode step, whether the law contains them or they are added to it."""
        return self.reduce_seconds_per_sequence * sequences + self.added_seconds(sequences)

    def added_seconds(self, sequences: float) -> float:
        """All-reduces of a step that the law does not contain."""
        return self.collective.seconds(sequences, self.gpu_count) if self.collective is not None else 0.0

    def law_for(self, sequences: float) -> StepLaw:
        """The law with the all-reduces of so many sequences in its overhead."""
        extra = self.added_seconds(sequences)
        return replace(self.law, step_overhead_seconds=self.law.step_overhead_seconds + extra) if extra else self.law


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be served. mix: the peak. objective: tokens/s and user, None: none promised.

    prompt_tokens: computed for a new request (prefix cache hits left out). output_tokens: of a request; with it the
    prefill of others is in each gap as in the steady state of a closed loop, (n - 1) x prompt / output tokens: nobody
    decodes while his own prompt is computed.
    prefill_tokens_per_step replaces that. reserve: share added to the peak before GPUs are counted.
    """

    mix: tuple[ContextClass, ...]
    concurrency: tuple[int, ...]
    prompt_tokens: float
    output_tokens: float | None = None
    prefill_tokens_per_step: float | None = None
    chunk_tokens: float = 2048.0  # vLLM 0.32.0's --max-num-batched-tokens below 70 GiB of GPU memory, and on A100
    objective_tokens_per_second: float | None = None
    headroom: float = 0.9
    ttft_seconds: float | None = None
    max_num_seqs: int | None = None
    reserve: float = 0.0
    shape: Shape | None = None  # None: the quadratic part of prefill is not known

    @property
    def requests(self) -> float:
        """Requests of the whole mix."""
        return sum(part.requests for part in self.mix)

    @property
    def mean_tokens(self) -> float:
        """Mean context of a request of the mix."""
        return sum(part.requests * part.tokens for part in self.mix) / self.requests

    def prefill_per_step(self, requests: float) -> float:
        """Prompt tokens of others between two tokens of a request."""
        if self.prefill_tokens_per_step is not None:
            return self.prefill_tokens_per_step
        return max(0.0, requests - 1.0) * self.prompt_tokens / self.output_tokens if self.output_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One concurrency. Seconds; low and high by the law's own spread. None: not known."""

    requests: int
    tokens_in_flight: float
    step_seconds: float
    step_low_seconds: float
    step_high_seconds: float
    memory_seconds: float
    compute_seconds: float
    communication_seconds: float
    prefill_tokens_per_step: float
    itl_seconds: float | None
    ttft_seconds: float | None
    fits_memory: bool | None
    bound_by: str  # memory bandwidth or compute: the longer one

    @property
    def tokens_per_second_per_user(self) -> float | None:
        """Speed that a user sees: 1 / mean inter-token latency."""
        return 1.0 / self.itl_seconds if self.itl_seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """All users together."""
        return self.requests / self.itl_seconds if self.itl_seconds else None


def step(replica: Replica, demand: Demand, requests: float, prefill_tokens: float = 0.0) -> StepTime | None:
    """A step of so many requests of the mix's mean context; None where the law cannot say."""
    load = Load(requests, requests * demand.mean_tokens, prefill_tokens_per_step=prefill_tokens)
    return predict(replica.law_for(requests), load)


def prefill_seconds(replica: Replica, demand: Demand, *, linear: bool = False) -> float | None:
    """Computing one prompt alone, in chunks; with the quadratic attention term unless `linear` or not known."""
    prompt, chunk = demand.prompt_tokens, demand.chunk_tokens
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
    return total if linear else total * attention_factor(replica, demand)


def attention_factor(replica: Replica, demand: Demand) -> float:
    """How many times as long a prompt takes with the quadratic part of attention; 1 where that is not known."""
    if demand.shape is None or not replica.params:
        return 1.0
    return 1.0 + demand.shape.attention_share(demand.prompt_tokens, replica.params)


def itl_seconds(replica: Replica, demand: Demand, requests: float) -> float | None:
    """Mean inter-token latency among so many: the decode step and the prompts of others; None: the law cannot say."""
    mixed = step(replica, demand, requests, demand.prefill_per_step(requests))
    return None if mixed is None else mixed.decode_seconds + mixed.prefill_seconds * attention_factor(replica, demand)


def ttft_seconds(replica: Replica, demand: Demand, requests: float) -> float | None:
    """Prompt in chunks among `requests` decoding ones: each chunk shares its step with a decode step. No queueing."""
    prompt, decode = prefill_seconds(replica, demand), step(replica, demand, requests)
    if prompt is None or decode is None:
        return None
    return prompt + math.ceil(demand.prompt_tokens / demand.chunk_tokens) * decode.decode_seconds


def row(replica: Replica, demand: Demand, requests: int) -> Row | None:
    """What `requests` at once would see; None where the law cannot say."""
    decode = step(replica, demand, requests)
    if decode is None:
        return None
    prefill = demand.prefill_per_step(requests)
    tokens = requests * demand.mean_tokens
    memory = decode.weights_seconds + decode.kv_cache_seconds
    compute = replica.compute_seconds(requests)
    room = replica.kv_room_bytes
    return Row(
        requests=requests,
        tokens_in_flight=tokens,
        step_seconds=decode.decode_seconds,
        step_low_seconds=decode.decode_low_seconds,
        step_high_seconds=decode.decode_high_seconds,
        memory_seconds=memory,
        compute_seconds=compute,
        communication_seconds=replica.communication_seconds(requests),
        prefill_tokens_per_step=prefill,
        itl_seconds=itl_seconds(replica, demand, requests),
        ttft_seconds=ttft_seconds(replica, demand, requests),
        fits_memory=None if room is None else tokens * replica.kv_bytes_per_token <= room,
        bound_by="compute" if compute > memory else "bandwidth",
    )
