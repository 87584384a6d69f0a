"""What the sidecar costs a real engine: the clients' inter-token latency with it and without it, in turns.

    .venv/bin/python benchmarks/live_cost.py [--rounds=6 --block-seconds=20 --write]

Four streams decode in blocks of equal length that all begin anew, so that every block sees the same contexts. Blocks
with the sidecar lie between blocks without (off, 1 s, off, 5 s, off, ...), and each is set against the mean of its two
neighbours: what the machine does slowly cancels. The same is done with the blocks without sidecar among themselves;
what comes out there is noise, and no cost smaller than it can be told from nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import REPOSITORY, Spread, cpu_seconds, quantile, say
from report import machine

sys.path.insert(0, str(REPOSITORY / "tests"))

import pytest  # the engine's context manager skips with it

from live.client import Client, all_answer, get_json  # found through the line above
from live.engine import running_engine
from live.sidecar import Sidecar
from live.truth import gaps_between

STREAMS, PROMPT_TOKENS = 4, 128
NEW_TOKENS = 8000  # more than a block lasts
SETTLE_SECONDS = 1.0  # after the last first token, before a block counts
FIRST_TOKENS_SECONDS = 60.0
BEGIN, END = "<!-- live-cost -->", "<!-- /live-cost -->"
OFF = "without"
TURNS = (OFF, "1s", OFF, "5s")


@dataclass(frozen=True, slots=True)
class Block:
    """One block: latencies in seconds as the clients saw them; what the sidecar did meanwhile."""

    kind: str  # "without", or the sampling interval
    p50: float
    mean: float
    p99: float
    gaps: int
    scrapes: int = 0
    sidecar_cpu_seconds: float = 0.0


STATISTICS: tuple[tuple[str, Callable[[Block], float]], ...] = (
    ("p50", lambda block: block.p50),
    ("mean", lambda block: block.mean),
    ("p99", lambda block: block.p99),
)


def main() -> int:
    """Measure, print, and write if asked to. 1 when there is no engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="how often off, 1 s, off, 5 s (default 6)")
    parser.add_argument("--block-seconds", type=float, default=20.0, help="measured part of a block (default 20)")
    parser.add_argument("--write", action="store_true", help="put the table between the markers of docs/performance.md")
    args = parser.parse_args()
    blocks, loads = [], []
    try:
        with running_engine() as engine:
            version = get_json(engine.url, "/version")["version"]
            measure_block(engine.url, OFF, 3.0)  # the first steps of an engine are slower
            for kind in (*TURNS * args.rounds, OFF):
                block = measure_block(engine.url, kind, args.block_seconds)
                blocks.append(block)
                loads.append(os.getloadavg()[0])
                say(
                    f"{kind:8} p50 {1e3 * block.p50:7.2f}  mean {1e3 * block.mean:7.2f}  p99 {1e3 * block.p99:7.2f} ms"
                    f"  {block.gaps} gaps, {block.scrapes} scrapes, load {loads[-1]:.1f}"
                )
    except pytest.skip.Exception as skipped:
        say(str(skipped))
        return 1
    text = report(blocks, version, args.block_seconds, (min(loads), max(loads)))
    sys.stdout.write("\n" + text + "\n")
    if args.write:
        say(f"written to {write(text).relative_to(REPOSITORY)}")
    return 0


def measure_block(url: str, kind: str, seconds: float) -> Block:
    """Streams for so long, beside the sidecar or not. Raises RuntimeError when the engine does not answer."""
    sidecar = None if kind == OFF else Sidecar(url, f"--sample.interval={kind}", watch=False)
    client = Client(url)
    try:
        if sidecar is not None:
            wait_for_scrapes(sidecar, 2)  # start-up and the one whole page are not what it costs from then on
        requests = [client.start(PROMPT_TOKENS, NEW_TOKENS) for _ in range(STREAMS)]
        if not all_answer(requests, FIRST_TOKENS_SECONDS):
            raise RuntimeError(f"no tokens from {url}: {client.errors}")
        time.sleep(SETTLE_SECONDS)
        before = (scrapes(sidecar), cpu_seconds(sidecar.process.pid)) if sidecar is not None else (0, 0.0)
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        after = (scrapes(sidecar), cpu_seconds(sidecar.process.pid)) if sidecar is not None else (0, 0.0)
    finally:
        client.cancel_all()
        if sidecar is not None:
            sidecar.stop()
    if client.errors:
        raise RuntimeError(f"the streams failed: {client.errors}")
    gaps = gaps_between(client.streams, start, end)
    p50, p99 = quantile(gaps, 0.5), quantile(gaps, 0.99)
    return Block(kind, p50, sum(gaps) / len(gaps), p99, len(gaps), after[0] - before[0], after[1] - before[1])


def scrapes(sidecar: Sidecar) -> int:
    """Good scrapes so far."""
    count: int = get_json(sidecar.url, "/api/v1/snapshot")["engine_scrapes"]["ok"]
    return count


def wait_for_scrapes(sidecar: Sidecar, count: int) -> None:
    """Until it has read so many pages. Raises RuntimeError after half a minute."""
    until = time.monotonic() + 30.0
    while scrapes(sidecar) < count:
        if time.monotonic() > until:
            raise RuntimeError(f"the sidecar reads nothing:\n{sidecar.log()}")
        time.sleep(0.1)


def against_neighbours(blocks: Sequence[Block], kind: str, of: Callable[[Block], float]) -> list[float]:
    """Each block of a kind over the mean of the nearest blocks without sidecar before and after it."""
    found = []
    for at, block in enumerate(blocks):
        earlier = [b for b in blocks[:at] if b.kind == OFF]
        later = [b for b in blocks[at + 1 :] if b.kind == OFF]
        if block.kind == kind and earlier and later:
            found.append(of(block) / ((of(earlier[-1]) + of(later[0])) / 2.0))
    return found


def report(blocks: Sequence[Block], version: str, seconds: float, loads: tuple[float, float]) -> str:
    """Markdown: one table in milliseconds, one in ratios, and how far to trust them."""
    kinds = list(dict.fromkeys(block.kind for block in blocks))
    rows = ["| sidecar | blocks | p50, ms | mean, ms | p99, ms |", "| --- | --- | --- | --- | --- |"]
    for kind in kinds:
        mine = [block for block in blocks if block.kind == kind]
        cells = [milliseconds(Spread.of([of(block) for block in mine])) for _, of in STATISTICS]
        rows.append(f"| {named(kind)} | {len(mine)} | {' | '.join(cells)} |")
    rows += ["", "| against its neighbours without | p50 | mean | p99 |", "| --- | --- | --- | --- |"]
    for kind in sorted(kinds, key=lambda kind: kind != OFF):
        ratios = [Spread.of(against_neighbours(blocks, kind, of)) for _, of in STATISTICS]
        name = "without: the noise" if kind == OFF else named(kind)
        rows.append(f"| {name} | {' | '.join(percent(spread) for spread in ratios)} |")
    cpu = [f"{1e3 * cpu_per_scrape(blocks, kind):.1f} ms {named(kind)}" for kind in kinds if kind != OFF]
    return "\n".join(
        [
            f"Inter-token latency as {STREAMS} streaming clients of a real vLLM {version} saw it, on one machine with",
            f"the engine, the clients and the sidecar: {machine()}.",
            f"Blocks of {seconds:g} s, {sum(block.gaps for block in blocks):,} gaps in all, load average between"
            f" {loads[0]:.1f} and {loads[1]:.1f}.",
            "Medians over the blocks, in brackets their 10th and 90th percentile.",
            "",
            *rows,
            "",
            "A row that lies within the spread of the noise is a cost that this machine could not tell from none.",
            f"What noise hardly touches is the sidecar's own CPU time, all threads, per scrape: {' and '.join(cpu)}.",
            "Command: `.venv/bin/python benchmarks/live_cost.py --write`.",
        ]
    )


def cpu_per_scrape(blocks: Sequence[Block], kind: str) -> float:
    """Processor seconds of the whole sidecar process over its scrapes; 0 where there were none."""
    mine = [block for block in blocks if block.kind == kind]
    return sum(block.sidecar_cpu_seconds for block in mine) / max(1, sum(block.scrapes for block in mine))


def named(kind: str) -> str:
    """How the table calls a kind of block."""
    return OFF if kind == OFF else f"every {kind[:-1]} s"


def milliseconds(spread: Spread) -> str:
    """Median, 10th and 90th percentile."""
    return f"{1e3 * spread.median:.2f} ({1e3 * spread.low:.2f} - {1e3 * spread.high:.2f})"


def percent(spread: Spread) -> str:
    """The same of ratios, as what is above 1."""
    return f"{spread.median - 1:+.1%} ({spread.low - 1:+.1%} to {spread.high - 1:+.1%})"


def write(text: str) -> Path:
    """Put the text between the markers of docs/performance.md."""
    path = REPOSITORY / "docs" / "performance.md"
    before, _, rest = path.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    return path


if __name__ == "__main__":
    sys.exit(main())
