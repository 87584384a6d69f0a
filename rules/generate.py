"""Write alerts.yaml, alerts-absent.yaml and recording.yaml from templates/.

`<<name>>` in a template becomes the value of that threshold, and nothing else happens: the chart does the same with its
values. Run by `make rules`; with --check nothing is written, and a file out of step ends the run with status 1. With
--without-queries DIR the files go to DIR, their descriptions shortened to what needs no `query` in a template.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

RULES = Path(__file__).resolve().parent
FILES = ("alerts.yaml", "alerts-absent.yaml", "recording.yaml")
HEADER = (
    "# Written by generate.py from templates/{name} and templates/thresholds.yaml: change those and run `make rules`.\n"
)
_PLACEHOLDER = re.compile(r"<<(\w+)>>")


def thresholds(path: Path = RULES / "templates" / "thresholds.yaml") -> dict[str, str]:
    """Threshold values by name, as they stand in the rules. ValueError names an entry that is not complete."""
    values = {}
    for name, entry in yaml.safe_load(path.read_text("utf-8")).items():
        missing = {"value", "meaning", "source"} - set(entry)
        if missing:
            raise ValueError(f"{path.name}: {name} has no {', '.join(sorted(missing))}")
        values[name] = str(entry["value"])
    return values


def rendered(template: str, values: Mapping[str, str]) -> str:
    """The template with its placeholders filled. ValueError names a placeholder without a threshold."""
    unknown = sorted(set(_PLACEHOLDER.findall(template)) - set(values))
    if unknown:
        raise ValueError(f"no threshold called {', '.join(unknown)}")
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], template)


def render_all(values: Mapping[str, str]) -> dict[str, str]:
    """Text of each rule file by its name."""
    texts = {}
    for name in FILES:
        template = (RULES / "templates" / name).read_text("utf-8")
        texts[name] = HEADER.format(name=name) + rendered(template, values)
    return texts


def without_queries(text: str) -> str:
    """The rule file for evaluators whose templates cannot query, as Grafana's: each description becomes its summary."""
    content = yaml.safe_load(text)
    for group in content["groups"]:
        for rule in group["rules"]:
            annotations = rule.get("annotations", {})
            if "| query" in annotations.get("description", ""):
                annotations["description"] = annotations["summary"]
    return str(yaml.safe_dump(content, sort_keys=False, width=1000))


def main() -> int:
    """Write the files, or with --check compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is out of step")
    parser.add_argument("--without-queries", type=Path, metavar="DIR", help="write files for Grafana to DIR")
    arguments = parser.parse_args()
    check, other = arguments.check, arguments.without_queries
    if other is not None:
        other.mkdir(parents=True, exist_ok=True)
        for name, text in render_all(thresholds()).items():
            (other / name).write_text(without_queries(text), "utf-8")
        return 0
    stale = []
    for name, text in render_all(thresholds()).items():
        path = RULES / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, "utf-8")
    if check and stale:
        sys.stderr.write(f"rules: out of step with templates/: {', '.join(stale)}; run `make rules`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
