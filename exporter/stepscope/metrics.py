"""The one table of every series stepscope publishes. The page, docs/metrics.md and the tests are made from it.

To add a metric: add a row here and fill it in `core/publish.py`. Nothing else lists series.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "stepscope_"
ENGINE_LABELS = ("model_name", "engine")

OUTCOMES = ("ok", "timeout", "connection", "http_status", "not_metrics", "too_large", "no_engine_metrics")
STATES = (
    "asleep",
    "no_model",
    "no_capacity",
    "idle",
    "stale",
    "warming_up",
    "prefilling",
    "too_few_observations",
    "out_of_range",
    "measuring",
)
CAUSES = ("preemption", "prefill", "unexplained", "objective_unreachable", "context", "load", "none")
# Canonical fields of an engine's page whose values may be dropped as unreadable or impossible.
FIELDS = (
    "requests_running",
    "requests_waiting",
    "kv_usage",
    "cache_config",
    "itl_seconds",
    "ttft_seconds",
    "engine_steps",
    "prompt_tokens",
    "prefix_cache",
    "generation_tokens",
    "finished_tokens",
    "preemptions",
    "speculation",
    "read_bytes",
    "sleep_state",
)
COMPONENTS = ("overhead", "weights", "kv_cache", "sequences", "prefill")
PHASES = ("decoding", "prefilling", "waiting")
LIMITS = ("speed", "memory")
BOUNDS = ("low", "high")
REFUSALS = ("speed", "memory", "configured", "class_share", "turn", "leases", "unknown")
REJECTIONS = ("rate", "unauthorized", "malformed")


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `name` is the full series name without the prefix, counters with their `_total`."""

    name: str
    kind: str  # gauge or counter
    unit: str  # seconds, bytes, tokens, ratio, timestamp, bool, info, or a thing that is counted
    help: str
    labels: tuple[str, ...] = ()  # beyond model_name and engine
    values: tuple[str, ...] = ()  # the closed list of values of the only extra label, where there is one
    per_engine: bool = True  # carries model_name and engine

    @property
    def full_name(self) -> str:
        """The name on the page."""
        return PREFIX + self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels in order."""
        return (ENGINE_LABELS + self.labels) if self.per_engine else self.labels


def _process(
    name: str, kind: str, unit: str, text: str, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
) -> Metric:
    return Metric(name, kind, unit, text, labels, values, per_engine=False)


def _gauge(name: str, unit: str, text: str, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "gauge", unit, text, labels, values)


def _counter(name: str, unit: str, text: str, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()) -> Metric:
    return Metric(name, "counter", unit, text, labels, values)


TABLE: tuple[Metric, ...] = (
    # The sidecar and its view of the engine's page.
    _process(
        "build_info", "gauge", "info", "What runs here. Always 1.", labels=("version", "revision", "pythonversion")
    ),
    _process(
        "config_ok", "gauge", "bool", "1 if the configuration is valid, 0 if stepscope runs degraded on defaults."
    ),
    _process("engine_up", "gauge", "bool", "1 if the last scrape gave a page with engine series."),
    _process("engine_ever_up", "gauge", "bool", "1 after the first good page; 0 means the engine is still starting."),
    _process(
        "engine_scrapes_total", "counter", "scrapes", "Scrapes of the engine by how they ended.", ("outcome",), OUTCOMES
    ),
    _process("engine_scrape_duration_seconds", "gauge", "seconds", "How long the last scrape of the engine took."),
    _process(
        "engine_last_sample_timestamp_seconds", "gauge", "timestamp", "Unix time of the last good page of the engine."
    ),
    # Token admission; all absent unless it is enabled.
    _process("admission_enforced", "gauge", "bool", "1 if leases are refused, 0 if refusals are only counted."),
    _process("admission_budget_tokens", "gauge", "tokens", "Smallest of the budgets that leases are given from."),
    _process("admission_free_tokens", "gauge", "tokens", "Budget minus leased minus what is held without a lease."),
    _process(
        "admission_outside_tokens", "gauge", "tokens", "Tokens the engine holds and no lease accounts for (or may not)."
    ),
    _process("admission_leases", "gauge", "leases", "Leases in flight.", ("class",)),
    _process("admission_leased_tokens", "gauge", "tokens", "Tokens of the leases in flight.", ("class",)),
    _process("admission_admitted_total", "counter", "leases", "Leases given.", ("class",)),
    _process("admission_refused_total", "counter", "leases", "Leases refused, by what bound.", ("class", "reason")),
    _process(
        "admission_would_refuse_total",
        "counter",
        "leases",
        "Leases given in observe-only mode that would have been refused.",
        ("class", "reason"),
    ),
    _process(
        "admission_expired_total", "counter", "leases", "Leases that ran out instead of being released.", ("class",)
    ),
    _process("admission_leaked_tokens_total", "counter", "tokens", "Tokens of the leases that ran out.", ("class",)),
    _process(
        "admission_rejected_requests_total",
        "counter",
        "requests",
        "Requests turned away before they were judged.",
        ("reason",),
        REJECTIONS,
    ),
    # What the engine said.
    _counter("engine_restarts_total", "restarts", "Counter resets seen: the engine began a new life."),
    _counter(
        "invalid_values_total",
        "values",
        "Values dropped (NaN, Inf, out of range, unreadable), by what they describe.",
        ("metric",),
        FIELDS,
    ),
    _gauge("state", "bool", "What stepscope can say now: exactly one state is 1.", ("state",), STATES),
    _gauge("kv_cache_usage_ratio", "ratio", "Share of KV cache blocks held by live requests, as the engine says it."),
    _gauge("kv_cache_capacity_tokens", "tokens", "KV cache capacity of this engine."),
    _gauge("kv_cache_capacity_info", "info", "Where the capacity comes from: override, label or blocks.", ("source",)),
    _gauge("requests", "requests", "Requests by phase. Absent where the engine cannot tell.", ("phase",), PHASES),
    _gauge("tokens_in_flight", "tokens", "Context tokens whose KV is read in a decode step: KV usage x capacity."),
    _gauge("tokens_per_sequence", "tokens", "Tokens in flight per decoding request."),
    _gauge("decode_batch_size", "requests", "Mean sequences per decode step in the window."),
    _gauge("prefill_tokens_per_step", "tokens", "Mean computed prompt tokens per decode step in the window."),
    _gauge("tokens_per_step", "tokens", "Mean tokens emitted per sequence and step; 1 unless decoding speculatively."),
    # Measured.
    _gauge("itl_mean_seconds", "seconds", "Mean inter-token latency in the window. Absent when idle."),
    _gauge("itl_median_seconds", "seconds", "Interpolated median in its histogram bucket; read the bounds instead."),
    _gauge("itl_median_lower_bound_seconds", "seconds", "Lower bound of the bucket that holds the median."),
    _gauge("itl_median_upper_bound_seconds", "seconds", "Upper bound of the bucket that holds the median."),
    _gauge(
        "prediction_in_median_bucket", "bool", "1 if the predicted inter-token latency lies in the median's bucket."
    ),
    _gauge("ttft_mean_seconds", "seconds", "Mean time to first token in the window. Absent without first tokens."),
    _gauge(
        "measured_step_seconds", "seconds", "Measured decode step: mean inter-token latency minus modelled prefill."
    ),
    # Predicted.
    _gauge("predicted_step_seconds", "seconds", "Predicted decode step, without prefill."),
    _gauge("predicted_step_bound_seconds", "seconds", "Low and high of the predicted decode step.", ("bound",), BOUNDS),
    _gauge("predicted_itl_seconds", "seconds", "Predicted inter-token latency: decode step plus prefill part."),
    _gauge(
        "predicted_step_component_seconds",
        "seconds",
        "The parts of the predicted inter-token latency; they sum to it.",
        ("component",),
        COMPONENTS,
    ),
    # Compared.
    _gauge("drift_ratio", "ratio", "Measured over predicted inter-token latency minus 1; only in state measuring."),
    _gauge("prefill_interference_ratio", "ratio", "Share of the explained inter-token latency that prefill added."),
    _gauge("target_step_seconds", "seconds", "What the decode step is held to: headroom / objective."),
    _gauge("target_itl_seconds", "seconds", "What the mean inter-token latency is held to: 1 / objective."),
    _gauge("target_ttft_seconds", "seconds", "Time to first token promised; only with --objective.ttft-seconds."),
    _gauge(
        "token_budget_tokens",
        "tokens",
        "Tokens in flight that fit: at the promised speed, and in memory.",
        ("limit",),
        LIMITS,
    ),
    _gauge("token_headroom_tokens", "tokens", "Smallest token budget minus tokens in flight; negative when over."),
    _gauge("slowdown_cause", "bool", "Why it is slow: exactly one cause is 1 while judged.", ("cause",), CAUSES),
    # Accounts: divide in PromQL over any window or set of pods.
    _counter("itl_observed_seconds_total", "seconds", "Measured inter-token latency, summed over judged observations."),
    _counter("itl_expected_seconds_total", "seconds", "Predicted inter-token latency, summed over the same ones."),
    _counter("itl_compared_total", "observations", "Observations in both of the sums above."),
    _counter("judged_seconds_total", "seconds", "Time in which a prediction could be held against the objective."),
    _counter("over_budget_seconds_total", "seconds", "Judged time with the predicted decode step above its target."),
    _counter("state_seconds_total", "seconds", "Time spent in each state.", ("state",), STATES),
    _counter("slowdown_cause_seconds_total", "seconds", "Time judged to have each cause.", ("cause",), CAUSES),
    # What the prediction uses.
    _gauge("calibration_info", "info", "Where the parameters come from: file, learned or datasheet.", ("source", "id")),
    _gauge("calibration_mismatch", "bool", "1 if the calibration was made for another engine, model or GPU."),
    _gauge("effective_bandwidth_bytes_per_second", "bytes per second", "Bandwidth used by the step law, all GPUs."),
    _gauge("step_overhead_seconds", "seconds", "Part of a step that does not depend on bytes."),
    _gauge("sequence_cost_seconds", "seconds", "Extra seconds per sequence in a step."),
    _gauge("prefill_cost_seconds_per_token", "seconds per token", "Extra seconds per prompt token mixed into a step."),
    _gauge("calibration_residual_ratio", "ratio", "Median relative error of the parameters on their own points."),
    _gauge(
        "baseline_residual_ratio",
        "ratio",
        "The same of the law learned online, also while a calibration is in use instead.",
    ),
    _gauge("calibration_samples", "points", "Points the parameters were fitted on."),
    _gauge("bandwidth_share_of_peak_ratio", "ratio", "Effective bandwidth over the GPUs' peak: is it plausible?"),
    _gauge(
        "model_info",
        "info",
        "The model facts in use and where they come from.",
        ("model", "kind", "attention", "weight_bytes", "step_weight_bytes", "kv_bytes_per_token", "kv_dtype", "source"),
    ),
    _gauge(
        "hardware_info",
        "info",
        "The hardware facts in use and where they come from.",
        ("gpu", "count", "peak_bandwidth_bytes_per_second", "peak_flops", "source"),
    ),
)

BY_NAME = {metric.name: metric for metric in TABLE}
