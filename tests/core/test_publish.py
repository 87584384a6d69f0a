"""From a snapshot to rows: absent where unknown, one state, one cause, gauges that expire and counters that stand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from golden_snapshot import golden_snapshot
from stepscope.core.publish import families
from stepscope.core.snapshot import Accounts, Assumed, EngineView, Snapshot
from stepscope.core.step_model import StepLaw, StepTime, WeightBytes
from stepscope.metrics import CAUSES, ENGINE_LABELS, OUTCOMES, STATES, TABLE

BARE = Snapshot("1.0", "rev", "3.11")
VIEW = EngineView("m", "0", 100.0, "no_model", Accounts())


def rows(snapshot: Snapshot, now: float = 100.0, hold: float = 90.0) -> dict[str, dict[tuple[str, ...], float]]:
    return {name: dict(found) for name, found in families(snapshot, now, hold)}


def view_rows(**fields: Any) -> dict[str, dict[tuple[str, ...], float]]:
    return rows(replace(BARE, engines=(replace(VIEW, **fields),)))


def test_the_rows_follow_the_table() -> None:
    """Every metric once, in its order, with a value for each label."""
    found = list(families(golden_snapshot(), 0.0, 90.0))
    assert [name for name, _ in found] == [metric.name for metric in TABLE]
    by_name = {metric.name: metric for metric in TABLE}
    for name, metric_rows in found:
        assert all(len(labels) == len(by_name[name].label_names) for labels, _ in metric_rows), name


def test_before_the_first_sample_only_the_sidecar_s_own_series_are_there() -> None:
    """Every outcome preset to 0; times that are not known yet are absent."""
    found = rows(BARE)
    assert found["engine_scrapes_total"] == {(outcome,): 0.0 for outcome in OUTCOMES}
    assert found["engine_up"] == found["engine_ever_up"] == {(): 0.0}
    assert found["config_ok"] == {(): 1.0}
    assert found["build_info"] == {("1.0", "rev", "3.11"): 1.0}
    assert found["engine_scrape_duration_seconds"] == found["engine_last_sample_timestamp_seconds"] == {}
    assert not any(found[metric.name] for metric in TABLE if metric.per_engine)


def test_an_engine_s_counters_are_preset_and_everything_unknown_is_absent() -> None:
    """Its first sample: counters at 0, the state, and no gauge at 0 that nobody measured."""
    found = view_rows()
    labels = ("m", "0")
    for name in (
        "engine_restarts_total",
        "itl_observed_seconds_total",
        "itl_expected_seconds_total",
        "itl_compared_total",
        "judged_seconds_total",
        "over_budget_seconds_total",
    ):
        assert found[name] == {labels: 0.0}, name
    assert found["state_seconds_total"] == {(*labels, name): 0.0 for name in STATES}
    assert found["slowdown_cause_seconds_total"] == {(*labels, name): 0.0 for name in CAUSES}
    gauges = {metric.name for metric in TABLE if metric.per_engine and metric.kind == "gauge"}
    assert {name for name in gauges if found[name]} == {"state"}


@pytest.mark.parametrize("state", STATES)
def test_exactly_one_state_is_1(state: str) -> None:
    """All of them are there, so that a graph needs no default."""
    assert view_rows(state=state)["state"] == {("m", "0", name): float(name == state) for name in STATES}


@pytest.mark.parametrize("cause", CAUSES)
def test_exactly_one_cause_is_1_while_there_is_one(cause: str) -> None:
    """And none of them is there otherwise."""
    assert view_rows(cause=cause)["slowdown_cause"] == {("m", "0", name): float(name == cause) for name in CAUSES}
    assert view_rows()["slowdown_cause"] == {}


def test_zero_is_a_value() -> None:
    """An idle engine has zero tokens in flight; a flag that is false is 0."""
    found = view_rows(tokens_in_flight=0.0, drift_ratio=0.0, prediction_in_median_bucket=False, requests_decoding=0.0)
    for name in ("tokens_in_flight", "drift_ratio", "prediction_in_median_bucket"):
        assert found[name] == {("m", "0"): 0.0}
    assert found["requests"] == {("m", "0", "decoding"): 0.0}


def test_the_components_sum_to_the_predicted_latency() -> None:
    """And the step is all of them but prefill."""
    found = view_rows(predicted=StepTime(0.001, 0.002, 0.003, 0.004, 0.005, 0.009, 0.012))
    parts = found["predicted_step_component_seconds"]
    assert sum(parts.values()) == pytest.approx(found["predicted_itl_seconds"]["m", "0"])
    assert found["predicted_step_seconds"]["m", "0"] == pytest.approx(0.010)
    assert found["predicted_step_bound_seconds"] == {("m", "0", "low"): 0.009, ("m", "0", "high"): 0.012}


def test_without_a_prefill_cost_the_step_stands_alone() -> None:
    """Neither a latency nor components that would not sum to one."""
    found = view_rows(predicted=StepTime(0.01, 0.0, 0.0, 0.0, 0.0, 0.01, 0.01), prefill_known=False)
    assert found["predicted_step_seconds"] == {("m", "0"): 0.01}
    assert found["predicted_itl_seconds"] == found["predicted_step_component_seconds"] == {}


def test_gauges_go_after_the_hold_and_counters_stand() -> None:
    """90 s after the last sample; the sidecar's own series stay."""
    snapshot = golden_snapshot()
    at = snapshot.engines[0].at_seconds
    held, gone = rows(snapshot, at + 90.0), rows(snapshot, at + 90.1)
    assert held == rows(snapshot, at)
    for metric in TABLE:
        if metric.per_engine and metric.kind == "gauge":
            assert gone[metric.name] == {}, metric.name
        else:
            assert gone[metric.name] == held[metric.name]


def test_each_engine_goes_by_its_own_clock() -> None:
    """One that left the page goes, the other stays."""
    two = replace(BARE, engines=(VIEW, replace(VIEW, engine="1", at_seconds=0.0)))
    found = rows(two, now=100.0)
    assert {labels[1] for labels in found["state"]} == {"0"}
    assert {labels[1] for labels in found["engine_restarts_total"]} == {"0", "1"}


def test_what_the_prediction_uses_is_published() -> None:
    """The unknown of it is absent; the share of the peak needs both."""
    law = StepLaw(WeightBytes(1e9), 2e12, 1e5, 1e-3, prefill_cost_seconds_per_token=None, source="learned")
    snapshot = replace(BARE, engines=(VIEW,), assumed=Assumed(law=law, peak_bandwidth_bytes_per_second=4e12))
    found = rows(snapshot)
    assert found["calibration_info"] == {("m", "0", "learned", ""): 1.0}
    assert found["bandwidth_share_of_peak_ratio"] == {("m", "0"): 0.5}
    assert found["step_overhead_seconds"] == {("m", "0"): 1e-3}
    for name in ("prefill_cost_seconds_per_token", "calibration_mismatch", "calibration_samples", "model_info"):
        assert found[name] == {}, name
    assert rows(replace(snapshot, assumed=Assumed(law=law)))["bandwidth_share_of_peak_ratio"] == {}


def test_every_engine_series_carries_model_and_engine_first() -> None:
    """The join key of every dashboard."""
    for metric in TABLE:
        if metric.per_engine:
            assert metric.label_names[:2] == ENGINE_LABELS == ("model_name", "engine")
