"""The quick rules of the end-to-end run are the shipped ones but for their durations."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.durations import KEYS, PLACES, divided, milliseconds
from shared_data import REPOSITORY
from tools import require_tool

RULES = REPOSITORY / "rules"
SHIPPED = ("alerts.yaml", "alerts-absent.yaml", "recording.yaml", "alertmanager.example.yaml")


def _durations(text: str) -> list[int]:
    return [milliseconds(match["duration"]) for match in PLACES.finditer(text)]


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a YAML document with its path."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}/{key}")
    elif isinstance(node, list):
        for at, value in enumerate(node):
            yield from _leaves(value, f"{path}/{at}")
    else:
        yield path, node


@pytest.mark.parametrize("name", SHIPPED)
def test_every_duration_is_a_tenth_and_nothing_else_changes(name: str) -> None:
    """Compared value by value: keys of durations, ranges, and all the rest."""
    text = (RULES / name).read_text("utf-8")
    quick = divided(text, 10)
    assert [10 * value for value in _durations(quick)] == _durations(text)
    for (path, before), (other, after) in zip(
        _leaves(yaml.safe_load(text)), _leaves(yaml.safe_load(quick)), strict=True
    ):
        assert path == other
        if path.rsplit("/", 1)[1] in KEYS:
            assert milliseconds(before) == 10 * milliseconds(after), path
        else:
            blank = re.compile(r"\[[0-9a-z]+\]")
            assert blank.sub("[]", str(before)) == blank.sub("[]", str(after)), path
            assert len(blank.findall(str(before))) == len(blank.findall(str(after)))


def test_no_duration_of_the_shipped_files_is_overlooked() -> None:
    """All `for` and all ranges: as many are found as a plain count of the parsed files gives."""
    for name in SHIPPED:
        text = (RULES / name).read_text("utf-8")
        leaves = list(_leaves(yaml.safe_load(text)))
        ranges = sum(len(re.findall(r"\[\d+[a-z]+\]", str(value))) for _, value in leaves)
        keys = sum(path.rsplit("/", 1)[1] in KEYS for path, _ in leaves)
        assert len(_durations(text)) == ranges + keys, name


def test_words_matchers_and_label_lists_are_no_durations() -> None:
    """Text about five minutes stays, and so do lists in brackets."""
    text = "description: over the last 5 minutes\nequal: [instance]\nnote: for 5m\n  for: 5m\nexpr: x[1h30m] > 5"
    assert divided(text, 10) == (
        "description: over the last 5 minutes\nequal: [instance]\nnote: for 5m\n  for: 30000ms\nexpr: x[540000ms] > 5"
    )


def test_a_duration_that_cannot_be_divided_is_an_error() -> None:
    """Rounding would change what is tested."""
    with pytest.raises(ValueError, match="5ms / 10 is no whole number"):
        divided("for: 5ms", 10)
    with pytest.raises(ValueError, match="not a duration: '5 m'"):
        milliseconds("5 m")


def test_promtool_and_amtool_accept_the_quick_files(tmp_path: Path) -> None:
    """What the end-to-end run loads is valid."""
    for name in SHIPPED:
        path = tmp_path / name
        path.write_text(divided((RULES / name).read_text("utf-8"), 10), "utf-8")
        is_routing = name.startswith("alertmanager")
        command = (
            [require_tool("amtool"), "check-config"] if is_routing else [require_tool("promtool"), "check", "rules"]
        )
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
