"""The fit finds the law behind the loads, stays sane where loads say little, and says what they fixed."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.defaults import Machine, default_prior, find_row
from stepscope.core.defaults_table import TABLE
from stepscope.core.fit import Fit, Prior, check, fit, relative_error
from stepscope.core.law_terms import KV, OVERHEAD, PREFILL, PREFILL_GROWTH, SEQUENCE, TERMS, WEIGHTS, Point, quantities
from stepscope.core.score import quantile

BATCHES, CONTEXTS, OUTPUTS = (1, 4, 16, 64, 128), (1024, 4096), (128, 1024)
H100 = Machine("vllm", "H100-SXM", 1, 3.35e12, 989e12, 7.5e9, layers=32)
WEIGHT_BYTES, KV_BYTES = 16e9, 131072.0
# Overhead, sequences, weights and KV at 70 % and 60 % of an H100, prefill at half its arithmetic: plausible.
TRUTH = {OVERHEAD: 0.002, SEQUENCE: 3e-5, WEIGHTS: 1 / 2.3e12, KV: 1 / 2.0e12, PREFILL: 3e-5}


def itl(point: Point, truth: dict[int, float] = TRUTH) -> float:
    return math.fsum(price * quantities(point)[term] for term, price in truth.items())


def load(sequences: float, given_: int, taken: int, *, known: bool = True) -> Point:
    """A closed loop of so many sequences: given_ tokens in, taken out."""
    point = Point(
        sequences, sequences * (given_ + taken / 2), sequences * given_ / taken, 1.0,
        WEIGHT_BYTES if known else None, KV_BYTES if known else None,
    )  # fmt: skip
    # The law knows the weights even where the point does not say them.
    return replace(point, itl_seconds=itl(replace(point, weight_bytes=WEIGHT_BYTES, kv_bytes_per_token=KV_BYTES)))


def sweep(*, known: bool = True, noise: float = 0.0, seed: int = 1) -> list[Point]:
    chance = random.Random(seed)
    points = [load(n, i, o, known=known) for n in BATCHES for i in CONTEXTS for o in OUTPUTS]
    return [replace(p, itl_seconds=p.itl_seconds * math.exp(chance.gauss(0, noise))) for p in points]


def prior(machine: Machine = H100) -> Prior:
    return default_prior(find_row(TABLE, machine), machine)


def worst(fitted: Fit, points: list[Point]) -> float:
    return max(abs(relative_error(fitted.law, point)) for point in points)


@pytest.mark.parametrize("known", [True, False], ids=["in bytes", "in tokens alone"])
def test_a_clean_sweep_is_fitted_to_a_percent(known: bool) -> None:
    """With model and GPU known, and with nothing but the four figures of a load."""
    points = sweep(known=known)
    assert worst(fit(points, prior() if known else None), points) < 0.01


def test_loads_that_were_not_measured_are_predicted() -> None:
    """Between the batches, and with other contexts, from a sweep with 2 % of noise."""
    fitted = fit(sweep(noise=0.02), prior())
    unseen = [load(n, i, o) for n in (8, 32, 100) for i, o in ((2048, 512), (1500, 256))]
    assert worst(fitted, unseen) < 0.04


def test_prices_come_out_where_the_loads_fix_them() -> None:
    """KV bandwidth and the cost of 1,024 prompt tokens to 10 %, from 2 % of noise; all called identifiable."""
    fitted = fit(sweep(noise=0.02), prior())
    assert fitted.law.kv_bandwidth_bytes_per_second == pytest.approx(2.0e12, rel=0.1)
    assert fitted.prices[PREFILL] + fitted.prices[PREFILL_GROWTH] == pytest.approx(3e-5, rel=0.1)
    assert all(fitted.identifiable[TERMS[term]] for term in (OVERHEAD, SEQUENCE, KV, PREFILL))


def test_outliers_do_not_move_the_fit() -> None:
    """Three points of twenty at twice their time: the others are still met to 3 %."""
    points = sweep(noise=0.005)
    spoiled = [replace(p, itl_seconds=2 * p.itl_seconds) if i in (3, 9, 15) else p for i, p in enumerate(points)]
    sound = [point for i, point in enumerate(points) if i not in (3, 9, 15)]
    assert worst(fit(spoiled, prior()), sound) < 0.03


def test_two_points_give_the_data_sheet_corrected() -> None:
    """One idle and one busy measurement: other loads are predicted to 15 %, and nothing is absurd."""
    fitted = fit([load(1, 1024, 128), load(64, 4096, 1024)], prior())
    assert worst(fitted, sweep()) < 0.15
    assert 0.3 * 3.35e12 < fitted.law.effective_bandwidth_bytes_per_second <= 3.35e12
    assert 0.0 <= fitted.law.step_overhead_seconds < load(1, 1024, 128).itl_seconds


def test_one_point_is_met_and_the_rest_follows_the_data_sheet() -> None:
    """The published one-point calibration, with everything else from the pool."""
    point = load(16, 1024, 128)
    fitted = fit([point], prior())
    assert worst(fitted, [point]) < 0.02
    assert not any(fitted.identifiable[TERMS[term]] for term in (SEQUENCE, KV))


def test_without_any_point_there_is_no_fit() -> None:
    """An error that says so."""
    with pytest.raises(ValueError, match="no points"):
        fit([], prior())


@pytest.mark.parametrize(
    ("points", "unknown"),
    [
        ([load(16, 1024, 1024)] * 12, (OVERHEAD, SEQUENCE, KV, PREFILL)),
        ([replace(load(n, 1024, 128), prefill_tokens_per_step=0.0) for n in BATCHES] * 3, (PREFILL,)),
        ([load(1, i, 1024) for i in (512, 1024, 4096, 16384)] * 3, (SEQUENCE,)),
        ([load(n, 1024, 128) for n in BATCHES] * 3, (SEQUENCE, KV, PREFILL)),
    ],
    ids=["one load level", "no prefill", "one sequence always", "one request shape"],
)
@pytest.mark.parametrize("held", [prior(), None], ids=["data sheet", "nothing known"])
def test_loads_that_say_little_never_give_an_absurd_split(
    points: list[Point], unknown: tuple[int, ...], held: Prior | None
) -> None:
    """What they do not fix is said, nothing is negative, no part exceeds what was measured, and the points are met."""
    points = [replace(p, itl_seconds=itl(p)) for p in points]
    fitted = fit(points, held)
    assert [term for term in unknown if fitted.identifiable[TERMS[term]]] == []
    assert min(fitted.prices) >= 0.0
    # Ten parts of a thousand: where the data sheet holds against the points, they give way a little.
    assert worst(fitted, points) < (0.03 if held else 0.01)
    for point in points:
        parts = [price * value for price, value in zip(fitted.prices, quantities(point), strict=True)]
        assert max(parts) <= 1.03 * point.itl_seconds


def test_weights_take_their_part_of_the_constant_where_no_data_sheet_is_known() -> None:
    """Bytes known, peak unknown: the weights are read as fast as the KV cache, the rest is overhead."""
    fitted = fit(sweep())
    assert fitted.law.effective_bandwidth_bytes_per_second == pytest.approx(
        fitted.law.kv_bandwidth_bytes_per_second, rel=1e-9
    )
    constant = TRUTH[OVERHEAD] + WEIGHT_BYTES * TRUTH[WEIGHTS]
    split = fitted.law.step_overhead_seconds + WEIGHT_BYTES * fitted.prices[WEIGHTS]
    assert split == pytest.approx(constant, rel=0.05)


def test_without_model_facts_the_overhead_takes_in_the_weights() -> None:
    """Tokens instead of bytes, and a constant that is overhead and weights together."""
    fitted = fit(sweep(known=False))
    constant = TRUTH[OVERHEAD] + WEIGHT_BYTES * TRUTH[WEIGHTS]
    assert fitted.law.kv_bytes_per_token == 1.0
    assert fitted.law.step_overhead_seconds == pytest.approx(constant, rel=0.1)
    assert fitted.prices[KV] == pytest.approx(TRUTH[KV] * KV_BYTES, rel=0.1)


def test_a_weight_of_three_is_three_points() -> None:
    """One bin of three windows counts like the windows."""
    points = sweep(noise=0.03)[:6]
    tripled = fit([*points, points[0], points[0]])
    weighted = fit([replace(points[0], weight=3.0), *points[1:]])
    assert weighted.prices == pytest.approx(tripled.prices, rel=0.05, abs=1e-7)


def test_a_point_without_weight_is_not_looked_at() -> None:
    """Even one that is off by a factor of ten."""
    points = sweep()
    wild = replace(points[7], itl_seconds=10 * points[7].itl_seconds, weight=0.0)
    assert worst(fit([*points, wild], prior()), points) < 0.01


def test_the_range_is_what_was_seen() -> None:
    """Beyond it the law extrapolates, and the sidecar says so."""
    seen = fit(sweep(), prior()).valid_range
    assert seen.max_sequences == 128
    assert seen.max_tokens_in_flight == 128 * (4096 + 512)
    assert seen.max_prefill_tokens_per_step == 128 * 4096 / 128


def test_the_law_carries_its_residual_and_its_spread() -> None:
    """Low and high factors enclose nine points in ten."""
    points = sweep(noise=0.03)
    law = fit(points, prior()).law
    assert law.samples == len(points)
    assert law.residual_ratio == pytest.approx(quantile([abs(relative_error(law, p)) for p in points], 0.5))
    inside = [law.low_factor <= 1.0 / (1.0 + relative_error(law, p)) <= law.high_factor for p in points]
    assert sum(inside) >= 0.85 * len(points)


def test_the_same_points_give_the_same_prices_in_any_order() -> None:
    """No randomness anywhere."""
    points = sweep(noise=0.03)
    assert fit(points, prior()).prices == fit(points, prior()).prices
    assert fit(points[::-1], prior()).prices == pytest.approx(fit(points, prior()).prices, rel=1e-6, abs=1e-12)


def test_a_mixture_of_experts_is_fitted_with_the_bytes_each_batch_reads() -> None:
    """Expected distinct experts of 8 out of 128: weights grow with the batch, and their bandwidth can be told."""

    def bytes_read(sequences: float) -> float:
        return 5e9 + 60e9 * (1.0 - (1.0 - 8 / 128) ** sequences)

    points = [replace(p, weight_bytes=bytes_read(p.sequences)) for p in sweep()]
    points = [replace(p, itl_seconds=itl(p)) for p in points]
    machine = replace(H100, moe=True)
    fitted = fit(points, prior(machine))
    assert worst(fitted, points) < 0.02
    assert fitted.law.effective_bandwidth_bytes_per_second == pytest.approx(2.3e12, rel=0.15)


@pytest.mark.parametrize("name", ["sequences", "tokens_in_flight", "prefill_tokens_per_step", "itl_seconds"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_figures_that_cannot_be_are_refused_by_name(name: str, value: float) -> None:
    """Not a number, infinite, negative."""
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        check(replace(load(4, 1024, 128), **{name: value}))


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(BATCHES), st.integers(16, 30000), st.integers(1, 4000), st.floats(1e-4, 10)),
        min_size=1,
        max_size=14,
    )
)
def test_no_points_whatever_break_the_fit(loads: list[tuple[int, int, int, float]]) -> None:
    """Nonsense in: prices stay finite and never negative, and every point is predicted as something finite."""
    points = [replace(load(n, i, o), itl_seconds=seconds) for n, i, o, seconds in loads]
    for held in (prior(), None):
        fitted = fit(points, held)
        assert all(math.isfinite(price) and price >= 0.0 for price in fitted.prices)
        assert all(math.isfinite(relative_error(fitted.law, point)) for point in points)


def test_constant_weights_without_a_prior_do_not_make_everything_unknown() -> None:
    """Their bytes are part of the constant; what the points fix is judged before the constant is split."""
    points = [
        Point(n, n * context, 0.0, 0.004 + 15e9 / 2.5e12 + n * context * 147_456 / 2e12 + 2e-5 * n, 15e9, 147_456.0)
        for n in (1, 4, 16, 64)
        for context in (500, 2000, 8000)
    ]
    fitted = fit(points)
    assert all(fitted.identifiable[TERMS[term]] for term in (OVERHEAD, SEQUENCE, KV))
    assert not fitted.identifiable[TERMS[PREFILL]]
