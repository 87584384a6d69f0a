"""Whole deployments in simulated time."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from sim_helpers import small, value
from stepscope.errors import ConfigError
from stepscope.sim.build import build_config
from stepscope.sim.cohort import Request
from stepscope.sim.scenario import SCENARIOS, Group, Phase, Scenario
from stepscope.sim.simulation import Simulation, run_simulated

DEMO = SCENARIOS["demo"]


def test_the_demo_halves_everybodys_speed_when_two_agents_join() -> None:
    """Requests hardly change, the mean ITL doubles; afterwards prompt bursts raise it again."""
    seen: list[tuple[str, float, float, int]] = []

    def look(_: float, simulation: Simulation) -> None:
        itl = simulation.engines[0].counters.inter_token_latency_seconds
        seen.append((simulation.phase, itl.sum, itl.count, simulation.states()[0].running))

    run_simulated(build_config(), DEMO, 119.0, on_scrape=(1.0, look))

    def mean(first: int, last: int) -> float:
        return (seen[last][1] - seen[first][1]) / (seen[last][2] - seen[first][2])

    chats, agents, bursts = mean(1, 34), mean(50, 79), mean(90, 118)
    assert [seen[i][0] for i in (1, 50, 90)] == [phase.name for phase in DEMO.phases]
    assert chats == pytest.approx(0.0139, rel=0.05)
    assert agents / chats > 1.95
    assert bursts / chats > 1.5
    assert seen[79][3] - seen[34][3] == 2


def test_aged_chats_are_in_their_steady_state_from_the_first_second() -> None:
    """About 80,000 tokens at once, and still after several answers."""
    totals: list[int] = []
    run_simulated(
        small(), SCENARIOS["steady"], 120.0, on_scrape=(10.0, lambda _, s: totals.append(s.states()[0].context_tokens))
    )
    assert all(total == pytest.approx(80_000, rel=0.05) for total in totals)


def test_simulated_time_is_much_faster_than_real_time() -> None:
    """Ten minutes of 40 chats, with a page a second, take a small part of that in processor time."""
    began = time.process_time()
    pages: list[int] = []
    run_simulated(
        build_config(), SCENARIOS["steady"], 600.0, on_scrape=(1.0, lambda _, s: pages.append(len(s.page_text() or "")))
    )
    assert min(pages) > 40_000
    assert time.process_time() - began < 20.0


def test_the_same_seed_gives_the_same_pages_and_another_seed_others() -> None:
    """Jitter, bursts and drafts all come from the seed."""
    config = build_config(physics="realistic", draft_tokens=2, draft_acceptance=0.6, max_num_seqs=64, data_parallel=2)
    scenario = Scenario((Phase("mixed", 60.0, (Group("a", 20, 500, 100, think_seconds=0.2, spread=0.5),)),))

    def pages(seed: int) -> list[str | None]:
        out: list[str | None] = []

        def look(t: float, simulation: Simulation) -> None:
            if t == 5.0:
                simulation.set_faults({"noisy_neighbour": 2.0})
            out.append(simulation.page_text())

        run_simulated(config, scenario, 20.0, seed=seed, on_scrape=(5.0, look))
        return out

    assert pages(4) == pages(4)
    assert pages(4)[-1] != pages(5)[-1]


def test_a_restart_loses_requests_and_counters_and_the_users_come_back() -> None:
    """No page while it lasts; then counters start at 0 with a new start time."""
    simulation = Simulation(small(), SCENARIOS["steady"])
    simulation.advance(10.0)
    before = simulation.page_text() or ""
    simulation.set_faults({"restart": 5.0})
    assert simulation.is_down
    assert simulation.page_text() is None
    simulation.advance(14.9)
    assert simulation.page_text() is None
    simulation.advance(15.0)
    fresh = simulation.page_text() or ""
    assert value(fresh, "vllm:generation_tokens_total") == 0
    start = "process_start_time_seconds"
    assert value(fresh, start) == pytest.approx(value(before, start) + 15.0)
    simulation.advance(19.0)
    again = simulation.page_text() or ""
    assert value(again, "vllm:num_requests_running") == 40
    assert 0 < value(again, "vllm:generation_tokens_total") < value(before, "vllm:generation_tokens_total")


def test_a_request_sent_or_cancelled_during_a_restart_is_not_forgotten() -> None:
    """The first runs when the engine is back, the second never does."""
    simulation = Simulation(small())
    simulation.set_faults({"restart": 2.0})
    kept, cancelled = Request(10, 5), Request(10, 5)
    simulation.submit(kept)
    simulation.submit(cancelled)
    simulation.abort(cancelled)
    simulation.advance(3.0)
    assert kept.state == "ended"
    assert simulation.engines[0].counters.request_success_total == {"length": 1}


def test_data_parallel_engines_share_the_load() -> None:
    """The balancer sends a request where least waits and runs."""
    simulation = Simulation(small(data_parallel=4), SCENARIOS["steady"])
    simulation.advance(5.0)
    assert [state.running for state in simulation.states()] == [10, 10, 10, 10]


def test_a_scenario_too_large_for_the_engine_leaves_the_others_alone() -> None:
    """Users whose request can never run give up and are counted."""
    groups = (Group("fits", 2, 100, 50), Group("too long", 3, 5000, 50))
    simulation = run_simulated(small(num_gpu_blocks=100), Scenario((Phase("both", 10.0, groups),)), 5.0)
    assert simulation.rejected_users == 3
    assert simulation.states()[0].running == 2


def test_users_of_a_group_once_ask_once_and_leavers_are_cancelled() -> None:
    """Phases end sharply."""
    scenario = Scenario(
        (
            Phase("one", 5.0, (Group("once", 3, 100, 10, once=True), Group("long", 2, 100, 100_000))),
            Phase("two", 5.0, (Group("late", 1, 100, 10, delay_seconds=1.0, think_seconds=60.0),)),
        )
    )
    simulation = Simulation(small(), scenario)
    simulation.advance(4.0)
    assert simulation.engines[0].counters.request_success_total["length"] == 3
    assert simulation.states()[0].running == 2
    simulation.advance(5.5)
    assert simulation.states()[0].running == 0
    simulation.advance(8.0)
    assert simulation.engines[0].counters.request_success_total["length"] == 4


@pytest.mark.parametrize("seconds", ["soon", -1, 1e9, None, True])
def test_a_senseless_restart_is_refused_and_changes_nothing(seconds: object) -> None:
    """The text says what is allowed."""
    simulation = Simulation(small())
    with pytest.raises(ConfigError, match=r"restart must be 0\.\.3600 seconds"):
        simulation.set_faults({"throttle": 2.0, "restart": seconds})
    assert simulation.faults.throttle == 1.0


def test_estimated_bytes_move_only_when_asked_for() -> None:
    """With the metrics on, bytes per step are weights plus the KV of all tokens in flight."""
    config = replace(small(), mfu_metrics=True)
    simulation = Simulation(config)
    request = Request(1000, 2)
    simulation.submit(request)
    simulation.advance(5.0)
    counters = simulation.engines[0].counters
    weights, kv = config.physics.weight_bytes, config.physics.kv_bytes_per_token
    assert counters.estimated_read_bytes_per_gpu_total == pytest.approx(2 * weights + (1000 + 1001) * kv)
    still = run_simulated(small(), SCENARIOS["steady"], 1.0)
    assert still.engines[0].counters.estimated_read_bytes_per_gpu_total == 0


def test_users_who_find_no_room_when_their_group_begins_take_no_blocks_that_are_not_there() -> None:
    """The phase before still holds nearly all blocks until its step ends; every context always has its blocks."""
    full = (Group("full", 8, 10_000, 3_000, aged=True),)
    next_full = (Group("next", 8, 10_000, 3_000, aged=True),)
    missing: list[int] = []

    def look(_: float, simulation: Simulation) -> None:
        state = simulation.states()[0]
        missing.append(state.context_tokens - 16 * state.used_blocks)

    config = build_config(num_gpu_blocks=6_500)  # 104,000 tokens: one of the groups, not both
    scenario = Scenario((Phase("one", 30.0, full), Phase("two", 60.0, next_full)))
    simulation = run_simulated(config, scenario, 90.0, on_scrape=(1.0, look))
    assert max(missing) <= 0
    assert simulation.rejected_users == 0
