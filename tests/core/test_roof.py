"""The compute roof is found where loads show it, and nowhere else."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.defaults import Machine, default_prior, find_row
from stepscope.core.defaults_table import TABLE
from stepscope.core.fit import ROOF, Fit, fit, relative_error
from stepscope.core.law_terms import Point
from stepscope.core.roof import LEAST_SHARE, Compute, Solution, are_beyond, best
from stepscope.core.step_model import Load, StepLaw, WeightBytes, predict

A100 = Machine("vllm", "A100-80GB-SXM", 1, 2.04e12, 312e12, 7.5e9, layers=32)
WEIGHT_BYTES, KV_BYTES = 15e9, 131072.0
BATCHES = (1, 4, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024)
PRIOR = default_prior(find_row(TABLE, A100), A100)


def truth(share: float | None, wide_batch_seconds: float = 0.0) -> StepLaw:
    """80 % and 70 % of an A100's bandwidth, a sequence cost, prefill at a good half of its arithmetic."""
    return StepLaw(
        weights=WeightBytes(WEIGHT_BYTES), effective_bandwidth_bytes_per_second=0.8 * 2.04e12,
        kv_bytes_per_token=KV_BYTES, kv_bandwidth_bytes_per_second=0.7 * 2.04e12, step_overhead_seconds=0.002,
        sequence_cost_seconds=1e-5, prefill_cost_seconds_per_token=8e-5, wide_batch_seconds=wide_batch_seconds,
        active_params=7.5e9, compute_flops_per_second=None if share is None else share * 312e12,
    )  # fmt: skip


def sweep(law: StepLaw, *, noise: float = 0.02, seed: int = 1, batches: tuple[int, ...] = BATCHES) -> list[Point]:
    """Short and long contexts as far as 80 GB hold them, without and with prompts."""
    chance = random.Random(seed)
    points = []
    for n in batches:
        for context in (256, 1024, 4096):
            if n * context <= 600_000:
                for prompts in (0.0, n * context / 256):
                    step = predict(law, Load(n, n * context, prompts))
                    assert step is not None
                    seconds = step.itl_seconds * math.exp(chance.gauss(0, noise))
                    points.append(Point(n, n * context, prompts, seconds, WEIGHT_BYTES, KV_BYTES))
    return points


def fitted(points: list[Point]) -> Fit:
    return fit(points, PRIOR, compute=A100.compute)


def median_error(found: Fit, points: list[Point]) -> float:
    return sorted(abs(relative_error(found.law, point)) for point in points)[len(points) // 2]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("share", [0.3, 0.4, 0.5, 0.6])
def test_a_roof_that_is_there_is_found_to_a_tenth(share: float, seed: int) -> None:
    """From loads on both sides of the knee with 2 % of noise; the law then carries it and says that it was seen."""
    found = fitted(sweep(truth(share), seed=seed))
    assert found.decode_efficiency == pytest.approx(share, rel=0.11)
    assert found.law.compute_flops_per_second == pytest.approx(found.decode_efficiency * 312e12)
    assert found.law.active_params == 7.5e9
    assert found.identifiable[ROOF]


def test_with_the_roof_unseen_loads_are_predicted_better() -> None:
    """Other contexts and batches than those fitted, without noise: the median error falls to less than half."""
    points = sweep(truth(0.4))
    law = truth(0.4)
    loads = [Load(n, n * context) for n in (8, 96, 160, 320, 640) for context in (300, 700)]
    unseen = []
    for load in loads:
        step = predict(law, load)
        assert step is not None
        unseen.append(Point(load.sequences, load.tokens_in_flight, 0.0, step.itl_seconds, WEIGHT_BYTES, KV_BYTES))
    assert median_error(fitted(points), unseen) < 0.5 * median_error(fit(points, PRIOR), unseen)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "law", [truth(None), truth(None, wide_batch_seconds=0.004)], ids=["no knee at all", "passes of 256 tokens"]
)
def test_a_roof_that_is_not_there_is_not_found(law: StepLaw, seed: int) -> None:
    """A step that grows by its other terms keeps them, whatever the noise."""
    for noise in (0.0, 0.02, 0.05):
        found = fitted(sweep(law, seed=seed, noise=noise))
        assert found.decode_efficiency is None
        assert found.law.compute_flops_per_second is None
        assert not found.identifiable[ROOF]


@pytest.mark.parametrize(
    "points",
    [
        sweep(truth(0.4), batches=(1, 4, 16, 32)),
        sweep(truth(0.4), batches=(512, 768, 1024)),
        sweep(truth(0.4), batches=(512,)) * 6,
        sweep(truth(0.4), batches=(1,)) * 6,
        sweep(truth(0.4))[:1] + sweep(truth(0.4))[-1:],
    ],
    ids=["below the knee", "beyond it", "one batch beyond it", "one batch below it", "two points"],
)
def test_loads_on_one_side_of_the_knee_show_none(points: list[Point]) -> None:
    """What they cost is a price of the other terms; the points are met as well as without."""
    found = fitted(points)
    assert found.decode_efficiency is None
    assert found.prices == fit(points, PRIOR).prices


def test_without_a_data_sheet_no_roof_is_looked_for() -> None:
    """Weights and overhead cannot be told apart, so nobody knows what the reads take."""
    assert fit(sweep(truth(0.4)), compute=A100.compute).decode_efficiency is None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(BATCHES), st.integers(1, 30_000), st.floats(1e-4, 10.0)), min_size=8, max_size=16
    )
)
def test_no_points_whatever_give_an_absurd_roof(loads: list[tuple[int, int, float]]) -> None:
    """Nonsense in: at least a fifth and at most all of the peak, with points on both sides, or none."""
    points = [Point(n, n * context, 0.0, seconds, WEIGHT_BYTES, KV_BYTES) for n, context, seconds in loads]
    found = fitted(points)
    assert all(math.isfinite(price) and price >= 0.0 for price in found.prices)
    assert all(math.isfinite(relative_error(found.law, point)) for point in points)
    if found.decode_efficiency is not None:
        assert LEAST_SHARE <= found.decode_efficiency <= 1.0
        assert found.leave_one_out < fit(points, PRIOR).leave_one_out


def test_a_gain_within_its_own_scatter_is_no_gain() -> None:
    """One point that fits far better does not make a roof; ten that fit a little better do."""
    flat = Solution((), 1.0, (0.05,) * 10)
    lucky = replace(flat, left_out=(0.001, *(0.05,) * 9))
    steady = replace(flat, left_out=(0.04, 0.041) * 5)
    assert best(lambda _: lucky, flat) is None
    assert best(lambda _: None, flat) is None
    found = best(lambda _: steady, flat)
    assert found is not None
    assert found[0] is steady


def test_a_point_is_beyond_the_knee_when_its_arithmetic_outlasts_its_reads() -> None:
    """A row of law_terms in units of the measured time: weights, KV and context cost against the arithmetic."""
    row = [1.0, 1.0, 1.0, 0.0, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0]
    assert are_beyond([row, row], [1.0] * 11, [0.61, 0.59]) == (True, False)


def test_arithmetic_is_two_operations_per_active_parameter() -> None:
    """8e9 parameters at 320e12 FLOP/s: 50 microseconds a token."""
    assert Compute(8e9, 320e12).seconds_per_token == pytest.approx(5e-5)
