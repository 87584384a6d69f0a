"""The committed dashboards load anywhere, say what they show, and ask only for series that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import combinations
from typing import Any

import promql_parser
import pytest
import yaml

from boards_on_disk import FILES, GRAFANA, SOURCE, board, expressions, filled, panels
from shared_data import REPOSITORY
from stepscope import metrics

SERIES = {metric.full_name: metric for metric in metrics.TABLE}
ADDED_BY_SCRAPING = {"namespace", "pod", "instance", "job"}


@pytest.fixture(params=FILES)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each dashboard in turn."""
    return board(request.param)


def walk(node: Any) -> Any:
    """Every dictionary in a document."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def test_the_committed_files_are_what_the_code_makes() -> None:
    """`make dashboards` would change nothing."""
    run = subprocess.run(
        [sys.executable, str(GRAFANA / "generate.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_a_changed_file_is_reported_by_name(tmp_path: Any) -> None:
    """--check fails for a file out of step and leaves it alone."""
    for name in ("boards", "generate.py", *FILES):
        (tmp_path / name).symlink_to(GRAFANA / name) if name == "boards" else (tmp_path / name).write_bytes(
            (GRAFANA / name).read_bytes()
        )
    (tmp_path / FILES[0]).write_text("{}")
    run = subprocess.run(
        [sys.executable, str(tmp_path / "generate.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 1
    assert run.stderr == f"grafana: out of step with the code: {FILES[0]} (run make dashboards)\n"
    assert (tmp_path / FILES[0]).read_text() == "{}"


def test_the_uids_are_fixed_and_differ() -> None:
    """Alerts, bookmarks and links point at them."""
    assert [board(name)["uid"] for name in FILES] == [name.removesuffix(".json") for name in FILES]


def test_the_data_source_is_a_variable_everywhere(document: dict[str, Any]) -> None:
    """In panels, targets, variables and annotations; no import placeholder, no uid of somebody's Grafana."""
    text = json.dumps(document)
    assert "__inputs" not in text
    assert "__requires" not in text
    first = document["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    for panel in panels(document):
        assert panel["datasource"] == SOURCE, panel["title"]
        assert all(target["datasource"] == SOURCE for target in panel.get("targets", [])), panel["title"]
    for variable in document["templating"]["list"]:
        assert variable["type"] != "query" or variable["datasource"] == SOURCE, variable["name"]
    queried = [a for a in document["annotations"]["list"] if not a.get("builtIn")]
    assert queried
    assert all(annotation["datasource"] == SOURCE for annotation in queried)
    uids = {node["uid"] for node in walk(document) if "uid" in node and node is not document}
    assert uids <= {"${datasource}", "-- Grafana --"}


def test_the_variables_offer_all_and_find_series_without_the_label(document: dict[str, Any]) -> None:
    """A Prometheus outside a cluster adds no pod and no namespace."""
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    for name in ("namespace", "pod", "instance", "model_name", "engine"):
        assert variables[name]["includeAll"] is True
        assert variables[name]["allValue"] == ".*"


def test_every_panel_has_a_title_a_description_and_a_unit(document: dict[str, Any]) -> None:
    """Nobody has to guess."""
    for panel in panels(document):
        assert panel["title"], panel
        assert len(panel["description"]) > 15, panel["title"]
        assert panel["type"] == "text" or panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    titles = [panel["title"] for panel in panels(document)]
    assert len(set(titles)) == len(titles)
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


def test_panels_do_not_overlap_and_stay_on_the_grid(document: dict[str, Any]) -> None:
    """Grafana would push them around."""
    places = [(panel["title"], panel["gridPos"]) for panel in document["panels"]]
    for title, place in places:
        assert place["x"] >= 0, title
        assert place["x"] + place["w"] <= 24, title
    for (title, a), (other, b) in combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], f"{title} overlaps {other}"


def test_every_query_parses_and_names_only_series_and_labels_of_the_metric_table(document: dict[str, Any]) -> None:
    """A renamed series or label must not leave an empty panel behind."""
    for where, expr in expressions(document):
        promql_parser.parse(filled(expr))
        found = re.findall(r"\b(ALERTS|[a-z_]*stepscope_[a-z0-9_]+)\{([^}]*)\}", expr)
        assert found, where
        assert len(found) == len(re.findall(r"\bALERTS|stepscope_[a-z]", expr)), f"{where}: a series without selection"
        for name, selection in found:
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selection))
            assert {"namespace", "pod", "instance"} <= labels, f"{where}: not templated"
            if name == "ALERTS":
                continue
            assert name in SERIES, where
            assert labels <= {*SERIES[name].label_names, *ADDED_BY_SCRAPING}, where
            assert not SERIES[name].per_engine or {"model_name", "engine"} <= labels, f"{where}: not templated"
            for label, value in re.findall(r'(\w+)="(\w+)"', selection):
                assert not SERIES[name].values or value in SERIES[name].values, f"{where}: {label}={value}"


def test_counters_are_under_a_rate_and_gauges_are_not(document: dict[str, Any]) -> None:
    """Over the interval that Grafana chooses for the data source, never over a fixed one."""
    for where, expr in expressions(document):
        for name, window in re.findall(r"\b(stepscope_\w+)\{[^}]*\}(\[[^]]*\])?", expr):
            if SERIES[name].kind == "counter":
                assert window in ("[$__rate_interval]", "[$__range]"), where
            else:
                assert window == "", where


def test_every_query_that_is_written_is_shown() -> None:
    """And nothing is shown that is not written there, so that the PromQL can be reviewed alone."""
    from boards import queries  # found through boards_on_disk

    single = [value for value in vars(queries).values() if isinstance(value, queries.Query)]
    written = {query.expr for query in (*single, *queries.COMPONENTS)}
    shown = {expr for name in FILES for _, expr in expressions(board(name))}
    assert shown == written


def test_links_fill_in_variables_that_the_target_has() -> None:
    """From the table of pods, and from the alerts, into the board of one engine."""
    known = {f"var-{variable['name']}" for variable in board(FILES[0])["templating"]["list"]}
    rules = yaml.safe_load((REPOSITORY / "rules" / "alerts.yaml").read_text())
    urls = [rule["annotations"].get("dashboard_url", "") for group in rules["groups"] for rule in group["rules"]]
    urls += [node["url"] for node in walk(board(FILES[1])) if str(node.get("url", "")).startswith("/d/")]
    into = [url for url in urls if f"/d/{board(FILES[0])['uid']}" in url]
    assert len(into) > 1
    for url in into:
        assert set(re.findall(r"[?&](var-\w+)=", url)) <= known, url


def test_what_matters_first_fits_on_one_screen() -> None:
    """Slow or not, against what, why and what to do stand above the fold of a full-HD screen (18 rows of the grid)."""
    first = [p["title"] for p in panels(board(FILES[0])) if p["gridPos"]["y"] + p["gridPos"]["h"] <= 18]
    for title in ("Why now", "Measured", "Predicted", "Inter-token latency: measured against predicted",
                  "Why, over time", "How to read this"):  # fmt: skip
        assert title in first
