"""Every alert fires, stays quiet for its neighbours and resolves: promtool runs the cases, one sentence each."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from rules import promtool
from rules.cases import CASES
from rules.mutation import mutants, rules, survivors
from rules.promtool import RULES
from tools import require_tool

TEXTS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "texts.yaml").read_text("utf-8"))
ALERTS = [rule["alert"] for rule in rules() if "alert" in rule]


@pytest.mark.parametrize("alert", CASES)
def test_exactly_the_right_alerts_fire_in_every_situation(alert: str, tmp_path: Path) -> None:
    """All alerts are loaded; a case fails if one more, or one fewer, than it names fires at any of its minutes."""
    files = [RULES / "alerts.yaml", *([RULES / "alerts-absent.yaml"] if alert == "StepscopeAbsent" else [])]
    path = tmp_path / f"{alert}.test.yaml"
    promtool.write(path, [promtool.rendered(case) for case in CASES[alert]], files)
    passed, output = promtool.run(require_tool("promtool"), path)
    assert passed, output


def test_every_alert_has_cases_in_which_it_fires_stays_quiet_and_resolves() -> None:
    """Nobody adds an alert without them."""
    assert set(CASES) == {*ALERTS, "quiet"}
    for alert in ALERTS:
        by_minute = [
            [any(one.alert == alert for one in firing) for _, firing in sorted(case.fires.items())]
            for case in CASES[alert]
        ]
        assert any(any(fires) for fires in by_minute), f"{alert} never fires"
        assert any(not any(fires) for fires in by_minute), f"{alert} has no quiet neighbour"
        changes = [change for fires in by_minute for change in pairwise(fires)]
        assert (True, False) in changes, f"{alert} never resolves"


def test_operators_read_values_with_units_and_no_template_debris(tmp_path: Path) -> None:
    """The texts of all alerts, word by word, with their labels and links."""
    groups = []
    for alert in ALERTS:
        case = next(c for c in CASES[alert] if any(one.alert == alert for fires in c.fires.values() for one in fires))
        minute = float(TEXTS[alert]["minute"])
        group: dict[str, Any] = promtool.rendered(case)
        del group["promql_expr_test"]
        group["alert_rule_test"] = [
            {"eval_time": f"{round(minute * 60)}s", "alertname": alert, "exp_alerts": [_expected(alert, case, minute)]}
        ]
        groups.append(group)
    path = tmp_path / "texts.test.yaml"
    promtool.write(path, groups, [RULES / "alerts.yaml", RULES / "alerts-absent.yaml"])
    passed, output = promtool.run(require_tool("promtool"), path)
    assert passed, output
    assert set(TEXTS) == set(ALERTS)
    for alert, text in TEXTS.items():
        for debris in ("{{", "}}", "<no value>", "%!", "NaN", "Inf", "  "):
            assert debris not in text["summary"] + text["description"], f"{alert}: {debris}"


def _expected(alert: str, case: promtool.Case, minute: float) -> dict[str, Any]:
    one = next(one for one in case.fires[minute] if one.alert == alert)
    labels = one.labels() | {"severity": TEXTS[alert]["severity"]}
    del labels["alertname"]
    values = yaml.safe_load((RULES / "templates" / "thresholds.yaml").read_text("utf-8"))
    link, dashboard = values["runbook_base_url"]["value"], values["dashboard_base_url"]["value"]
    if "instance" in labels:
        labels["job"] = "llm/stepscope"
    shown = [name for name in ("model_name", "instance", "namespace", "pod") if name in labels]
    query = "&".join(f"var-{name}={labels[name].replace('/', '%2F').replace(':', '%3A')}" for name in shown)
    annotations = {key: TEXTS[alert][key] for key in ("summary", "description")}
    annotations |= {"runbook_url": f"{link}/{alert}.md", "dashboard_url": f"{dashboard}?{query}"}
    return {"exp_labels": labels, "exp_annotations": annotations}


def test_fleet_rules_aggregate_rightly() -> None:
    """Ratios of summed rates, least headroom, greatest step times: tests/rules/recording.test.yaml."""
    passed, output = promtool.run(require_tool("promtool"), Path(__file__).parent / "recording.test.yaml")
    assert passed, output


def test_a_broken_rule_is_noticed() -> None:
    """One mutant of every rule and kind in turn; `make mutants` tries all."""
    sample = []
    for number, rule in enumerate(rules()):
        candidates = list(mutants(rule))
        sample.append(candidates[number % len(candidates)])
    alive = survivors(require_tool("promtool"), sample)
    assert not alive, [f"{m.name}: {m.kind}: {m.what}" for m in alive]
