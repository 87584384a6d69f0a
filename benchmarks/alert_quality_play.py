"""Plays one case through the simulator and the sidecar's core, and says what each source of parameters made of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from alert_quality_cases import FAULT_SECONDS, RUN_SECONDS, STORM_TURN_SECONDS, SWITCHES, Case, config_of, lost_blocks
from alert_quality_laws import INTERVAL_SECONDS, SOURCES, laws_of, model_of
from alert_quality_naive import Naive
from alert_quality_rules import Rule, Series, first_firing, thresholds

from stepscope.core.estimate import Facts
from stepscope.core.learn import Learner, learned, with_baseline
from stepscope.core.memory import Memory, Policy
from stepscope.core.observer import observe
from stepscope.core.sample import Reading
from stepscope.core.snapshot import Assumed
from stepscope.engines import read
from stepscope.metrics import CAUSES
from stepscope.sim.simulation import Simulation, run_simulated

EVALUATE_EVERY = 3  # samples: 15 s, Prometheus' usual evaluation interval
SETTLE_SECONDS = 60.0  # after a fault begins, before the cause is asked for: two windows
MAIN_SHARE = float(thresholds()["preemption_share"])
LEAST_TOLD_SHARE = 0.2  # of the time with a cause; with less the answer is "cannot tell"
WARM_UP_SECONDS = 60.0
NAIVE = "naive"
LAWS, LAW_STRIDE = 3, 10_000  # each engine is calibrated and learned so often, on other loads; its runs take turns


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one source said in one run. Times of first firing in seconds of the run, None: never."""

    before: dict[str, float | None]  # the fault
    after: dict[str, float | None]
    cause: str
    no_law: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """One run with all its outcomes."""

    seed: int
    fault: str
    machine: str
    shared: bool
    itl_seconds: float  # mean of the healthy part
    outcomes: dict[str, Outcome]


def play(case: Case, rules: dict[str, Rule], law_seed: int) -> Played:
    """Run a case once and judge it with every source."""
    laws = laws_of(case.machine, law_seed + LAW_STRIDE * (case.seed % LAWS))
    facts = {source: found for source, found in laws.facts.items() if found is not None}
    policy = Policy(
        interval_seconds=INTERVAL_SECONDS,
        warm_up_seconds=WARM_UP_SECONDS,
        objective_tokens_per_second=case.target_tokens_per_second,
    )
    judges = {
        source: _Judge(found, policy, rules, laws.learner if source == "learned" else Learner())
        for source, found in facts.items()
    }
    naive = Naive(model_of(case.machine), facts["datasheet"])
    names: frozenset[str] | None = None

    def sample(at: float, simulation: Simulation) -> None:
        nonlocal names
        if at == FAULT_SECONDS:
            _begin(case.fault, simulation)
        page = simulation.page_text(names)
        reading = read(page, at) if page is not None else None
        if reading is None:
            names = None
            return
        names = reading.names
        naive.add(reading)
        for judge in judges.values():
            judge.add(reading)

    run_simulated(
        config_of(case.machine), case.scenario, RUN_SECONDS, seed=case.seed, on_scrape=(INTERVAL_SECONDS, sample)
    )
    outcomes = {source: _outcome(judge.series, rules) for source, judge in judges.items()}
    for source in SOURCES:
        outcomes.setdefault(source, Outcome({}, {}, "cannot tell", no_law=True))
    fired = naive.firing()
    outcomes[NAIVE] = Outcome(
        {"drift": first_firing(fired, 0.0, 0.0, FAULT_SECONDS)},
        {"drift": first_firing(fired, 0.0, FAULT_SECONDS, RUN_SECONDS)},
        "cannot tell",
    )
    return Played(case.seed, case.fault, case.machine.label, case.shared, naive.healthy_itl_seconds, outcomes)


class _Judge:
    """The sidecar's core with one set of facts; what it learned goes on growing at its edge."""

    def __init__(self, facts: Facts, policy: Policy, rules: dict[str, Rule], learner: Learner) -> None:
        self._facts, self._policy, self._learner = facts, policy, learner
        self._memories: dict[str, Memory] = {}
        self.series = Series(rules, Assumed(law=facts.law, law_in_tokens=facts.law_in_tokens))

    def add(self, reading: Reading) -> None:
        """The next page."""
        facts = with_baseline(self._facts, self._learner.baseline)
        self._memories, views = observe(self._memories, reading, facts, self._policy)
        if self._learner.baseline is not None:
            at, warm_up = reading.at_seconds, self._policy.warm_up_seconds
            self._learner = learned(self._learner, self._memories, at, Facts(), warm_up)
        self.series.add(reading.at_seconds, views[0])


def _begin(fault: str, simulation: Simulation) -> None:
    if fault == "preemption":
        usage = simulation.engines[0].scheduler.pool.usage
        for turn in range(int((RUN_SECONDS - FAULT_SECONDS) / STORM_TURN_SECONDS)):
            change = partial(simulation.set_faults, lost_blocks(usage, turn))
            simulation.at(FAULT_SECONDS + turn * STORM_TURN_SECONDS, change)
    elif fault in SWITCHES:
        simulation.set_faults(SWITCHES[fault])


def _outcome(series: Series, rules: dict[str, Rule]) -> Outcome:
    before: dict[str, float | None] = {}
    after: dict[str, float | None] = {}
    for name, rule in rules.items():
        holds = rule.compiled()
        truth = [(at, bool(holds(series.store, at))) for at in series.times[::EVALUATE_EVERY]]
        before[name] = first_firing(truth, rule.for_seconds, 0.0, FAULT_SECONDS)
        after[name] = first_firing(truth, rule.for_seconds, FAULT_SECONDS, RUN_SECONDS)
    return Outcome(before, after, _cause(series))


def _cause(series: Series) -> str:
    """The main cause after the fault, as the alerts' texts give it: the most frequent one other than none.

    It has to be told for as large a share as makes a preemption an alert; below that the answer is "none".
    """
    length = RUN_SECONDS - FAULT_SECONDS - SETTLE_SECONDS
    told = series.cause_seconds(FAULT_SECONDS + SETTLE_SECONDS)
    if sum(told.values()) < LEAST_TOLD_SHARE * length:
        return "cannot tell"
    main = max((cause for cause in CAUSES if cause != "none"), key=lambda cause: told[cause])
    return main if told[main] > MAIN_SHARE * length else "none"
