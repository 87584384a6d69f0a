"""The files themselves: they load, name only series that exist, and agree with runbooks, README and docs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import pytest
import yaml

from rules.mutation import rules
from rules.promtool import RULES
from shared_data import REPOSITORY
from stepscope.metrics import BY_NAME, PREFIX
from stepscope.runtime.pages import snapshot_json
from stepscope.runtime.sidecar import first_snapshot
from tools import require_tool

FILES = ("alerts.yaml", "alerts-absent.yaml", "recording.yaml")
ALERTS = [rule for rule in rules() if "alert" in rule]
BY_ALERT = {rule["alert"]: rule for rule in ALERTS}
TARGET_LABELS = {"job", "instance", "namespace", "pod"}
# Series of others that rules may read, with the labels they may use.
FOREIGN = {
    "kube_pod_container_info": {"namespace", "pod", "container", "image"},
    "kube_pod_status_phase": {"namespace", "pod", "phase"},
}
SECTIONS = ("Meaning", "Impact", "Diagnosis", "Mitigation")
_CODE_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.S)
_ANNOTATION_QUERY = re.compile(r'printf "((?:[^"\\]|\\.)+)" (?:\$m|\$labels\.model_name) \| query')


def _selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Every series selector below a node of the parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from _selectors(child)
    args = getattr(node, "args", None)
    for child in args if isinstance(args, list) else []:
        yield from _selectors(child)


def _groupings(node: Any) -> Iterator[str]:
    """Every label that an aggregation or a matching of vectors names."""
    text = promql_parser.parse(node).prettify()
    for labels in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)", text):
        yield from (label.strip() for label in labels.split(",") if label.strip())


def _generator() -> ModuleType:
    """rules/generate.py, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("generate", RULES / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _annotation_queries(rule: dict[str, Any]) -> list[str]:
    """The queries that fill the alert's text, with a label selector in the place of the printf verb."""
    found = []
    for raw in _ANNOTATION_QUERY.findall(rule["annotations"]["description"]):
        text = re.sub(r"%(?:\[1\])?q", '"x"', raw.replace('\\"', '"'))
        found.append(re.sub(r"%(?:\[1\])?s", 'job="j",instance="i"', text))
    return found


def _check_series(query: str, where: str) -> int:
    """Fail for a series, label or label value that nobody publishes; returns how many selectors were looked at."""
    count = 0
    for selector in _selectors(promql_parser.parse(query)):
        name = selector.name
        assert name, f"{where}: a selector without a name"
        if name in FOREIGN:
            known = FOREIGN[name]
        else:
            metric = BY_NAME.get(name.removeprefix(PREFIX))
            assert metric is not None, f"{where}: no series is called {name}"
            assert name.startswith(PREFIX), f"{where}: {name}"
            known = TARGET_LABELS | set(metric.label_names)
        for matcher in selector.matchers.matchers:
            assert matcher.name in known, f"{where}: {name} has no label {matcher.name}"
            if name not in FOREIGN and metric is not None and metric.values and matcher.name in metric.labels:
                unknown = set(matcher.value.split("|")) - set(metric.values)
                assert not unknown, f"{where}: {name} never has {matcher.name} {unknown}"
        count += 1
    return count


def test_the_committed_files_are_those_that_the_templates_give() -> None:
    """A threshold changed without `make rules` does not get through."""
    command = [sys.executable, str(RULES / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_rule_files_for_templates_that_cannot_query_are_the_same_rules(tmp_path: Path) -> None:
    """Grafana's: descriptions alone differ, and no query is left."""
    command = [sys.executable, str(RULES / "generate.py"), "--without-queries", str(tmp_path)]
    subprocess.run(command, timeout=60, check=True)
    for name in FILES:
        text = (tmp_path / name).read_text("utf-8")
        assert "| query" not in text
        before, after = (yaml.safe_load(source) for source in ((RULES / name).read_text("utf-8"), text))
        for content in (before, after):
            for group in content["groups"]:
                for rule in group["rules"]:
                    rule.get("annotations", {}).pop("description", None)
        assert before == after


def test_promtool_accepts_the_files_without_a_remark() -> None:
    """Lint included: duplicate rules are an error too."""
    command = [require_tool("promtool"), "check", "rules", "--lint-fatal", *(str(RULES / name) for name in FILES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule.get("alert", rule.get("record"))))
def test_a_second_parser_understands_every_expression_and_every_series_in_it_exists(rule: dict[str, Any]) -> None:
    """Names, labels and label values come from the metric table or from the short list above."""
    where = str(rule.get("alert", rule.get("record")))
    assert _check_series(rule["expr"], where) > 0
    known = TARGET_LABELS | {label for metric in BY_NAME.values() for label in metric.label_names}
    assert set(_groupings(rule["expr"])) <= known, where
    if "alert" in rule:
        queries = _annotation_queries(rule)
        assert len(queries) == rule["annotations"]["description"].count("| query"), (
            f"{where}: a query was not recognised"
        )
        for query in queries:
            _check_series(query, f"{where}: description")


@pytest.mark.parametrize("alert", BY_ALERT)
def test_every_alert_says_how_bad_it_is_what_happens_and_where_to_read_on(alert: str) -> None:
    """Severity, summary, description, runbook and dashboard; a `for`, so that one evaluation never pages."""
    rule = BY_ALERT[alert]
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert rule["annotations"]["runbook_url"].endswith(f"/rules/runbooks/{alert}.md")
    assert rule["for"] != "0s"


def test_recording_rules_are_named_level_metric_operations() -> None:
    """Three parts; the level names the labels that remain."""
    for rule in rules():
        if "record" not in rule:
            continue
        level, metric, operations = rule["record"].split(":")
        assert metric.startswith(PREFIX)
        assert level in ("engine", "model", "model_cause")
        assert operations
        kept = {"model": "by (model_name)", "model_cause": "by (model_name, cause)"}.get(level)
        assert kept is None or kept in rule["expr"], rule["record"]


@pytest.mark.parametrize("alert", BY_ALERT)
def test_every_alert_has_a_runbook_with_commands_to_paste(alert: str) -> None:
    """Meaning, Impact, Diagnosis, Mitigation; its queries parse and name series that exist."""
    text = (RULES / "runbooks" / f"{alert}.md").read_text("utf-8")
    assert text.startswith(f"# {alert}\n")
    assert tuple(re.findall(r"^## (.+)$", text, re.M)) == SECTIONS
    diagnosis = text.split("## Diagnosis")[1].split("## Mitigation")[0]
    blocks = _CODE_BLOCK.findall(diagnosis)
    assert {language for language, _ in blocks} >= {"promql", "sh"}, f"{alert}: no query or no command"
    for language, block in _CODE_BLOCK.findall(text):
        if language != "promql":
            continue
        for query in re.sub(r"^#.*$", "", block, flags=re.M).strip().split("\n\n"):
            _check_series(query.replace("$INSTANCE", "i").replace("$POD", "p"), f"{alert}.md")
    assert len(text.splitlines()) <= 80, "a runbook is read at night: keep it short"


@pytest.mark.parametrize("alert", BY_ALERT)
def test_what_a_runbook_asks_the_sidecar_for_is_in_its_answer(alert: str) -> None:
    """Keys of /api/v1/snapshot as jq is told them; the flags given to `serve` reach no other command in the pod."""
    text = (RULES / "runbooks" / f"{alert}.md").read_text("utf-8")
    asked = {key.strip() for keys in re.findall(r"snapshot \| jq '\{(.+?)\}'", text) for key in keys.split(",")}
    assert asked <= set(snapshot_json(first_snapshot(), 0.0)), alert
    assert "-- stepscope" not in text


def test_runbooks_readme_and_docs_name_exactly_the_alerts_that_exist() -> None:
    """Nothing is forgotten, nothing outlives its alert; severity and `for` in the tables are those of the rules."""
    assert {path.stem for path in (RULES / "runbooks").glob("*.md")} == set(BY_ALERT)
    for page, prefix in ((RULES / "README.md", "runbooks"), (REPOSITORY / "docs" / "alerts.md", "../rules/runbooks")):
        rows = re.findall(r"^\| \[(Stepscope\w+)\]\((.+?)\) \| (\w+) \| (\w+) \|", page.read_text("utf-8"), re.M)
        assert [row[0] for row in rows] == list(BY_ALERT), page.name
        for alert, link, severity, hold in rows:
            assert link == f"{prefix}/{alert}.md"
            assert (severity, hold) == (BY_ALERT[alert]["labels"]["severity"], BY_ALERT[alert]["for"]), alert


def test_readme_lists_every_recording_rule() -> None:
    """As it is recorded."""
    text = (RULES / "README.md").read_text("utf-8")
    records = [rule["record"] for rule in rules() if "record" in rule]
    assert re.findall(r"^\| `(\w+:\w+:\w+)` \|", text, re.M) == records


def test_every_threshold_is_used_and_says_where_it_comes_from(tmp_path: Path) -> None:
    """No number without a source, none that nothing reads; an unknown name in a template is an error that names it."""
    generate = _generator()
    values = generate.thresholds()
    templates = "".join((RULES / "templates" / name).read_text("utf-8") for name in FILES)
    assert set(re.findall(r"<<(\w+)>>", templates)) == set(values)
    with pytest.raises(ValueError, match="no threshold called nonsense"):
        generate.rendered("<<nonsense>>", values)
    (tmp_path / "t.yaml").write_text("share: {value: 1, meaning: x}\n", "utf-8")
    with pytest.raises(ValueError, match=r"t\.yaml: share has no source"):
        generate.thresholds(tmp_path / "t.yaml")
