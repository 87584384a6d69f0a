"""What the real helm makes of the chart, for every values file of ci/."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from helm_charts import (
    CHART,
    CI_VALUES,
    check_golden,
    of_kind,
    pod_specs,
    rendered,
    rendered_text,
    run_helm,
    sidecar_of,
    without_foreign,
)
from shared_data import REPOSITORY

SWITCHES = ("podMonitor.enabled=true", "prometheusRule.enabled=true", "dashboards.enabled=true")


def golden_view(name: str) -> str:
    """The rendered objects without the rules and dashboards, which are made and tested elsewhere."""
    objects: list[dict[str, Any]] = []
    for item in rendered(name):
        if item["kind"] == "PrometheusRule":
            item["spec"]["groups"] = "rules/"
        elif item["kind"] == "ConfigMap":
            if "-dashboard-" in item["metadata"]["name"]:
                continue
            item["data"] = {key: "rules/" if key == "rules.yml" else text for key, text in item["data"].items()}
        elif item["kind"] == "Deployment":
            item["spec"]["template"]["metadata"].get("annotations", {}).pop("checksum/config", None)
            for volume in item["spec"]["template"]["spec"].get("volumes", []):
                if volume["name"] == "dashboards":
                    volume["projected"]["sources"] = "grafana/"
        objects.append(item)
    return without_foreign(yaml.safe_dump_all(objects, sort_keys=True, width=160))


@pytest.mark.parametrize("name", CI_VALUES)
def test_each_values_file_renders_as_its_golden_says(name: str) -> None:
    """A changed template shows here what it changes for an operator."""
    check_golden(f"{name}.yaml", golden_view(name))


@pytest.mark.parametrize("name", CI_VALUES)
def test_helm_3_renders_the_same_as_helm_4(name: str) -> None:
    """Both are in use; they differ in blank lines only."""
    assert rendered(name, program="helm3") == rendered(name)


@pytest.mark.parametrize(
    ("name", "program"), [*((name, "helm") for name in ("", *CI_VALUES)), ("secured", "helm3"), ("quickstart", "helm3")]
)
def test_lint_has_nothing_to_say(name: str, program: str) -> None:
    """--strict makes every warning an error; the beta API is linted for a version that has it."""
    values = ["--values", str(CHART / "ci" / f"{name}-values.yaml")] if name else []
    version = ["--kube-version", "1.35.0"] if name == "injection-v1beta1" else []
    result = run_helm("lint", "--strict", "--quiet", str(CHART), *values, *version, program=program)
    assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_is_rendered_until_something_is_switched_on() -> None:
    """As a dependency of another chart it must bring its template and no object."""
    assert rendered("") == []


def test_operator_objects_come_only_when_asked_for_and_need_no_cluster_to_render() -> None:
    """A Capabilities gate would drop them in an offline `helm template`, silently."""
    assert {item["kind"] for item in rendered("", *SWITCHES)} <= {"PodMonitor", "PrometheusRule", "ConfigMap"}
    assert {"PodMonitor", "PrometheusRule"} <= {item["kind"] for item in rendered("", *SWITCHES)}
    for template in sorted((CHART / "templates").iterdir()):
        text = template.read_text("utf-8")
        assert [word for word in (".Capabilities", "lookup ") if word in text] == [], template.name


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("podmonitor.enabled=true", "podmonitor"),
        ("injection.enabeld=true", "enabeld"),
        ("settings.model.di=x", "di"),
        ("settings.modle.id=x", "modle"),
        ("settings.web.listen-address=:1", "web"),
        ("injection.apiVersion=v1alpha1", "apiVersion"),
        ("image.digest=latest", "digest"),
        ("web.port=70000", "port"),
        ("web.host=127.0.0.1", "host"),
        ("resources.limits.cpus=1", "cpus"),
        ("resources.limits.memory=128MiB", "memory"),
        ("fullnameOverride=vllm", "fullnameOverride"),
        ("prometheusRule.thresholds.drift=1", "drift"),
        ("podMonitor.interval=15 seconds", "interval"),
        ("standalone.engines[0].name=a,standalone.engines[0].url=chat:8000", "url"),
    ],
)
def test_a_mistake_in_the_values_fails_and_is_named(setting: str, complaint: str) -> None:
    """A typo that is ignored is found when the alert did not fire."""
    result = run_helm("template", "stepscope", str(CHART), "--set", setting)
    assert result.returncode != 0
    assert complaint in result.stderr


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            "standalone.engines[0].name=a,standalone.engines[0].url=http://a:1,hfCache.volume=hf",
            'hfCache.volume: a standalone pod has no volume "hf"; add it to extraVolumes',
        ),
        ("injection.enabled=true,hfCache.volume=hf", "use modelVolume of the target"),
        ("prometheusRule.thresholds.drift_ratio=1", "prometheusRule.enabled is false"),
        ("prometheusRule.disabled[0]=StepscopeDrit", 'there is no alert "StepscopeDrit"'),
        ("podMonitor.enabled=true,podMonitor.interval=1m,podMonitor.scrapeTimeout=1m30s", "longer than the interval"),
        ("networkPolicy.enabled=true,quickstart.enabled=true", "standalone.engines is empty"),
        ("quickstart.enabled=true,web.configSecret=web", "quickstart.monitoring.enabled=false"),
        ("quickstart.enabled=true,dashboards.namespace=other", "quickstart.monitoring.enabled=false"),
    ],
)
def test_values_that_contradict_each_other_fail_with_the_remedy(settings: str, complaint: str) -> None:
    """A pod that names a volume it has not would never start."""
    result = run_helm("template", "stepscope", str(CHART), "--set", settings)
    assert result.returncode != 0
    assert complaint in result.stderr


@pytest.mark.parametrize("release", ["vllm", "vllm-prod", "stepscope"])
def test_no_service_sets_vllm_variables_in_other_pods(release: str) -> None:
    """Kubernetes makes VLLM_PORT of a Service called vllm, and vLLM does not start with it."""
    arguments = ("template", release, str(CHART), "--values", str(CHART / "ci" / "quickstart-values.yaml"))
    result = run_helm(*arguments)
    names = [item["metadata"]["name"] for item in yaml.safe_load_all(result.stdout) if item["kind"] == "Service"]
    assert len(names) == 3
    assert all(name.startswith("stepscope") for name in names)


def test_braces_of_rules_survive_rendering() -> None:
    """Helm must not take Prometheus' own {{ $labels }} for a template."""
    text = rendered_text("monitoring")
    assert "{{ $labels.model_name }}" in text
    assert "<<" not in text


def test_dashboards_arrive_as_they_were_committed() -> None:
    """Legends like {{pod}} and every other byte, each in a ConfigMap that Grafana's sidecar finds."""
    committed = {path.name: json.loads(path.read_text("utf-8")) for path in (REPOSITORY / "grafana").glob("*.json")}
    config_maps = of_kind(rendered("monitoring"), "ConfigMap")
    assert {key: json.loads(text) for item in config_maps for key, text in item["data"].items()} == committed
    for item in config_maps:
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"] == {"grafana_folder": "Inference"}
        assert item["metadata"]["namespace"] == "monitoring"


def test_thresholds_and_switched_off_alerts_reach_the_rules() -> None:
    """The operator's value is in the rules, the unwanted alert is gone, routing labels are on the rest."""
    (rule,) = of_kind(rendered("", *SWITCHES), "PrometheusRule")
    (own,) = of_kind(rendered("monitoring"), "PrometheusRule")

    def alerts(item: dict[str, Any]) -> dict[str, Any]:
        return {rule["alert"]: rule for group in item["spec"]["groups"] for rule in group["rules"] if "alert" in rule}

    values = yaml.safe_load((CHART / "ci" / "monitoring-values.yaml").read_text("utf-8"))["prometheusRule"]
    assert set(alerts(rule)) - set(alerts(own)) == set(values["disabled"])
    assert "StepscopeAbsent" in set(alerts(own)) - set(alerts(rule))
    assert all(item["labels"]["team"] == "inference" for item in alerts(own).values())
    shown = yaml.safe_dump(own)
    assert "https://grafana.example.org/d/stepscope-engine" in shown
    assert "grafana.example.com" not in shown


def test_shipped_thresholds_give_the_shipped_rules() -> None:
    """The chart fills the same templates as rules/generate.py: without values of one's own both say the same."""
    (rule,) = of_kind(rendered("", *SWITCHES), "PrometheusRule")
    shipped: list[dict[str, Any]] = []
    for name in ("recording.yaml", "alerts.yaml"):
        # Helm knows one kind of number: 2.0 becomes 2, which PromQL reads alike.
        text = re.sub(r"(?<![\d.])(\d+)\.0(?![\d.])", r"\1", (REPOSITORY / "rules" / name).read_text("utf-8"))
        shipped += yaml.safe_load(text)["groups"]
    assert rule["spec"]["groups"] == shipped


def test_a_sidecar_may_not_be_closed_off_by_a_network_policy() -> None:
    """It would select the engine's pod and close the engine's port, so standalone pods alone are selected."""
    (policy,) = of_kind(rendered("standalone"), "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "standalone"


@pytest.mark.parametrize("name", ["standalone", "secured", "quickstart", "openshift"])
def test_every_sidecar_is_locked_down_and_small(name: str) -> None:
    """Pod Security "restricted", no readiness that could hold the engine's pod, requests equal to limits."""
    specs = [spec for spec in pod_specs(rendered(name)) if "stepscope/stepscope" in json.dumps(spec)]
    assert specs
    for spec in specs:
        sidecar = sidecar_of(spec)
        security = sidecar["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["allowPrivilegeEscalation"] is False
        assert security.get("runAsUser") == (None if name == "openshift" else 65532)
        assert sidecar["resources"]["requests"] == sidecar["resources"]["limits"]
        assert "livenessProbe" in sidecar
        assert {"readinessProbe", "startupProbe"} & set(sidecar) == set()
        assert spec["automountServiceAccountToken"] is False


def test_only_a_native_sidecar_has_a_restart_policy_of_its_own() -> None:
    """In `containers` most versions of Kubernetes refuse the field."""
    (engine,) = [spec for spec in pod_specs(rendered("quickstart")) if "initContainers" in spec]
    assert sidecar_of(engine)["restartPolicy"] == "Always"
    assert all("restartPolicy" not in sidecar_of(spec) for spec in pod_specs(rendered("standalone")))


def test_large_whole_numbers_stay_whole() -> None:
    """Helm reads numbers as floats and would print 3.3554432e+07, which is no count of bytes."""
    arguments = [argument for spec in pod_specs(rendered("standalone")) for argument in sidecar_of(spec)["args"]]
    assert "--engine.max-page-bytes=33554432" in arguments
    assert "--model.weight-bytes=16400000000" in arguments
    assert "--objective.headroom=0.85" in arguments


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "injection",
            ["kubectl label namespace", "rollout restart", "port-forward POD 10094", "stepscope.io/injected"],
        ),
        ("standalone", ["Watching http://chat-engine", "port-forward deployment/stepscope-chat"]),
        ("quickstart", ["stepscope check", "--hardware.gpu=H100-SXM", "3000/dashboards", "9090/alerts"]),
        ("monitoring", ["podMonitorSelector", "--show-labels"]),
    ],
)
def test_notes_tell_the_next_command_and_how_to_see_that_it_works(name: str, words: list[str]) -> None:
    """An operator reads them once, right after the install."""
    values = str(CHART / "ci" / f"{name}-values.yaml")
    result = run_helm("install", "stepscope", str(CHART), "--dry-run=client", "-n", "monitoring", "-f", values)
    notes = result.stdout.partition("NOTES:")[2]
    assert [word for word in words if word not in notes] == []
