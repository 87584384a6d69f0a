"""Learning beside the sampler: feeds the learner, puts its law in place, keeps it in a file, begins anew on demand."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from stepscope.core.estimate import Facts
from stepscope.core.learn import LEARN_SECONDS, Baseline, Learner, learned, with_baseline
from stepscope.core.memory import Memory
from stepscope.core.snapshot import Assumed
from stepscope.errors import StateError
from stepscope.runtime.baseline_file import Identity, read_baseline, remove_baseline, write_baseline


class Learning:
    """Used by the sampling thread alone, except `recalibrate`, which only asks."""

    def __init__(
        self, log: logging.Logger, file: Path | None = None, *, unix_clock: Callable[[], float] = time.time
    ) -> None:
        """`file`: where the baseline is kept; what is there is read with the first page, when it is known what runs."""
        self._log = log
        self._file = file
        self._unix_clock = unix_clock
        self._learner = Learner()
        self._identity: Identity | None = None
        self._anew = threading.Event()
        self._said_lacks = ""

    def recalibrate(self) -> None:
        """From the next sample on, learn from nothing: whatever the engine does then becomes normal."""
        self._anew.set()

    def facts(self, facts: Facts, assumed: Assumed, identity: Identity) -> tuple[Facts, Assumed]:
        """What to judge with, and what to say about it. Called before a page is observed."""
        self._recognise(identity)
        baseline = self._learner.baseline
        used = with_baseline(facts, baseline)
        if baseline is not None:
            assumed = replace(assumed, baseline_residual_ratio=baseline.law.residual_ratio)
        if baseline is None or used is facts:
            return facts, assumed
        return used, replace(
            assumed,
            law=baseline.law,
            law_in_tokens=baseline.in_tokens,
            assumptions=(
                _learned_line(baseline),
                *(line for line in assumed.assumptions if line not in assumed.law_assumptions),
            ),
            missing=(),  # all that may be missing is needed for other laws only
        )

    def after(self, memories: Mapping[str, Memory], at_seconds: float, facts: Facts, warm_up_seconds: float) -> None:
        """Learn from what was observed. `facts`: without a learned law."""
        before = self._learner
        try:
            self._learner = learned(before, memories, at_seconds, facts, warm_up_seconds)
        except Exception:  # whatever the load was: judging must go on
            self._log.exception("learning failed inside stepscope and begins anew")
            self._learner = Learner(baseline=before.baseline)
            return
        baseline = self._learner.baseline
        if baseline is not None and baseline is not before.baseline:
            if before.baseline is None:
                self._log.info("learned: %s", _learned_line(baseline))
            self._keep(baseline)
        elif self._learner.lacks != self._said_lacks:
            self._said_lacks = self._learner.lacks
            self._log.info("not learned yet: %s", self._said_lacks)

    def _recognise(self, identity: Identity) -> None:
        """Begin anew when another engine, version or machine came up, or somebody asked for it."""
        if self._anew.is_set():
            self._anew.clear()
            self._identity = identity
            self._forget("asked to recalibrate")
        elif self._identity is None:
            self._identity = identity
            self._restore(identity)
        elif (reason := self._identity.mismatch(identity)) is not None:
            self._identity = identity
            self._forget(reason)
        else:
            self._identity = _fuller(self._identity, identity)

    def _forget(self, reason: str) -> None:
        self._learner = Learner()
        self._log.info("learning from nothing, for at least %.0f minutes of load: %s", LEARN_SECONDS / 60.0, reason)
        if self._file is not None:
            try:
                remove_baseline(self._file)
            except StateError as error:
                self._log.warning("%s", error)

    def _restore(self, identity: Identity) -> None:
        if self._file is None:
            return
        try:
            kept = read_baseline(self._file)
        except StateError as error:
            self._log.warning("ignored: %s", error)
            return
        if kept is None:
            return
        baseline, then = kept
        reason = then.mismatch(identity)
        if reason is not None:
            self._log.warning("ignored: state file %s: %s", self._file, reason)
            return
        self._identity = _fuller(identity, then)
        self._learner = Learner(baseline=baseline)
        self._log.info("from state file %s: %s", self._file, _learned_line(baseline))

    def _keep(self, baseline: Baseline) -> None:
        if self._file is None or self._identity is None:
            return
        try:
            write_baseline(self._file, baseline, self._identity, self._unix_clock())
        except StateError as error:
            self._log.warning("not kept: %s", error)


def _fuller(one: Identity, other: Identity) -> Identity:
    """Both agree; what only one knows is taken over."""
    return Identity(
        one.model_name or other.model_name,
        one.engine_version or other.engine_version,
        one.kv_cache_dtype or other.kv_cache_dtype,
        one.gpu or other.gpu,
        one.gpu_count or other.gpu_count,
    )


def _learned_line(baseline: Baseline) -> str:
    law = baseline.law
    line = f"the step law was learned on this engine, from {law.samples} loads, off by {law.residual_ratio or 0.0:.1%}"
    if baseline.suspect:
        line += "; it is slower than any engine of its kind was measured to be: perhaps slow from birth"
    return line
