"""A learned baseline on disk: what comes back, what is ignored, and that nobody ever meets half of a file."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.learn import Baseline
from stepscope.core.step_model import Load, LoadRange, StepLaw, WeightBytes
from stepscope.errors import StateError
from stepscope.runtime.baseline_file import Identity, read_baseline, remove_baseline, write_baseline

LAW = StepLaw(
    WeightBytes(0.0), float("inf"), 1.0, step_overhead_seconds=0.01, prefill_cost_seconds_per_token=None,
    source="learned", valid_range=LoadRange(8.0, 5000.0, 100.0), residual_ratio=0.02, samples=12, low_factor=0.9,
    high_factor=1.2, kv_bandwidth_bytes_per_second=2e9,
)  # fmt: skip
BASELINE = Baseline(LAW, in_tokens=True, load=Load(4.0, 1000.0, kv_bytes=1000.0))
IDENTITY = Identity("m", "0.32.0", "auto", "H100-SXM", 2)


def test_what_is_written_comes_back_as_it_was(tmp_path: Path) -> None:
    """An infinite bandwidth and an unknown prefill cost included; nothing else is left in the folder."""
    file = tmp_path / "state.json"
    write_baseline(file, BASELINE, IDENTITY, 1.7e9)
    assert read_baseline(file) == (BASELINE, IDENTITY)
    assert os.listdir(tmp_path) == ["state.json"]


def test_no_file_is_no_baseline(tmp_path: Path) -> None:
    """The first start."""
    assert read_baseline(tmp_path / "state.json") is None


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """The folder has vanished: one line that names the file, and no rest of a temporary one elsewhere."""
    with pytest.raises(StateError, match=r"state file .*gone/state\.json: No such file"):
        write_baseline(tmp_path / "gone" / "state.json", BASELINE, IDENTITY, 1.7e9)


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    """A baseline that was never kept can be forgotten."""
    file = tmp_path / "state.json"
    write_baseline(file, BASELINE, IDENTITY, 1.7e9)
    remove_baseline(file)
    remove_baseline(file)
    assert not file.exists()


def _changed(change: Any) -> Any:
    def text(document: dict[str, Any]) -> str:
        change(document)
        return json.dumps(document)

    return text


BROKEN: list[tuple[str, Any]] = [
    ("not JSON", lambda _: '{"format": 1, "base'),
    ("not of format 1", lambda _: "[]"),
    ("not of format 1", _changed(lambda d: d.update(format=2))),
    ("'baseline'", _changed(lambda d: d.pop("baseline"))),
    ("step_overhead_seconds is -1", _changed(lambda d: d["baseline"]["law"].update(step_overhead_seconds=-1))),
    ("sequence_cost_seconds is True", _changed(lambda d: d["baseline"]["law"].update(sequence_cost_seconds=True))),
    ("source is 'file'", _changed(lambda d: d["baseline"]["law"].update(source="file"))),
    ("unexpected keyword", _changed(lambda d: d["baseline"]["law"].update(warp=9))),
    ("a flag", _changed(lambda d: d["baseline"].update(in_tokens="no"))),
    ("a name is not a text", _changed(lambda d: d["identity"].update(gpu=7))),
]


@pytest.mark.parametrize(("reason", "text"), BROKEN)
def test_a_broken_file_says_what_is_wrong_in_one_line(tmp_path: Path, reason: str, text: Any) -> None:
    """Cut, of another format, edited by hand: never a traceback, never half a law."""
    file = tmp_path / "state.json"
    write_baseline(file, BASELINE, IDENTITY, 1.7e9)
    file.write_text(text(json.loads(file.read_text())))
    with pytest.raises(StateError) as caught:
        read_baseline(file)
    assert reason in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"engine_version": None}, None),
        ({"engine_version": "0.33.0"}, "engine_version was 0.32.0, is 0.33.0"),
        ({"model_name": "other"}, "model_name was m, is other"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype was auto, is fp8"),
        ({"gpu_count": 4}, "gpu_count was 2, is 4"),
    ],
)
def test_what_is_known_on_both_sides_must_agree(change: dict[str, Any], reason: str | None) -> None:
    """What one side does not know fits everything."""
    assert IDENTITY.mismatch(replace(IDENTITY, **change)) == reason
