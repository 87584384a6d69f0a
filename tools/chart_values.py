"""Reads the documentation lines of a chart's values.yaml and makes its schema and its table of values from them.

A line `# -- text` documents the value below it, `# @schema {json}` adds what its type does not say, `## text` begins a
section. A value that is not documented is an error: an operator would have to guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_KEY = re.compile(r"^( *)([A-Za-z][\w-]*):(?: |$)")
_INDENT = 2


@dataclass(frozen=True, slots=True)
class Value:
    """One documented value: dotted path, text, default, what `@schema` added, and the section it stands in."""

    path: str
    text: str
    default: Any
    schema: Mapping[str, Any] = field(default_factory=dict)
    section: str = ""


def read_values(path: Path) -> list[Value]:
    """All documented values of a values.yaml, in its order. ValueError names a value without its line."""
    text = path.read_text("utf-8")
    tree = yaml.safe_load(text)
    return list(_scan(text, tree, path.name))


def _scan(text: str, tree: Mapping[str, Any], name: str) -> Iterator[Value]:
    parents: list[str] = []
    section, pending = "", ""
    schema: dict[str, Any] = {}
    inside = -1  # the indent of a documented value: what is below it belongs to its default
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if line.startswith("## "):
            section = line[3:].strip()
        elif stripped.startswith("# -- "):
            pending, schema = stripped[5:], {}
        elif stripped.startswith("# @schema "):
            schema = json.loads(stripped[10:])
        match = _KEY.match(line)
        if match is None or (inside >= 0 and len(match[1]) > inside):
            continue
        inside = -1
        depth = len(match[1]) // _INDENT
        parents = [*parents[:depth], match[2]]
        default: Any = tree
        for key in parents:
            default = default[key]
        if pending:
            yield Value(".".join(parents), pending, default, schema, section)
            pending, schema, inside = "", {}, len(match[1])
        elif not isinstance(default, dict) or not default:
            raise ValueError(f'{name}:{number}: {".".join(parents)} has no "# -- " line above it')


def schema_of(values: list[Value], definitions: Mapping[str, Any], title: str) -> dict[str, Any]:
    """A JSON schema (draft 7) of all values; an unknown key anywhere fails."""
    root: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": title,
        "type": "object",
        "additionalProperties": False,
        "properties": {},
        "$defs": definitions,
    }
    for value in values:
        node = root
        *parents, last = value.path.split(".")
        for parent in parents:
            empty = {"type": "object", "additionalProperties": False, "properties": {}}
            node = node["properties"].setdefault(parent, empty)
        # Draft 7 ignores what stands beside a $ref, so the reference goes into allOf.
        own = {"allOf": [dict(value.schema)]} if "$ref" in value.schema else {**_type_of(value.default), **value.schema}
        node["properties"][last] = {"description": value.text, **own}
    # Helm gives the values of a parent chart to a dependency under this key.
    root["properties"]["global"] = {"description": "Values shared with other charts; not used here.", "type": "object"}
    return root


def _type_of(default: Any) -> dict[str, Any]:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(default, kind):
            return {"type": name}
    return {"type": "object"}


def table_of(values: list[Value]) -> str:
    """The values as Markdown tables, one for each section."""
    lines: list[str] = []
    section: str | None = None
    for value in values:
        if value.section != section:
            section = value.section
            lines += ["", f"### {section}" if section else "### All objects", "", "| value | default | meaning |"]
            lines.append("|---|---|---|")
        default = json.dumps(value.default, separators=(", ", ": ")) if value.default != "" else '""'
        shown = default if len(default) <= 60 else "see values.yaml"  # longer ones make the table unreadable
        lines.append(f"| `{value.path}` | {_code(shown)} | {value.text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines).strip()


def _code(text: str) -> str:
    return text if text.startswith("see ") else f"`{text.replace('|', chr(92) + '|')}`"
