"""The settings file: YAML, nested or with dotted keys, read with line numbers and without building any object."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from stepscope.config import Text, unknown_key
from stepscope.settings import SETTINGS

LARGEST_FILE_BYTES = 1 << 20  # the largest ConfigMap that Kubernetes stores
_MOST_FAULTS = 20  # about a screen of lines; more of them would help nobody
_NULL_TAG = "tag:yaml.org,2002:null"
# What plain scalars resolve to; their characters are kept as written. Any other tag asks for an object to be built.
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "timestamp"))


def read_texts(file: str, faults: list[str]) -> dict[str, Text]:
    """Setting name -> its text and place. Faults are appended as lines that begin with `file:line`; never raises."""
    try:
        with open(file, "rb") as stream:
            raw = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        faults.append(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}")
        return {}
    if len(raw) > LARGEST_FILE_BYTES:
        faults.append(f"{file}: is larger than {LARGEST_FILE_BYTES} bytes")
        return {}
    try:
        root = yaml.compose(raw, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        faults.append(f"{file}:{line}: is not valid YAML: {error.problem or error.context}")
        return {}
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).partition("\n")[0] or "too deeply nested"
        faults.append(f"{file}: is not valid YAML: {reason}")
        return {}
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        faults.append(f"{file}:{root.start_mark.line + 1}: must hold settings as key: value")
        return {}
    texts: dict[str, Text] = {}
    first_lines: dict[str, int] = {}
    for name, line, node in _leaves(root, "", file, faults):
        if name in first_lines:
            faults.append(f"{file}:{line}: {name} is given twice, first on line {first_lines[name]}")
            continue
        first_lines[name] = line
        try:
            text = _text_of(node, SETTINGS[name].repeatable)
        except ValueError as error:
            faults.append(f"{file}:{line}: {name}: {error}")
            continue
        if text:  # null and "" leave the setting as it is, as an empty value of a template means it
            texts[name] = Text(text, "file", f"{file}:{line}: {name}")
    return texts


def _leaves(
    mapping: yaml.MappingNode, prefix: str, file: str, faults: list[str]
) -> Iterator[tuple[str, int, yaml.Node]]:
    """(setting name, line, value node) of each known key. Ends even where aliases make a cycle: names are finite."""
    known = [setting.name for setting in SETTINGS.values() if setting.in_file]
    topics = [] if prefix else sorted({name.partition(".")[0] for name in known})
    groups: dict[str, int] = {}
    for key, value in mapping.value:
        if len(faults) >= _MOST_FAULTS:
            return
        line = key.start_mark.line + 1
        name = prefix + str(key.value)
        if not isinstance(key, yaml.ScalarNode):
            faults.append(f"{file}:{line}: a key must be one word, such as engine.url")
        elif name in known:
            yield name, line, value
        elif name in SETTINGS:
            faults.append(f"{file}:{line}: {name} cannot be set in a file, only as flag or environment variable")
        elif not any(setting.startswith(f"{name}.") for setting in SETTINGS):
            faults.append(f"{file}:{line}: {unknown_key('key', name, known + topics)}")
        elif name in groups:
            faults.append(f"{file}:{line}: {name} is given twice, first on line {groups[name]}")
        elif isinstance(value, yaml.MappingNode):
            groups[name] = line
            yield from _leaves(value, f"{name}.", file, faults)
        elif not _is_null(value):
            example = next(setting for setting in SETTINGS if setting.startswith(f"{name}."))
            faults.append(f"{file}:{line}: {name} must hold settings, such as {example}")


def _is_null(node: yaml.Node) -> bool:
    return bool(node.tag == _NULL_TAG)


def _text_of(node: yaml.Node, repeatable: bool) -> str:
    """The characters of a scalar as written (so that 5s, 0x10, off and 1e3 mean the same as in a flag)."""
    if _is_null(node):
        return ""
    if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN_TAGS:
        return str(node.value)
    if repeatable and isinstance(node, yaml.SequenceNode):
        return ":".join(_text_of(item, False) for item in node.value)
    raise ValueError("must be a list or one plain value" if repeatable else "must be one plain value")
