"""One engine: a loop of steps in simulated time that books what it does exactly as vLLM books it.

Booking (vLLM 0.32.0): ITL once per request and step after its first token; a prompt when it ends; a prefix-cache query
when the request is first scheduled; gauges when a step completes; request histograms when it finishes, and nothing of
an abort.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from stepscope.sim.cohort import Request
from stepscope.sim.counters import Counters
from stepscope.sim.faults import Faults, NoisyNeighbour
from stepscope.sim.presets import EngineConfig
from stepscope.sim.scheduler import Plan, Scheduler


@dataclass(frozen=True, slots=True)
class EngineState:
    """The truth at one moment, which no page shows. Tokens are exact, not rounded up to blocks."""

    running: int
    waiting: int
    decoding: int
    context_tokens: int  # of decoding sequences; each request counts a shared prefix
    prefill_context_tokens: int  # computed so far by prompts not yet done
    used_blocks: int
    steps: int
    busy_seconds: float  # time spent in steps that have ended
    prefill_tokens: int  # prompt tokens really computed, recomputation included


class Engine:
    """Driven from outside: `begin` a step at a time, `complete` it at `step_end_seconds` (infinite while none runs)."""

    def __init__(self, config: EngineConfig, seed: int) -> None:
        """An idle engine with all counters at 0; the same seed and the same calls give the same numbers."""
        self.config = config
        self.counters = Counters(config.draft_tokens)
        self.scheduler = Scheduler(config)
        self.step_end_seconds = math.inf
        self.steps = 0
        self.busy_seconds = 0.0
        self.prefill_tokens = 0
        self._random = random.Random(seed)
        self._noise = NoisyNeighbour(seed + 1)
        self._faults = Faults()
        self._plan: Plan | None = None
        self._began_seconds = 0.0
        self._last_end_seconds = 0.0
        self._aborts: list[Request] = []
        self._listeners: dict[Request, None] = {}  # decoding requests whose tokens somebody wants

    @property
    def load(self) -> int:
        """What vLLM's internal balancer compares: waiting requests count four times."""
        return 4 * len(self.scheduler.waiting) + len(self.scheduler.running)

    def submit(self, request: Request, now_seconds: float) -> None:
        """Queue a request. ValueError when it could never run."""
        self.check(request)
        request.arrival_seconds = now_seconds
        self.scheduler.waiting.append(request)
        self.begin(now_seconds)

    def check(self, request: Request) -> None:
        """ValueError when the request could never run: it would wait for ever."""
        tokens, limit = request.prompt_tokens + request.output_tokens, self.scheduler.largest_request_tokens()
        if tokens > limit:
            raise ValueError(f"prompt and output of {tokens} tokens exceed the engine's {limit}")

    def place(self, request: Request, generated_tokens: int, now_seconds: float) -> None:
        """Start with a request under way: prompt and `generated_tokens` (1 or more) were served before."""
        self.scheduler.place(request, request.prompt_tokens + generated_tokens - 1)
        request.arrival_seconds = request.scheduled_seconds = request.first_token_seconds = now_seconds
        if request.on_tokens:
            self._listeners[request] = None

    def abort(self, request: Request, now_seconds: float) -> None:
        """The client is gone. Takes effect when the running step ends; an idle engine drops it at once."""
        self._aborts.append(request)
        if self._plan is None:
            self._drop_aborted(now_seconds)

    def set_faults(self, faults: Faults, now_seconds: float) -> None:
        """Faults for the steps from the next one on."""
        self._faults = faults
        self.scheduler.pool.hidden = int(self.scheduler.pool.total * faults.lost_blocks)
        self.counters.engine_sleep_state = {
            "awake": int(not faults.sleep),
            "weights_offloaded": int(faults.sleep == 1),
            "discard_all": int(faults.sleep == 2),
        }
        self.begin(now_seconds)

    def begin(self, now_seconds: float) -> None:
        """Start a step if none runs and there is something to do."""
        if self._plan is not None or self._faults.hang or self._faults.sleep:
            return
        plan = self.scheduler.schedule(now_seconds)
        self.counters.num_preemptions_total = self.scheduler.preempted_total
        if plan is None:
            return
        for request in plan.admitted:
            if self.config.prefix_caching:
                self.counters.prefix_cache_queries_total += request.prompt_tokens
                self.counters.prefix_cache_hits_total += request.cached_tokens
        physics = self.config.physics
        seconds = physics.step_seconds(plan.work) * self._faults.throttle
        if physics.jitter:  # a log-normal factor with mean 1
            seconds *= math.exp(self._random.gauss(-0.5 * physics.jitter**2, physics.jitter))
        if self._faults.noisy_neighbour != 1.0:
            seconds *= self._noise.factor(now_seconds, self._faults.noisy_neighbour)
        self._plan = plan
        self._began_seconds = now_seconds
        self.step_end_seconds = now_seconds + seconds

    def complete(self) -> None:
        """End the running step at `step_end_seconds`: book it, then begin the next one."""
        plan, now = self._plan, self.step_end_seconds
        if plan is None:
            return
        self._plan = None
        self.step_end_seconds = math.inf
        self.steps += 1
        self.busy_seconds += now - self._began_seconds
        generated = self._book_decodes(plan.work.sequences, now)
        ended = self.scheduler.cohort.pop_ended()
        prompts = 0
        for request, chunk in plan.chunks:
            self.prefill_tokens += chunk
            if self.scheduler.computed(request, chunk):
                generated += 1
                prompts += self._book_prompt_end(request, now)
                self.scheduler.start_decoding(request)
                if request.on_tokens:
                    self._listeners[request] = None
                    request.on_tokens(now, 1)
                ended += self.scheduler.cohort.pop_ended()
        for request in ended:
            self._finish(request, now)
        self.counters.generation_tokens_total += generated
        if generated:  # vLLM makes no iteration statistics for a step without output
            self.counters.iteration_tokens_total.observe(prompts + generated)
        if self.config.mfu_metrics:
            self._book_estimates(plan)
        self._set_gauges()
        self._last_end_seconds = now
        self._drop_aborted(now)
        self.begin(now)

    def state(self) -> EngineState:
        """A snapshot of the truth."""
        scheduler = self.scheduler
        return EngineState(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            decoding=len(scheduler.cohort),
            context_tokens=scheduler.cohort.context_tokens,
            prefill_context_tokens=sum(request.computed_tokens for request in scheduler.prefilling),
            used_blocks=scheduler.pool.used,
            steps=self.steps,
            busy_seconds=self.busy_seconds,
            prefill_tokens=self.prefill_tokens,
        )

    def _book_decodes(self, sequences: int, now: float) -> int:
        """One gap per decoding sequence; returns the tokens they yielded."""
        if not sequences:
            return 0
        counters, cohort, k = self.counters, self.scheduler.cohort, self.config.draft_tokens
        counters.inter_token_latency_seconds.observe(now - self._last_end_seconds, sequences)
        if not k:
            for request in self._listeners:
                if request.on_tokens and request.state == "decoding":
                    request.on_tokens(now, 1)
            return sequences
        counters.spec_decode_num_drafts_total += sequences
        counters.spec_decode_num_draft_tokens_total += sequences * k
        accepted_total = 0
        for request in cohort.members:
            accepted = self._accepted(k)
            for position in range(accepted):
                counters.spec_decode_num_accepted_tokens_per_pos_total[str(position)] += 1
            counters.spec_decode_num_accepted_tokens_total += accepted
            accepted = min(accepted, request.output_tokens - cohort.generated(request))  # the rest is thrown away
            if accepted:
                cohort.extend(request, accepted)
                accepted_total += accepted
            if request.on_tokens:
                request.on_tokens(now, 1 + accepted)
        return sequences + accepted_total

    def _accepted(self, drafts: int) -> int:
        accepted = 0
        while accepted < drafts and self._random.random() < self.config.draft_acceptance:
            accepted += 1
        return accepted

    def _book_prompt_end(self, request: Request, now: float) -> int:
        """The prompt's first token, or the next token after a preemption; returns the prompt tokens booked."""
        counters = self.counters
        if request.first_token_seconds >= 0:
            counters.inter_token_latency_seconds.observe(now - request.last_token_seconds)
            return 0
        request.first_token_seconds = now
        counters.time_to_first_token_seconds.observe(now - request.arrival_seconds)
        counters.prompt_tokens_total += request.prompt_tokens
        counters.prompt_tokens_by_source_total["local_compute"] += request.prompt_tokens - request.cached_tokens
        counters.prompt_tokens_by_source_total["local_cache_hit"] += request.cached_tokens
        counters.prompt_tokens_cached_total += request.cached_tokens
        counters.prompt_tokens_cached_by_source_total["device"] += request.cached_tokens
        return request.prompt_tokens

    def _finish(self, request: Request, now: float) -> None:
        self.scheduler.remove(request)
        self._listeners.pop(request, None)
        counters, tokens = self.counters, request.output_tokens
        decode_seconds = now - request.first_token_seconds
        inference_seconds = now - request.scheduled_seconds
        counters.request_success_total["length"] += 1
        counters.request_prompt_tokens.observe(request.prompt_tokens)
        for histogram in (
            counters.request_generation_tokens,
            counters.request_max_num_generation_tokens,
            counters.request_params_max_tokens,
        ):
            histogram.observe(tokens)
        counters.request_params_n.observe(1)
        counters.request_time_per_output_token_seconds.observe(decode_seconds / (tokens - 1) if tokens > 1 else 0.0)
        counters.e2e_request_latency_seconds.observe(now - request.arrival_seconds)
        counters.request_queue_time_seconds.observe(request.scheduled_seconds - request.arrival_seconds)
        counters.request_inference_time_seconds.observe(inference_seconds)
        counters.request_prefill_time_seconds.observe(inference_seconds - decode_seconds)
        counters.request_decode_time_seconds.observe(decode_seconds)
        counters.request_num_preemptions.observe(request.preemptions)
        counters.request_prefill_kv_computed_tokens.observe(request.prompt_tokens - request.cached_tokens)
        if request.on_end:
            request.on_end(now, "length")

    def _set_gauges(self) -> None:
        if self._faults.frozen_gauges:
            return
        counters, scheduler = self.counters, self.scheduler
        counters.num_requests_running = len(scheduler.running)
        counters.num_requests_waiting = len(scheduler.waiting)
        counters.num_requests_waiting_by_reason["capacity"] = len(scheduler.waiting)
        counters.kv_cache_usage_perc = scheduler.pool.usage

    def _book_estimates(self, plan: Plan) -> None:
        """Per GPU: weights once and every attended token's KV; 2 FLOPs per parameter and token."""
        physics, work = self.config.physics, plan.work
        context = work.context_tokens + sum(before + tokens for tokens, before in work.chunks)
        tokens = work.sequences * work.positions + sum(tokens for tokens, _ in work.chunks)
        read_bytes = physics.weight_bytes + context * physics.kv_bytes_per_token
        self.counters.estimated_read_bytes_per_gpu_total += read_bytes / physics.tensor_parallel
        self.counters.estimated_flops_per_gpu_total += 2.0 * physics.active_params * tokens / physics.tensor_parallel

    def _drop_aborted(self, now: float) -> None:
        for request in self._aborts:
            if request.state == "ended":
                continue
            self.scheduler.remove(request)
            self._listeners.pop(request, None)
            if request.on_end:
                request.on_end(now, "abort")
        self._aborts.clear()
