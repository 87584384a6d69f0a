"""What the injection policy makes of pods, as the API server's own code evaluated it.

Golden pods come from tools/evaluate_policy, which takes minutes to build and therefore does not run everywhere. Each
golden file names the policy that it was made with; where the evaluator is in .tools/bin, it runs again here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm_charts import GOLDEN, WRITE_VARIABLE, of_kind, rendered, rendered_text, sidecar_of, without_foreign
from injected_pods import PODS, injected, injected_arguments, original
from shared_data import REPOSITORY

EVALUATOR = REPOSITORY / ".tools" / "bin" / "evaluate_policy"
GOLDENS = {"injected-pods.yaml": "injection", "injected-pods-secured.yaml": "secured"}
OLDEST_CEL = "1.34"  # the first beta of the API; v1 came with 1.36


def policy_digest(values: str) -> str:
    """SHA-256 of the rendered policies, the version left out: it appears in every pod and changes nothing."""
    policies = [item for item in rendered(values) if item["kind"].startswith("MutatingAdmissionPolicy")]
    text = without_foreign(yaml.safe_dump_all(policies, sort_keys=True))
    return hashlib.sha256(text.encode()).hexdigest()


def evaluated(values: str, folder: Path, kubernetes_version: str = "") -> str:
    """What tools/evaluate_policy prints for all pods; fails if an expression failed or a second pass changed a pod."""
    policy, namespace = folder / "policy.yaml", folder / "namespace.yaml"
    policy.write_text(rendered_text(values), "utf-8")
    labels = {"kubernetes.io/metadata.name": "inference", "stepscope.io/injection": "enabled"}
    metadata = {"name": "inference", "labels": labels}
    namespace.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}), "utf-8")
    command = [str(EVALUATOR), str(policy), str(namespace), *map(str, sorted(PODS.glob("*.yaml")))]
    environment = {**os.environ, "KUBERNETES_VERSION": kubernetes_version}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return without_foreign(result.stdout)


def quality_of_service(pod: dict[str, Any]) -> str:
    """The class of a pod from its containers' CPU and memory (Kubernetes, "Pod Quality of Service Classes")."""
    containers = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    seen = False
    guaranteed = True
    for container in containers:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        # A request that is not given is the limit.
        requests = {**limits, **(resources.get("requests") or {})}
        for kind in ("cpu", "memory"):
            seen = seen or kind in requests
            guaranteed = guaranteed and kind in limits and requests.get(kind) == limits[kind]
    return "Guaranteed" if guaranteed else "Burstable" if seen else "BestEffort"


@pytest.mark.parametrize(("golden", "values"), GOLDENS.items())
def test_the_golden_pods_were_made_with_the_present_policy(golden: str, values: str) -> None:
    """A changed policy needs its pods evaluated again, by the API server's code (tools/evaluate_policy/README.md)."""
    if os.environ.get(WRITE_VARIABLE):
        pytest.skip("goldens are being written")
    first = (GOLDEN / golden).read_text("utf-8").splitlines()[0]
    assert first == f"# policy: {policy_digest(values)}", "the policy changed: see tools/evaluate_policy/README.md"


@pytest.mark.parametrize(("golden", "values"), GOLDENS.items())
@pytest.mark.parametrize("version", ["", OLDEST_CEL])
def test_the_api_servers_code_makes_the_golden_pods(golden: str, values: str, version: str, tmp_path: Path) -> None:
    """With the newest CEL and with that of the first beta; twice over each pod, and the second time changes nothing."""
    if not EVALUATOR.exists():
        pytest.skip("evaluate_policy is not in .tools/bin (tools/evaluate_policy/README.md tells how to build it)")
    text = f"# policy: {policy_digest(values)}\n{evaluated(values, tmp_path, version)}"
    if os.environ.get(WRITE_VARIABLE):
        (GOLDEN / golden).write_text(text, "utf-8")
    assert (GOLDEN / golden).read_text("utf-8") == text


@pytest.mark.parametrize("name", ["opted-out", "has-it-already", "worker", "not-selected", "volume-taken"])
def test_a_pod_that_must_stay_as_it_is_does(name: str) -> None:
    """Opt-out, a sidecar of its own, a worker without metrics, a router, a volume in the way."""
    after, before = injected()[name], original(name)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]


@pytest.mark.parametrize("name", [path.stem for path in sorted(PODS.glob("*.yaml"))])
def test_nothing_that_was_there_is_changed(name: str) -> None:
    """The patch adds a label, volumes and one init container at the end; it takes nothing away."""
    after, before = injected()[name], original(name)
    assert after["spec"]["containers"] == before["spec"]["containers"]
    own_init = before["spec"].get("initContainers", [])
    assert after["spec"].get("initContainers", [])[: len(own_init)] == own_init
    own_volumes = before["spec"].get("volumes", [])
    assert after["spec"].get("volumes", [])[: len(own_volumes)] == own_volumes
    assert after["metadata"].get("annotations", {}) == before["metadata"].get("annotations", {})


def test_a_pod_of_vllms_chart_is_told_its_gpu_and_its_model_files() -> None:
    """The GPU from the node affinity, the model from the volume that the engine reads too, read-only."""
    sidecar = sidecar_of(injected()["vllm-chart"]["spec"])
    assert "--hardware.gpu=NVIDIA-H100-80GB-HBM3" in sidecar["args"]
    assert "--hardware.count=1" in sidecar["args"]
    assert "--model.config=/data" in sidecar["args"]
    assert {"mountPath": "/data", "name": "vllm-storage", "readOnly": True} in sidecar["volumeMounts"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["imagePullPolicy"] == "IfNotPresent"
    assert "@sha256:" in sidecar["image"]


def test_annotations_win_over_what_the_pod_and_the_chart_say() -> None:
    """The last of two equal flags counts, and the annotation's is the last."""
    stack = injected_arguments("production-stack")
    assert stack[-3:] == [
        "--hardware.count=2",
        "--model.id=meta-llama/Llama-3.1-8B-Instruct",
        "--objective.tokens-per-second=30",
    ]
    good = injected_arguments("good-annotations")
    assert "--engine.url=http://127.0.0.1:8080" in good
    assert "--web.listen-address=:9100" in good
    assert "--hardware.count=2" in good
    assert good[-1] == "--kv.capacity-tokens=377000"


def test_an_engine_behind_a_routing_proxy_is_read_directly() -> None:
    """llm-d's decode pods have the proxy on 8000 and the engine on 8200; prefill pods have no proxy."""
    assert "--engine.url=http://127.0.0.1:8200" in injected_arguments("llm-d-decode")
    assert "--engine.url=http://127.0.0.1:8000" in injected_arguments("llm-d-prefill")
    assert [item["name"] for item in injected()["llm-d-decode"]["spec"]["initContainers"]][-1] == "stepscope"
    assert "--engine.url=https://127.0.0.1:8000" in injected_arguments("kserve-llm")
    assert "--engine.url=https://127.0.0.1:8001" in injected_arguments("kserve-llm-decode")
    assert "--engine.url=http://127.0.0.1:8080" in injected_arguments("kserve-predictor")


@pytest.mark.parametrize(
    ("name", "port"),
    [("host-network", 10095), ("port-taken", 10095), ("good-annotations", 9100), ("bad-annotations", 10094)],
)
def test_the_port_is_free_and_the_same_everywhere(name: str, port: int) -> None:
    """On the host network it moves with the engine's; a port that somebody has is passed over."""
    sidecar = sidecar_of(injected()[name]["spec"])
    assert [item["containerPort"] for item in sidecar["ports"]] == [port]
    assert sidecar["livenessProbe"]["httpGet"]["port"] == port
    assert f"--web.listen-address=:{port}" in sidecar["args"]
    taken = [used["containerPort"] for item in injected()[name]["spec"]["containers"] for used in item.get("ports", [])]
    assert port not in taken


@pytest.mark.parametrize("name", ["guaranteed", "vllm-chart", "llm-d-decode", "production-stack"])
def test_the_quality_of_service_class_stays(name: str) -> None:
    """A Guaranteed engine that became Burstable would lose its cores and be killed earlier."""
    before = quality_of_service(original(name))
    # vLLM's chart has an init container without resources, so its pods never were Guaranteed.
    assert quality_of_service(injected()[name]) == before
    assert quality_of_service(original("guaranteed")) == "Guaranteed"


def test_a_pod_with_resources_as_a_whole_gets_no_further_requests() -> None:
    """The sum of the containers' must not exceed the pod's, or the API server refuses the pod."""
    assert not sidecar_of(injected()["pod-level-resources"]["spec"]).get("resources")


def test_wrong_annotations_make_flags_that_name_themselves() -> None:
    """The sidecar starts with --config.on-error=degrade and says which; test_sidecar_process starts these arguments."""
    assert injected_arguments("bad-annotations")[1] == "--config.on-error=degrade"
    assert "--annotation-stepscope.io/port-is-no-port" in injected_arguments("bad-annotations")


def test_with_a_web_configuration_the_probe_needs_no_password() -> None:
    """The kubelet has none; and the volumes are optional, so that a Secret that is missing holds up nothing."""
    pod = injected("injected-pods-secured.yaml")["guaranteed"]["spec"]
    sidecar = sidecar_of(pod)
    assert sidecar["livenessProbe"]["tcpSocket"] == {"port": 9443}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["stepscope-web"]["secret"]["optional"] is True
    assert volumes["stepscope-calibration"]["configMap"]["optional"] is True
    assert volumes["stepscope-engine"]["secret"]["optional"] is True
    assert {mount["name"] for mount in sidecar["volumeMounts"]} <= set(volumes)


@pytest.mark.parametrize("values", ["injection", "injection-v1beta1"])
def test_a_failing_policy_never_blocks_a_pod(values: str) -> None:
    """failurePolicy Ignore on every policy; opt-in by namespace on every binding; match conditions use no variables."""
    for policy in of_kind(rendered(values), "MutatingAdmissionPolicy"):
        assert policy["spec"]["failurePolicy"] == "Ignore"
        assert policy["spec"]["reinvocationPolicy"] == "IfNeeded"
        # The API server evaluates them before the variables exist.
        assert "variables." not in str(policy["spec"]["matchConditions"])
        assert policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"] == ["CREATE"]
    bindings = of_kind(rendered(values), "MutatingAdmissionPolicyBinding")
    assert all(binding["spec"]["matchResources"]["namespaceSelector"] for binding in bindings)
    assert "webhook" not in rendered_text(values).lower()
