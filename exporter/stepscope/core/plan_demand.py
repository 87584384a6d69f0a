"""What a plan is asked about: an engine on so many GPUs, and what it is to serve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stepscope.core.collectives import Collective
from stepscope.core.model_shape import Shape
from stepscope.core.step_model import StepLaw


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
    attention, also where the law has compute in its other terms; None: the law's own. overhead_low_bytes,
    overhead_high_bytes: how far the overhead may be from overhead_bytes; None: it was given.
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
    overhead_low_bytes: float | None = None
    overhead_high_bytes: float | None = None

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
        return self._room(self.overhead_bytes)

    @property
    def kv_room_low_bytes(self) -> float | None:
        """The same if the engine takes as much beside weights and KV as it may."""
        if self.capacity_tokens is not None or self.overhead_high_bytes is None:
            return self.kv_room_bytes
        return self._room(self.overhead_high_bytes)

    @property
    def kv_room_high_bytes(self) -> float | None:
        """The same if it takes as little."""
        if self.capacity_tokens is not None or self.overhead_low_bytes is None:
            return self.kv_room_bytes
        return self._room(self.overhead_low_bytes)

    def _room(self, overhead_bytes: float) -> float | None:
        if self.memory_bytes is None:
            return None
        return self.gpu_count * (self.memory_bytes * self.utilization - overhead_bytes) - self.resident_weight_bytes

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

    prompt_tokens: of the longest prompt, computed for a new request (prefix cache hits left out). class_prompt_tokens:
    the same for each class of the mix; empty: all have prompt_tokens. output_tokens: of a request; with it the prefill
    of others is in each gap as in the steady state of a closed loop, (n - 1) x mean prompt / output tokens: nobody
    decodes while his own prompt is computed. A step takes at most a chunk of them: beyond it prompts queue.
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
    class_prompt_tokens: tuple[float, ...] = ()

    @property
    def requests(self) -> float:
        """Requests of the whole mix."""
        return sum(part.requests for part in self.mix)

    @property
    def mean_tokens(self) -> float:
        """Mean context of a request of the mix."""
        return sum(part.requests * part.tokens for part in self.mix) / self.requests

    @property
    def longest_tokens(self) -> float:
        """The longest context of the mix."""
        return max(part.tokens for part in self.mix)

    @property
    def prompts(self) -> tuple[tuple[float, float], ...]:
        """(requests, prompt tokens) of each class of the mix."""
        tokens = self.class_prompt_tokens or (self.prompt_tokens,) * len(self.mix)
        return tuple((part.requests, prompt) for part, prompt in zip(self.mix, tokens, strict=True))

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean prompt over the requests of the mix."""
        return sum(requests * prompt for requests, prompt in self.prompts) / self.requests

    @property
    def most_decoding(self) -> float:
        """Requests whose prompts a chunk in each step keeps up with: each brings mean prompt / output tokens a step."""
        prompt = self.mean_prompt_tokens
        return self.chunk_tokens * self.output_tokens / prompt if self.output_tokens and prompt else math.inf

    def prompts_queue(self, requests: float) -> bool:
        """Whether so many bring more prompt tokens than a chunk in each step takes."""
        return requests - 1.0 > self.most_decoding

    def prefill_per_step(self, requests: float) -> float:
        """Prompt tokens of others between two tokens of a request: at most a chunk."""
        if self.prefill_tokens_per_step is not None:
            return self.prefill_tokens_per_step
        if not self.output_tokens:
            return 0.0
        return min(max(0.0, requests - 1.0) * self.mean_prompt_tokens / self.output_tokens, self.chunk_tokens)
