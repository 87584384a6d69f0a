"""The vLLM row: every spelling since 0.8, and what each number means (checked in the sources of 0.10.2 to 0.33.0).

A renamed series is one place: `NAMES`. Newest spelling first; old and new are never added.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from stepscope.core.exposition import parse_labels
from stepscope.core.page_scanner import PageScanner
from stepscope.core.sample import EngineSample, Histogram, Reading

PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_")

# canonical field -> sample names without prefix, newest first
NAMES: dict[str, tuple[str, ...]] = {
    "requests_running": ("num_requests_running",),
    "requests_waiting": ("num_requests_waiting",),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),  # renamed in 0.11; 0..1 in spite of its name
    "cache_config": ("cache_config_info",),
    # renamed in 0.11, the old name is gone since 0.13
    "itl_sum": ("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"),
    "itl_count": ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
    "itl_bucket": ("inter_token_latency_seconds_bucket", "time_per_output_token_seconds_bucket"),
    "ttft_sum": ("time_to_first_token_seconds_sum",),
    "ttft_count": ("time_to_first_token_seconds_count",),
    "engine_steps": ("iteration_tokens_total_count",),  # a histogram in spite of its name
    "prompt_by_source": ("prompt_tokens_by_source_total",),  # since 0.18
    "prompt_tokens": ("prompt_tokens_total",),  # counts cached tokens too
    "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    # Hits of a KV connector (LMCache, prefill/decode split): queried, and neither hit locally nor computed here.
    "external_hits": ("external_prefix_cache_hits_total",),
    "generation_tokens": ("generation_tokens_total",),
    "finished_requests": ("request_prompt_tokens_count",),
    "finished_prompt_tokens": ("request_prompt_tokens_sum",),
    "finished_generation_tokens": ("request_generation_tokens_sum",),
    "preemptions": ("num_preemptions_total",),
    "drafts": ("spec_decode_num_drafts_total",),
    "draft_tokens": ("spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("spec_decode_num_accepted_tokens_total",),
    "read_bytes": ("estimated_read_bytes_per_gpu_total",),
    "sleep_state": ("engine_sleep_state",),
}
# what a dropped value of a field describes, where the names differ (metrics.FIELDS)
_DESCRIBES = {
    "itl_sum": "itl_seconds",
    "itl_count": "itl_seconds",
    "itl_bucket": "itl_seconds",
    "ttft_sum": "ttft_seconds",
    "ttft_count": "ttft_seconds",
    "prompt_by_source": "prompt_tokens",
    "prefix_queries": "prefix_cache",
    "prefix_hits": "prefix_cache",
    "external_hits": "prefix_cache",
    "finished_requests": "finished_tokens",
    "finished_prompt_tokens": "finished_tokens",
    "finished_generation_tokens": "finished_tokens",
    "drafts": "speculation",
    "draft_tokens": "speculation",
    "accepted_tokens": "speculation",
}
PROCESS_START = "process_start_time_seconds"

# name on the page -> (field, rank); the lowest rank on a page wins
_FIELD_OF: dict[str, tuple[str, int]] = {
    prefix + spelling: (name, rank * len(PREFIXES) + prefix_rank)
    for name, spellings in NAMES.items()
    for rank, spelling in enumerate(spellings)
    for prefix_rank, prefix in enumerate(PREFIXES)
}
WANTED = frozenset(_FIELD_OF) | {PROCESS_START}
_scanner = PageScanner(WANTED)
# A page with none of these is a page without an engine (log stats off, wrong process).
_ENGINE_FIELDS = ("requests_running", "kv_usage", "itl_count", "generation_tokens")
_MIN_MEAN_ITL_SECONDS = 1e-4  # vllm#6337: versions that observe zeros; no decode step is this short
_LARGEST = sys.float_info.max  # NaN and infinities are no values
_CACHED_SERIES_LENGTH = 8192  # longer label texts are parsed anew each time, so that the cache stays small


@dataclass(slots=True)
class _Slot:
    """What the labels of one series say, parsed once."""

    labels: dict[str, str] | None
    engine: str = "0"
    model_name: str | None = None
    bound: float = math.nan  # of a bucket


@dataclass(slots=True)
class _Engine:
    """One engine while its page is being read. Values of duplicate series (`pid`) collapse by maximum."""

    model_name: str | None = None
    seen: bool = False  # a series of a living engine, valid or not
    values: dict[str, float] = field(default_factory=dict)
    buckets: list[tuple[float, float]] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)


def _slot(series: str) -> _Slot:
    labels = parse_labels(series)
    if labels is None:
        return _Slot(None)
    slot = _Slot(labels, labels.get("engine", "0"), labels.get("model_name"))
    if "le" in labels:
        try:
            slot.bound = float(labels["le"])
        except ValueError:
            slot.labels = None
    return slot


_cached_slot: Callable[[str], _Slot] = lru_cache(maxsize=4096)(_slot)


def _not_negative(value: float) -> bool:
    return 0.0 <= value < math.inf


def read(text: str, at_seconds: float) -> Reading | None:
    """Read one page; None if it holds no vLLM engine series. Raises NotMetricsError for what is not a whole page."""
    samples = []
    best: dict[str, int] = {}
    spelled: dict[str, tuple[str, int]] = {}
    process_start: float | None = None
    for name, series, value in _scanner.samples(text):
        if name == PROCESS_START:
            process_start = value if value is not None and _not_negative(value) else None
            continue
        field_rank = _FIELD_OF[name]
        samples.append((field_rank, series, value))
        if name not in spelled:
            spelled[name] = field_rank
            key, rank = field_rank
            if rank < best.get(key, 1 << 30):
                best[key] = rank
    if not any(key in best for key in _ENGINE_FIELDS):
        return None

    engines: dict[str, _Engine] = {}
    invalid: dict[tuple[str, str], int] = {}
    names = {name for name, (key, rank) in spelled.items() if rank == best[key]}
    notes: set[str] = set()
    for (key, rank), series, value in samples:
        if rank != best[key]:
            continue
        slot = _cached_slot(series) if len(series) < _CACHED_SERIES_LENGTH else _slot(series)
        labels = slot.labels
        if labels is None:  # nobody can say whose it is
            whose = next(iter(engines), "0")
            dropped = whose, _DESCRIBES.get(key, key)
            invalid[dropped] = invalid.get(dropped, 0) + 1
            continue
        engine = engines.get(slot.engine)
        if engine is None:
            engine = engines[slot.engine] = _Engine()
        engine.seen = engine.seen or key != "cache_config"
        if value is None or not 0.0 <= value <= (1.0 if key == "kv_usage" else _LARGEST):
            dropped = slot.engine, _DESCRIBES.get(key, key)
            invalid[dropped] = invalid.get(dropped, 0) + 1
            continue
        if slot.model_name is not None and engine.model_name is None:
            engine.model_name = slot.model_name
        if key == "itl_bucket":
            if slot.bound == slot.bound:
                engine.buckets.append((slot.bound, value))
        elif key == "cache_config":
            engine.config = labels
        elif key == "prompt_by_source":
            if labels.get("source") == "local_compute":
                engine.values[key] = max(value, engine.values.get(key, 0.0))
        elif key == "sleep_state":
            if labels.get("sleep_state") == "awake":
                engine.values[key] = value
        else:
            if "pid" in labels:
                notes.add("several server processes share the page (label pid): gauges are taken as their maximum")
            previous = engine.values.get(key)
            engine.values[key] = value if previous is None else max(value, previous)
    _note_old_names(best, notes)
    if process_start is not None:
        names.add(PROCESS_START)
    # A config line alone is no engine, unless it is the only sign of one.
    live = {label: engine for label, engine in engines.items() if engine.seen}
    return Reading(
        at_seconds=at_seconds,
        engines=tuple(_sample(label, engine, live, notes) for label, engine in sorted(live.items())),
        # Pages merged from several API server processes carry no process_* series.
        single_process=process_start is not None,
        process_start_seconds=process_start,
        names=frozenset(names),
        invalid_values=tuple((engine, key, count) for (engine, key), count in sorted(invalid.items())),
        notes=tuple(sorted(notes)),
    )


def _note_old_names(best: dict[str, int], notes: set[str]) -> None:
    for key, rank in best.items():
        position, prefix = divmod(rank, len(PREFIXES))
        if position:
            notes.add(f"old name in use: {PREFIXES[prefix]}{NAMES[key][position]} (today {NAMES[key][0]})")


def _sample(label: str, engine: _Engine, live: dict[str, _Engine], notes: set[str]) -> EngineSample:
    values, config = engine.values, engine.config
    if not config and len(live) > 1:
        config = next((other.config for other in live.values() if other.config), {})
    get = values.get
    blocks = _positive(config.get("num_gpu_blocks"))
    if blocks is not None:
        blocks /= len(live)  # summed over the data-parallel engines of the page
    block_size = _positive(config.get("block_size"))
    capacity = _positive(config.get("kv_cache_size_tokens"))  # since 0.24, per engine
    if capacity and blocks and block_size and abs(blocks * block_size / capacity - 1.0) > 0.1:
        notes.add(
            f"engine {label}: capacity label says {capacity:.0f} tokens, blocks x block_size "
            f"{blocks * block_size:.0f}: hybrid model, the label is used"
        )
    return EngineSample(
        model_name=engine.model_name or "",
        engine=label,
        requests_running=get("requests_running"),
        requests_waiting=get("requests_waiting"),
        kv_usage=get("kv_usage"),
        capacity_label_tokens=capacity,
        num_blocks=blocks,
        block_size=block_size,
        attention_block_size=_positive(config.get("effective_attention_block_size")),
        pool_bytes_label=_positive(config.get("kv_cache_memory_bytes")),
        kv_cache_dtype=config.get("cache_dtype"),
        itl_seconds=_histogram(values, "itl", engine.buckets),
        ttft_seconds=_histogram(values, "ttft", ()),
        engine_steps=get("engine_steps"),
        prompt_tokens_computed=_prompt_tokens_computed(values),
        prefix_queries=get("prefix_queries"),
        prefix_hits=_cache_hits(values),
        generation_tokens=get("generation_tokens"),
        finished_requests=get("finished_requests"),
        finished_prompt_tokens=get("finished_prompt_tokens"),
        finished_generation_tokens=get("finished_generation_tokens"),
        preemptions=get("preemptions"),
        drafts=get("drafts"),
        draft_tokens=get("draft_tokens"),
        accepted_tokens=get("accepted_tokens"),
        read_bytes=get("read_bytes"),
        awake=None if "sleep_state" not in values else values["sleep_state"] > 0.5,
    )


def _prompt_tokens_computed(values: dict[str, float]) -> float | None:
    """Prompt tokens computed here. Before 0.18 there are no sources: prompt tokens minus prefix hits, not below 0."""
    if "prompt_by_source" in values:
        return values["prompt_by_source"]
    if "prompt_tokens" in values:
        return max(0.0, values["prompt_tokens"] - (_cache_hits(values) or 0.0))
    return None


def _cache_hits(values: dict[str, float]) -> float | None:
    """Prompt tokens found in a cache, here or behind a KV connector; the two never count the same token."""
    local, external = values.get("prefix_hits"), values.get("external_hits")
    return local if not external else (local or 0.0) + external


def _histogram(values: dict[str, float], stem: str, buckets: Iterable[tuple[float, float]]) -> Histogram | None:
    total, count = values.get(stem + "_sum"), values.get(stem + "_count")
    if total is None or count is None:
        return None
    if stem == "itl" and count > 0 and total / count < _MIN_MEAN_ITL_SECONDS:
        return None
    return Histogram(total, count, tuple(sorted(buckets)))


def _positive(text: str | None) -> float | None:
    """A positive number from a label; "None", "", "0" and words are unknown."""
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return None
    return value if 0.0 < value < math.inf else None
