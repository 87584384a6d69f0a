"""The cases of the alert-quality benchmark: which engine, which load, which fault, all from one seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache

from stepscope.sim.build import BLOCK_TOKENS, build_config
from stepscope.sim.physics import StepWork
from stepscope.sim.presets import GPUS, MODELS, EngineConfig, kv_blocks
from stepscope.sim.scenario import Group, Phase, Scenario

FAULT_SECONDS = 600.0  # when the fault begins
RUN_SECONDS = 1500.0  # ten minutes to find it, and five more for the cause
FAULTS = (
    "none", "slower_15", "slower_25", "slower_40", "noisy_neighbour", "preemption", "context_growth",
    "prompt_bursts", "restart", "frozen_gauges",
)  # fmt: skip
SWITCHES: dict[str, dict[str, object]] = {
    "slower_15": {"throttle": 1.15},
    "slower_25": {"throttle": 1.25},
    "slower_40": {"throttle": 1.40},
    "noisy_neighbour": {"noisy_neighbour": 2.2},
    "restart": {"restart": 60.0},
    "frozen_gauges": {"frozen_gauges": True},
}
LONGEST_TOKENS = 100_000  # of one session
LONGEST_SHARE = 0.8  # of what the model takes: the answer has to fit as well
BUSY_SHARE = 0.75  # of the KV cache, after the context has grown
STORM_ROOM = (0.5, 0.8)  # of what is in use stays when blocks are lost: by turns, so that the storm goes on
STORM_TURN_SECONDS = 15.0
HEADROOM = 0.9  # of the promised time: the default of --objective.headroom
FELT = 1.25  # prompt bursts take the mean ITL to this many times what is promised, or they are no fault
HEALTHY_PREFILL_SHARE = 0.12  # of the time, at most, before a fault: less than the headroom for prompts


@dataclass(frozen=True, slots=True)
class Machine:
    """One deployment: names of the simulator's presets."""

    model: str
    gpu: str
    tensor_parallel: int = 1
    weight_bytes: float | None = None
    draft_tokens: int = 0
    draft_acceptance: float = 0.0
    memory_share: float | None = None  # of the GPU, where it is not the engine's alone; None: vLLM's default

    @property
    def label(self) -> str:
        """For the report."""
        small = "" if self.weight_bytes is None else f" at {self.weight_bytes / 1e9:g} GB"
        drafts = f", {self.draft_tokens} drafts" if self.draft_tokens else ""
        share = "" if self.memory_share is None else f", {self.memory_share:.0%} of its memory"
        return f"{self.model}{small} on {self.tensor_parallel} x {self.gpu}{share}{drafts}"


# Mean ITL from about 4 ms (a model under 1B that has two fifths of an H200) to about 80 (a 14B model on two L4).
MACHINES = (
    Machine("qwen3-0.6b", "H200-SXM", memory_share=0.4),
    Machine("qwen3-8b", "H100-SXM"),
    Machine("qwen3-8b", "H200-SXM", weight_bytes=4e9),
    Machine("llama-3.1-8b", "A100-80GB-SXM"),
    Machine("qwen3-8b", "RTX4090", weight_bytes=8e9),
    Machine("llama-3.1-70b", "H200-SXM", 2),
    Machine("llama-3.1-70b", "H100-SXM", 4),
    Machine("llama-3.1-70b", "A100-80GB-SXM", 4),
    Machine("llama-3.1-70b", "L40S", 4, weight_bytes=70.6e9),
    Machine("qwen3-14b", "L4", 2),
    Machine("qwen3-8b", "H100-SXM", draft_tokens=3, draft_acceptance=0.7),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    seed: int
    fault: str
    machine: Machine
    scenario: Scenario
    shared: bool
    target_step_seconds: float
    target_tokens_per_second: float


@cache
def config_of(machine: Machine) -> EngineConfig:
    """The simulated engine, with every feature that the product's law does not know."""
    blocks = None
    if machine.memory_share is not None:
        sizes = GPUS[machine.gpu], MODELS[machine.model], machine.tensor_parallel
        blocks = kv_blocks(*sizes, machine.memory_share, BLOCK_TOKENS)
    return build_config(
        machine.model,
        machine.gpu,
        "realistic",
        tensor_parallel=machine.tensor_parallel,
        weight_bytes=machine.weight_bytes,
        draft_tokens=machine.draft_tokens,
        draft_acceptance=machine.draft_acceptance,
        num_gpu_blocks=blocks,
    )


def cases(first_seed: int, count: int) -> list[Case]:
    """`count` cases, every fault equally often."""
    return [case(first_seed + i, FAULTS[i % len(FAULTS)]) for i in range(count)]


def case(seed: int, fault: str) -> Case:
    """One case; the seed decides all but the fault."""
    draw = random.Random(seed)
    machine = MACHINES[draw.randrange(len(MACHINES))]
    config = config_of(machine)
    capacity = config.capacity_tokens
    shared = draw.random() < 0.2
    chats = _chats(draw, config, shared)
    groups: tuple[Group, ...] = (chats,)
    context = chats.count * (chats.prompt_tokens + chats.output_tokens / 2)
    if draw.random() < 0.3:  # a few prompts always come and go
        groups += (Group("visitors", 2, max(64, int(capacity * 0.004)), 64, think_seconds=8.0, spread=0.5),)
    agents = _agents(draw, config, context)
    target = _target(config, chats.count, context)
    grown = agents if fault in ("context_growth", "frozen_gauges") else ()
    later: tuple[Group, ...] = groups + grown
    if fault == "prompt_bursts":
        healthy = _step_seconds(config, chats.count, context)
        later = (*groups, _bursts(draw, config, 1.0 - healthy / (FELT * target / HEADROOM)))
    scenario = Scenario((Phase("healthy", FAULT_SECONDS, groups), Phase(fault, RUN_SECONDS - FAULT_SECONDS, later)))
    # headroom / objective is the step's target, in steps; a speculative step yields several tokens.
    per_step = sum(machine.draft_acceptance**k for k in range(machine.draft_tokens + 1))
    return Case(seed, fault, machine, scenario, shared, target, per_step * HEADROOM / target)


def lost_blocks(usage: float, turn: int) -> dict[str, object]:
    """The fault that makes a preemption storm of a cache used to this share."""
    return {"lost_blocks": min(0.99, 1.0 - STORM_ROOM[turn % len(STORM_ROOM)] * usage)}


def _chats(draw: random.Random, config: EngineConfig, shared: bool) -> Group:
    """Chats that hold 6 to 14 % of the cache, with little or some prefill."""
    capacity, physics = config.capacity_tokens, config.physics
    count = draw.choice((4, 8, 12, 20, 32, 48, 64))
    each = max(200, int(capacity * draw.uniform(0.06, 0.14) / count))
    prompt_share = draw.choice((0.2, 0.5, 0.8))  # of the context: what is not prompt is generated
    prompt = max(50, int(each * prompt_share))
    output = max(100, 2 * (each - prompt))
    # Short answers to long prompts keep an engine prefilling: make them long enough.
    chunk = config.max_num_batched_tokens
    prompt_seconds = prompt * physics.step_seconds(StepWork(chunks=((chunk, prompt),))) / chunk
    answer_seconds = physics.step_seconds(StepWork(count, 1 + config.draft_tokens, each * count, each * each * count))
    output = max(output, int(count * prompt_seconds / (HEALTHY_PREFILL_SHARE * answer_seconds)))
    prefix = int(prompt * 0.6) if shared else 0
    return Group(
        "chats", count, prompt, output, think_seconds=draw.choice((0.0, 2.0)), aged=not shared,
        stagger_seconds=0.5 if shared else 0.0, shared_prefix_tokens=prefix, spread=0.3,
    )  # fmt: skip


def longest_tokens(config: EngineConfig) -> int:
    """Prompt of the longest session that this engine takes."""
    return min(LONGEST_TOKENS, int(LONGEST_SHARE * config.max_model_len))


def _agents(draw: random.Random, config: EngineConfig, context: float) -> tuple[Group, ...]:
    """Long sessions that fill the cache up to BUSY_SHARE."""
    total = BUSY_SHARE * config.capacity_tokens - context
    count = max(draw.choice((2, 3, 4)), math.ceil(total / longest_tokens(config)))
    each = int(total / count)
    return (Group("agents", count, int(each * 0.9), max(2000, int(each * 0.2)), stagger_seconds=5.0),)


def _step_seconds(config: EngineConfig, sequences: int, tokens: float) -> float:
    """A decode step with `tokens` spread evenly, without prompts and jitter."""
    work = StepWork(sequences, 1 + config.draft_tokens, int(tokens), int(tokens * tokens / sequences))
    return config.physics.step_seconds(work)


def _target(config: EngineConfig, sequences: int, context: float) -> float:
    """Halfway, as a ratio, between the step of the healthy load and that of the grown one."""
    grown = BUSY_SHARE * config.capacity_tokens
    return math.sqrt(_step_seconds(config, sequences, context) * _step_seconds(config, sequences, grown))


def _bursts(draw: random.Random, config: EngineConfig, least_share: float) -> Group:
    """Prompts that keep a half to two thirds of the engine's time, or as much as it takes to be felt."""
    chunk, users = config.max_num_batched_tokens, 6
    seconds = config.physics.step_seconds(StepWork(chunks=((chunk, 0),)))
    think, busy = draw.uniform(1.0, 2.0), draw.uniform(1.0, 2.0)
    busy = max(busy, least_share / (1.0 - least_share))
    wanted = chunk / seconds * think * busy / users
    tokens = max(chunk, min(wanted, config.capacity_tokens // 40))
    return Group("bursts", users, int(tokens), 8, think_seconds=think * tokens / wanted, spread=0.3)
