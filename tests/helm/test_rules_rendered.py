"""Rules and Prometheus configuration as the chart renders them, through the real promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from helm_charts import of_kind, rendered
from tools import require_tool


def promtool(*arguments: str) -> str:
    """What promtool says; an AssertionError with it where the status is not 0."""
    result = subprocess.run(
        [require_tool("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("sets", [(), ("prometheusRule.absent=true", "prometheusRule.thresholds.drift_ratio=0.3")])
def test_rendered_rules_pass_promtool(tmp_path: Path, sets: tuple[str, ...]) -> None:
    """The operator hands `.spec` to Prometheus as a rule file; lint faults are fatal."""
    (rule,) = of_kind(rendered("", "prometheusRule.enabled=true", *sets), "PrometheusRule")
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(rule["spec"]), "utf-8")
    assert "SUCCESS" in promtool("check", "rules", "--lint-fatal", str(path))


def test_the_quickstart_prometheus_configuration_passes_promtool(tmp_path: Path) -> None:
    """With the rule file that it names, moved to where the test can write."""
    (config,) = [item for item in of_kind(rendered("quickstart"), "ConfigMap") if "prometheus.yml" in item["data"]]
    text = config["data"]["prometheus.yml"].replace("/etc/prometheus/rules.yml", str(tmp_path / "rules.yml"))
    (tmp_path / "rules.yml").write_text(config["data"]["rules.yml"], "utf-8")
    (tmp_path / "prometheus.yml").write_text(text, "utf-8")
    assert "1 rule files found" in promtool("check", "config", str(tmp_path / "prometheus.yml"))
    (target,) = yaml.safe_load(text)["scrape_configs"][0]["static_configs"][0]["targets"]
    services = {item["metadata"]["name"]: item for item in of_kind(rendered("quickstart"), "Service")}
    host, _, port = target.partition(":")
    assert int(port) in [item["port"] for item in services[host]["spec"]["ports"]]
