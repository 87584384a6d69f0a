"""An engine in numbers: consistent counters, gauges and a clock, for tests that fold readings into the core."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.core.sample import EngineSample, Histogram, Reading
from stepscope.core.step_model import StepLaw, WeightBytes

BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, float("inf"))  # the first bounds of vLLM's own histogram
CAPACITY_TOKENS = 100_000.0
# A round law: 10 ms for weights, 1 ms for each 1,000 tokens in flight, 0.1 ms for each prompt token.
LAW = StepLaw(
    weights=WeightBytes(10e9),
    effective_bandwidth_bytes_per_second=1e12,
    kv_bytes_per_token=1e6,
    prefill_cost_seconds_per_token=1e-4,
    source="file",
)


@dataclass
class FakeEngine:
    """Counters since the engine's start. Change fields at will, then ask for a `reading`."""

    label: str = "0"
    model_name: str = "m"
    at: float = 1000.0
    process_start: float | None = 1.7e9
    single_process: bool = True
    running: float = 0.0
    waiting: float = 0.0
    usage: float | None = 0.0
    steps: float = 0.0
    itl_sum: float = 0.0
    itl_counts: list[float] = field(default_factory=lambda: [0.0] * len(BOUNDS))
    prompts: float = 0.0
    queries: float | None = 0.0
    hits: float | None = 0.0
    generated: float = 0.0
    finished_prompt: float | None = 0.0
    finished_generation: float = 0.0
    preemptions: float = 0.0
    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    read_bytes: float = 0.0
    ttft_sum: float = 0.0
    ttft_count: float = 0.0
    awake: bool | None = True
    extra: dict[str, Any] = field(default_factory=dict)  # fields of the sample to replace
    invalid: tuple[tuple[str, str, int], ...] = ()

    def decode(
        self, seconds: float, *, batch: float, itl: float, tokens: float | None = None, tokens_per_step: float = 1.0
    ) -> Reading:
        """`batch` requests decode for `seconds` with gaps of `itl`; `tokens` are in flight at the end."""
        steps = round(seconds / itl)
        self.steps += steps
        self.itl_sum += steps * batch * itl
        self.itl_counts[bisect_left(BOUNDS, itl)] += steps * batch
        self.generated += steps * batch * tokens_per_step
        self.running = batch
        if tokens is not None:
            self.usage = tokens / CAPACITY_TOKENS
        return self.wait(seconds)

    def wait(self, seconds: float) -> Reading:
        """Time passes and nothing else."""
        self.at += seconds
        return self.reading()

    def restart(self) -> None:
        """All counters at zero, another process."""
        fresh = FakeEngine(self.label, self.model_name, self.at, (self.process_start or 0.0) + 1.0)
        self.__dict__.update(fresh.__dict__)

    def sample(self) -> EngineSample:
        """What the engine's page says now."""
        cumulative, buckets = 0.0, []
        for bound, count in zip(BOUNDS, self.itl_counts, strict=True):
            cumulative += count
            buckets.append((bound, cumulative))
        sample = EngineSample(
            model_name=self.model_name,
            engine=self.label,
            requests_running=self.running,
            requests_waiting=self.waiting,
            kv_usage=self.usage,
            capacity_label_tokens=CAPACITY_TOKENS,
            num_blocks=CAPACITY_TOKENS / 16,
            block_size=16.0,
            itl_seconds=Histogram(self.itl_sum, cumulative, tuple(buckets)),
            ttft_seconds=Histogram(self.ttft_sum, self.ttft_count),
            engine_steps=self.steps,
            prompt_tokens_computed=self.prompts,
            prefix_queries=self.queries,
            prefix_hits=self.hits,
            generation_tokens=self.generated,
            finished_prompt_tokens=self.finished_prompt,
            finished_generation_tokens=self.finished_generation,
            preemptions=self.preemptions,
            drafts=self.drafts,
            draft_tokens=self.drafted,
            accepted_tokens=self.accepted,
            read_bytes=self.read_bytes,
            awake=self.awake,
        )
        return replace(sample, **self.extra)

    def reading(self) -> Reading:
        """The same as a page with this engine alone."""
        return Reading(
            self.at,
            (self.sample(),),
            single_process=self.single_process,
            process_start_seconds=self.process_start,
            invalid_values=self.invalid,
        )


def page_of(*readings: Reading) -> Reading:
    """Several engines on one page."""
    return replace(readings[0], engines=tuple(sample for reading in readings for sample in reading.engines))
