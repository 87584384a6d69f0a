"""The numbers behind one engine's page: attributes carry vLLM's series names without the prefix `vllm:`."""

from __future__ import annotations

from bisect import bisect_left

# Bucket bounds as on a recorded vLLM 0.32.0 page; the page test compares them with the template's `le` labels.
TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
ITERATION_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_BOUNDS = (1, 2, 5, 10, 20)
PREEMPTION_BOUNDS = (1, 2, 3, 4, 5, 10, 20)
TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts per bucket (not cumulative; the last one is +Inf), count and sum."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds`: ascending upper bounds, inclusive, without +Inf."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Book the same value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times


class Counters:
    """Everything one engine publishes. Gauges are written when a step completes, counters when things happen."""

    def __init__(self, draft_tokens: int) -> None:
        """All at 0, as after a start of the engine."""
        self.num_requests_running = 0
        self.num_requests_waiting = 0
        self.num_requests_waiting_by_reason = {"capacity": 0, "deferred": 0}
        self.engine_sleep_state = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        self.kv_cache_usage_perc = 0.0
        self.prefix_cache_queries_total = 0
        self.prefix_cache_hits_total = 0
        self.num_preemptions_total = 0
        self.prompt_tokens_total = 0
        self.prompt_tokens_by_source_total = {"local_compute": 0, "local_cache_hit": 0}
        self.prompt_tokens_cached_total = 0
        self.prompt_tokens_cached_by_source_total = {"device": 0}
        self.generation_tokens_total = 0
        self.request_success_total = {"length": 0}
        self.estimated_flops_per_gpu_total = 0.0
        self.estimated_read_bytes_per_gpu_total = 0.0
        self.spec_decode_num_drafts_total = 0
        self.spec_decode_num_draft_tokens_total = 0
        self.spec_decode_num_accepted_tokens_total = 0
        self.spec_decode_num_accepted_tokens_per_pos_total = {str(k): 0 for k in range(draft_tokens)}
        self.request_prompt_tokens = Histogram(TOKEN_BOUNDS)
        self.request_generation_tokens = Histogram(TOKEN_BOUNDS)
        self.iteration_tokens_total = Histogram(ITERATION_BOUNDS)
        self.request_max_num_generation_tokens = Histogram(TOKEN_BOUNDS)
        self.request_params_n = Histogram(N_BOUNDS)
        self.request_params_max_tokens = Histogram(TOKEN_BOUNDS)
        self.time_to_first_token_seconds = Histogram(TTFT_BOUNDS)
        self.inter_token_latency_seconds = Histogram(ITL_BOUNDS)
        self.request_time_per_output_token_seconds = Histogram(ITL_BOUNDS)
        self.e2e_request_latency_seconds = Histogram(LATENCY_BOUNDS)
        self.request_queue_time_seconds = Histogram(LATENCY_BOUNDS)
        self.request_inference_time_seconds = Histogram(LATENCY_BOUNDS)
        self.request_prefill_time_seconds = Histogram(LATENCY_BOUNDS)
        self.request_decode_time_seconds = Histogram(LATENCY_BOUNDS)
        self.request_num_preemptions = Histogram(PREEMPTION_BOUNDS)
        self.request_prefill_kv_computed_tokens = Histogram(TOKEN_BOUNDS)
