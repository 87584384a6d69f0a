"""The shipped alert rules, evaluated on the sidecar's own counters: numbers, ranges and `for` are read from rules/.

What PromQL's increase() does at the edges of a range (extrapolation by less than a sample) is left out.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stepscope.core.snapshot import EngineView
from stepscope.metrics import CAUSES, STATES

RULES = Path(__file__).resolve().parent.parent / "rules"
ALERTS = {
    "drift": "StepscopePredictionDrift",
    "over_budget": "StepscopeOverBudget",
    "interference": "StepscopePrefillInterference",
}
# What the rules say, with blanks for numbers. If a rule is changed this benchmark has to follow: it fails until then.
SHAPES = {
    "drift": "increase(itl_observed_seconds_total) / increase(itl_expected_seconds_total) - 1 > N and "
    "rate(judged_seconds_total) > N and rate(itl_compared_total) > N and "
    'rate(state_seconds_total{state="measuring"}) - ignoring (state, cause) '
    'rate(slowdown_cause_seconds_total{cause="preemption"}) > N unless ignoring (source, id) ( '
    'last_over_time(calibration_info{source="datasheet"}) unless ignoring (source, id, cause) ( '
    'increase(slowdown_cause_seconds_total{cause="unexplained"}) / ignoring (cause, state) '
    'increase(state_seconds_total{state="measuring"}) > N ) )',
    "over_budget": "increase(over_budget_seconds_total) / increase(judged_seconds_total) > N and "
    "rate(judged_seconds_total) > N unless sum without (component) ( "
    'min_over_time(predicted_step_component_seconds{component=~"overhead|weights"}) ) > '
    "max_over_time(target_step_seconds) unless ignoring (source, id) ( "
    'last_over_time(calibration_info{source="datasheet"}) and ignoring (source, id) '
    "avg_over_time(measured_step_seconds) <= avg_over_time(target_step_seconds) )",
    "interference": 'sum without (cause) (increase(slowdown_cause_seconds_total{cause="prefill"})) / '
    "increase(judged_seconds_total) > N and rate(judged_seconds_total) > N and "
    "avg_over_time(itl_mean_seconds) > avg_over_time(target_itl_seconds) and "
    "increase(over_budget_seconds_total) / increase(judged_seconds_total) < N",
}
_DURATION = re.compile(r"(\d+)([smh])$")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert: its numbers in the order of the expression, its range, its `for`. Ratios and seconds.

    A longer second range (an hour) is longer than a run, and stands for all of it.
    """

    numbers: tuple[float, ...]
    range_seconds: float
    for_seconds: float


def shipped_rules(path: Path = RULES / "alerts.yaml") -> dict[str, Rule]:
    """The rules judged with. Raises ValueError where an expression is not the one that is evaluated here."""
    document = yaml.safe_load(path.read_text("utf-8"))
    by_name = {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}
    return {name: _rule(name, by_name[alert]) for name, alert in ALERTS.items()}


def thresholds(path: Path = RULES / "templates" / "thresholds.yaml") -> dict[str, Any]:
    """Values of the rules' thresholds by name."""
    return {name: entry["value"] for name, entry in yaml.safe_load(path.read_text("utf-8")).items()}


def _rule(name: str, rule: dict[str, Any]) -> Rule:
    text = " ".join(rule["expr"].split())
    ranges = {seconds(found) for found in re.findall(r"\[(\w+)\]", text)} - {_SECONDS["h"]}
    plain = re.sub(r"\[\w+\]", "", text).replace("stepscope_", "")
    numbers = tuple(float(number) for number in re.findall(r"(?<=[<>] )[\d.]+", plain))
    shape = re.sub(r"(?<=[<>] )[\d.]+", "N", plain)
    if shape != SHAPES[name] or len(ranges) != 1:
        raise ValueError(f"{ALERTS[name]} is not the rule that this benchmark evaluates: {shape}")
    return Rule(numbers, ranges.pop(), seconds(rule.get("for", "0s")))


def seconds(text: str) -> float:
    """A duration of Prometheus."""
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(f"not a duration: {text}")
    return float(found[1]) * _SECONDS[found[2]]


class Series:
    """The sidecar's series of one run, one row per sample."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.views: list[EngineView] = []

    def add(self, at_seconds: float, view: EngineView) -> None:
        """The next sample."""
        self.times.append(at_seconds)
        self.views.append(view)

    def span(self, end: float, length: float) -> tuple[EngineView, EngineView] | None:
        """First and last view of a range, None with fewer than two."""
        first, last = bisect_left(self.times, end - length), bisect_left(self.times, end + 1e-6) - 1
        return (self.views[first], self.views[last]) if last > first else None

    def mean(self, field: str, end: float, length: float) -> float | None:
        """avg_over_time of a gauge, absent samples left out."""
        first, last = bisect_left(self.times, end - length), bisect_left(self.times, end + 1e-6)
        values = [value for view in self.views[first:last] if (value := getattr(view, field)) is not None]
        return sum(values) / len(values) if values else None

    def is_unreachable(self, end: float) -> bool:
        """Whether weights and overhead alone took longer than the target, at their least."""
        views = self.views[: bisect_left(self.times, end + 1e-6)]
        parts = [(v.predicted.overhead_seconds, v.predicted.weights_seconds) for v in views if v.predicted is not None]
        targets = [v.target_step_seconds for v in views if v.target_step_seconds is not None]
        if not parts or not targets:
            return False
        return min(overhead for overhead, _ in parts) + min(weights for _, weights in parts) > max(targets)


def state_seconds(first: EngineView, last: EngineView, state: str) -> float:
    """Time in a state between two views."""
    at = STATES.index(state)
    return last.accounts.state_seconds[at] - first.accounts.state_seconds[at]


def cause_seconds(first: EngineView, last: EngineView, cause: str) -> float:
    """Time with a cause between two views."""
    at = CAUSES.index(cause)
    return last.accounts.cause_seconds[at] - first.accounts.cause_seconds[at]


def holds(name: str, rule: Rule, series: Series, at: float, source: str) -> bool:
    """The value of an alert's expression at one moment."""
    span = series.span(at, rule.range_seconds)
    if span is None:
        return False
    first, last = span
    judged = last.accounts.judged_seconds - first.accounts.judged_seconds
    over = last.accounts.over_budget_seconds - first.accounts.over_budget_seconds
    if name == "drift":
        limit, judged_share, compared_rate, measuring_share, unexplained_share = rule.numbers
        observed = last.accounts.itl_observed_seconds - first.accounts.itl_observed_seconds
        expected = last.accounts.itl_expected_seconds - first.accounts.itl_expected_seconds
        measuring = state_seconds(first, last, "measuring")
        compared = last.accounts.itl_compared - first.accounts.itl_compared
        told = measuring - cause_seconds(first, last, "preemption")
        enough = (
            judged / rule.range_seconds > judged_share
            and compared / rule.range_seconds > compared_rate
            and told / rule.range_seconds > measuring_share
        )
        if not enough or expected <= 0.0 or observed / expected - 1.0 <= limit:
            return False
        unexplained = cause_seconds(first, last, "unexplained")
        return source != "datasheet" or unexplained / measuring > unexplained_share
    if judged <= 0.0:
        return False
    if name == "over_budget":
        share, judged_share = rule.numbers
        if over / judged <= share or judged / rule.range_seconds <= judged_share or series.is_unreachable(at):
            return False
        step, goal = (series.mean(f"{kind}_step_seconds", at, rule.range_seconds) for kind in ("measured", "target"))
        return source != "datasheet" or step is None or goal is None or step > goal
    share, judged_share, over_share = rule.numbers
    mean, target = (series.mean(f"{kind}_seconds", at, rule.range_seconds) for kind in ("itl_mean", "target_itl"))
    return (
        cause_seconds(first, last, "prefill") / judged > share
        and judged / rule.range_seconds > judged_share
        and mean is not None
        and target is not None
        and mean > target
        and over / judged < over_share
    )


def first_firing(truth: list[tuple[float, bool]], for_seconds: float, after: float, until: float) -> float | None:
    """When an alert fires first within (after, until]: its expression has held for `for_seconds`."""
    since: float | None = None
    for at, value in truth:
        since = (since if since is not None else at) if value else None
        if since is not None and at - since >= for_seconds and after < at <= until:
            return at
    return None


if __name__ == "__main__":
    sys.stdout.write("\n".join(f"{name}: {rule}" for name, rule in shipped_rules().items()) + "\n")
