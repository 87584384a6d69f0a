"""The golden pods of the injection policy, by the name of the pod they were made from."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from helm_charts import GOLDEN, sidecar_of
from shared_data import REPOSITORY

PODS = REPOSITORY / "tests" / "helm" / "pods"


def tidy(node: Any) -> Any:
    """Without `resources: {}`, which the API server's types write where nothing is asked for."""
    if isinstance(node, dict):
        return {key: tidy(value) for key, value in node.items() if (key, value) != ("resources", {})}
    return [tidy(item) for item in node] if isinstance(node, list) else node


@cache
def injected(golden: str = "injected-pods.yaml") -> dict[str, dict[str, Any]]:
    """The golden pods by the name of their file in pods/, in its order."""
    pods = [item for item in yaml.safe_load_all((GOLDEN / golden).read_text("utf-8")) if item]
    names = [path.stem for path in sorted(PODS.glob("*.yaml"))]
    return dict(zip(names, tidy(pods), strict=True))


def original(name: str) -> dict[str, Any]:
    """The pod before."""
    return dict(yaml.safe_load((PODS / f"{name}.yaml").read_text("utf-8")))


def injected_arguments(name: str) -> list[str]:
    """The sidecar's arguments in one golden pod."""
    return list(sidecar_of(injected()[name]["spec"])["args"])
