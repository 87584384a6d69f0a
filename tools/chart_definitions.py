"""The named parts of the chart's schema: hand-written ones, and those that the code's own tables decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stepscope.settings import SETTINGS

# The chart itself sets these from other values, and the two must not contradict each other.
SET_BY_THE_CHART = frozenset({"engine.url", "web.listen-address", "web.config.file", "config.file"}) | {
    name for name in SETTINGS if name.startswith("config.")
}

_STRING = {"type": "string"}
_STRING_MAP = {"type": "object", "additionalProperties": _STRING}
# A resource that Kubernetes does not know, or a quantity it cannot read, makes the whole pod invalid: the engine would
# be refused with its sidecar. Kubernetes documentation, "Resource units in Kubernetes" and "Serialization format".
_QUANTITY = {
    "type": ["string", "number"],
    "minimum": 0,
    "pattern": "^[0-9]+([.][0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|[eE][0-9]+)?$",
}
_RESOURCE_NAME = {"pattern": "^(cpu|memory|ephemeral-storage|hugepages-.+|.+/.+)$"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 30}
_LABEL_SELECTOR = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "matchLabels": _STRING_MAP,
        "matchExpressions": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["key", "operator"],
                "properties": {
                    "key": _STRING,
                    "operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                    "values": {"type": "array", "items": _STRING},
                },
            },
        },
    },
}


def _closed(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}


def settings_schema() -> dict[str, Any]:
    """The settings table as nested objects: `model.id` is `{model: {id: ...}}`. Values are checked at run time."""
    root = _closed({})
    for setting in SETTINGS.values():
        if setting.name in SET_BY_THE_CHART or not setting.in_file:
            continue
        node = root
        *parents, last = setting.name.split(".")
        for parent in parents:
            node = node["properties"].setdefault(parent, _closed({}))
        # null takes back what a more general value said.
        node["properties"][last] = {"description": setting.help, "type": ["string", "number", "boolean", "null"]}
    return root


def thresholds_schema(path: Path) -> dict[str, Any]:
    """The thresholds of the rules, by name, each a number or text as the shipped one is."""
    entries = yaml.safe_load(path.read_text("utf-8"))
    # `--set` makes text of a number with a fraction.
    number = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]+([.][0-9]+)?$"}]}
    properties = {
        name: {
            "description": entry["meaning"],
            **(number if isinstance(entry["value"], int | float) else {"type": "string"}),
        }
        for name, entry in entries.items()
    }
    return _closed(properties)


def definitions(thresholds: Path) -> dict[str, Any]:
    """All `$defs` of the chart's schema."""
    return {
        "stringMap": _STRING_MAP,
        "port": _PORT,
        "resources": _closed(
            {
                kind: {"type": "object", "propertyNames": _RESOURCE_NAME, "additionalProperties": _QUANTITY}
                for kind in ("requests", "limits")
            }
        ),
        "probe": _closed(
            {
                name: {"type": "integer", "minimum": 0}
                for name in ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold")
            }
        ),
        "labelSelector": _LABEL_SELECTOR,
        "namespaceSelector": _closed({"any": {"type": "boolean"}, "matchNames": {"type": "array", "items": _STRING}}),
        "prometheusDuration": {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
        "settings": settings_schema(),
        "thresholds": thresholds_schema(thresholds),
        "target": _closed(
            {
                "name": _NAME,
                "podSelector": {"$ref": "#/$defs/labelSelector"},
                "namespaceSelector": {"$ref": "#/$defs/labelSelector"},
                "enginePort": _PORT,
                "engineScheme": {"enum": ["http", "https"]},
                "settings": {"$ref": "#/$defs/settings"},
                "modelVolume": _closed(
                    {
                        "name": _STRING,
                        "mountPath": {"type": "string", "pattern": "^/"},
                        "subPath": _STRING,
                        "setting": {"enum": ["hf-cache", "config"]},
                    },
                    ("name", "mountPath", "setting"),
                ),
                "includeWorkers": {"type": "boolean"},
            },
            ("name", "podSelector"),
        ),
        "engine": _closed(
            {
                "name": _NAME,
                "url": {"type": "string", "pattern": "^https?://[^/]"},
                "settings": {"$ref": "#/$defs/settings"},
            },
            ("name", "url"),
        ),
    }
