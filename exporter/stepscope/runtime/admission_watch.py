"""What admission learns from the samples, and what an operator has to know about it: in the log and on /v1/budget."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.admission import ContextBudget
from stepscope.core.leases import AdmissionCounts, EngineTokens
from stepscope.core.snapshot import EngineView, Snapshot
from stepscope.metrics import OUTCOMES
from stepscope.runtime import sentences

_QUIET_SECONDS = 60.0  # between two log lines about tokens outside the leases
_REPEAT_SECONDS = 600.0  # a state that lasts is said again, for who reads only the newest lines
_GAP_SAMPLES = 3  # in a row: a cancelled request is released at once and leaves the engine a step later
_OBJECTIVE = table.OBJECTIVE_TOKENS_PER_SECOND


class Watch:
    """Feeds the budget after each sample. `take` and `reload` never run at the same time as themselves."""

    def __init__(
        self, settings: Settings, budget: ContextBudget, log: logging.Logger, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._log = log
        self._clock = clock
        self._seen_samples = 0
        self._gap_samples = 0
        self._gap_said_at_seconds = -math.inf
        self._said: dict[str, float] = {}  # kind of warning -> when it was logged
        self.warnings: tuple[str, ...] = ()

    def reload(self, settings: Settings) -> None:
        """Other settings from the next sample on; what still holds is then said again."""
        self._settings = settings
        self._said = {}

    def take(self, snapshot: Snapshot) -> None:
        """What the engine allows and holds. Called after every sample, good or bad."""
        now, hold_seconds = self._clock(), self._settings[table.SAMPLE_HOLD]
        engine = engine_tokens([view for view in snapshot.engines if now - view.at_seconds <= hold_seconds])
        samples = snapshot.scrapes[OUTCOMES.index("ok")]
        if not snapshot.engine_up or samples == self._seen_samples:
            # The last good figures of the budget are held like every other value; what is held is not seen anew.
            engine = EngineTokens(engine.speed_tokens, engine.memory_tokens)
        self._seen_samples = samples
        self._budget.observe(engine)
        counts = self._budget.counts()
        self._watch_gap(counts)
        self._warn(warnings(self._settings, snapshot, counts))

    def _warn(self, now: dict[str, str]) -> None:
        for kind, line in now.items():
            if self._clock() - self._said.get(kind, -math.inf) >= _REPEAT_SECONDS:
                self._said[kind] = self._clock()
                self._log.warning("admission: %s", line)
        self.warnings = tuple(now.values())

    def _watch_gap(self, counts: AdmissionCounts) -> None:
        # For a while after a start the gateways still hold leases of the process before this one.
        gap = (counts.outside_tokens or 0.0) > 0.0 and counts.inherited_tokens == 0.0
        self._gap_samples = self._gap_samples + 1 if gap and not counts.engine.stands_still else 0
        if self._gap_samples >= _GAP_SAMPLES and self._clock() - self._gap_said_at_seconds >= _QUIET_SECONDS:
            self._gap_said_at_seconds = self._clock()
            self._log.warning(
                "admission: the engine holds %.0f tokens without a lease (%.0f are leased): somebody does not ask, or "
                "declares too little",
                counts.outside_tokens,
                counts.leased_tokens,
            )


def warnings(settings: Settings, snapshot: Snapshot, counts: AdmissionCounts) -> dict[str, str]:
    """Kind of warning -> one line: where admission does less, or more, than its settings let one expect."""
    found: dict[str, str] = {}
    objective, engine = settings[_OBJECTIVE], counts.engine
    given = f"--{_OBJECTIVE.name}={objective:g}" if objective is not None else ""
    if counts.budget_tokens is None:
        why = "the engine gives no figures" if snapshot.engine_up else "the engine is not answering"
        admits = settings[table.ADMISSION_WHEN_UNKNOWN] == "admit" or counts.observe_only
        found["unknown"] = f"no budget is known ({why}): every lease is {'given' if admits else 'refused'}"
    elif given and snapshot.engine_up and engine.speed_tokens is None:
        missing = "; ".join(sentences.missing(snapshot)) or "a step law for this engine"
        found["not enforced"] = f"{given} is not enforced: missing {missing}"
    elif given and counts.limit == "speed" and counts.budget_tokens == 0.0:
        load = "not even an empty engine is predicted" if out_of_reach(counts) else "what runs now leaves no room"
        done = "would be refused" if counts.observe_only else "is refused"
        found["out of reach"] = f"{given} is out of reach: {load} to keep it; every lease {done}"
    if engine.stands_still and engine.held_tokens:
        found["stands still"] = (
            f"the engine holds {engine.held_tokens:.0f} tokens and makes no step: it hangs, or all its requests were "
            "cancelled; while nothing is leased one lease at a time is given to find out"
        )
    return found


def out_of_reach(counts: AdmissionCounts) -> bool:
    """Whether the promised speed leaves no token even in an engine that does nothing else."""
    return counts.limit == "speed" and counts.empty_speed_tokens == 0.0


def engine_tokens(views: list[EngineView]) -> EngineTokens:
    """The sum over engines; None where one of them cannot say.

    An engine that nobody uses holds nothing. One in which nothing moves (`stale`) is taken at its gauges' word: it may
    hang. But after all requests were cancelled its gauges stay as they were until the next step; so that they do not
    keep out the very request that would make it, `stands_still` says that nothing that holds tokens moves.
    """

    def total(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    used = [view for view in views if view.state != "idle"]
    return EngineTokens(
        speed_tokens=total([view.speed_budget_tokens for view in views]),
        memory_tokens=total([view.memory_budget_tokens for view in views]),
        held_tokens=total([0.0 if view.state == "idle" else view.tokens_in_flight for view in views]),
        stands_still=bool(used) and all(view.state == "stale" for view in used),
    )
