"""The alert-quality benchmark: its PromQL, the rules it reads, its truth table, and one run of each kind."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from shared_data import REPOSITORY, shared_path

pytestmark = pytest.mark.usefixtures("benchmarks_importable")


def evaluated(expression: str) -> dict[tuple[tuple[str, str], ...], float]:
    """An expression on a minute of samples: a counter of two kinds, and a gauge that climbs from 0 to 12."""
    from alert_quality_promql import Store, compiled

    store = Store()
    for step in range(13):
        at = 5.0 * step
        store.add("c", [("kind", "a")], at, 2.0 * at)
        store.add("c", [("kind", "b")], at, 4.0 * at)
        store.add("g", [], at, float(step))
    return {tuple(sorted(labels)): value for labels, value in compiled(expression)(store, 60.0).items()}


A, B = (("kind", "a"),), (("kind", "b"),)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("increase(c[1m])", {A: 120.0, B: 240.0}),
        ('rate(c{kind="a"}[30s])', {A: 2.0}),
        ('increase(c{kind!="a"}[1m])', {B: 240.0}),
        ('increase(c{kind=~"b|z"}[1m]) / 2 - 1', {B: 119.0}),
        ("avg_over_time(g[1m])", {(): 6.0}),
        ("max_over_time(g[1m]) > 11", {(): 12.0}),
        ("max_over_time(g[1m]) > 12", {}),
        ("last_over_time(g[1m]) < -1", {}),
        ("sum without (kind) (increase(c[1m])) / increase(g[1m])", {(): 30.0}),
        ("increase(c[1m]) > 200 and increase(c[1m])", {B: 240.0}),
        ("increase(c[1m]) unless increase(c[1m]) > 200", {A: 120.0}),
        ("increase(c[1m]) and ignoring (kind) last_over_time(g[1m])", {A: 120.0, B: 240.0}),
        ('increase(c{kind="a"}[1m]) / ignoring (kind) increase(g[1m])', {(): 10.0}),
        ('increase(c{kind="a"}[1m]) > 1000 or increase(c{kind="b"}[1m])', {B: 240.0}),
        ("increase(g[1m]) + increase(g[1m]) * 2 > 35", {(): 36.0}),
    ],
)
def test_the_part_of_promql_that_rules_use(expression: str, expected: dict[Any, float]) -> None:
    """Ranges, selectors, precedence, set operations, and matching without a label."""
    assert evaluated(expression) == pytest.approx(expected)


@pytest.mark.parametrize("expression", ["histogram_quantile(0.5, c)", "increase(c[1m]) %% 2", "c", "1"])
def test_what_is_not_known_is_refused_and_never_guessed(expression: str) -> None:
    """A rule that says more than this evaluator knows must stop the benchmark."""
    with pytest.raises(ValueError, match=r"not (known|understood)|expected|number"):
        evaluated(expression)


def test_the_shipped_rules_are_read_and_understood() -> None:
    """All three expressions compile; `for` is theirs."""
    from alert_quality_rules import shipped_rules

    rules = shipped_rules()
    assert set(rules) == {"drift", "over_budget", "interference"}
    for rule in rules.values():
        assert rule.compiled() is not None
        assert rule.for_seconds > 0.0


def test_the_truth_table_covers_every_fault() -> None:
    """Healthy runs must have no alert, 25 and 40 % slower ones drift."""
    from alert_quality_truth import read_truth

    truth = read_truth(yaml.safe_load((REPOSITORY / "benchmarks" / "alert_quality_truth.yaml").read_text()))
    for shared in (False, True):
        assert not truth["none", shared].must | truth["none", shared].may
        assert truth["slower_25", shared].must == truth["slower_40", shared].must == {"drift"}


def test_cases_follow_from_their_seed_and_report_seeds_are_none_of_those_tuned_with() -> None:
    """The same seed gives the same load; every fault comes equally often."""
    from alert_quality import FIRST_SEED, RUNS
    from alert_quality_cases import FAULTS, case, cases

    assert case(7, "none") == case(7, "none")
    assert case(7, "none").scenario != case(8, "none").scenario
    assert RUNS >= 200
    assert RUNS % len(FAULTS) == 0
    assert FIRST_SEED >= 150_000
    assert len({c.fault for c in cases(1, len(FAULTS))}) == len(FAULTS)


def test_no_measured_engine_is_called_drifting_by_data_sheets() -> None:
    """Each public series judged by a pool without it: none as measured, and 40 % slower most of them."""
    shared_path("data", "measured")
    from alert_quality_pool import coverage

    rows = coverage()
    assert rows is not None
    pool, sweep = rows
    assert (pool.points, pool.judged, sweep.points) == (206, 206, 158)
    assert pool.called[0] == sweep.called[0] == 0
    assert pool.called[2] > 0.6 * pool.judged
    assert pool.worst <= 1.35


def test_machines_span_the_itl_range_that_is_promised() -> None:
    """Decode steps of the healthy loads, before prompts and jitter: from 4 ms or less to 75 ms or more."""
    from alert_quality_cases import case, config_of

    from stepscope.sim.physics import StepWork

    steps = []
    for seed in range(1, 120):
        played = case(seed, "none")
        chats = played.scenario.phases[0].groups[0]
        context = int(chats.count * (chats.prompt_tokens + chats.output_tokens / 2))
        work = StepWork(chats.count, 1, context, context * context // chats.count)
        steps.append(config_of(played.machine).physics.step_seconds(work))
    assert min(steps) < 0.0042
    assert max(steps) > 0.075


@pytest.mark.slow
def test_a_healthy_run_is_quiet_and_a_slow_one_is_found() -> None:
    """One machine, calibrated: nothing to say without a fault, drift and its cause with one of 40 %."""
    from alert_quality_cases import case
    from alert_quality_play import play
    from alert_quality_rules import shipped_rules

    rules = shipped_rules()
    seed = next(
        s for s in range(1, 200) if (c := case(s, "none")).machine.label == "qwen3-8b on 1 x H100-SXM" and not c.shared
    )
    healthy = play(case(seed, "none"), rules, law_seed=1).outcomes["file"]
    assert all(at is None for at in (*healthy.before.values(), *healthy.after.values()))
    assert healthy.cause == "none"
    slow = play(case(seed, "slower_40"), rules, law_seed=1).outcomes["file"]
    assert slow.after["drift"] is not None
    assert slow.after["drift"] - 600.0 <= 600.0
    assert slow.cause == "unexplained"
