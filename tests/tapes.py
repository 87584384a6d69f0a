"""Reads recorded tapes (pages of a real vLLM with what its clients saw) and replays them through the core."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.core.estimate import Facts
from stepscope.core.observer import Memory, Policy, observe
from stepscope.core.sample import Reading
from stepscope.core.snapshot import EngineView
from stepscope.engines import read


@dataclass(frozen=True)
class Request:
    """One request as its client knew it. Times in seconds since the start of the tape."""

    start: float
    first: float  # time of the first token; inf if none came
    end: float  # inf if it was cut off
    prompt_tokens: int
    name: str


@dataclass(frozen=True)
class Tape:
    """Scrapes [(t, page or None if refused)], gaps [(t, gap seconds, request name)], events."""

    name: str
    scrapes: list[tuple[float, str | None]]
    gaps: list[tuple[float, float, str]]
    events: list[dict[str, Any]]


def load(folder: Path, name: str) -> Tape:
    """One tape with its ground truth."""
    with gzip.open(folder / f"{name}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    with gzip.open(folder / f"{name}.truth.json.gz", "rt") as text:
        truth = json.load(text)
    return Tape(
        name,
        [(row["t"], row.get("body") if row.get("status") == 200 else None) for row in rows],
        [tuple(gap) for gap in truth["tokens"]],
        truth["events"],
    )


def replay(
    tape: Tape, facts: Facts, policy: Policy
) -> Iterator[tuple[float, Reading | None, EngineView | None, dict[str, Memory]]]:
    """Every scrape of a tape through the core, as the sampler would do it."""
    memories: dict[str, Memory] = {}
    for at, body in tape.scrapes:
        reading = read(body, at) if body is not None else None
        view = None
        if reading is not None:
            memories, views = observe(memories, reading, facts, policy)
            view = views[0]
        yield at, reading, view, memories
