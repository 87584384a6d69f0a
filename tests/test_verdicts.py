"""Verdicts over whole stories in simulated time: a healthy engine is never called unexplained, a throttled one soon.

The simulator's own physics has what the law does not know: attention that grows within a prompt, padding, jitter. The
law has four numbers, as an operator would fit them to steady loads of short and middling requests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from stepscope import engines
from stepscope.core.estimate import Facts
from stepscope.core.observer import Memory, Policy, observe
from stepscope.core.snapshot import EngineView
from stepscope.core.step_model import StepLaw, WeightBytes
from stepscope.sim.build import build_config
from stepscope.sim.presets import EngineConfig
from stepscope.sim.scenario import Group, Phase, Scenario
from stepscope.sim.simulation import Simulation

CONFIG = build_config("qwen3-8b", "H100-SXM", "realistic")
# Least squares on seven steady loads of CONFIG (1 to 100 requests, prompts of 500 to 12,000); residuals: median 0.7 %.
LAW = StepLaw(
    weights=WeightBytes(CONFIG.physics.weight_bytes),
    effective_bandwidth_bytes_per_second=0.684 * 3.35e12,  # share of H100's data sheet
    kv_bytes_per_token=CONFIG.physics.kv_bytes_per_token,
    step_overhead_seconds=1.65e-3,
    sequence_cost_seconds=13.7e-6,
    prefill_cost_seconds_per_token=22.4e-6,
    source="file",
)
PROMISE = 40.0  # tokens/s and user
THROTTLED_AT = 200.0
LENGTH = 420.0
Mutation = Callable[[str], str]


def without_process(page: str) -> str:
    """As several API servers write it."""
    return re.sub(r"(?m)^process_start_time_seconds.*\n", "", page)


def as_is(page: str) -> str:
    return page


def steady(*groups: Group) -> Scenario:
    return Scenario((Phase("all", 3600.0, groups),))


def storms(count: int, busy_seconds: float, quiet_seconds: float) -> Scenario:
    """Chats go on; again and again thirty others come with long prompts, and all of them are cancelled."""
    chats = Group("chat", count=15, prompt_tokens=1000, output_tokens=2000, aged=True)
    phases = []
    for number in range(count):
        crowd = Group(f"crowd {number}", count=30, prompt_tokens=4000, output_tokens=800)
        phases += [Phase("crowd", busy_seconds, (crowd, chats)), Phase("calm", quiet_seconds, (chats,))]
    return Scenario(tuple(phases))


def watched(
    scenario: Scenario,
    *,
    interval: float = 5.0,
    promise: float | None = PROMISE,
    mutate: Mutation = as_is,
    throttled: bool = False,
    frozen: bool = False,
    config: EngineConfig = CONFIG,
) -> list[EngineView]:
    """Every view of engine 0 after the warm-up; with `throttled` those from 35 s after the throttling on.

    With `frozen` the gauges stand still from the same time on.
    """
    simulation, memories = Simulation(config, scenario), dict[str, Memory]()
    policy = Policy(interval_seconds=interval, objective_tokens_per_second=promise)
    views, at = [], 0.0
    while at < LENGTH:
        simulation.advance(at)
        if throttled and at >= THROTTLED_AT and simulation.faults.throttle == 1.0:
            simulation.set_faults({"throttle": 1.5})
        if frozen and at == THROTTLED_AT:
            simulation.set_faults({"frozen_gauges": True})
        page = simulation.page_text()
        assert page is not None
        reading = engines.read(mutate(page), at)
        assert reading is not None
        memories, found = observe(memories, reading, Facts(law=LAW), policy)
        if at >= (THROTTLED_AT + 35.0 if throttled else 90.0):
            views.append(found[0])
        at += interval
    return views


def causes(views: list[EngineView]) -> Counter[str | None]:
    return Counter(view.cause for view in views)


CHATS = Group("chat", count=40, prompt_tokens=1000, output_tokens=2000, aged=True, spread=0.2)
AGENTS = Group("agent", count=2, prompt_tokens=120_000, output_tokens=300, think_seconds=20.0)
SHARED = Group("tool", count=60, prompt_tokens=8000, output_tokens=400, shared_prefix_tokens=7000, think_seconds=1.0)
FEW_SHARE = Group("few", count=8, prompt_tokens=9000, output_tokens=3000, shared_prefix_tokens=6000, spread=0.3)
VISITORS = Group("visitor", count=3, prompt_tokens=1500, output_tokens=64, think_seconds=6.0, spread=0.5)
IN_STEP = Group("user", count=30, prompt_tokens=800, output_tokens=150, think_seconds=8.0)
MIXED = Group("mixed", count=40, prompt_tokens=3000, output_tokens=600, aged=True, spread=0.2)

STORIES: list[tuple[str, Scenario, float, Mutation]] = [
    ("chats", steady(CHATS), 5.0, as_is),
    ("chats, several API servers", steady(CHATS), 5.0, without_process),
    ("steady mixed traffic", steady(MIXED), 5.0, as_is),
    ("very long prompts beside chats", steady(CHATS, AGENTS), 5.0, as_is),
    ("very long prompts, watched each second", steady(CHATS, AGENTS), 1.0, as_is),
    ("a prefix that all requests share", steady(SHARED), 5.0, as_is),
    ("a prefix that long requests share beside short ones", steady(FEW_SHARE, VISITORS), 5.0, as_is),
    ("users in step, several API servers", steady(IN_STEP), 5.0, without_process),
    ("cancel storms", storms(30, 7.0, 9.0), 5.0, as_is),
    ("cancel storms shorter than a sample", storms(30, 7.0, 9.0), 15.0, as_is),
    ("nobody", steady(), 5.0, as_is),
]


@pytest.mark.parametrize(("scenario", "interval", "mutate"), [s[1:] for s in STORIES], ids=[s[0] for s in STORIES])
@pytest.mark.parametrize("promise", [PROMISE, None])
def test_a_healthy_engine_is_never_called_unexplained(
    scenario: Scenario, interval: float, mutate: Mutation, promise: float | None
) -> None:
    """Where it cannot be told, it is not told."""
    views = watched(scenario, interval=interval, promise=promise, mutate=mutate)
    assert causes(views)["unexplained"] == 0
    assert not [view.drift_ratio for view in views if view.drift_ratio is not None and view.drift_ratio > 0.15]


@pytest.mark.parametrize(
    ("scenario", "mutate"),
    [
        (steady(CHATS), as_is),
        (steady(CHATS), without_process),
        (steady(MIXED), as_is),
        (steady(CHATS, AGENTS), as_is),
        (steady(SHARED), as_is),
        (steady(FEW_SHARE, VISITORS), as_is),
    ],
)
@pytest.mark.parametrize("promise", [PROMISE, None])
def test_a_throttled_engine_is_unexplained_within_a_window(
    scenario: Scenario, mutate: Mutation, promise: float | None
) -> None:
    """Half again as slow: wherever it is judged at all it is seen, and it is judged now and then."""
    views = watched(scenario, promise=promise, mutate=mutate, throttled=True)
    found = causes(views)
    assert found["unexplained"] >= 5
    assert set(found) <= {"unexplained", "prefill"}


@pytest.mark.parametrize("chats", [Group("chat", 4, 1000, 4000, aged=True), CHATS])
def test_gauges_that_freeze_while_long_prompts_come_blame_nobody(chats: Group) -> None:
    """The page shows neither the prompts nor what they fill: slow steps that nobody could account for."""
    long = Group("long", count=2, prompt_tokens=100_000, output_tokens=2000, stagger_seconds=5.0)
    phases = Phase("chats", THROTTLED_AT, (chats,)), Phase("long", 3600.0, (chats, long))
    views = watched(Scenario(phases), frozen=True)
    assert causes(views)["unexplained"] == 0


def test_nobody_is_idle_and_nothing_is_claimed() -> None:
    """No measurement, no cause; the prediction of an empty step stands."""
    views = watched(steady())
    assert {(view.state, view.cause, view.itl_mean_seconds, view.drift_ratio) for view in views} == {
        ("idle", None, None, None)
    }


def test_what_requests_share_is_told_and_near_the_truth() -> None:
    """Sixty requests with 7,000 tokens in common: the gauge counts them once, and some 410,000 are read besides."""
    views = [view for view in watched(steady(SHARED)) if view.shared_prefix_tokens is not None]
    assert len(views) > 30
    middle = sorted(view.shared_prefix_tokens or 0.0 for view in views)[len(views) // 2]
    assert middle == pytest.approx(59 * 7000, rel=0.15)
    assert {view.state for view in views} <= {"too_few_observations", "prefilling"}


LONE = Group("reader", count=1, prompt_tokens=8000, output_tokens=100, think_seconds=3.0, spread=0.3)


def test_a_lone_user_s_prompts_slow_nobody() -> None:
    """Half of the engine's busy time is prompts, but nobody decodes meanwhile: no interference, and no drift."""
    views = watched(steady(LONE), promise=None)
    drifts = [view.drift_ratio for view in views if view.drift_ratio is not None]
    assert len(drifts) > 30
    assert max(map(abs, drifts)) < 0.15
    assert not any(view.prefill_interference_ratio for view in views)
    assert set(causes(views)) <= {"none", None}


def test_a_throttled_engine_of_a_lone_user_is_unexplained() -> None:
    """His prompts must not explain it away."""
    told = causes(watched(steady(LONE), promise=None, throttled=True))
    assert told["unexplained"] > 0.9 * sum(count for cause, count in told.items() if cause is not None)
