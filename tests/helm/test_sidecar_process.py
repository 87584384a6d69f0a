"""Rendered command lines, started as they are: user 65532, no capability, read-only root, a simulated engine beside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helm_charts import pod_specs, rendered, sidecar_of
from injected_pods import injected_arguments
from tools import REQUIRE_VARIABLE

DRIVER = Path(__file__).with_name("pod_driver.py")


def play(arguments: list[str], *, engine_port: int, port: int, wait_for: str) -> dict[str, Any]:
    """What came of a pod with this sidecar (pod_driver.py)."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        reason = "needs root, unshare and setpriv to give a process its own mounts and user"
        if os.environ.get(REQUIRE_VARIABLE):
            pytest.fail(reason)
        pytest.skip(reason)
    pod = {"arguments": arguments, "engine_port": engine_port, "port": port, "wait_for": wait_for}
    command = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, str(DRIVER), json.dumps(pod)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_the_quickstart_sidecar_runs_as_rendered_and_predicts() -> None:
    """No setting is refused, nothing is written, the page has a prediction, SIGTERM ends it well."""
    (engine,) = [spec for spec in pod_specs(rendered("quickstart")) if "initContainers" in spec]
    came = play(sidecar_of(engine)["args"], engine_port=8000, port=10094, wait_for="stepscope_predicted_step_seconds{")
    assert "stepscope_config_ok 1" in came["page"], came["log"]
    assert "stepscope_engine_up 1" in came["page"]
    assert "stepscope_predicted_step_seconds{" in came["page"], came["log"]
    assert came["healthy"]
    assert came["writable"] == []
    assert came["exit_status"] == 0
    assert "Traceback" not in came["log"]


def test_a_sidecar_with_every_annotation_wrong_runs_and_says_so() -> None:
    """It must not crash-loop: that would make the engine's pod unready. It watches the default address meanwhile."""
    arguments = injected_arguments("bad-annotations")
    came = play(arguments, engine_port=8000, port=10094, wait_for="stepscope_engine_up 1")
    assert "stepscope_config_ok 0" in came["page"], came["log"]
    assert "stepscope_engine_up 1" in came["page"], came["log"]
    for name in ("--engine.url", "stepscope.io/port-is-no-port", "--hardware.count", "--sample.intervall", "fast"):
        assert name in came["log"], name
    assert came["exit_status"] == 0


def test_a_sidecar_with_every_annotation_right_listens_where_it_was_told() -> None:
    """Another engine port, another own port; the calibration that is not there is reported, not fatal."""
    arguments = injected_arguments("good-annotations")
    came = play(arguments, engine_port=8080, port=9100, wait_for="stepscope_engine_up 1")
    assert "stepscope_engine_up 1" in came["page"], came["log"]
    assert "calibration.yaml" in came["log"]
    assert came["exit_status"] == 0
