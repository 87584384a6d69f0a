"""Renders charts with the real helm and gives the objects; goldens are compared without what others decide."""

from __future__ import annotations

import difflib
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared_data import REPOSITORY
from stepscope import __version__
from tools import require_tool

CHART = REPOSITORY / "helm" / "stepscope"
GOLDEN = REPOSITORY / "tests" / "helm" / "golden"
CI_VALUES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
NAMESPACE = "monitoring"
WRITE_VARIABLE = "WRITE_GOLDEN"  # set: goldens are written instead of compared

Object = dict[str, Any]


def run_helm(*arguments: str, program: str = "helm") -> subprocess.CompletedProcess[str]:
    """A finished helm run, whatever its status; bounded."""
    # Helm keeps caches and settings of its user; a test must not see them.
    environment = {**os.environ, "HELM_NO_PLUGINS": "1", "HELM_CONFIG_HOME": "/nonexistent"}
    command = [require_tool(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


@cache
def rendered_text(name: str, *sets: str, program: str = "helm", chart: Path = CHART) -> str:
    """What `helm template` prints for one ci file ("" for none) and `--set` arguments."""
    arguments = ["template", "stepscope", str(chart), "--namespace", NAMESPACE]
    if name:
        arguments += ["--values", str(chart / "ci" / f"{name}-values.yaml")]
    for item in sets:
        arguments += ["--set", item]
    result = run_helm(*arguments, program=program)
    assert result.returncode == 0, result.stderr
    return result.stdout


def rendered(name: str, *sets: str, program: str = "helm", chart: Path = CHART) -> list[Object]:
    """The objects, in the order of their kind and name."""
    found = [item for item in yaml.safe_load_all(rendered_text(name, *sets, program=program, chart=chart)) if item]
    return sorted(found, key=lambda item: (item["kind"], item["metadata"]["name"]))


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Those of one kind."""
    return [item for item in objects if item["kind"] == kind]


def pod_specs(objects: list[Object]) -> list[Object]:
    """The pod specifications of all Deployments."""
    return [item["spec"]["template"]["spec"] for item in of_kind(objects, "Deployment")]


def sidecar_of(pod: Object) -> Object:
    """The container called stepscope of a pod specification, from whichever list it is in."""
    containers = pod["containers"] + pod.get("initContainers", [])
    (found,) = [container for container in containers if container["name"] == "stepscope"]
    return dict(found)


def without_foreign(text: str) -> str:
    """Text with the version as a word, so that a release changes no golden."""
    return text.replace(__version__, "VERSION")


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file, or write it where WRITE_GOLDEN is set (`make chart-golden`)."""
    path = GOLDEN / name
    if os.environ.get(WRITE_VARIABLE):
        path.write_text(text, "utf-8")
    if not path.exists():
        pytest.fail(f"{path.name} is missing; make chart-golden writes it")
    golden = path.read_text("utf-8")
    lines = difflib.unified_diff(golden.splitlines(), text.splitlines(), "golden", "rendered", lineterm="", n=2)
    difference = "\n".join(lines)
    assert golden == text, f"{name} differs; if that is right, make chart-golden writes it anew\n{difference}"
