"""Prices from bins of load: exact where the law holds, robust against prompts, honest about what is left open."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from stepscope.core.law_terms import GROWTH, KV, OVERHEAD, PREFILL, SEQUENCE, WEIGHTS, Point
from stepscope.core.learned_fit import fit_bins
from stepscope.core.step_model import WeightBytes

OVERHEAD_SECONDS, GROWTH_SECONDS, TOKEN_SECONDS, PREFILL_SECONDS = 8e-3, 3e-4, 5e-8, 3e-5
LOADS = [(n, tokens) for n in (1.0, 4.0, 16.0, 64.0) for tokens in (2_000.0, 20_000.0, 100_000.0)]


def point(n: float, tokens: float, prefill: float, price: float = PREFILL_SECONDS, slower: float = 1.0) -> Point:
    """A load of an engine that follows the law, but for what it asks for a prompt token."""
    decode = OVERHEAD_SECONDS + GROWTH_SECONDS * math.log2(1.0 + n) + TOKEN_SECONDS * tokens
    return Point(n, tokens, prefill, slower * (decode + price * prefill))


def points(*prefill: float) -> list[Point]:
    return [point(n, tokens, tokens_per_step) for n, tokens in LOADS for tokens_per_step in prefill]


def test_a_law_that_holds_is_found() -> None:
    """To within the pull of the prior, and every price is known."""
    found = fit_bins(points(0.0, 20.0, 500.0), weights_grow=False)
    assert found.unknown == ()
    assert found.prices[OVERHEAD] == pytest.approx(OVERHEAD_SECONDS, rel=0.01)
    assert found.prices[GROWTH] == pytest.approx(GROWTH_SECONDS, rel=0.05)
    assert found.prices[KV] == pytest.approx(TOKEN_SECONDS, rel=0.01)
    assert found.prices[PREFILL] == pytest.approx(PREFILL_SECONDS, rel=0.03)
    assert max(map(abs, found.left_out_errors)) < 0.02


def test_a_cost_per_sequence_that_shows_clearly_is_found() -> None:
    """Ten microseconds each."""
    dear = [replace(p, itl_seconds=p.itl_seconds + 1e-5 * p.sequences) for p in points(0.0, 20.0)]
    assert fit_bins(dear, weights_grow=False).prices[SEQUENCE] == pytest.approx(1e-5, rel=0.1)


def test_a_cost_per_sequence_that_may_be_chance_is_not_believed() -> None:
    """A batch of eight is padded and takes 8 % longer; that does not make 64 sequences half as slow again."""
    few = [point(n, t, 0.0, slower=1.08 if n > 4.0 else 1.0) for n in (1.0, 2.0, 4.0, 8.0) for t in (1e3, 1e4, 1e5)]
    found = fit_bins(few, weights_grow=False)
    at_64 = found.prices[OVERHEAD] + 6.02 * found.prices[GROWTH] + 64.0 * found.prices[SEQUENCE]
    assert at_64 == pytest.approx(OVERHEAD_SECONDS + 6.02 * GROWTH_SECONDS, rel=0.2)


def test_a_few_long_prompts_do_not_decide_what_a_prompt_token_costs() -> None:
    """In three of 27 loads a prompt token costs six times as much."""
    dear = [point(n, 50_000.0, 2000.0, 6.0 * PREFILL_SECONDS) for n in (2.0, 8.0, 30.0)]
    found = fit_bins(points(0.0, 60.0) + dear, weights_grow=False)
    assert found.prices[PREFILL] == pytest.approx(PREFILL_SECONDS, rel=0.25)
    assert found.prices[OVERHEAD] == pytest.approx(OVERHEAD_SECONDS, rel=0.02)


def test_what_prompts_cost_here_and_there_leaves_the_other_prices_alone() -> None:
    """From load to load a prompt token costs between nothing and twice the mean, as small and large chunks do."""
    draw = random.Random(5)
    rough = [point(n, t, 60.0, PREFILL_SECONDS * draw.uniform(0.0, 2.0)) for n, t in LOADS]
    found = fit_bins(points(0.0) + rough, weights_grow=False)
    assert found.prices[OVERHEAD] == pytest.approx(OVERHEAD_SECONDS, rel=0.02)
    assert found.prices[KV] == pytest.approx(TOKEN_SECONDS, rel=0.03)
    assert found.prefill_error_ratio > 0.0


def test_loads_of_mostly_prompts_teach_but_are_not_judged() -> None:
    """Errors are those of loads in which prompt chunks take up to a third of the ITL."""
    found = fit_bins(points(0.0, 5000.0), weights_grow=False)
    assert len(found.errors) == len(found.left_out_errors) == len(found.judged) == len(LOADS)
    assert found.prices[PREFILL] == pytest.approx(PREFILL_SECONDS, rel=0.05)


def test_prompts_that_scatter_leave_their_price_open() -> None:
    """Hardly any prompt tokens, ITL that scatter by 5 %: one load with many would be off by more than a tenth."""
    draw = random.Random(3)
    noisy = [point(n, t, p, slower=draw.gauss(1.0, 0.05)) for n, t in LOADS for p in (0.0, 4.0)]
    few = fit_bins(noisy, weights_grow=False)
    heavy = fit_bins([*noisy, point(8.0, 30_000.0, 300.0)], weights_grow=False)
    assert few.prefill_error_seconds_per_token is not None
    assert few.prefill_error_seconds_per_token > PREFILL_SECONDS
    assert few.prefill_error_ratio < 0.1
    assert heavy.prefill_error_ratio > 0.1


def test_without_prompts_nothing_is_said_of_their_price() -> None:
    """Not even that it is open."""
    found = fit_bins(points(0.0), weights_grow=False)
    assert found.prefill_error_seconds_per_token is None
    assert (found.prices[PREFILL], found.prefill_error_ratio, found.unknown) == (0.0, 0.0, ())


def test_a_batch_that_never_changes_leaves_overhead_and_sequences_open() -> None:
    """Eight sequences, whatever the tokens."""
    found = fit_bins([point(8.0, 1000.0 * at, 0.0) for at in range(1, 20)], weights_grow=False)
    assert found.unknown == ("step_overhead_seconds", "batch_growth_seconds")


def test_weights_that_grow_with_the_batch_have_a_price_of_their_own() -> None:
    """A mixture of experts reads more of them for more sequences."""
    weights, per_byte = WeightBytes(2e9, 2e7, 128, 8, 48), 4e-13
    grown = [
        replace(p, itl_seconds=p.itl_seconds + per_byte * read, weight_bytes=read)
        for p in points(0.0, 20.0)
        for read in (weights.read_bytes(p.sequences),)
    ]
    assert fit_bins(grown, weights_grow=True).prices[WEIGHTS] == pytest.approx(per_byte, rel=0.1)
    assert fit_bins(grown, weights_grow=False).prices[WEIGHTS] == 0.0


def test_leaving_a_load_out_never_makes_it_look_better() -> None:
    """And the only load far from all others looks much worse."""
    draw = random.Random(8)
    few = [point(n, 2000.0 + 10.0 * n, 0.0, slower=draw.gauss(1.0, 0.02)) for n in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)]
    found = fit_bins([*few, point(4.0, 200_000.0, 0.0, slower=1.05)], weights_grow=False)
    assert all(abs(left) >= abs(own) for left, own in zip(found.left_out_errors, found.errors, strict=True))
    assert abs(found.left_out_errors[-1]) > 3.0 * abs(found.errors[-1])


@pytest.mark.parametrize("seed", range(20))
def test_no_price_is_negative_whatever_the_loads(seed: int) -> None:
    """Loads at random, times at random."""
    draw = random.Random(seed)
    wild = [
        Point(
            draw.uniform(0.5, 300.0), draw.uniform(0.0, 1e6), draw.choice((0.0, 0.0, 900.0)), draw.lognormvariate(-4, 1)
        )
        for _ in range(draw.randint(1, 60))
    ]
    found = fit_bins(wild, weights_grow=False)
    assert all(price >= 0.0 for price in found.prices)
    assert found.prefill_error_ratio >= 0.0


def test_no_load_and_no_time_are_refused() -> None:
    """Naming what is wrong."""
    with pytest.raises(ValueError, match="no points"):
        fit_bins([], weights_grow=False)
    with pytest.raises(ValueError, match="itl_seconds"):
        fit_bins([Point(1.0, 1.0, 0.0, 0.0)], weights_grow=False)
