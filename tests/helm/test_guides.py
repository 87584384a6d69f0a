"""The values and manifests of docs/deploy in charts of the real ones' shape: is the result a configured sidecar?"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm_charts import CHART, of_kind, pod_specs, rendered, run_helm, sidecar_of
from shared_data import REPOSITORY
from stepscope import config

GUIDES = REPOSITORY / "docs" / "deploy"
CHARTS = Path(__file__).with_name("charts")
MARK = re.compile(r"<!-- (values|manifest|template): ([\w-]+) -->\n```yaml\n(.*?)```", re.DOTALL)


def blocks() -> dict[str, str]:
    """The marked examples of all guides, by name."""
    found = [match.groups() for path in sorted(GUIDES.glob("*.md")) for match in MARK.finditer(path.read_text("utf-8"))]
    assert len({name for _, name, _ in found}) == len(found)
    return {name: text for _, name, text in found}


BLOCKS = blocks()


def template(chart: Path, values: str, folder: Path, release: str = "vllm") -> list[dict[str, Any]]:
    """What helm makes of a chart with the values of a guide."""
    path = folder / "values.yaml"
    path.write_text(values, "utf-8")
    result = run_helm("template", release, str(chart), "--namespace", "inference", "--values", str(path))
    assert result.returncode == 0, result.stderr
    return [item for item in yaml.safe_load_all(result.stdout) if item]


def assert_accepted(arguments: list[str]) -> None:
    """stepscope itself finds no fault in the flags; files that only exist in the pod are another matter."""
    parser = argparse.ArgumentParser()
    config.add_arguments(parser, "serve")
    assert arguments[0] == "serve"
    parsed, unknown = parser.parse_known_args(arguments[1:])
    setattr(parsed, config.UNKNOWN_ARGUMENTS, unknown)
    _, faults = config.degraded("serve", parsed, {})
    assert faults == ()


def reference() -> dict[str, Any]:
    """The sidecar as the chart's own template makes it."""
    (engine,) = [spec for spec in pod_specs(rendered("quickstart")) if "initContainers" in spec]
    return sidecar_of(engine)


def assert_like_the_chart(container: dict[str, Any], *, native: bool) -> None:
    """All but arguments and mounts is what the chart's template gives; the arguments are accepted."""
    expected = {key: value for key, value in reference().items() if key not in ("args", "volumeMounts")}
    if not native:
        expected.pop("restartPolicy")
    assert {key: value for key, value in container.items() if key not in ("args", "volumeMounts")} == expected
    assert_accepted(container["args"])
    assert "--config.on-error=degrade" in container["args"]


def assert_complete(pod: dict[str, Any]) -> None:
    """Every volume that is mounted is there, and no two containers share a name."""
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    containers = pod["containers"] + pod.get("initContainers", [])
    assert {mount["name"] for item in containers for mount in item.get("volumeMounts", [])} <= volumes
    assert len({item["name"] for item in containers}) == len(containers)


def test_vllms_chart_gets_a_second_container_that_is_configured(tmp_path: Path) -> None:
    """An operator who follows the guide gets exactly that from helm template."""
    (pod,) = pod_specs(template(CHARTS / "vllm", BLOCKS["vllm-chart"], tmp_path))
    assert [item["name"] for item in pod["containers"]] == ["vllm", "stepscope"]
    assert_like_the_chart(pod["containers"][1], native=False)
    assert_complete(pod)
    assert "--model.config=/data" in pod["containers"][1]["args"]


def test_vllms_chart_takes_a_native_sidecar_too(tmp_path: Path) -> None:
    """After the container that waits for the model's download."""
    (pod,) = pod_specs(template(CHARTS / "vllm", BLOCKS["vllm-chart-native"], tmp_path))
    assert [item["name"] for item in pod["initContainers"]] == ["wait-download-model", "stepscope"]
    assert_like_the_chart(pod["initContainers"][1], native=True)
    assert_complete(pod)


def test_llm_ds_chart_gives_the_sidecar_no_gpu(tmp_path: Path) -> None:
    """Decode reads behind the proxy, prefill directly; the GPUs stay the engine's."""
    decode, prefill = pod_specs(template(CHARTS / "llm-d", BLOCKS["llm-d"], tmp_path))
    assert [item["name"] for item in decode["initContainers"]] == ["routing-proxy", "stepscope"]
    assert [item["name"] for item in prefill["initContainers"]] == ["stepscope"]
    for pod, port in ((decode, 8200), (prefill, 8000)):
        sidecar = sidecar_of(pod)
        assert_like_the_chart(sidecar, native=True)
        assert f"--engine.url=http://127.0.0.1:{port}" in sidecar["args"]
        assert "gpu" not in str(sidecar["resources"])
        assert port in [used["containerPort"] for item in pod["containers"] for used in item["ports"]]
        assert_complete(pod)


def test_a_container_of_llm_ds_list_would_be_given_a_gpu(tmp_path: Path) -> None:
    """The trap that the guide warns of; were it gone, the guide could say something simpler."""
    values = "decode: {containers: [{name: vllm, image: a:1}, {name: stepscope, image: b:1}]}"
    decode, _ = pod_specs(template(CHARTS / "llm-d", values, tmp_path))
    assert sidecar_of(decode)["resources"]["limits"] == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("kserve-llm", ("spec", "template")),
        ("kserve-predictor", ("spec", "predictor")),
        ("plain", ("spec", "template", "spec")),
    ],
)
def test_manifests_hold_the_sidecar_of_the_chart(name: str, path: tuple[str, ...]) -> None:
    """No guide falls behind the template."""
    pod = yaml.safe_load(BLOCKS[name])
    for key in path:
        pod = pod[key]
    (sidecar,) = pod["initContainers"]
    assert_like_the_chart(sidecar, native=True)
    if name == "plain":
        assert_complete(pod)


def test_a_chart_of_ones_own_takes_the_sidecar_from_the_named_template(tmp_path: Path) -> None:
    """As a dependency: the container follows the values, another call overrides them, the monitor comes along."""
    chart = tmp_path / "own-chart"
    shutil.copytree(CHARTS / "own-chart", chart)
    shutil.copytree(CHART, chart / "charts" / "stepscope")
    deployment = chart / "templates" / "deployment.yaml"
    deployment.write_text(deployment.read_text("utf-8").replace("TEMPLATE\n", BLOCKS["own-chart"]), "utf-8")
    objects = template(chart, BLOCKS["own-chart-values"], tmp_path)
    own, large = pod_specs(objects)
    assert_like_the_chart(sidecar_of(own), native=True)
    assert "--model.id=Qwen/Qwen3-8B" in sidecar_of(own)["args"]
    assert_like_the_chart(sidecar_of(large), native=False)
    assert {"--model.id=Qwen/Qwen3-32B", "--hardware.count=2", "--engine.url=http://127.0.0.1:9000"} <= set(
        sidecar_of(large)["args"]
    )
    assert "--hardware.gpu=H100-SXM" in sidecar_of(large)["args"]
    assert len(of_kind(objects, "PodMonitor")) == 1


def test_what_was_learned_is_kept_on_a_volume_that_may_be_written(tmp_path: Path) -> None:
    """The root is read-only; the file lies on a mount that is not."""
    switch = "standalone: {engines: [{name: chat, url: 'http://chat:8000'}]}\n"
    (pod,) = pod_specs(template(CHART, BLOCKS["state"] + switch, tmp_path))
    sidecar = sidecar_of(pod)
    assert_accepted(sidecar["args"])
    assert_complete(pod)
    (file,) = [flag.partition("=")[2] for flag in sidecar["args"] if flag.startswith("--state.file=")]
    (mount,) = [mount for mount in sidecar["volumeMounts"] if not mount.get("readOnly")]
    assert str(Path(file).parent) == mount["mountPath"]


@pytest.mark.parametrize("name", ["injection", "standalone", "monitoring"])
def test_values_of_the_guides_are_accepted_by_the_chart(name: str, tmp_path: Path) -> None:
    """And what they render has accepted flags."""
    objects = template(CHART, BLOCKS[name], tmp_path, release="stepscope")
    assert objects
    for pod in pod_specs(objects):
        assert_accepted(sidecar_of(pod)["args"])


def test_the_targets_of_the_guide_are_those_that_were_evaluated() -> None:
    """The golden pods come from ci/injection-values.yaml."""
    tried = yaml.safe_load((CHART / "ci" / "injection-values.yaml").read_text("utf-8"))
    assert yaml.safe_load(BLOCKS["injection"])["injection"] == tried["injection"]


def test_every_link_between_guides_leads_somewhere() -> None:
    """A guide that was renamed is found here."""
    for path in GUIDES.glob("*.md"):
        for target in re.findall(r"\]\(([\w./-]+\.md)\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
