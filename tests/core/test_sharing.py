"""Prefixes that requests share are noticed from what finished, and only where there were cache hits."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.core.sample import EngineSample, Histogram
from stepscope.core.sharing import shared_tokens


def sample(finished: float, prompt: float, output: float, hits: float, **fields: Any) -> EngineSample:
    """After `finished` requests of `prompt` + `output` tokens, `hits` of each prompt from the cache."""
    told: dict[str, Any] = {
        "finished_requests": finished,
        "finished_prompt_tokens": finished * prompt,
        "finished_generation_tokens": finished * output,
        "prefix_hits": finished * hits,
        "ttft_seconds": Histogram(finished, finished),
    }
    return EngineSample("m", "0", **{**told, **fields})


FRESH = sample(0, 0, 0, 0)


def test_a_system_prompt_that_ten_share_is_read_nine_times_more() -> None:
    """Ten requests of 5,000 + 1,000 tokens; 4,000 are common, and the gauge shows them once."""
    in_flight = 4000 + 10 * 1500
    assert shared_tokens(FRESH, sample(20, 5000, 1000, 4000), in_flight, 10.0) == pytest.approx(9 * 4000)


def test_conversations_that_hit_only_their_own_past_share_nothing() -> None:
    """Their cached tokens are in flight themselves."""
    assert shared_tokens(FRESH, sample(20, 5000, 1000, 4000), 10 * 5500, 10.0) == 0.0


def test_nothing_is_shared_without_cache_hits_or_alone() -> None:
    """However little the gauge shows."""
    assert shared_tokens(FRESH, sample(20, 5000, 1000, 0), 1000.0, 10.0) == 0.0
    assert shared_tokens(FRESH, sample(20, 5000, 1000, 4000), 1000.0, 1.0) == 0.0


def test_with_few_finished_the_engine_s_whole_life_must_do() -> None:
    """Long answers: hardly anybody finished within the window."""
    before = sample(100, 5000, 1000, 4000)
    after = sample(101, 5000, 1000, 4000)
    assert shared_tokens(before, after, 19_000, 10.0) == pytest.approx(36_000)
    assert shared_tokens(FRESH, sample(0, 0, 0, 0), 19_000, 10.0) == 0.0


@pytest.mark.parametrize("field", ["finished_requests", "ttft_seconds", "finished_prompt_tokens", "prefix_hits"])
def test_an_engine_that_cannot_say_shares_nothing_that_we_know_of(field: str) -> None:
    """None is not 0, and no guess is made."""
    assert shared_tokens(FRESH, sample(20, 5000, 1000, 4000, **{field: None}), 19_000, 10.0) == 0.0
    assert shared_tokens(FRESH, sample(20, 5000, 1000, 4000), None, 10.0) == 0.0
