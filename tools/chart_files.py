"""Writes what the Helm chart takes from elsewhere: rules, dashboards, version, schema, and the tables of its README.

    python tools/chart_files.py [--check]

With --check nothing is written, and a file out of step ends the run with status 1. One source each: rules/templates,
grafana, exporter/stepscope/__init__.py, values.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import yaml
from chart_definitions import definitions
from chart_values import read_values, schema_of, table_of

from stepscope import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
CHART = REPOSITORY / "helm" / "stepscope"
THRESHOLDS = REPOSITORY / "rules" / "templates" / "thresholds.yaml"
BEGIN, END = "<!-- begin generated: `make chart-files` -->", "<!-- end generated -->"
MAX_DASHBOARD_BYTES = 1_000_000  # a ConfigMap holds at most 1 MiB (Kubernetes documentation, ConfigMaps)


def chart_yaml(text: str) -> str:
    """Chart.yaml with the package's version as both of its own."""
    text = re.sub(r"(?m)^version: .*$", f"version: {__version__}", text)
    return re.sub(r"(?m)^appVersion: .*$", f'appVersion: "{__version__}"', text)


def thresholds_table() -> str:
    """The thresholds of the rules as a Markdown table."""
    lines = ["| threshold | default | meaning |", "|---|---|---|"]
    for name, entry in yaml.safe_load(THRESHOLDS.read_text("utf-8")).items():
        lines.append(f"| `{name}` | `{entry['value']}` | {entry['meaning']} |")
    return "\n".join(lines)


def readme(text: str) -> str:
    """README.md with the tables between its marker lines made anew. ValueError without exactly one pair."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"helm/stepscope/README.md: needs one pair of the lines {BEGIN} and {END}")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    values = table_of(read_values(CHART / "values.yaml"))
    return f"{head}{BEGIN}\n\n{values}\n\n### Thresholds of the rules\n\n{thresholds_table()}\n\n{END}{tail}"


def guides() -> dict[Path, str]:
    """The deployment guides with the version of the image that they name."""
    image = re.compile(r"(?<=image: stepscope/stepscope:)[\w.+-]+")
    paths = sorted((REPOSITORY / "docs" / "deploy").glob("*.md"))
    return {path: image.sub(__version__, path.read_text("utf-8")) for path in paths}


def dashboards() -> dict[str, str]:
    """Committed dashboards by file name. ValueError names one that is no JSON or too large for a ConfigMap."""
    found = {}
    for path in sorted((REPOSITORY / "grafana").glob("*.json")):
        text = path.read_text("utf-8")
        try:
            json.loads(text)
        except ValueError as error:
            raise ValueError(f"grafana/{path.name}: not JSON: {error}") from None
        if len(text.encode()) > MAX_DASHBOARD_BYTES:
            raise ValueError(f"grafana/{path.name}: larger than a ConfigMap can hold")
        found[path.name] = text
    return found


def wanted() -> dict[Path, str]:
    """The right text of every file that this program writes."""
    files = {CHART / "Chart.yaml": chart_yaml((CHART / "Chart.yaml").read_text("utf-8"))}
    values = read_values(CHART / "values.yaml")
    schema = schema_of(values, definitions(THRESHOLDS), "Values of the stepscope chart")
    files[CHART / "values.schema.json"] = json.dumps(schema, indent=2) + "\n"
    files[CHART / "README.md"] = readme((CHART / "README.md").read_text("utf-8"))
    files |= guides()
    for path in sorted((REPOSITORY / "rules" / "templates").glob("*.yaml")):
        files[CHART / "files" / "rules" / path.name] = path.read_text("utf-8")
    for name, text in dashboards().items():
        files[CHART / "files" / "dashboards" / name] = text
    return files


def main() -> int:
    """Write or compare. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Write what the Helm chart takes from elsewhere.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is out of step")
    check = parser.parse_args().check
    try:
        files = wanted()
    except ValueError as error:
        sys.stderr.write(f"chart files: {error}\n")
        return 1
    present = {path for path in (CHART / "files").rglob("*") if path.is_file()}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    stale += sorted(present - set(files))
    if check and stale:
        names = ", ".join(str(path.relative_to(REPOSITORY)) for path in stale)
        sys.stderr.write(f"chart files: out of step: {names}; run `make chart-files`\n")
        return 1
    if not check:
        for path in present - set(files):
            path.unlink()
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
