"""Faults met by an engine whose law is learned, in simulated time, from its pages to the shipped alert.

A fault from birth is normal to the learner and must show in another way; one that comes later is never learned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from learning_loads import INTERVAL_SECONDS, POLICY, realistic, varied
from rules import promtool
from rules.promtool import RULES, Case, Firing
from rules.sidecar import GOOD, Sidecar
from stepscope.core.assume import Given, assume
from stepscope.core.estimate import Facts
from stepscope.core.hardware import find_gpu
from stepscope.core.memory import Memory
from stepscope.core.model_spec import from_numbers
from stepscope.core.observer import observe
from stepscope.core.publish import engine_rows
from stepscope.core.snapshot import Accounts, Assumed, EngineView
from stepscope.engines import read
from stepscope.runtime.baseline_file import Identity
from stepscope.runtime.learning import Learning
from stepscope.runtime.tables import shipped_gpus
from stepscope.sim.simulation import Simulation
from tools import require_tool

LOG = logging.getLogger("stepscope.test.learning_faults")
MODEL, GPU, GPUS = "llama-3.1-70b", "H200-SXM", 2  # 23 ms a step: few of them to simulate
ENGINE = Identity("m", "0.32.0", None, GPU, GPUS)
ALERT = "StepscopeBaselineSuspect"
DRIFT_LIMIT = 0.15
HOUR, FIVE_MINUTES = 3600.0, 300.0


@dataclass
class Watched:
    """An engine under varied load with all of the sidecar between its page and its series, but sockets and clocks."""

    seed: int
    facts: Facts = field(default_factory=Facts)
    assumed: Assumed = field(default_factory=Assumed)
    throttle: float = 1.0  # from birth
    phases: int = 80  # of 90 s

    def __post_init__(self) -> None:
        self.simulation = Simulation(realistic(MODEL, GPU, GPUS), varied(self.seed, self.phases), seed=self.seed)
        self.simulation.set_faults({"throttle": self.throttle})
        self.learning = Learning(LOG)
        self.memories: dict[str, Memory] = {}
        self.view: EngineView | None = None
        self.said = self.assumed
        self.at = 0.0

    def sample(self) -> None:
        """One more sample."""
        self.at += INTERVAL_SECONDS
        self.simulation.advance(self.at)
        reading = read(self.simulation.page_text() or "", self.at)
        assert reading is not None
        facts, self.said = self.learning.facts(self.facts, self.assumed, ENGINE)
        self.memories, views = observe(self.memories, reading, facts, POLICY)
        self.view = views[0]
        self.learning.after(self.memories, self.at, self.facts, POLICY.warm_up_seconds)

    @property
    def source(self) -> str | None:
        """Where the law in use comes from."""
        return self.said.law.source if self.said.law is not None else None

    def until_learned(self, seconds: float = 1800.0) -> None:
        """Samples until a learned law is in use."""
        end = self.at + seconds
        while self.source != "learned":
            assert self.at < end, "nothing was learned in time"
            self.sample()

    def counters(self, seconds: float) -> Iterator[Accounts]:
        """The counters every five minutes from now on."""
        end = self.at + seconds
        while True:
            assert self.view is not None
            yield self.view.accounts
            if self.at >= end:
                return
            for _ in range(int(FIVE_MINUTES / INTERVAL_SECONDS)):
                self.sample()

    def share_of_peak(self) -> float:
        """The published series."""
        assert self.view is not None
        ((_, share),) = engine_rows("bandwidth_share_of_peak_ratio", self.view, self.said)
        return share


def known() -> tuple[Facts, Assumed]:
    """Model and GPU, as flags give them."""
    physics = realistic(MODEL, GPU, GPUS).physics
    spec = from_numbers(physics.weight_bytes, physics.kv_bytes_per_token, physics.active_params)
    model = replace(spec, layers=physics.layers, kind="dense")
    return assume(Given(gpu=find_gpu(GPU, shipped_gpus()), gpu_count=GPUS), model, 1, None, ())


@cache
def learned_fleet() -> tuple[Watched, ...]:
    """Three engines alike, of which the second takes 1.4 times as long since its birth; all have learned their law."""
    fleet = tuple(Watched(seed, *known(), throttle=1.4 if seed == 22 else 1.0) for seed in (21, 22, 23))
    for engine in fleet:
        engine.until_learned()
    return fleet


def test_the_share_of_peak_shows_an_engine_that_is_slow_from_birth() -> None:
    """As many times lower than its peers' as it is slower; theirs agree within 5 %."""
    one, slow, other = (engine.share_of_peak() for engine in learned_fleet())
    assert other == pytest.approx(one, rel=0.05)
    assert slow == pytest.approx(one / 1.4, rel=0.05)


def test_the_alert_fires_for_the_engine_that_is_slow_from_birth_alone(tmp_path: Path) -> None:
    """The shipped rule, on the shares that the three sidecars publish."""
    moments = [replace(GOOD, bandwidth_share_ratio=e.share_of_peak(), source="learned") for e in learned_fleet()]
    sidecars = [Sidecar.of((26, moment), instance=f"10.0.0.{at}:10094") for at, moment in enumerate(moments, 1)]
    case = Case("The slow one of three", sidecars, {20.0: (Firing(ALERT, instance="10.0.0.2:10094"),)})
    path = tmp_path / "fleet.test.yaml"
    promtool.write(path, [promtool.rendered(case)], [RULES / "alerts.yaml"])
    passed, output = promtool.run(require_tool("promtool"), path)
    assert passed, output


def test_the_log_says_that_a_law_may_hold_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """Of an engine twice as slow as it should be, beyond any that was measured; not of a sound one."""
    with caplog.at_level(logging.INFO, logger=LOG.name):
        Watched(22, *known(), throttle=2.0).until_learned()
        (slow,) = (r.message for r in caplog.records if r.message.startswith("learned:"))
        caplog.clear()
        Watched(22, *known()).until_learned()
        (sound,) = (r.message for r in caplog.records if r.message.startswith("learned:"))
    assert "perhaps slow from birth" in slow
    assert "perhaps slow from birth" not in sound


def drifts(counters: Iterator[Accounts]) -> list[float]:
    """What the alert's expression gives every five minutes: observed over expected, less 1."""
    return [
        (after.itl_observed_seconds - before.itl_observed_seconds)
        / (after.itl_expected_seconds - before.itl_expected_seconds)
        - 1.0
        for before, after in pairwise(counters)
        if after.itl_expected_seconds > before.itl_expected_seconds
    ]


def test_a_slowdown_stays_drift_for_an_hour_and_recalibration_accepts_it() -> None:
    """25 % slower under load that changes all the time: at no time does it become normal, until somebody says so."""
    engine = Watched(24)
    engine.until_learned()
    healthy = drifts(engine.counters(600.0))
    learned = engine.said.law
    engine.simulation.set_faults({"throttle": 1.25})
    slow = drifts(engine.counters(HOUR))
    assert max(healthy) < DRIFT_LIMIT
    assert len(slow) >= 10
    assert min(slow) > DRIFT_LIMIT
    assert learned is not None
    assert engine.said.law is not None
    assert replace(engine.said.law, valid_range=None) == replace(learned, valid_range=None)

    engine.learning.recalibrate()
    engine.sample()
    assert engine.source is None
    engine.until_learned()
    assert max(drifts(engine.counters(600.0))) < DRIFT_LIMIT
