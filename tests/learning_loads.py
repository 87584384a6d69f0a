"""Engines to learn from: simulated load that changes, and the memory of the core after each sample of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from stepscope.core.estimate import Facts
from stepscope.core.memory import Memory, Policy
from stepscope.core.observer import observe
from stepscope.engines import read
from stepscope.sim.build import build_config
from stepscope.sim.presets import EngineConfig
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.simulation import Simulation, run_simulated

INTERVAL_SECONDS = 5.0
POLICY = Policy(interval_seconds=INTERVAL_SECONDS)
PHASE_SECONDS = 90.0


def realistic(model: str = "qwen3-8b", gpu: str = "H100-SXM", tensor_parallel: int = 1) -> EngineConfig:
    """A simulated engine with every feature that the product's law does not know."""
    return build_config(model, gpu, "realistic", tensor_parallel=tensor_parallel)


def varied(seed: int, phases: int) -> Scenario:
    """Chats of changing number and length, at times with one or two long sessions beside them."""
    draw, played = random.Random(seed), []
    for number in range(phases):
        groups: tuple[Group, ...] = (
            Group(
                f"chats {number}",
                draw.choice((1, 2, 4, 8, 12, 20, 32, 48, 64)),
                draw.choice((200, 500, 1000, 2000, 4000)),
                draw.choice((200, 400, 800)),
                think_seconds=draw.choice((0.0, 1.0, 5.0)),
                spread=0.5,
                aged=True,
            ),
        )
        if draw.random() < 0.3:
            tokens = draw.choice((10_000, 30_000, 60_000))
            groups += (Group(f"long {number}", draw.choice((1, 2)), tokens, 2000, spread=0.3, stagger_seconds=7.0),)
        played.append(Phase(f"load {number}", PHASE_SECONDS, groups))
    return Scenario(tuple(played))


def watched(
    config: EngineConfig, scenario: Scenario, seconds: float, seed: int, throttle_from: float | None = None
) -> Iterator[Memory]:
    """The engine's memory after each sample; from `throttle_from` seconds on every step takes 1.3 times as long."""
    memories: dict[str, Memory] = {}
    found: list[Memory] = []
    names: frozenset[str] | None = None

    def sample(at: float, simulation: Simulation) -> None:
        nonlocal memories, names
        if at == throttle_from:
            simulation.set_faults({"throttle": 1.3})
        reading = read(simulation.page_text(names) or "", at)
        if reading is not None:
            names = reading.names
            memories, _ = observe(memories, reading, Facts(), POLICY)
            found.append(memories["0"])

    run_simulated(config, scenario, seconds, seed=seed, on_scrape=(INTERVAL_SECONDS, sample))
    yield from found
