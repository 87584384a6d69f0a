"""The three laws that each simulated engine is judged with, found as a user would find them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache

from alert_quality_calibration import calibration
from alert_quality_cases import Machine, config_of, longest_tokens

from stepscope.core.assume import Given, assume
from stepscope.core.estimate import Facts
from stepscope.core.hardware import find_gpu
from stepscope.core.learn import Learner, learned, with_baseline
from stepscope.core.memory import Memory, Policy
from stepscope.core.model_spec import ModelSpec, from_numbers
from stepscope.core.observer import observe
from stepscope.engines import read
from stepscope.runtime.tables import shipped_gpus
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.simulation import Simulation, run_simulated

SOURCES = ("datasheet", "file", "learned")
INTERVAL_SECONDS = 5.0
VARIED_PHASE_SECONDS = 90.0
LEARN_SECONDS = 900.0  # the quarter of an hour of varied load
POLICY = Policy(interval_seconds=INTERVAL_SECONDS)


@dataclass(frozen=True, slots=True)
class Laws:
    """Facts by source; None where no law could be had."""

    facts: dict[str, Facts | None]
    learner: Learner
    learned_after_seconds: float | None


def model_of(machine: Machine) -> ModelSpec:
    """What a user knows of the model."""
    physics = config_of(machine).physics
    model = from_numbers(physics.weight_bytes, physics.kv_bytes_per_token, physics.active_params, name="simulated")
    return replace(model, layers=physics.layers, kind="dense")


@cache
def laws_of(machine: Machine, seed: int) -> Laws:
    """All laws of a machine; `seed` of the loads that the file and the learned law come from."""
    model = model_of(machine)
    given = Given(gpu=find_gpu(machine.gpu, shipped_gpus()), gpu_count=machine.tensor_parallel)
    datasheet, _ = assume(given, model, 1, None, ())
    calibrated, _ = assume(replace(given, calibration=calibration(machine, given, model, seed)), model, 1, None, ())
    learner, seconds = _learner(machine, seed)
    own = with_baseline(Facts(), learner.baseline) if learner.baseline is not None else None
    return Laws({"datasheet": datasheet, "file": calibrated, "learned": own}, learner, seconds)


def varied(machine: Machine, draw: random.Random, phases: int) -> Scenario:
    """Load that changes every VARIED_PHASE_SECONDS: few or many chats, at times with long sessions."""
    capacity, longest = config_of(machine).capacity_tokens, longest_tokens(config_of(machine))
    played = []
    for number in range(phases):
        count = draw.choice((1, 2, 4, 8, 16, 24, 32, 48, 64))
        prompt = draw.choice((100, 300, 800, 2000))
        output = draw.choice((200, 400, 800))
        prompt = min(prompt, int(0.3 * capacity / count))
        groups: tuple[Group, ...] = (
            Group(f"chats {number}", count, prompt, output, think_seconds=draw.choice((0.0, 1.0, 4.0)), spread=0.5),
        )
        if draw.random() < 0.4:
            total = draw.uniform(0.1, 0.6) * capacity
            users = max(draw.choice((1, 2, 4)), math.ceil(total / longest))
            long = int(total / users)
            groups += (Group(f"long {number}", users, long, 3000, stagger_seconds=3.0),)
        played.append(Phase(f"load {number}", VARIED_PHASE_SECONDS, groups))
    return Scenario(tuple(played))


def _learner(machine: Machine, seed: int) -> tuple[Learner, float | None]:
    """What the sidecar learns in a quarter of an hour, without any fact; twice as long where that is not enough."""
    scenario = varied(machine, random.Random(seed), 20)
    learner = Learner()
    for memory, at in _watch(machine, scenario, 2 * LEARN_SECONDS, seed):
        learner = learned(learner, {"0": memory}, at, Facts(), POLICY.warm_up_seconds)
        if learner.baseline is not None and at >= LEARN_SECONDS:
            return learner, at
    return learner, None


def _watch(machine: Machine, scenario: Scenario, seconds: float, seed: int) -> list[tuple[Memory, float]]:
    """The engine's memory after each sample that ends a pair."""
    found: list[tuple[Memory, float]] = []
    memories: dict[str, Memory] = {}
    names: frozenset[str] | None = None

    def sample(at: float, simulation: Simulation) -> None:
        nonlocal memories, names
        reading = read(simulation.page_text(names) or "", at)
        if reading is None:
            return
        names = reading.names
        memories, _ = observe(memories, reading, Facts(), POLICY)
        memory = memories["0"]
        if memory.pairs and memory.pairs[-1].end_seconds == at:
            found.append((memory, at))

    run_simulated(config_of(machine), scenario, seconds, seed=seed, on_scrape=(INTERVAL_SECONDS, sample))
    return found
