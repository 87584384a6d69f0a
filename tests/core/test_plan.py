"""A plan's times: whose prompts are in a gap, what a step can take of them, and what no step can be faster than."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim_helpers import small, value
from stepscope.core.model_shape import Shape, read_shape
from stepscope.core.plan import itl, itl_seconds, mean_attention_factor, row, step, ttft
from stepscope.core.plan_demand import ContextClass, Demand, Replica
from stepscope.core.step_model import StepLaw, WeightBytes
from stepscope.sim.physics import Physics
from stepscope.sim.presets import GPUS, MODELS
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.simulation import Simulation

# 10 ms of weights, 1 ms for each 1,000 tokens, 0.1 ms for each prompt token.
LAW = StepLaw(WeightBytes(10e9), 1e12, 1e6, prefill_cost_seconds_per_token=1e-4, active_params=5e9)
REPLICA = Replica(LAW, 1, resident_weight_bytes=12e9, kv_bytes_per_token=1e6, memory_bytes=40e9, utilization=0.9)
MIX = (ContextClass(40, 2000), ContextClass(2, 100_000))
DEMAND = Demand(MIX, (), prompt_tokens=100_000, class_prompt_tokens=(2000.0, 100_000.0), output_tokens=400.0)
PLAIN = Physics.plain(GPUS["H100-SXM"], MODELS["qwen3-8b"])
Load = tuple[int, int, int]  # users, prompt, output


def simulated(*loads: Load) -> tuple[float, float]:
    """(mean ITL in seconds, tokens/s of all) of closed loops on the simulator, over two minutes."""
    groups = (
        Group(f"group {i}", users, prompt, output, stagger_seconds=0.037)
        for i, (users, prompt, output) in enumerate(loads)
    )
    simulation = Simulation(replace(small(), physics=PLAIN), Scenario((Phase("all", 1000.0, tuple(groups)),)))
    pages = []
    for until in (60.0, 180.0):
        simulation.advance(until)
        pages.append(simulation.page_text() or "")
    seconds, count, tokens = (
        value(pages[1], f"vllm:{name}") - value(pages[0], f"vllm:{name}")
        for name in ("inter_token_latency_seconds_sum", "inter_token_latency_seconds_count", "generation_tokens_total")
    )
    return seconds / count, tokens / 120.0


def planned(*loads: Load) -> tuple[float, float]:
    """The same from a plan with the simulator's own constants."""
    law = StepLaw(
        WeightBytes(PLAIN.weight_bytes),
        PLAIN.bandwidth_share * PLAIN.peak_bandwidth_bytes_per_second,
        PLAIN.kv_bytes_per_token,
        prefill_cost_seconds_per_token=2 * PLAIN.active_params / (PLAIN.prefill_flops_share * PLAIN.peak_flops),
    )
    demand = Demand(
        tuple(ContextClass(users, prompt + output / 2) for users, prompt, output in loads),
        (),
        prompt_tokens=max(prompt for _, prompt, _ in loads),
        class_prompt_tokens=tuple(float(prompt) for _, prompt, _ in loads),
        output_tokens=float(loads[0][2]),
    )
    found = row(replace(REPLICA, law=law), demand, sum(users for users, _, _ in loads))
    assert found is not None
    assert found.itl is not None
    assert found.tokens_per_second is not None
    return found.itl.best, found.tokens_per_second.best


@pytest.mark.parametrize(
    "load",
    [(12, 2000, 20), (20, 2000, 20), (22, 2000, 20), (32, 2000, 20), (16, 2000, 200), (64, 1000, 100)],
    ids=["12 users", "all but a chunk a step", "a chunk a step", "prompts queue", "long answers", "many users"],
)
def test_a_closed_loop_goes_as_fast_as_the_simulator_plays_it(load: Load) -> None:
    """Step and rate, where every prompt is computed at once and where prompts queue."""
    measured, plan = simulated(load), planned(load)
    assert plan[0] == pytest.approx(measured[0], rel=0.04)
    assert plan[1] == pytest.approx(measured[1], rel=0.01)


@pytest.mark.parametrize("output", [100, 400])
def test_two_long_sessions_among_chats_cost_what_the_simulator_shows(output: int) -> None:
    """The long ones decode less often than the plan takes them to: an ITL up to a quarter too high, never too low."""
    loads = ((40, 2000, output), (2, 100_000, output))
    measured, plan = simulated(*loads), planned(*loads)
    assert measured[0] < plan[0] < 1.25 * measured[0]
    assert plan[1] == pytest.approx(measured[1], rel=0.03)


def test_each_class_brings_its_own_prompt() -> None:
    """41 others with a mean of 6,667 prompt tokens every 400 tokens; the longest prompt alone decides about TTFT."""
    assert DEMAND.mean_prompt_tokens == pytest.approx(280_000 / 42)
    assert DEMAND.prefill_per_step(42) == pytest.approx(41 * 280_000 / 42 / 400)
    same = replace(DEMAND, class_prompt_tokens=(500.0, 500.0))
    assert same.prefill_per_step(42) == pytest.approx(41 * 500 / 400)
    first = ttft(REPLICA, DEMAND, 1)
    assert first is not None
    assert first.best > 100_000 * 1e-4


def test_attention_weighs_each_prompt_by_its_tokens() -> None:
    """200,000 of 280,000 tokens are in prompts of 100,000."""
    qwen = {"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
    shape: Shape = read_shape(qwen, "qwen")
    long, short = shape.attention_share(100_000, 5e9), shape.attention_share(2000, 5e9)
    found = mean_attention_factor(REPLICA, replace(DEMAND, shape=shape))
    assert found == pytest.approx(1 + (200_000 * long + 80_000 * short) / 280_000)
    assert mean_attention_factor(REPLICA, DEMAND) == 1.0


@given(st.integers(1, 4000), st.floats(1, 1e4), st.floats(1, 1e4), st.floats(1, 1e4))
def test_a_step_never_takes_more_than_a_chunk(users: int, prompt: float, output: float, chunk: float) -> None:
    """And the rate of all never exceeds what a chunk a step lets start, nor falls when more come."""
    demand = Demand((ContextClass(1, prompt + output / 2),), (), prompt, output, chunk_tokens=chunk)
    assert demand.prefill_per_step(users) <= chunk
    found, more = row(REPLICA, demand, users), row(REPLICA, demand, users + 1)
    assert found is not None
    assert more is not None
    assert found.itl is not None
    assert found.tokens_per_second is not None
    assert more.tokens_per_second is not None
    assert found.prompts_queue == (users - 1 > demand.most_decoding)
    assert found.tokens_per_second.best <= demand.most_decoding / found.itl.best * (1 + 1e-9) or not found.prompts_queue
    assert more.tokens_per_second.best >= found.tokens_per_second.best * (1 - 1e-9)
    assert found.tokens_per_second.low <= found.tokens_per_second.best <= found.tokens_per_second.high


def test_beyond_a_chunk_the_gap_grows_no_more() -> None:
    """10 tokens of answer for 1,000 of prompt: 20 decode at a chunk of 2,000 a step, the others wait."""
    demand = Demand((ContextClass(1, 1005.0),), (), 1000.0, 10.0, chunk_tokens=2000.0)
    gap = itl_seconds(REPLICA, demand, 21)
    assert gap == pytest.approx(0.010 + 21 * 1.005e-3 + 0.2)
    assert itl_seconds(REPLICA, demand, 500) == gap
    found = row(REPLICA, demand, 500)
    assert found is not None
    assert found.prompts_queue
    assert found.decoding_requests == 20.0


def test_no_step_is_shorter_than_its_arithmetic() -> None:
    """A fitted law without a roof knows no batch beyond its points: 4,000 requests of 5e9 parameters take 0.2 s."""
    light = replace(DEMAND, mix=(ContextClass(1, 1.0),))
    floored = replace(REPLICA, compute_flops_per_second=2e14)
    few, many, without = step(floored, light, 4), step(floored, light, 4000), step(REPLICA, light, 4000)
    assert few is not None
    assert many is not None
    assert without is not None
    assert few.decode_seconds == pytest.approx(0.010, rel=0.01)
    assert without.decode_seconds < 0.02
    assert many.decode_seconds == many.decode_low_seconds == many.decode_high_seconds == pytest.approx(0.2)


def test_the_spread_of_the_law_is_that_of_every_time() -> None:
    """Prefill and decode alike."""
    spread = replace(REPLICA, law=replace(LAW, low_factor=0.9, high_factor=1.2))
    for found in (itl(spread, DEMAND, 42), ttft(spread, DEMAND, 42)):
        assert found is not None
        assert (found.low, found.high) == (pytest.approx(0.9 * found.best), pytest.approx(1.2 * found.best))
