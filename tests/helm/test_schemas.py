"""Every rendered object against the schemas of Kubernetes and of the Prometheus operator."""

from __future__ import annotations

import copy
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types
from kubernetes_validate import utils as kubernetes  # type: ignore[import-untyped]  # ships no types
from referencing import Registry, Resource

from helm_charts import CI_VALUES, GOLDEN, rendered, rendered_text
from shared_data import shared_path
from tools import require_tool

# From native sidecars on by default (1.29) to the newest that the schemas know.
VERSIONS = sorted(
    {version for version in kubernetes.all_versions() if int(version.split(".")[1]) >= 29},
    key=lambda version: int(version.split(".")[1]),
)
OPERATOR_KINDS = {"PodMonitor": "podmonitors.yaml", "PrometheusRule": "prometheusrules.yaml"}
POLICY_KINDS = ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
# KEP-3962: v1beta1 from 1.34, v1 from 1.36.
FIRST_MINOR_OF_POLICY = {"admissionregistration.k8s.io/v1": 36, "admissionregistration.k8s.io/v1beta1": 34}


@cache
def definitions(version: str) -> Any:
    """What the schemas of one version refer to; large, so read once."""
    contents = kubernetes.schema_contents(f"kubernetes-json-schema/v{version}-local-strict/_definitions.json", version)
    return Resource.from_contents(contents)


@cache
def validator_of(kind: str, api_version: str, version: str) -> Draft202012Validator:
    """The strict schema of a kind: unknown fields are errors. FileNotFoundError for a kind that is not known."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)  # rbac.authorization.k8s.io/v1 -> rbac-v1
    name = f"kubernetes-json-schema/v{version}-local-strict/{kind.lower()}-{group}.json"
    schema = kubernetes.schema_contents(name, version)
    registry: Registry[Any] = definitions(version) @ (Resource.from_contents(schema) @ Registry())
    return Draft202012Validator(schema, registry=registry)


def faults_of(item: dict[str, Any], version: str) -> list[str]:
    """Path and reason of every fault. FileNotFoundError: an unknown kind is an error too, not a warning."""
    validator = validator_of(item["kind"], item["apiVersion"], version)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(item)]


def minor(version: str) -> int:
    """37 of "1.37.0"."""
    return int(version.split(".")[1])


def applicable(item: dict[str, Any], version: str) -> bool:
    """Whether an API server of that version has the kind."""
    if item["kind"] in POLICY_KINDS:
        return minor(version) >= FIRST_MINOR_OF_POLICY[item["apiVersion"]]
    return item["kind"] not in OPERATOR_KINDS


@cache
def operator_validator(kind: str) -> Draft202012Validator:
    """The schema of a custom resource, closed: what is not declared is an error, as with kubectl's own validation."""
    definition = yaml.safe_load(shared_path("data", "crds", OPERATOR_KINDS[kind]).read_text("utf-8"))
    (schema,) = [version["schema"]["openAPIV3Schema"] for version in definition["spec"]["versions"]]
    schema["properties"]["metadata"] = {"type": "object"}
    closed(schema["properties"]["spec"])
    return Draft202012Validator(schema)


def closed(node: Any) -> None:
    """Forbid undeclared properties wherever a schema declares some and does not ask to keep the unknown."""
    if isinstance(node, dict):
        if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
            node.setdefault("additionalProperties", False)
        for child in node.values():
            closed(child)
    elif isinstance(node, list):
        for child in node:
            closed(child)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_in_every_version_that_has_its_kind(version: str) -> None:
    """From the first Kubernetes with native sidecars to the newest."""
    checked = 0
    for name in CI_VALUES:
        for item in rendered(name):
            if applicable(item, version):
                assert faults_of(item, version) == [], (name, item["kind"], item["metadata"]["name"])
                checked += 1
    assert checked >= 10


@pytest.mark.parametrize("version", VERSIONS)
def test_injected_pods_are_valid(version: str) -> None:
    """The policy must never make a pod that the API server would refuse: that would hold up the engine."""
    pods = [item for item in yaml.safe_load_all((GOLDEN / "injected-pods.yaml").read_text("utf-8")) if item]
    assert len(pods) >= 10
    for pod in pods:
        pod.pop("status", None)
        # The API server fills in a name; resources of a pod as a whole are younger than 1.29.
        pod["metadata"]["name"] = pod["metadata"].pop("generateName", pod["metadata"].get("name", "")) + "x"
        if minor(version) < 32:
            pod["spec"].pop("resources", None)
        assert faults_of(pod, version) == [], pod["metadata"]


def test_the_schema_check_finds_what_it_should() -> None:
    """A check that cannot fail proves nothing."""
    (deployment, *_) = [item for item in rendered("standalone") if item["kind"] == "Deployment"]
    for path, key, value in (
        ((), "replicaz", 1),
        (("template", "spec", "containers", 0), "securityContxt", {}),
        ((), "replicas", "one"),
    ):
        broken = copy.deepcopy(deployment)
        node: Any = broken["spec"]
        for step in path:
            node = node[step]
        node[key] = value
        assert faults_of(broken, VERSIONS[-1]) != [], key
    with pytest.raises(FileNotFoundError):
        faults_of({**deployment, "kind": "Deploymnt"}, VERSIONS[-1])


@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_operator_objects_are_valid(kind: str) -> None:
    """Wrong keys, wrong durations and wrong references are found with their path."""
    validator = operator_validator(kind)
    objects = [item for name in CI_VALUES for item in rendered(name) if item["kind"] == kind]
    assert objects
    for item in objects:
        faults = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(item)]
        assert faults == [], item["metadata"]


def test_the_check_of_operator_objects_finds_what_it_should() -> None:
    """An interval in words, a key that does not exist."""
    validator = operator_validator("PodMonitor")
    (monitor, *_) = [item for item in rendered("standalone") if item["kind"] == "PodMonitor"]
    wrong_interval, wrong_key = copy.deepcopy(monitor), copy.deepcopy(monitor)
    wrong_interval["spec"]["podMetricsEndpoints"][0]["interval"] = "15 seconds"
    wrong_key["spec"]["podMetricsEndpoint"] = []
    assert validator.is_valid(monitor)
    assert not validator.is_valid(wrong_interval)
    assert not validator.is_valid(wrong_key)


@pytest.mark.parametrize("name", CI_VALUES)
def test_kubectl_reads_every_rendered_object(name: str, tmp_path: Path) -> None:
    """Without a cluster it can still parse them and change a label; each object must come out once."""
    path = tmp_path / "rendered.yaml"
    path.write_text(rendered_text(name), "utf-8")
    kubectl = [require_tool("kubectl"), "label", "--local", "--kubeconfig=/dev/null", "--filename", str(path)]
    result = subprocess.run(
        [*kubectl, "tried=yes", "--output=name"], capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    assert len(set(result.stdout.split())) == len(rendered(name))
