"""What aiconfigurator predicts for the same points, as cached by run_aiconfigurator.py, and ours beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy_data import REPOSITORY, felt_tokens
from accuracy_methods import Judged

from stepscope.core.law_terms import Point
from stepscope.errors import FactError

CACHED = REPOSITORY / "benchmarks" / "aiconfigurator.json"

CLOSED_LOOPS_NAME = "silicon:"  # how series of accuracy_data.CLOSED_LOOPS are called
Load = tuple[str, float, float, float]  # series, sequences, tokens in flight, prefill tokens per step


@dataclass(frozen=True, slots=True)
class Cached:
    """Predicted ITL in seconds by load, and why series have none."""

    version: str
    seconds: Mapping[Load, float]
    refused: Mapping[str, str]

    def judge(self, judged: Sequence[Judged]) -> tuple[list[Judged], list[Judged]]:
        """Of points that were judged already those it covers too: its own errors, and the given ones, in one order."""
        found = {load_as_point(load): seconds for load, seconds in self.seconds.items()}
        both = [(one, found[load]) for one in judged if (load := load_of(one)) in found]
        theirs = [Judged(one.series, one.point, seconds / one.point.itl_seconds - 1.0) for one, seconds in both]
        return theirs, [one for one, _ in both]


def load_of(judged: Judged) -> Load:
    """What a prediction is found by."""
    point: Point = judged.point
    return judged.series.name, point.sequences, point.tokens_in_flight, point.prefill_tokens_per_step


def load_as_point(load: Load) -> Load:
    """The load of a measured row as its point has it: of closed loops with the others' prompt tokens alone."""
    name, sequences, tokens, prefill = load
    return name, sequences, tokens, felt_tokens(sequences, prefill) if name.startswith(CLOSED_LOOPS_NAME) else prefill


def read_cached(path: Path = CACHED) -> Cached:
    """The table. Raises FactError naming file and series where it is not what run_aiconfigurator.py writes."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FactError(f"{path}: {error.strerror}; benchmarks/run_aiconfigurator.py writes it") from error
    except (UnicodeDecodeError, ValueError) as error:
        raise FactError(f"{path}: is not JSON: {error}") from error
    if not isinstance(table, dict) or not isinstance(table.get("series"), dict):
        raise FactError(f"{path}: has no series")
    if not isinstance(table.get("version"), str):
        raise FactError(f"{path}: does not say which version predicted")
    seconds: dict[Load, float] = {}
    refused: dict[str, str] = {}
    for name, found in table["series"].items():
        where = f"{path}: {name}"
        if not isinstance(found, dict) or ("points" in found) == ("refused" in found):
            raise FactError(f"{where}: must have either points or the reason why it has none")
        if "refused" in found:
            refused[name] = str(found["refused"])
            continue
        if not isinstance(found["points"], list) or not found["points"]:
            raise FactError(f"{where}: points must be a list that is not empty")
        for figures in found["points"]:
            sequences, tokens, prefill, itl = _four(figures, where)
            seconds[(name, sequences, tokens, prefill)] = itl
    return Cached(table["version"], seconds, refused)


def _four(figures: Any, where: str) -> tuple[float, float, float, float]:
    """Sequences, tokens in flight, prefill tokens per step, seconds."""
    numbers = figures if isinstance(figures, list) else []
    good = [
        float(value)
        for value in numbers
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    ]
    if len(good) != 4 or len(numbers) != 4 or good[3] == 0:
        raise FactError(
            f"{where}: a point is sequences, tokens in flight, prefill tokens per step, seconds above 0, "
            f"not {json.dumps(figures)}"
        )
    return good[0], good[1], good[2], good[3]
