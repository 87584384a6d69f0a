"""The chart's generated files, and the one place where a version stands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helm_charts import CHART
from shared_data import REPOSITORY
from stepscope import __version__
from stepscope.settings import SETTINGS

TOOLS = REPOSITORY / "tools"


def test_rules_dashboards_schema_and_readme_are_in_step() -> None:
    """A changed rule, setting or value reaches the chart by one command; this says so when it was forgotten."""
    command = [sys.executable, str(TOOLS / "chart_files.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_package_and_chart_have_one_version() -> None:
    """The image's default tag is the chart's appVersion, so all three are the package's."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__
    assert yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["image"]["tag"] == ""


def test_the_schema_knows_every_setting_that_the_chart_does_not_set_itself() -> None:
    """A new setting is usable from the chart without a change to it."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))["$defs"]["settings"]
    missing = []
    for name, setting in SETTINGS.items():
        node = schema
        for part in name.split("."):
            node = node.get("properties", {}).get(part, {})
        by_chart = name.startswith("config.") or name in ("engine.url", "web.listen-address", "web.config.file")
        if bool(node) == (by_chart or not setting.in_file):
            missing.append(name)
    assert missing == []


def test_every_schema_reference_has_its_definition() -> None:
    """Helm would only complain about it when an operator uses that value."""
    text = (CHART / "values.schema.json").read_text("utf-8")
    used = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert used <= set(json.loads(text)["$defs"])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("other: 1", 'other has no "# -- " line above it'), ("group:\n  inner: 1", "group.inner has no")],
)
def test_a_value_without_its_line_is_refused(tmp_path: Path, line: str, complaint: str) -> None:
    """Undocumented means failing."""
    path = tmp_path / "values.yaml"
    path.write_text(f"# -- Known.\nknown: 1\n{line}\n", "utf-8")
    code = "import pathlib, sys; from chart_values import read_values; read_values(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(path)]
    result = subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, timeout=60, check=False)
    assert complaint in result.stderr
