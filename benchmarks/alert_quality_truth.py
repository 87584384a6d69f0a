"""The table of what is right, and the marks that a run gets by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alert_quality_cases import FAULT_SECONDS, FAULTS
from alert_quality_play import Outcome, Played

FOUND_SECONDS = 600.0  # a fault found later is not found


@dataclass(frozen=True, slots=True)
class Right:
    """What is right for one fault and kind of load."""

    must: frozenset[str]
    may: frozenset[str]
    causes: frozenset[str]


Truth = Mapping[tuple[str, bool], Right]  # by (fault, shared prefixes)


@dataclass(frozen=True, slots=True)
class Mark:
    """What one source got right in one run."""

    false_before: tuple[str, ...]  # alerts before the fault
    false_after: tuple[str, ...]
    missed: tuple[str, ...]  # alerts that had to fire
    seconds: float | None  # from the fault to the last alert that had to fire; None: nothing had to, or missed
    cause_right: bool
    cannot_tell: bool  # and that was right


def read_truth(document: Mapping[str, Any]) -> Truth:
    """The table. Raises ValueError when a fault is missing or a word unknown."""
    alerts = frozenset(document["alerts"])
    if set(document["faults"]) != set(FAULTS):
        raise ValueError(f"the truth table must have exactly the faults {', '.join(FAULTS)}")
    table = {}
    for fault, kinds in document["faults"].items():
        for kind, shared in (("plain", False), ("shared", True)):
            row = kinds[kind]
            right = Right(frozenset(row["must"]), frozenset(row["may"]), frozenset(row["causes"]))
            if not right.must | right.may <= alerts:
                raise ValueError(f"{fault}: unknown alert in {sorted(right.must | right.may)}")
            table[fault, shared] = right
    return table


def mark(run: Played, outcome: Outcome, truth: Truth) -> Mark:
    """Compare what was said with what is right."""
    right = truth[run.fault, run.shared]
    in_time = {name for name, at in outcome.after.items() if at is not None and at - FAULT_SECONDS <= FOUND_SECONDS}
    fired = {name for name, at in outcome.after.items() if at is not None}
    missed = right.must - in_time
    times = [at - FAULT_SECONDS for name in right.must if (at := outcome.after.get(name)) is not None]
    return Mark(
        false_before=tuple(sorted(name for name, at in outcome.before.items() if at is not None)),
        false_after=tuple(sorted(fired - right.must - right.may)),
        missed=tuple(sorted(missed)),
        seconds=max(times) if times and not missed else None,
        cause_right=outcome.cause in right.causes,
        cannot_tell=outcome.cause == "cannot tell" and outcome.cause in right.causes,
    )
