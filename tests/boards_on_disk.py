"""The dashboards as they are committed, and the code that makes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from shared_data import REPOSITORY

GRAFANA = REPOSITORY / "grafana"
sys.path.insert(0, str(GRAFANA))

FILES = ("stepscope-engine.json", "stepscope-fleet.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# What Grafana would put in; intervals short enough for a test of half a minute.
VARIABLES = {
    "namespace": ".*", "pod": ".*", "instance": ".*", "model_name": ".*", "engine": ".*",
    "__rate_interval": "8s", "__range": "20s", "scrape_interval": "1s",
}  # fmt: skip


def board(name: str) -> dict[str, Any]:
    """One committed dashboard."""
    document: dict[str, Any] = json.loads((GRAFANA / name).read_text(encoding="utf-8"))
    return document


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    """All panels, those of rows included, rows left out."""
    flat = [inner for panel in document["panels"] for inner in (panel, *panel.get("panels", []))]
    return [panel for panel in flat if panel["type"] != "row"]


def expressions(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every target and annotation."""
    for panel in panels(document):
        for target in panel.get("targets", []):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for annotation in document["annotations"]["list"]:
        if "expr" in annotation:
            yield f"annotation {annotation['name']}", annotation["expr"]


def filled(expr: str, **values: str) -> str:
    """The query with its variables replaced, longest names first."""
    chosen = {**VARIABLES, **values}
    for name in sorted(chosen, key=len, reverse=True):
        expr = expr.replace(f"${name}", chosen[name])
    return expr
