"""The law as a sum of terms is the law that predicts, and the budget stays its exact inverse with every term."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.budget import speed_budget_tokens
from stepscope.core.law_terms import KV, TERMS, WEIGHTS, Point, law_of, quantities
from stepscope.core.step_model import Load, StepLaw, WeightBytes, predict

_prices = st.tuples(
    st.floats(0, 0.01), st.floats(0, 1e-4), st.floats(0, 1e-3), st.floats(0, 5e-3),
    st.floats(1e-14, 1e-11), st.floats(1e-14, 1e-11), st.floats(0, 1e-17),
    st.floats(0, 1e-4), st.floats(0, 1e-4), st.floats(0, 1e-2), st.floats(0, 1e-3),
)  # fmt: skip
_points = st.builds(
    Point,
    sequences=st.floats(1, 2000),
    tokens_in_flight=st.floats(0, 4e6),
    prefill_tokens_per_step=st.floats(0, 8192),
    itl_seconds=st.just(0.02),
    weight_bytes=st.floats(1e9, 1e12),
    kv_bytes_per_token=st.floats(1e3, 1e6),
    prompts_per_step=st.one_of(st.none(), st.floats(0, 4)),
)


def law(prices: tuple[float, ...], point: Point) -> StepLaw:
    return law_of(prices, WeightBytes(point.weight_bytes or 0.0), point.kv_bytes_per_token, source="file")


@settings(deadline=None)
@given(_prices, _points)
def test_the_products_of_prices_and_quantities_are_the_predicted_itl(prices: tuple[float, ...], point: Point) -> None:
    """What a fit minimises is what the sidecar publishes."""
    step = predict(law(prices, point), point.load)
    assert step is not None
    total = math.fsum(price * value for price, value in zip(prices, quantities(point), strict=True))
    assert step.itl_seconds == pytest.approx(total, rel=1e-9)


@settings(deadline=None)
@given(_prices, _points)
def test_the_five_parts_sum_to_the_itl_with_every_term(prices: tuple[float, ...], point: Point) -> None:
    """No term is lost between the published components."""
    step = predict(law(prices, point), point.load)
    assert step is not None
    parts = (step.overhead_seconds, step.weights_seconds, step.kv_cache_seconds, step.sequences_seconds)
    assert math.fsum((*parts, step.prefill_seconds)) == pytest.approx(step.itl_seconds, rel=1e-12)
    assert min(parts) >= 0.0


@settings(deadline=None)
@given(_prices, _points, st.floats(0.001, 1), st.booleans())
def test_the_prediction_at_the_budget_is_the_target_with_every_term(
    prices: tuple[float, ...], point: Point, target: float, roof: bool
) -> None:
    """Also where long contexts cost more, and above a compute roof."""
    fitted = law(prices, point)
    if roof:
        fitted = replace(fitted, active_params=7e9, compute_flops_per_second=3e14)
    load = Load(point.sequences, 5000.0)
    budget = speed_budget_tokens(fitted, load, target)
    assert budget is not None
    step = predict(fitted, replace(load, tokens_in_flight=budget))
    assert step is not None
    if budget == 0.0:
        assert step.decode_seconds >= target * (1 - 1e-9)
    else:
        assert step.decode_seconds == pytest.approx(target, rel=1e-9)


def test_where_tokens_cost_nothing_no_number_of_them_misses_the_target() -> None:
    """The speed sets no budget: None, not an infinite one."""
    free = law_of((0.001,) + (0.0,) * (len(TERMS) - 1), WeightBytes(1e9), 1e5, source="file")
    assert speed_budget_tokens(free, Load(4, 1000), 0.02) is None


def test_without_its_terms_the_law_is_the_plain_one() -> None:
    """Overhead, bytes over one bandwidth, sequences, prompt tokens: nothing else."""
    plain = StepLaw(WeightBytes(16e9), 2e12, 1e5, 0.002, 3e-5, 2e-5)
    step = predict(plain, Load(300, 100_000, prefill_tokens_per_step=512))
    assert step is not None
    assert step.itl_seconds == pytest.approx(0.002 + (16e9 + 1e10) / 2e12 + 300 * 3e-5 + 512 * 2e-5)


def test_prompts_of_the_steady_state_are_sequences_over_output_tokens() -> None:
    """64 sequences, 1,024 in, 256 out: 1,152 tokens each, 256 prompt tokens and a quarter of a prompt per step."""
    load = Load(64, 64 * 1152, prefill_tokens_per_step=256)
    assert load.prompts == pytest.approx(64 / 256)
    assert replace(load, prompts_per_step=0.1).prompts == 0.1


def test_prompts_are_bounded_where_the_steady_state_does_not_hold() -> None:
    """No prefill no prompts; and never more prompts than sequences, whatever the context."""
    assert Load(8, 1000).prompts == 0.0
    assert Load(8, 1000, prompts_per_step=1.0).prompts == 0.0
    assert Load(8, 0, prefill_tokens_per_step=4096).prompts == 8.0


def test_a_sequence_alone_pays_no_context_cost() -> None:
    """It has the memory to itself, so its tokens are read at the plain rate."""
    prices = [0.0] * len(TERMS)
    prices[KV], prices[KV + 1], prices[WEIGHTS] = 1e-12, 1e-17, 1e-12
    fitted = law_of(prices, WeightBytes(0.0), 1e5, source="file")
    alone, pair = predict(fitted, Load(1, 50_000)), predict(fitted, Load(2, 100_000))
    assert alone is not None
    assert pair is not None
    assert alone.kv_cache_seconds == pytest.approx(50_000 * 1e5 * 1e-12)
    assert pair.kv_cache_seconds == pytest.approx(100_000 * 1e5 * (1e-12 + 1e-17 * 50_000 / 2))


def test_without_weights_the_effective_bandwidth_is_that_of_tokens() -> None:
    """A law in tokens: tokens per second is all there is to say."""
    prices = [0.001] + [0.0] * (len(TERMS) - 1)
    prices[KV] = 1e-7
    fitted = law_of(prices, WeightBytes(0.0), 1.0, source="learned")
    assert fitted.effective_bandwidth_bytes_per_second == pytest.approx(1e7)
