"""Differences between samples: resets, batches, means, and the median's bucket as PromQL defines it."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import BOUNDS, FakeEngine
from stepscope.core.sample import EngineSample, Histogram
from stepscope.core.step_model import StepTime
from stepscope.core.window import Pair, batch, gather, has_moved, increase, is_reset, median_bucket
from tools import require_tool

INF = math.inf


def sample(**fields: object) -> EngineSample:
    return replace(EngineSample("m", "0"), **fields)  # type: ignore[arg-type]  # fields come from a table of names


def pair(first: EngineSample, last: EngineSample, start: float = 0.0, end: float = 5.0, **fields: object) -> Pair:
    known = Pair(first, last, start, end, 0.0, 0.0, None, None, 0.0, True, 0.0)
    return replace(known, **fields)  # type: ignore[arg-type]  # as above


def step(decode: float, prefill: float = 0.0) -> StepTime:
    return StepTime(decode, 0.0, 0.0, 0.0, prefill, decode * 0.9, decode * 1.1)


COUNTERS = [
    "engine_steps",
    "generation_tokens",
    "finished_prompt_tokens",
    "finished_generation_tokens",
    "preemptions",
    "drafts",
    "read_bytes",
]


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_fall_of_any_counter_is_a_reset(counter: str) -> None:
    """Growth, rest and what one of the two pages does not say are none."""
    assert is_reset(sample(**{counter: 5.0}), sample(**{counter: 4.0}))
    assert not is_reset(sample(**{counter: 5.0}), sample(**{counter: 5.0}))
    assert not is_reset(sample(**{counter: 5.0}), sample(**{counter: 6.0}))
    assert not is_reset(sample(**{counter: 5.0}), sample())
    assert not is_reset(sample(), sample(**{counter: 0.0}))


@pytest.mark.parametrize("field", ["itl_seconds", "ttft_seconds"])
def test_a_histogram_falls_by_sum_or_count(field: str) -> None:
    """A busy new life may already have counted more, in less time."""
    before = sample(**{field: Histogram(2.0, 100.0)})
    assert is_reset(before, sample(**{field: Histogram(1.0, 200.0)}))
    assert is_reset(before, sample(**{field: Histogram(3.0, 99.0)}))
    assert not is_reset(before, sample(**{field: Histogram(2.0, 100.0)}))
    assert not is_reset(before, sample())


def test_computed_prompt_tokens_may_fall_within_a_life() -> None:
    """Before sources were counted they are a difference of two counters, one of which jumps at a preemption."""
    assert not is_reset(sample(prompt_tokens_computed=500.0), sample(prompt_tokens_computed=400.0))
    assert increase(500.0, 400.0) == 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_usage": 0.5},
        {"requests_running": 3.0},
        {"prefix_queries": 10.0},
        {"prompt_tokens_computed": 10.0},
        {"itl_seconds": Histogram(1.0, 10.0)},
        {"engine_steps": 10.0},
        {"generation_tokens": 10.0},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_any_counter_usage_or_running_requests_count_as_movement(fields: dict[str, object]) -> None:
    """So that an engine inside one long prefill, where only the usage grows, is not taken for dead."""
    assert has_moved(sample(), sample(**fields))
    assert not has_moved(sample(**fields), sample(**fields))


def test_waiting_requests_are_no_movement() -> None:
    """They arrive at a hung engine too."""
    assert not has_moved(sample(requests_waiting=1.0), sample(requests_waiting=2.0))


def test_an_increase_of_what_is_unknown_is_zero() -> None:
    """Never negative, never an error."""
    assert (increase(None, 5.0), increase(5.0, None), increase(5.0, 7.0)) == (0.0, 0.0, 2.0)


def test_the_batch_is_observations_per_step() -> None:
    """With one API server the engine's steps are counted once."""
    engine = FakeEngine()
    first = engine.sample()
    engine.decode(5.0, batch=8, itl=0.05)
    assert batch(first, engine.sample(), 5.0, single_process=True) == (100.0, 8.0)


def test_steps_without_observations_have_a_batch_of_nobody() -> None:
    """Prefill alone: 0 decode, and that is known. Without steps nothing is."""
    engine = FakeEngine()
    first = engine.sample()
    engine.steps = 3.0
    assert batch(first, engine.sample(), 5.0, single_process=True) == (3.0, 0.0)
    assert batch(first, first, 5.0, single_process=True) == (0.0, None)


def test_with_several_api_servers_the_batch_is_the_mean_number_of_decoding_requests() -> None:
    """S/T, held to the running gauge and at least one; the inflated step count is not used."""
    engine = FakeEngine()
    first = engine.sample()
    engine.decode(5.0, batch=8, itl=0.05)
    engine.steps *= 4
    steps, sequences = batch(first, engine.sample(), 5.0, single_process=False)
    assert steps == pytest.approx(100.0)
    assert sequences == pytest.approx(8.0)
    assert batch(first, engine.sample(), 1.0, single_process=False)[1] == 8.0  # 40 requests cannot have decoded
    assert batch(first, engine.sample(), 500.0, single_process=False)[1] == 1.0
    assert batch(first, first, 5.0, single_process=False) == (None, None)


def test_a_page_without_steps_is_read_like_one_of_several_servers() -> None:
    """Where the series is missing S/T stands in."""
    engine = FakeEngine(extra={"engine_steps": None})
    first = engine.sample()
    engine.decode(5.0, batch=8, itl=0.05)
    assert batch(first, engine.sample(), 5.0, single_process=True)[1] == pytest.approx(8.0)


def test_an_empty_window_knows_nothing() -> None:
    """Means are None, not 0 and not NaN."""
    now = gather(())
    assert (now.itl_mean_seconds, now.sequences, now.ttft_mean_seconds, now.predicted) == (None, None, None, None)
    assert (now.observations, now.tokens_per_step, now.prefill_accounted) == (0.0, None, True)


def test_the_prediction_of_a_window_is_weighted_by_observations() -> None:
    """Of the comparable pairs only; so is the sum that it is set against."""
    s = sample()
    now = gather(
        (
            pair(s, s, observations=90.0, itl_sum_seconds=0.9, predicted=step(0.010), comparable=True),
            pair(s, s, observations=10.0, itl_sum_seconds=0.3, predicted=step(0.030), comparable=True),
            pair(s, s, observations=50.0, itl_sum_seconds=9.0, predicted=step(0.500), comparable=False),
        )
    )
    assert now.predicted is not None
    assert now.predicted.decode_seconds == pytest.approx(0.012)
    assert now.predicted.decode_high_seconds == pytest.approx(0.0132)
    assert now.compared_observations == 100.0
    assert now.compared_sum_seconds == pytest.approx(1.2)
    assert now.itl_mean_seconds == pytest.approx(10.2 / 150)


def test_sequences_and_prompt_tokens_are_means_over_steps() -> None:
    """A pair with more steps weighs more."""
    s = sample()
    now = gather(
        (
            pair(s, s, observations=300.0, steps=30.0, sequences=10.0, prefill_tokens=400.0),
            pair(s, s, observations=20.0, steps=10.0, sequences=2.0),
        )
    )
    assert now.sequences == pytest.approx(8.0)
    assert now.prefill_tokens_per_step == pytest.approx(10.0)


def test_speculation_preemptions_and_first_tokens_are_summed() -> None:
    """Tokens per step are 1 + accepted / drafts."""
    first = sample(drafts=10.0, accepted_tokens=10.0, preemptions=1.0, ttft_seconds=Histogram(1.0, 2.0))
    last = sample(drafts=20.0, accepted_tokens=25.0, preemptions=4.0, ttft_seconds=Histogram(4.0, 4.0))
    now = gather((pair(first, last),))
    assert (now.tokens_per_step, now.preemptions, now.ttft_mean_seconds) == (2.5, 3.0, 1.5)


def test_time_in_pairs_that_are_mostly_prompt_chunks_is_set_apart() -> None:
    """More than a third of the predicted gap."""
    s = sample()
    now = gather(
        (
            pair(s, s, itl_sum_seconds=3.0, predicted=step(0.02, 0.011)),
            pair(s, s, itl_sum_seconds=5.0, predicted=step(0.02, 0.009)),
        )
    )
    assert now.prefill_dominated_sum_seconds == 3.0


Buckets = tuple[tuple[float, float], ...]


def with_buckets(buckets: Buckets) -> EngineSample:
    return sample(itl_seconds=Histogram(1.0, buckets[-1][1] if buckets else 0.0, buckets))


def quantile(q: float, buckets: Buckets) -> float:
    """histogram_quantile as Prometheus documents it, for cumulative buckets with bounds above 0."""
    rank = q * buckets[-1][1]
    at = next(i for i, (_, count) in enumerate(buckets) if count >= rank)
    if at == len(buckets) - 1:
        return buckets[-2][0]
    start, below = buckets[at - 1] if at else (0.0, 0.0)
    return start + (buckets[at][0] - start) * (rank - below) / (buckets[at][1] - below)


_histograms = st.lists(st.integers(0, 50), min_size=3, max_size=8).filter(lambda counts: sum(counts) > 0)


def cumulative(counts: list[int]) -> Buckets:
    bounds = (*BOUNDS[: len(counts) - 1], INF)
    return tuple((bound, float(sum(counts[: at + 1]))) for at, bound in enumerate(bounds))


@given(_histograms)
def test_the_median_s_bucket_is_that_of_histogram_quantile(counts: list[int]) -> None:
    """Same interpolation; the bounds enclose it."""
    buckets = cumulative(counts)
    zeros = tuple((bound, 0.0) for bound, _ in buckets)
    found = median_bucket((pair(with_buckets(zeros), with_buckets(buckets)),))
    assert found is not None
    lower, upper, median = found
    assert median == pytest.approx(quantile(0.5, buckets))
    assert lower <= median <= upper


def test_promql_agrees_with_the_median(tmp_path: Path) -> None:
    """The same histograms through the real histogram_quantile."""
    promtool = require_tool("promtool")
    cases = [[5, 5, 0], [0, 0, 7], [1, 0, 9, 3], [0, 4, 4, 0, 1], [3, 3, 3, 3, 3, 3, 3], [0, 1, 0, 0], [10, 0, 0, 10]]
    series, expected = [], []
    for case, counts in enumerate(cases):
        buckets = cumulative(counts)
        zeros = tuple((bound, 0.0) for bound, _ in buckets)
        found = median_bucket((pair(with_buckets(zeros), with_buckets(buckets)),))
        assert found is not None
        for bound, count in buckets:
            le = "+Inf" if bound == INF else str(bound)
            series.append({"series": f'h_bucket{{case="{case}",le="{le}"}}', "values": f"{count:g}"})
        expected.append({"labels": f'{{case="{case}"}}', "value": found[2]})
        series.append({"series": f'ours{{case="{case}"}}', "values": repr(found[2])})
    test = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": "count(abs(histogram_quantile(0.5, h_bucket) - on (case) ours) < 1e-9)",
                "eval_time": "0m",
                "exp_samples": [{"labels": "{}", "value": len(cases)}],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_median_beyond_the_last_bound_has_no_interpolation() -> None:
    """The lower bound stands in, as in PromQL; the upper is infinite."""
    last = with_buckets(((0.01, 0.0), (0.2, 1.0), (INF, 9.0)))
    assert median_bucket((pair(with_buckets(((0.01, 0.0), (0.2, 0.0), (INF, 0.0))), last),)) == (0.2, INF, 0.2)


def test_the_buckets_of_a_window_are_differences_of_runs_of_pairs() -> None:
    """What was observed before the window, or between its runs (a pause), does not count."""
    a = with_buckets(((0.01, 100.0), (0.025, 100.0), (INF, 100.0)))
    b = with_buckets(((0.01, 100.0), (0.025, 110.0), (INF, 110.0)))
    c = with_buckets(((0.01, 900.0), (0.025, 910.0), (INF, 910.0)))
    d = with_buckets(((0.01, 901.0), (0.025, 930.0), (INF, 930.0)))
    found = median_bucket((pair(a, b), pair(c, d)))
    assert found is not None
    assert found[:2] == (0.01, 0.025)
    joined = median_bucket((pair(a, b), pair(b, c)))
    assert joined is not None
    assert joined[:2] == (0.0, 0.01)


def test_bounds_come_from_the_page() -> None:
    """Newer engines let the operator choose them."""
    found = median_bucket((pair(with_buckets(((0.003, 0.0), (INF, 0.0))), with_buckets(((0.003, 8.0), (INF, 8.0)))),))
    assert found is not None
    assert found == pytest.approx((0.0, 0.003, 0.0015))


def test_without_observations_or_buckets_there_is_no_median() -> None:
    """None, not a division by zero."""
    same = with_buckets(((0.01, 5.0), (INF, 5.0)))
    assert median_bucket(()) is None
    assert median_bucket((pair(same, same),)) is None
    assert median_bucket((pair(sample(), sample()),)) is None
    assert median_bucket((pair(with_buckets(()), with_buckets(())),)) is None
