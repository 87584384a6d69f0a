"""The three laws that each simulated engine is judged with, found as a user would find them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache

from alert_quality_cases import LONGEST_TOKENS, Machine, config_of

from stepscope.core.assume import Calibration, Given, assume
from stepscope.core.defaults import Machine as PriorMachine
from stepscope.core.defaults import default_prior, find_row
from stepscope.core.defaults_table import TABLE
from stepscope.core.estimate import Facts, kv_state
from stepscope.core.fit import fit
from stepscope.core.hardware import find_gpu
from stepscope.core.law_terms import Point
from stepscope.core.learn import Learner, learned, with_baseline
from stepscope.core.load_bins import Bin, extended
from stepscope.core.memory import Memory, Policy
from stepscope.core.model_spec import ModelSpec, from_numbers
from stepscope.core.observer import observe
from stepscope.engines import read
from stepscope.runtime.tables import shipped_gpus
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.simulation import Simulation, run_simulated

SOURCES = ("datasheet", "file", "learned")
INTERVAL_SECONDS = 5.0
PROBE_SECONDS = 60.0
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
    calibrated, _ = assume(replace(given, calibration=_calibration(machine, given, model, seed)), model, 1, None, ())
    learner, seconds = _learner(machine, seed)
    own = with_baseline(Facts(), learner.baseline) if learner.baseline is not None else None
    return Laws({"datasheet": datasheet, "file": calibrated, "learned": own}, learner, seconds)


def _calibration(machine: Machine, given: Given, model: ModelSpec, seed: int) -> Calibration:
    """Few streams and many, short contexts and long, and one probe with prompts: what a calibration run does."""
    capacity = config_of(machine).capacity_tokens
    probes = (
        Group("one short", 1, 256, 4000, aged=True),
        Group("one long", 1, min(capacity // 4, 30_000), 4000, aged=True),
        Group("eight", 8, capacity // 100, 4000, aged=True),
        Group("many short", 64, 100, 400, aged=True),
        Group("many long", 48, int(capacity * 0.75 / 48), 400, aged=True),
        Group("some long", 8, min(int(capacity * 0.5 / 8), LONGEST_TOKENS), 4000, aged=True),
    )
    bins = [_probe(machine, (group,), seed + i) for i, group in enumerate(probes)]
    ask = Group("prompts", 2, 2000, 8, think_seconds=2.0)
    bins.append(_probe(machine, (Group("eight", 8, capacity // 100, 4000, aged=True), ask), seed + 50))
    points = [
        Point(
            b.sequences, b.tokens_in_flight, b.prefill_tokens_per_step, b.itl_seconds,
            weight_bytes=model.weights.read_bytes(b.sequences), kv_bytes_per_token=model.kv_bytes_per_token,
        )
        for b in bins
    ]  # fmt: skip
    peer = PriorMachine(
        "vllm", machine.gpu, machine.tensor_parallel, given.bandwidth or 0.0, given.flops, model.active_params
    )
    found = fit(points, default_prior(find_row(TABLE, peer), peer), model.weights)
    law = found.law
    return Calibration(
        effective_bandwidth_bytes_per_second=law.effective_bandwidth_bytes_per_second,
        step_overhead_seconds=law.step_overhead_seconds,
        sequence_cost_seconds=law.sequence_cost_seconds,
        prefill_cost_seconds_per_token=law.prefill_cost_seconds_per_token or 0.0,
        kv_bandwidth_bytes_per_second=law.kv_bandwidth_bytes_per_second,
        kv_context_cost_seconds_per_byte_token=law.kv_context_cost_seconds_per_byte_token,
        batch_growth_seconds=law.batch_growth_seconds,
        wide_batch_seconds=law.wide_batch_seconds,
        prefill_growth_seconds_per_token=law.prefill_growth_seconds_per_token,
        prompt_cost_seconds=law.prompt_cost_seconds,
        prompt_growth_seconds=law.prompt_growth_seconds,
        identity="simulated",
        valid_range=replace(found.valid_range, max_prefill_tokens_per_step=None),
        residual_ratio=found.score.median_abs_error,
        samples=len(points),
    )


def _probe(machine: Machine, groups: tuple[Group, ...], seed: int) -> Bin:
    """The mean of one probe, its first half left to settle."""
    pairs = [
        (memory, at)
        for memory, at in _watch(machine, Scenario((Phase("probe", PROBE_SECONDS, groups),)), PROBE_SECONDS, seed)
        if at > PROBE_SECONDS / 2
    ]
    episode = None
    for memory, _ in pairs:
        pair = memory.pairs[-1]
        episode = extended(episode, pair, kv_state(pair.last, Facts())) if pair.observations else episode
    if episode is None:
        raise RuntimeError(f"the probe {groups[0].name!r} of {machine.label} gave nothing")
    return episode.load


def varied(machine: Machine, draw: random.Random, phases: int) -> Scenario:
    """Load that changes every VARIED_PHASE_SECONDS: few or many chats, at times with long sessions."""
    capacity = config_of(machine).capacity_tokens
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
            users = max(draw.choice((1, 2, 4)), math.ceil(total / LONGEST_TOKENS))
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
