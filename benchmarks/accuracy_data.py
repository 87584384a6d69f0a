"""The public measurements that the accuracy benchmark stands on, as points; the data stay outside the repository."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.core.defaults import Machine
from stepscope.core.law_terms import Point
from stepscope.points import Row, group, machine_of, point_of, read_rows

REPOSITORY = Path(__file__).resolve().parent.parent
# File: what it is, in the report.
GROUPS = {
    "silicon_dense_vllm": "dense, vLLM",
    "silicon_dense_trtllm": "dense, TensorRT-LLM",
    "silicon_dense_sglang": "dense, SGLang",
    "fastertransformer": "dense, FasterTransformer",
    "dynamo_decode": "decode-only sweep, vLLM",
    "silicon_moe_vllm": "MoE, vLLM",
    "silicon_moe_trtllm": "MoE, TensorRT-LLM",
    "silicon_moe_sglang": "MoE, SGLang",
}
DENSE = ("silicon_dense_vllm", "silicon_dense_trtllm", "silicon_dense_sglang")
MOE = ("silicon_moe_vllm", "silicon_moe_trtllm", "silicon_moe_sglang")
CLOSED_LOOPS = DENSE + MOE  # whose rows count the prompt tokens of all sequences, the own ones too
ABSENT = "skipped: no public measurements here (set STEPSCOPE_SHARED to their folder)\n"
SHARED_VALUES = 3  # so many equal times make two series copies of one measurement under two names
# "tp64" of a model whose weights would be a 64th per GPU: that many GPUs in several instances, so bytes per GPU are not
# what a step reads.
MOST_GPUS = 16


@dataclass(frozen=True, slots=True)
class Series:
    """One engine, version, model, precision, GPU and number of GPUs."""

    name: str
    file: str
    points: tuple[Point, ...]
    machine: Machine

    @property
    def times(self) -> frozenset[int]:
        """Measured times in microseconds: the fingerprint that shows copies."""
        return frozenset(round(point.itl_seconds * 1e6) for point in self.points)

    def is_copy_of(self, other: Series) -> bool:
        """Whether both hold the same measurements (DeepSeek R1 and V3, or two names for one GPU count)."""
        return len(self.times & other.times) >= SHARED_VALUES

    @property
    def sound(self) -> bool:
        """Whether bytes per GPU can be believed."""
        return self.machine.gpus <= MOST_GPUS or not self.machine.moe


def shared_folder() -> Path | None:
    """The folder with the material, or None where it is not on this machine."""
    root = Path(os.environ.get("STEPSCOPE_SHARED", REPOSITORY.parent / "shared"))
    return root if (root / "data" / "measured").is_dir() else None


def load(shared: Path) -> list[Series]:
    """All series, in the order of GROUPS and of the files."""
    models = json.loads((shared / "data" / "facts" / "models.json").read_text(encoding="utf-8"))
    found = []
    for file in GROUPS:
        rows = group(read_rows(shared / "data" / "measured" / f"{file}.jsonl"), "series")
        found += [_series(name, file, one, models) for name, one in rows.items()]
    return found


def _series(name: str, file: str, rows: list[Row], models: dict[str, dict[str, float]]) -> Series:
    machine = machine_of(rows)
    if machine is None:
        raise SystemExit(f"{rows[0].where}: bytes and bandwidth are missing")
    layers = models[rows[0].text("model")]["layers"]
    points = [point_of(row, True) for row in rows]
    if file in CLOSED_LOOPS:
        points = [felt(point) for point in points]
    return Series(name, file, tuple(points), replace(machine, layers=layers))


def felt(point: Point) -> Point:
    """The same load with the prompt tokens that its gaps hold: those of the others.

    The collection gives sequences x input / output prompt tokens a step for closed loops. Nobody decodes while his own
    prompt is computed, so that a gap holds (sequences - 1) x input / output. Static batches (FasterTransformer) are
    prefilled together and stay as they are. Four-term least squares alone, which no prior helps: within 6 % 89 -> 92 %
    of the points of dense vLLM, median of dense TensorRT-LLM 2.2 -> 1.9 %.
    """
    return replace(point, prefill_tokens_per_step=felt_tokens(point.sequences, point.prefill_tokens_per_step))


def felt_tokens(sequences: float, prefill_tokens_per_step: float) -> float:
    """The others' part of all prompt tokens per step."""
    return prefill_tokens_per_step * max(0.0, sequences - 1.0) / sequences


def five_points(points: tuple[Point, ...]) -> list[Point]:
    """What a calibration would measure: lowest and highest batch, short and long, and the most prefill-heavy."""

    def context(point: Point) -> float:
        return point.tokens_in_flight / point.sequences

    chosen: list[Point] = []
    batches = [point.sequences for point in points]
    for batch in (min(batches), max(batches)):
        same = sorted((point for point in points if point.sequences == batch), key=context)
        chosen += [point for point in (same[0], same[-1]) if point not in chosen]
    for point in sorted(points, key=lambda one: -one.prefill_tokens_per_step):
        if len(chosen) >= 5:
            break
        if point not in chosen:
            chosen.append(point)
    return chosen
