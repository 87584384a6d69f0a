"""Every query of the dashboards, apart from the panels, so that the PromQL can be reviewed alone.

Plain series only: the dashboards work without the recording rules. Rates are taken over `$__rate_interval`, everything
else is a gauge as published. Where several engines are selected, times are averaged (step times do not add up) and
tokens are summed; `Query.when` says in which situation the query has data, and the tests hold it to that.
"""

from __future__ import annotations

from dataclasses import dataclass

# Series of one engine, and series of the sidecar as a whole. All is ".*": it also matches where a label is missing.
SIDECAR = 'namespace=~"$namespace",pod=~"$pod",instance=~"$instance"'
ENGINE = SIDECAR + ',model_name=~"$model_name",engine=~"$engine"'
PER_ENGINE = "namespace, pod, instance, model_name, engine"


def named(expr: str) -> str:
    """With a label `who`: the pod, or the instance where the scrape configuration adds no pods."""
    both = f'label_join({expr}, "who", " ", "pod", "instance")'
    return f'label_replace({both}, "who", "$1", "who", " ?([^ ]+).*")'


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `when`: always, load (requests decode), measuring (and drift is judged), prefill (prompts come in),
    promise (load, and a speed was promised), calibrated, or alerting.
    """

    expr: str
    legend: str = ""
    when: str = "load"


def _component(name: str, legend: str) -> Query:
    return Query(f'avg(stepscope_predicted_step_component_seconds{{component="{name}",{ENGINE}}})', legend)


# --- one engine: the verdict -----------------------------------------------------------------------------------------
CAUSE_NOW = Query(f"max by (cause) (stepscope_slowdown_cause{{{ENGINE}}}) == 1", "{{cause}}")
SPEED_OF_PROMISE = Query(
    f"avg(stepscope_target_itl_seconds{{{ENGINE}}} / stepscope_itl_mean_seconds{{{ENGINE}}})", "speed", "promise"
)
MEASURED = Query(f"avg(stepscope_itl_mean_seconds{{{ENGINE}}})", "measured")
PREDICTED = Query(f"avg(stepscope_predicted_itl_seconds{{{ENGINE}}})", "predicted")
DRIFT_NOW = Query(f"avg(stepscope_drift_ratio{{{ENGINE}}})", "drift", "measuring")
HEADROOM = Query(f"min(stepscope_token_headroom_tokens{{{ENGINE}}})", "headroom", "always")
ENGINES_SHOWN = Query(f"count(stepscope_kv_cache_usage_ratio{{{ENGINE}}})", "engines", "always")

# --- one engine: predicted against measured --------------------------------------------------------------------------
PROMISED = Query(f"avg(stepscope_target_itl_seconds{{{ENGINE}}})", "promised", "always")
# The last bucket has no upper bound; the band is left out there.
MEDIAN_UPPER = Query(f"avg(stepscope_itl_median_upper_bound_seconds{{{ENGINE}}} < +Inf)", "bucket of the median (band)")
MEDIAN_LOWER = Query(f"avg(stepscope_itl_median_lower_bound_seconds{{{ENGINE}}})", "median's bucket, lower")
KV_USAGE = Query(f"avg(stepscope_kv_cache_usage_ratio{{{ENGINE}}})", "KV cache usage (right)", "always")
CAUSES_OVER_TIME = Query(f"max by (cause) (stepscope_slowdown_cause{{{ENGINE}}}) == 1", "{{cause}}")
COMPONENTS = (
    _component("overhead", "overhead"),
    _component("weights", "weights"),
    _component("kv_cache", "KV cache"),
    _component("sequences", "sequences"),
    _component("prefill", "prefill"),
)
IN_FLIGHT = Query(f"sum(stepscope_tokens_in_flight{{{ENGINE}}})", "in flight", "always")
BUDGET_SPEED = Query(
    f'sum(stepscope_token_budget_tokens{{limit="speed",{ENGINE}}})', "fit at the promised speed", "always"
)
BUDGET_MEMORY = Query(f'sum(stepscope_token_budget_tokens{{limit="memory",{ENGINE}}})', "fit in memory", "always")
DRIFT_OVER_TIME = Query(
    f"sum(rate(stepscope_itl_observed_seconds_total{{{ENGINE}}}[$__rate_interval]))"
    f" / (sum(rate(stepscope_itl_expected_seconds_total{{{ENGINE}}}[$__rate_interval])) > 0) - 1",
    "drift",
)

# --- one engine: the load --------------------------------------------------------------------------------------------
BATCH = Query(f"avg(stepscope_decode_batch_size{{{ENGINE}}})", "sequences per step")
REQUESTS = Query(f"sum by (phase) (stepscope_requests{{{ENGINE}}})", "{{phase}}", "always")
PREFILL_TOKENS = Query(f"avg(stepscope_prefill_tokens_per_step{{{ENGINE}}})", "prompt tokens per step")
INTERFERENCE = Query(f"avg(stepscope_prefill_interference_ratio{{{ENGINE}}})", "share of the time per token (right)")
TTFT = Query(f"avg(stepscope_ttft_mean_seconds{{{ENGINE}}})", "time to first token", "prefill")
TOKENS_PER_SEQUENCE = Query(f"avg(stepscope_tokens_per_sequence{{{ENGINE}}})", "context per request")
STATES_OVER_TIME = Query(f"max by (state) (stepscope_state{{{ENGINE}}}) == 1", "{{state}}", "always")

# --- one engine: what the prediction rests on ------------------------------------------------------------------------
CALIBRATION = Query(f"max by (pod, source, id) (stepscope_calibration_info{{{ENGINE}}})", when="always")
MODEL = Query(
    "max by (pod, model, kind, attention, weight_bytes, kv_bytes_per_token, kv_dtype, source)"
    f" (stepscope_model_info{{{ENGINE}}})",
    when="always",
)
HARDWARE = Query(
    "max by (pod, gpu, count, peak_bandwidth_bytes_per_second, peak_flops, source)"
    f" (stepscope_hardware_info{{{ENGINE}}})",
    when="always",
)
BANDWIDTH = Query(f"avg(stepscope_effective_bandwidth_bytes_per_second{{{ENGINE}}})", "bandwidth", "always")
SHARE_OF_PEAK = Query(f"avg(stepscope_bandwidth_share_of_peak_ratio{{{ENGINE}}})", "share of peak", "always")
OVERHEAD = Query(f"avg(stepscope_step_overhead_seconds{{{ENGINE}}})", "overhead", "always")
SEQUENCE_COST = Query(f"avg(stepscope_sequence_cost_seconds{{{ENGINE}}})", "per sequence", "always")
PREFILL_COST = Query(f"avg(stepscope_prefill_cost_seconds_per_token{{{ENGINE}}})", "per prompt token", "always")
CAPACITY = Query(f"sum(stepscope_kv_cache_capacity_tokens{{{ENGINE}}})", "capacity", "always")
RESIDUAL = Query(f"max(stepscope_calibration_residual_ratio{{{ENGINE}}})", "residual", "calibrated")
MISMATCH = Query(f"max(stepscope_calibration_mismatch{{{ENGINE}}})", "mismatch", "calibrated")

# --- the fleet -------------------------------------------------------------------------------------------------------
SIDECARS = Query(f"count(stepscope_build_info{{{SIDECAR}}})", "sidecars", "always")
ENGINES_DOWN = Query(f"count(stepscope_engine_up{{{SIDECAR}}} == 0) or vector(0)", "down", "always")
ENGINES_SLOW = Query(
    f"count(stepscope_itl_mean_seconds{{{ENGINE}}} > stepscope_target_itl_seconds{{{ENGINE}}}) or vector(0)",
    "slow",
    "always",
)
ENGINES_OVER = Query(f"count(stepscope_token_headroom_tokens{{{ENGINE}}} < 0) or vector(0)", "over", "always")
ENGINES_DRIFTING = Query(f"count(stepscope_drift_ratio{{{ENGINE}}} > 0.15) or vector(0)", "drifting", "always")
CONFIG_BAD = Query(f"count(stepscope_config_ok{{{SIDECAR}}} == 0) or vector(0)", "degraded", "always")
WORST_HEADROOM = Query(
    named(f"bottomk(10, min by ({PER_ENGINE}) (stepscope_token_headroom_tokens{{{ENGINE}}}))"),
    "{{who}} engine {{engine}}",
    "always",
)
WORST_DRIFT = Query(
    named(
        f"topk(10, sum by ({PER_ENGINE}) (rate(stepscope_itl_observed_seconds_total{{{ENGINE}}}[$__rate_interval]))"
        f" / (sum by ({PER_ENGINE}) (rate(stepscope_itl_expected_seconds_total{{{ENGINE}}}[$__rate_interval])) > 0)"
        " - 1)"
    ),
    "{{who}} engine {{engine}}",
)
MODEL_SHARE = Query(
    f"sum by (model_name) (stepscope_tokens_in_flight{{{ENGINE}}})"
    f" / (sum by (model_name) (min without (limit) (stepscope_token_budget_tokens{{{ENGINE}}})) > 0)",
    "{{model_name}}",
    "always",
)
CAUSE_SHARE = Query(
    f"sum by (cause) (rate(stepscope_slowdown_cause_seconds_total{{{ENGINE}}}[$__rate_interval]))"
    f" / on () group_left () (sum(rate(stepscope_judged_seconds_total{{{ENGINE}}}[$__rate_interval])) > 0)",
    "{{cause}}",
)
# The table of pods: one column each.
TABLE_CAUSE = Query(f"max by ({PER_ENGINE}, cause) (stepscope_slowdown_cause{{{ENGINE}}} == 1)")
# An engine that does not answer has no state, and yet somebody wants to know which it is.
TABLE_STATE = Query(
    f"max by ({PER_ENGINE}, state) (stepscope_state{{{ENGINE}}} == 1) or label_replace("
    f"max by (namespace, pod, instance) (stepscope_engine_up{{{SIDECAR}}} == 0),"
    ' "state", "not answering", "", "")',
    when="always",
)
TABLE_MEASURED = Query(f"max by ({PER_ENGINE}) (stepscope_itl_mean_seconds{{{ENGINE}}})")
TABLE_PREDICTED = Query(f"max by ({PER_ENGINE}) (stepscope_predicted_itl_seconds{{{ENGINE}}})")
TABLE_PROMISED = Query(f"max by ({PER_ENGINE}) (stepscope_target_itl_seconds{{{ENGINE}}})", when="always")
TABLE_DRIFT = Query(f"max by ({PER_ENGINE}) (stepscope_drift_ratio{{{ENGINE}}})", when="measuring")
TABLE_IN_FLIGHT = Query(f"max by ({PER_ENGINE}) (stepscope_tokens_in_flight{{{ENGINE}}})", when="always")
TABLE_HEADROOM = Query(f"min by ({PER_ENGINE}) (stepscope_token_headroom_tokens{{{ENGINE}}})", when="always")

# --- the sidecars ----------------------------------------------------------------------------------------------------
SCRAPES = Query(
    f"sum by (outcome) (rate(stepscope_engine_scrapes_total{{{SIDECAR}}}[$__rate_interval])) > 0",
    "{{outcome}}",
    "always",
)
SAMPLE_AGE = Query(
    named(
        "topk(10, clamp_min(time() - max by (namespace, pod, instance)"
        f" (stepscope_engine_last_sample_timestamp_seconds{{{SIDECAR}}}), 0))"
    ),
    "{{who}}",
    "always",
)
VERSIONS = Query(f"count by (version) (stepscope_build_info{{{SIDECAR}}})", "{{version}}", "always")
RESTARTS = Query(f"sum(increase(stepscope_engine_restarts_total{{{ENGINE}}}[$__range]))", "restarts", "always")

ALERTS = Query(
    'ALERTS{alertname=~"Stepscope.*",alertstate="firing",namespace=~"$namespace",pod=~"$pod",instance=~"$instance"}',
    when="alerting",
)
