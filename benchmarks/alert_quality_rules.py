"""The shipped alert rules, played on the series that the sidecar would publish for one engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from alert_quality_promql import Store, Vector, compiled

from stepscope.core.publish import engine_rows
from stepscope.core.snapshot import Assumed, EngineView
from stepscope.metrics import BY_NAME, CAUSES, PREFIX

RULES = Path(__file__).resolve().parent.parent / "rules"
ALERTS = {
    "drift": "StepscopePredictionDrift",
    "over_budget": "StepscopeOverBudget",
    "interference": "StepscopePrefillInterference",
}
_DURATION = re.compile(r"(\d+)([smh])$")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_SERIES = re.compile(rf"\b{PREFIX}(\w+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert: its expression as text, and its `for` in seconds."""

    expression: str
    for_seconds: float

    def compiled(self) -> Callable[[Store, float], Vector]:
        """The expression as a function of store and time."""
        return compiled(self.expression)


def shipped_rules(path: Path = RULES / "alerts.yaml") -> dict[str, Rule]:
    """The rules judged with, as they stand in the repository."""
    document = yaml.safe_load(path.read_text("utf-8"))
    by_name = {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}
    return {name: _rule(by_name[alert]) for name, alert in ALERTS.items()}


def _rule(rule: dict[str, Any]) -> Rule:
    return Rule(rule["expr"], seconds(rule.get("for", "0s")))


def seconds(text: str) -> float:
    """A duration of Prometheus."""
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(f"not a duration: {text}")
    return float(found[1]) * _SECONDS[found[2]]


def thresholds(path: Path = RULES / "templates" / "thresholds.yaml") -> dict[str, Any]:
    """Values of the rules' thresholds by name."""
    return {name: entry["value"] for name, entry in yaml.safe_load(path.read_text("utf-8")).items()}


class Series:
    """What Prometheus would hold of one engine: the series that the rules name, one sample for each reading."""

    def __init__(self, rules: dict[str, Rule], assumed: Assumed) -> None:
        named = {name for rule in rules.values() for name in _SERIES.findall(rule.expression)}
        self._names = sorted(named | {"slowdown_cause_seconds_total"})
        self._assumed = assumed
        self._causes: list[tuple[float, ...]] = []
        self.times: list[float] = []
        self.store = Store()

    def add(self, at_seconds: float, view: EngineView) -> None:
        """The next sample."""
        self.times.append(at_seconds)
        self._causes.append(view.accounts.cause_seconds)
        for name in self._names:
            labels = BY_NAME[name].labels
            for values, value in engine_rows(name, view, self._assumed):
                self.store.add(PREFIX + name, zip(labels, values, strict=True), at_seconds, value)

    def cause_seconds(self, after_seconds: float) -> dict[str, float]:
        """Time with each cause since a moment."""
        first = next((row for at, row in zip(self.times, self._causes, strict=True) if at >= after_seconds), None)
        if first is None:
            return {}
        last = self._causes[-1]
        return {cause: after - before for cause, before, after in zip(CAUSES, first, last, strict=True)}


def first_firing(truth: list[tuple[float, bool]], for_seconds: float, after: float, until: float) -> float | None:
    """When an alert fires first within (after, until]: its expression has held for `for_seconds`."""
    since: float | None = None
    for at, value in truth:
        since = (since if since is not None else at) if value else None
        if since is not None and at - since >= for_seconds and after < at <= until:
            return at
    return None
