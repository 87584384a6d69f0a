"""From a snapshot to samples, row by row of the metric table. None is left out: absent, not 0 and not NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from stepscope.core.publish_admission import admission_rows
from stepscope.core.snapshot import Assumed, EngineView, Snapshot
from stepscope.metrics import CAUSES, FIELDS, OUTCOMES, STATES, TABLE

Value = float | None
# (values of the labels beyond model_name and engine, value)
Row = tuple[tuple[str, ...], Value]
SampleRow = tuple[tuple[str, ...], float]


def _process_rows(s: Snapshot) -> dict[str, list[Row]]:
    return admission_rows(s.admission) | {
        "build_info": [((s.version, s.revision, s.python_version), 1.0)],
        "config_ok": [((), float(s.config_ok))],
        "engine_up": [((), float(s.engine_up))],
        "engine_ever_up": [((), float(s.engine_ever_up))],
        "engine_scrapes_total": [((o,), float(n)) for o, n in zip(OUTCOMES, s.scrapes, strict=True)],
        "engine_scrape_duration_seconds": [((), s.scrape_duration_seconds)],
        "engine_last_sample_timestamp_seconds": [((), s.last_sample_unix_seconds)],
    }


def _one(value: Value) -> list[Row]:
    return [((), value)]


def _components(view: EngineView, _: Assumed) -> list[Row]:
    step = view.predicted
    if step is None or not view.prefill_known:
        return []
    return [
        (("overhead",), step.overhead_seconds),
        (("weights",), step.weights_seconds),
        (("kv_cache",), step.kv_cache_seconds),
        (("sequences",), step.sequences_seconds),
        (("prefill",), step.prefill_seconds),
    ]


def _bounds(view: EngineView, _: Assumed) -> list[Row]:
    step = view.predicted
    return [] if step is None else [(("low",), step.decode_low_seconds), (("high",), step.decode_high_seconds)]


def _one_of(names: tuple[str, ...], current: str | None) -> list[Row]:
    return [] if current is None else [((name,), float(name == current)) for name in names]


def _bool(value: bool | None) -> Value:
    return None if value is None else float(value)


def _bandwidth_share(assumed: Assumed) -> Value:
    peak, bandwidth = assumed.peak_bandwidth_bytes_per_second, _bandwidth(assumed)
    return bandwidth / peak if bandwidth is not None and peak else None


def _bandwidth(assumed: Assumed) -> Value:
    """Bytes per second; absent where a law counts in tokens, or found that reading costs nothing."""
    if assumed.law is None or assumed.law_in_tokens:
        return None
    bandwidth = assumed.law.effective_bandwidth_bytes_per_second
    return bandwidth if math.isfinite(bandwidth) else None


def _info(labels: tuple[tuple[str, str], ...]) -> list[Row]:
    return [(tuple(value for _, value in labels), 1.0)] if labels else []


def _invalid_values(view: EngineView, _: Assumed) -> list[Row]:
    counts = dict(view.accounts.invalid_values)
    return [((field,), float(counts.get(field, 0))) for field in FIELDS]


# What stands for as long as stepscope runs.
_ACCOUNTS: dict[str, Callable[[EngineView, Assumed], list[Row]]] = {
    "engine_restarts_total": lambda v, _: _one(float(v.accounts.restarts)),
    "invalid_values_total": _invalid_values,
    "itl_observed_seconds_total": lambda v, _: _one(v.accounts.itl_observed_seconds),
    "itl_expected_seconds_total": lambda v, _: _one(v.accounts.itl_expected_seconds),
    "itl_compared_total": lambda v, _: _one(v.accounts.itl_compared),
    "judged_seconds_total": lambda v, _: _one(v.accounts.judged_seconds),
    "over_budget_seconds_total": lambda v, _: _one(v.accounts.over_budget_seconds),
    "state_seconds_total": lambda v, _: [
        ((name,), seconds) for name, seconds in zip(STATES, v.accounts.state_seconds, strict=True)
    ],
    "slowdown_cause_seconds_total": lambda v, _: [
        ((name,), seconds) for name, seconds in zip(CAUSES, v.accounts.cause_seconds, strict=True)
    ],
}
# What was true at the last sample, and what the prediction uses.
_GAUGES: dict[str, Callable[[EngineView, Assumed], list[Row]]] = {
    "state": lambda v, _: _one_of(STATES, v.state),
    "kv_cache_usage_ratio": lambda v, _: _one(v.kv_usage_ratio),
    "kv_cache_capacity_tokens": lambda v, _: _one(v.capacity_tokens),
    "kv_cache_capacity_info": lambda v, _: [] if v.capacity_source is None else [((v.capacity_source,), 1.0)],
    "requests": lambda v, _: [
        (("decoding",), v.requests_decoding),
        (("prefilling",), v.requests_prefilling),
        (("waiting",), v.requests_waiting),
    ],
    "tokens_in_flight": lambda v, _: _one(v.tokens_in_flight),
    "tokens_per_sequence": lambda v, _: _one(v.tokens_per_sequence),
    "decode_batch_size": lambda v, _: _one(v.decode_batch_size),
    "prefill_tokens_per_step": lambda v, _: _one(v.prefill_tokens_per_step),
    "tokens_per_step": lambda v, _: _one(v.tokens_per_step),
    "itl_mean_seconds": lambda v, _: _one(v.itl_mean_seconds),
    "itl_median_seconds": lambda v, _: _one(v.itl_median_seconds),
    "itl_median_lower_bound_seconds": lambda v, _: _one(v.itl_median_lower_bound_seconds),
    "itl_median_upper_bound_seconds": lambda v, _: _one(v.itl_median_upper_bound_seconds),
    "prediction_in_median_bucket": lambda v, _: _one(_bool(v.prediction_in_median_bucket)),
    "ttft_mean_seconds": lambda v, _: _one(v.ttft_mean_seconds),
    "measured_step_seconds": lambda v, _: _one(v.measured_step_seconds),
    "predicted_step_seconds": lambda v, _: _one(None if v.predicted is None else v.predicted.decode_seconds),
    "predicted_step_bound_seconds": _bounds,
    "predicted_itl_seconds": lambda v, _: _one(v.predicted_itl_seconds),
    "predicted_step_component_seconds": _components,
    "drift_ratio": lambda v, _: _one(v.drift_ratio),
    "prefill_interference_ratio": lambda v, _: _one(v.prefill_interference_ratio),
    "target_step_seconds": lambda v, _: _one(v.target_step_seconds),
    "target_itl_seconds": lambda v, _: _one(v.target_itl_seconds),
    "target_ttft_seconds": lambda v, _: _one(v.target_ttft_seconds),
    "token_budget_tokens": lambda v, _: [(("speed",), v.speed_budget_tokens), (("memory",), v.memory_budget_tokens)],
    "token_headroom_tokens": lambda v, _: _one(v.token_headroom_tokens),
    "slowdown_cause": lambda v, _: _one_of(CAUSES, v.cause),
    "calibration_info": lambda _, a: [] if a.law is None else [((a.law.source, a.law.identity), 1.0)],
    "calibration_mismatch": lambda _, a: _one(_bool(a.calibration_mismatch)),
    "effective_bandwidth_bytes_per_second": lambda _, a: _one(_bandwidth(a)),
    "step_overhead_seconds": lambda _, a: _one(None if a.law is None else a.law.step_overhead_seconds),
    "sequence_cost_seconds": lambda _, a: _one(None if a.law is None else a.law.sequence_cost_seconds),
    "prefill_cost_seconds_per_token": lambda _, a: _one(
        None if a.law is None else a.law.prefill_cost_seconds_per_token
    ),
    "calibration_residual_ratio": lambda _, a: _one(a.law.residual_ratio if a.law is not None else None),
    "baseline_residual_ratio": lambda _, a: _one(a.baseline_residual_ratio),
    "calibration_samples": lambda _, a: _one(None if a.law is None or a.law.samples is None else float(a.law.samples)),
    "bandwidth_share_of_peak_ratio": lambda _, a: _one(_bandwidth_share(a)),
    "model_info": lambda _, a: _info(a.model_labels),
    "hardware_info": lambda _, a: _info(a.hardware_labels),
}


def engine_rows(name: str, view: EngineView, assumed: Assumed) -> list[SampleRow]:
    """(values of the labels beyond model_name and engine, value) of one metric of one engine."""
    source = _ACCOUNTS.get(name) or _GAUGES[name]
    return [(labels, value) for labels, value in source(view, assumed) if value is not None]


def families(snapshot: Snapshot, now_seconds: float, hold_seconds: float) -> Iterator[tuple[str, list[SampleRow]]]:
    """Yield (metric name, rows with all label values) for every row of the metric table, in its order.

    `now_seconds` on the same monotonic clock as the samples: gauges older than `hold_seconds` are left out, counters
    stand. A metric without a source in here raises KeyError, so that no row of the table can be forgotten.
    """
    process = _process_rows(snapshot)
    fresh = [now_seconds - view.at_seconds <= hold_seconds for view in snapshot.engines]
    for metric in TABLE:
        name = metric.name
        if not metric.per_engine:
            yield name, [(labels, value) for labels, value in process[name] if value is not None]
            continue
        account = _ACCOUNTS.get(name)
        source = account if account is not None else _GAUGES[name]
        rows: list[SampleRow] = []
        for view, is_fresh in zip(snapshot.engines, fresh, strict=True):
            if account is None and not is_fresh:
                continue
            labels = (view.model_name, view.engine)
            rows.extend((labels + extra, value) for extra, value in source(view, snapshot.assumed) if value is not None)
        yield name, rows
