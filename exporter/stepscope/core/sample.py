"""What one reading of an engine's page says, in canonical fields. None means that the engine cannot say."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Histogram:
    """One cumulative histogram. `buckets`: ((upper bound, cumulative count), ...) ascending, the last bound is +inf."""

    sum: float
    count: float
    buckets: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine (one data-parallel rank) at one moment. Counters are raw, since the engine's start.

    Times in seconds, tokens in tokens, `kv_usage` 0..1. Meanings: docs/physics.md, from the vLLM sources.
    """

    model_name: str
    engine: str
    requests_running: float | None = None
    requests_waiting: float | None = None
    kv_usage: float | None = None  # share of KV blocks held by live requests, 0..1
    capacity_label_tokens: float | None = None  # the engine's own statement, per engine
    num_blocks: float | None = None  # blocks of this engine (already divided by the engines on the page)
    block_size: float | None = None  # tokens per block; the smallest group's on hybrid models
    attention_block_size: float | None = None  # tokens per block of attention layers, where the page says it apart
    pool_bytes_label: float | None = None  # bytes of the KV pool where the page says them
    kv_cache_dtype: str | None = None
    itl_seconds: Histogram | None = None  # inter-token latency; one observation per request and step
    ttft_seconds: Histogram | None = None  # buckets not read
    engine_steps: float | None = None  # K: count of iteration_tokens_total
    prompt_tokens_computed: float | None = None  # P: prompt tokens computed here, booked when the prompt ends
    prefix_queries: float | None = None
    prefix_hits: float | None = None  # local ones and, with a KV connector, external ones
    generation_tokens: float | None = None
    finished_requests: float | None = None
    finished_prompt_tokens: float | None = None  # sum over finished requests
    finished_generation_tokens: float | None = None  # sum over finished requests
    preemptions: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    read_bytes: float | None = None  # estimated_read_bytes_per_gpu_total; moves only with --enable-mfu-metrics
    awake: bool | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything one page said. Raised instead of a reading: NotMetricsError."""

    at_seconds: float  # monotonic clock, when the request was sent
    engines: tuple[EngineSample, ...]
    single_process: bool  # False: several API servers share the page, so that engine_steps is inflated
    process_start_seconds: float | None = None  # unix time
    names: frozenset[str] = frozenset()  # the sample names this reading used, spelled as on the page
    invalid_values: tuple[tuple[str, str, int], ...] = ()  # (engine, one of metrics.FIELDS, values dropped)
    notes: tuple[str, ...] = field(default=())  # what an operator should know once (old names, pid series, ...)
