"""Pages with moving counters, one a second: recorded from a real vLLM, or made by the simulator."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from measure import REPOSITORY

from stepscope.sim.build import build_config
from stepscope.sim.scenario import CHATS, Phase, Scenario
from stepscope.sim.simulation import Simulation, run_simulated

_RECORDED = REPOSITORY / "tests" / "data" / "pages"
SECONDS = 73  # as long as the recorded cut; twice the window of 30 s


@dataclass(frozen=True, slots=True)
class Tape:
    """Pages of one engine process. `rows`: (seconds, text)."""

    name: str
    engines: int
    rows: tuple[tuple[float, str], ...]

    @property
    def size(self) -> tuple[int, int]:
        """(bytes, lines) of the last page."""
        text = self.rows[-1][1]
        return len(text.encode()), text.count("\n")


def splice(whole: str, cut: str) -> str:
    """`whole` with the values of all series that `cut` has: a moving whole page out of moving cut ones."""
    moving = {_series(line): line for line in cut.split("\n") if line and not line.startswith("#")}
    return "\n".join(line if line.startswith("#") else moving.get(_series(line), line) for line in whole.split("\n"))


def _series(line: str) -> str:
    return line.rpartition(" ")[0]


def recorded() -> Tape:
    """The pages that come with the tests: real vLLM 0.32.0, chats joined by two long prompts."""
    whole = gzip.decompress((_RECORDED / "whole-page.txt.gz").read_bytes()).decode()
    with gzip.open(_RECORDED / "agents_join-cut.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return Tape("recorded, vLLM 0.32.0", 1, tuple((row["t"], splice(whole, row["body"])) for row in rows))


def shared_tapes() -> Iterator[Tape]:
    """The uncut recording, where the shared folder is there."""
    root = Path(os.environ.get("STEPSCOPE_SHARED", REPOSITORY.parent / "shared"))
    path = root / "data" / "tapes" / "agents_join.jsonl.gz"
    if path.exists():
        with gzip.open(path, "rt") as lines:
            rows = [row for row in map(json.loads, lines) if row.get("status") == 200]
        # Only its loaded part: an idle engine costs less.
        rows = rows[38 : 38 + SECONDS]
        yield Tape("recorded, not spliced", 1, tuple((row["t"], row["body"]) for row in rows))


def simulated(engines: int) -> Tape:
    """The simulator's page, 40 chats on each of `engines` data-parallel engines."""
    chats = replace(CHATS, count=CHATS.count * engines)
    scenario = Scenario((Phase("chats", float(SECONDS), (chats,)),))
    rows: list[tuple[float, str]] = []

    def keep(at_seconds: float, simulation: Simulation) -> None:
        rows.append((at_seconds, simulation.page_text() or ""))

    run_simulated(build_config(data_parallel=engines), scenario, float(SECONDS), on_scrape=(1.0, keep))
    return Tape(f"simulated, {engines} engine{'s' if engines > 1 else ''}", engines, tuple(rows))
