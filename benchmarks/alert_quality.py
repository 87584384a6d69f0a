"""Plays seeded runs with and without faults and judges the verdicts; `--write` puts the tables into the document.

    make alert-quality [ARGS="--runs=240 --first-seed=500000 --write"]

The seeds of the committed report were never used while anything was tuned: those were below 150,000.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import yaml
from alert_quality_cases import FAULTS, cases
from alert_quality_play import Played, play
from alert_quality_rules import shipped_rules
from alert_quality_text import document, missed_lines, summary
from alert_quality_truth import Truth, read_truth

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENT = REPOSITORY / "docs" / "alert-quality.md"
TRUTH = Path(__file__).with_name("alert_quality_truth.yaml")
RUNS = 240  # 24 of each fault
FIRST_SEED = 500_000
LAW_SEED_OFFSET = 7_000_000  # the loads that laws are learned on are none of those judged


def play_all(first_seed: int, runs: int, processes: int) -> list[Played]:
    """All runs, in the order of their seeds."""
    rules = shipped_rules()
    work = partial(play, rules=rules, law_seed=first_seed + LAW_SEED_OFFSET)
    ordered = sorted(cases(first_seed, runs), key=lambda case: case.machine.label)  # laws are found once per process
    if processes == 1:
        played = [work(case) for case in ordered]
    else:
        with multiprocessing.Pool(processes) as pool:
            played = list(pool.imap(work, ordered, chunksize=max(1, len(ordered) // (4 * processes))))
    return sorted(played, key=lambda run: run.seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """0; with --check 1 when a target was missed."""
    parser = argparse.ArgumentParser(prog="alert-quality", description="Judge the verdicts on simulated faults.")
    parser.add_argument("--runs", type=int, default=RUNS, help="how many; a multiple of the number of faults is even")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--details", action="store_true", help="list every wrong verdict")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.relative_to(REPOSITORY)}")
    parser.add_argument("--check", action="store_true", help="status 1 when a target is missed")
    options = parser.parse_args(arguments)
    if options.runs < len(FAULTS):
        parser.error(f"--runs must be at least {len(FAULTS)}, one of each fault")
    truth: Truth = read_truth(yaml.safe_load(TRUTH.read_text("utf-8")))
    played = play_all(options.first_seed, options.runs, options.processes)
    sys.stdout.write(summary(played, truth))
    if options.details:
        sys.stdout.write("\n".join(missed_lines(played, truth)) + "\n")
    text, met = document(played, truth)
    if options.write:
        DOCUMENT.write_text(text, "utf-8")
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
