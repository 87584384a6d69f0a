"""Hand-made pages in the words of several vLLM versions; the recorded ones are in recorded_pages.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PROCESS = "process_start_time_seconds 1.7e+09\n"


def line(name: str, value: object, /, **labels: str) -> str:
    """One sample; `engine` and `model_name` are added as vLLM does unless given (None by an empty text)."""
    labels = {"engine": "0", "model_name": "m", **labels}
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items() if text)
    return f"{name}{{{inside}}} {value}\n"


def cache_config(engine: str = "0", **labels: str) -> str:
    """The info line: strings, and no model_name."""
    return line("vllm:cache_config_info", "1.0", engine=engine, model_name="", **labels)


def page(*lines: str, process: str = PROCESS) -> str:
    """Lines with the process's own before them."""
    return process + "".join(lines)


def minimal(engine: str = "0", *, usage: object = 0.25, model_name: str = "m") -> str:
    """Enough to be an engine: three running, a quarter of the cache, nine gaps of 50 ms."""
    labels = {"engine": engine, "model_name": model_name}
    return "".join(
        [
            line("vllm:num_requests_running", "3.0", **labels),
            line("vllm:num_requests_waiting", "1.0", **labels),
            line("vllm:kv_cache_usage_perc", usage, **labels),
            *histogram("vllm:inter_token_latency_seconds", ((0.025, 0), (0.05, 9)), 0.45, **labels),
        ]
    )


def histogram(name: str, buckets: Iterable[tuple[float, float]], total: float, /, **labels: str) -> list[str]:
    """Bucket lines (the last count again under +Inf), count and sum, with a `_created` line that means nothing."""
    rows, count = [], 0.0
    for bound, count in buckets:
        rows.append(line(f"{name}_bucket", count, **labels, le=str(bound)))
    rows.append(line(f"{name}_bucket", count, **labels, le="+Inf"))
    rows.append(line(f"{name}_count", count, **labels))
    rows.append(line(f"{name}_sum", total, **labels))
    rows.append(line(f"{name}_created", "1.7e+09", **labels))
    return rows


# vLLM 0.10.2 with two API servers: old names, `pid` on gauges (most of them 0), no sources, no process series.
VLLM_0_10_2 = "".join(
    [
        line("vllm:num_requests_running", "0.0", pid="11"),
        line("vllm:num_requests_running", "5.0", pid="12"),
        line("vllm:num_requests_waiting", "2.0", pid="11"),
        line("vllm:num_requests_waiting", "0.0", pid="12"),
        line("vllm:gpu_cache_usage_perc", "0.0", pid="11"),
        line("vllm:gpu_cache_usage_perc", "0.4", pid="12"),
        line("vllm:gpu_prefix_cache_queries_total", "900.0"),
        line("vllm:gpu_prefix_cache_hits_total", "100.0"),
        line("vllm:prompt_tokens_total", "1000.0"),
        line("vllm:generation_tokens_total", "500.0"),
        *histogram("vllm:time_per_output_token_seconds", ((0.01, 0), (0.025, 300), (0.05, 400)), 8.0),
        *histogram("vllm:iteration_tokens_total", ((1.0, 100), (8.0, 200)), 1500.0),
        cache_config(block_size="16", num_gpu_blocks="2000", cache_dtype="auto"),
    ]
)

# vLLM 0.33.0 with custom buckets of the operator's own for the inter-token latency.
VLLM_0_33 = page(
    line("vllm:num_requests_running", "2.0"),
    line("vllm:kv_cache_usage_perc", "0.1"),
    line("vllm:generation_tokens_total", "50.0"),
    *histogram(
        "vllm:inter_token_latency_seconds", ((0.002, 0), (0.004, 10), (0.006, 40), (0.0085, 48), (0.012, 50)), 0.25
    ),
    cache_config(block_size="16", num_gpu_blocks="4000", kv_cache_size_tokens="64000"),
)


def sources(counts: Mapping[str, float], **labels: str) -> str:
    """Prompt tokens by where they came from, as since 0.18."""
    return "".join(line("vllm:prompt_tokens_by_source_total", n, source=name, **labels) for name, n in counts.items())
