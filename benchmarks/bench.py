"""Measures what the sidecar costs and prints it as tables; `--write` puts them into docs/performance.md.

    make bench [ARGS="--quick --only=memory --write --check"]

CPU time, not wall time, wherever the question allows it, and things to compare are measured in the same run: on a busy
machine the ratios hold where the milliseconds do not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import latency
import memory
import sampling
import scraping
from measure import REPOSITORY
from report import Table, insert, markdown

DOCUMENT = REPOSITORY / "docs" / "performance.md"


@dataclass(frozen=True, slots=True)
class Size:
    """How long to measure."""

    sample_repeats: int
    soak_samples: int
    latency_requests: int
    scrape_seconds: int


FULL = Size(sample_repeats=10, soak_samples=10_000, latency_requests=2_000, scrape_seconds=90)
QUICK = Size(sample_repeats=2, soak_samples=1_500, latency_requests=300, scrape_seconds=20)

MEASUREMENTS: dict[str, Callable[[Size], Table]] = {
    "sampling": lambda size: sampling.measure(size.sample_repeats),
    "memory": lambda size: memory.measure(size.soak_samples),
    "latency": lambda size: latency.measure(size.latency_requests),
    "scraping": lambda size: scraping.measure(size.scrape_seconds),
}


def main() -> int:
    """0; with --check 1 when a target was missed."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure what the sidecar costs.")
    parser.add_argument("--quick", action="store_true", help="a minute instead of four, for a first look")
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="this measurement; may be repeated")
    parser.add_argument("--write", action="store_true", help="put the tables of all measurements into the document")
    parser.add_argument("--check", action="store_true", help="status 1 when a target is missed")
    options = parser.parse_args()
    if options.write and (options.only or options.quick):
        parser.error("--write takes a whole run: without --only and --quick")
    size = QUICK if options.quick else FULL
    tables = [measure(size) for name, measure in MEASUREMENTS.items() if not options.only or name in options.only]
    text = markdown(tables)
    sys.stdout.write(text)
    if options.write:
        DOCUMENT.write_text(insert(DOCUMENT.read_text(), text))
    missed = [check.name for table in tables for check in table.checks if not check.met]
    for name in missed:
        sys.stderr.write(f"target missed: {name}\n")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
