"""Prefixes that requests share are noticed from what finished, and only where there were cache hits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.sample import EngineSample, Histogram
from stepscope.core.sharing import Sharing, advance, decided, nearest
from stepscope.core.step_model import StepTime
from stepscope.core.window import Pair, Window, gather


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


def shared(first: EngineSample, last: EngineSample, tokens: float | None, sequences: float) -> float:
    """Tokens that requests seem to share, from one window."""
    return advance(Sharing(), first, last, tokens, sequences, 5.0).tokens


def test_a_system_prompt_that_ten_share_is_read_nine_times_more() -> None:
    """Ten requests of 5,000 + 1,000 tokens; 4,000 are common, and the gauge shows them once."""
    in_flight = 4000 + 10 * 1500
    assert shared(FRESH, sample(20, 5000, 1000, 4000), in_flight, 10.0) == pytest.approx(9 * 4000)


def test_conversations_that_hit_only_their_own_past_share_nothing() -> None:
    """Their cached tokens are in flight themselves."""
    assert shared(FRESH, sample(20, 5000, 1000, 4000), 10 * 5500, 10.0) == 0.0


def test_nothing_is_shared_without_cache_hits_or_alone() -> None:
    """However little the gauge shows."""
    assert shared(FRESH, sample(20, 5000, 1000, 0), 1000.0, 10.0) == 0.0
    assert shared(FRESH, sample(20, 5000, 1000, 4000), 1000.0, 1.0) == 0.0


def test_with_few_finished_the_engine_s_whole_life_must_do() -> None:
    """Long answers: hardly anybody finished within the window."""
    before = sample(100, 5000, 1000, 4000)
    after = sample(101, 5000, 1000, 4000)
    assert shared(before, after, 19_000, 10.0) == pytest.approx(36_000)


def test_before_anybody_finished_all_that_came_from_the_cache_may_be_shared() -> None:
    """After a restart nothing can be said yet; without hits there is nothing to share."""
    begun = sample(10, 5000, 1000, 4000, finished_requests=0.0, finished_prompt_tokens=0.0)
    assert shared(FRESH, begun, 19_000, 10.0) == pytest.approx(40_000)
    assert shared(FRESH, sample(0, 0, 0, 0), 19_000, 10.0) == 0.0


@pytest.mark.parametrize("field", ["finished_requests", "ttft_seconds", "finished_prompt_tokens", "prefix_hits"])
def test_an_engine_that_cannot_say_shares_nothing_that_we_know_of(field: str) -> None:
    """None is not 0, and no guess is made."""
    assert shared(FRESH, sample(20, 5000, 1000, 4000, **{field: None}), 19_000, 10.0) == 0.0
    assert shared(FRESH, sample(20, 5000, 1000, 4000), None, 10.0) == 0.0


def served(finished: float, running: float, in_flight: float, **fields: Any) -> EngineSample:
    """`finished` of 5,000 + 1,000 tokens, and `running` like them half way; of each prompt 4,000 were cached."""
    all_of_them = finished + running
    told: dict[str, Any] = {
        "requests_running": running,
        "requests_waiting": 0.0,
        "ttft_seconds": Histogram(all_of_them, all_of_them),
        "prompt_tokens_computed": 1000.0 * all_of_them,
        "prefix_hits": 4000.0 * all_of_them,
        "generation_tokens": 1000.0 * finished + 500.0 * running,
        "block_size": 16.0,
        "kv_usage": in_flight,
        "preemptions": 0.0,
    }
    return sample(finished, 5000, 1000, 4000, **{**told, **fields})


def folded(*samples: EngineSample) -> Sharing:
    known = Sharing()
    for one in samples:
        known = advance(known, FRESH, one, one.kv_usage, one.requests_running, 5.0)
    return known


def test_what_runs_is_known_exactly_from_what_came_and_what_left() -> None:
    """Whatever the mix of long and short requests: ten hold 55,000 tokens, the gauge shows 19,000."""
    known = folded(served(3, 10, 19_000))
    assert (known.tokens, known.most_tokens) == (36_000.0, 36_160.0)
    assert folded(served(3, 10, 55_000)).tokens == 0.0
    # Somebody's prompt is being computed: it is in no book yet, and what was known before stands.
    assert folded(served(3, 10, 19_000), served(3, 10, 21_000, requests_running=11.0)).tokens == 36_000.0


def test_cancelled_requests_spoil_the_books_until_nobody_runs() -> None:
    """Two were cancelled and never finish: those that finished stand for those that run, until the engine rests."""
    spoilt = served(30, 12, 55_000, requests_running=10.0)
    assert folded(spoilt).tokens == 0.0
    at_rest = served(30, 2, 0.0, requests_running=0.0)
    later = served(40, 12, 19_000, requests_running=10.0)
    assert folded(spoilt, at_rest, later).tokens == pytest.approx(36_000.0)
    assert folded(spoilt, *[later] * 20).tokens == pytest.approx(36_000.0, rel=0.06)


def test_preemptions_spoil_the_books_too() -> None:
    """A prompt computed twice is booked twice."""
    assert not folded(served(3, 10, 19_000, preemptions=1.0)).is_closed
    assert folded(served(3, 10, 19_000)).is_closed


def test_a_single_window_with_long_requests_does_not_end_what_was_noticed() -> None:
    """The gauge of a few requests scatters; five minutes of it do not."""
    known = Sharing()
    for number in range(60):
        in_flight = 49_000 if number % 6 == 5 else 35_000
        known = advance(known, FRESH, sample(20, 6500, 3000, 3900), in_flight, 8.0, 5.0)
    assert known.tokens == pytest.approx(8 * 8000 - (5 * 35_000 + 49_000) / 6, rel=0.05)


STEP = StepTime(0.002, 0.001, 0.001, 0.0, 0.0, 0.004, 0.004)  # 4 ms, of which a quarter reads the KV cache


@pytest.mark.parametrize(
    ("excess", "was_felt", "is_felt"),
    [(2900, False, False), (3100, False, True), (1600, True, True), (1400, True, False), (-5000, True, False)],
)
def test_sharing_is_felt_from_half_of_what_drift_allows_and_gone_at_a_quarter(
    excess: float, was_felt: bool, is_felt: bool
) -> None:
    """10,000 tokens take 1 ms of 4: 3,000 more are 7.5 %."""
    known = Sharing(excess, most_tokens=50_000.0, is_felt=was_felt)
    assert known.judged(STEP, 10_000.0).is_felt is is_felt


def paired(itl_seconds: float, most: StepTime | None) -> Pair:
    return Pair(
        FRESH, FRESH, 0.0, 5.0, 1000.0, 1000.0 * itl_seconds, 100.0, 10.0, 0.0, True, 0.0,
        predicted=STEP, comparable=True, most=most,
    )  # fmt: skip


MOST = replace(STEP, kv_cache_seconds=0.003)  # 6 ms


def window(itl_seconds: float, most: StepTime | None) -> Window:
    return decided(gather((paired(itl_seconds, most), paired(itl_seconds, None))))


def test_where_prefixes_are_shared_only_what_no_sharing_explains_is_compared() -> None:
    """Between 4 and 5 ms (one of two pairs may take 6) and 15 % around: it could be either."""
    for itl in (0.0035, 0.004, 0.0057):
        assert window(itl, MOST).compared is None
        assert window(itl, MOST).compared_observations == 0.0
    slow, fast = window(0.0058, MOST).compared, window(0.0033, MOST).compared
    assert slow is not None
    assert fast is not None
    assert (slow.itl_seconds, fast.itl_seconds) == (pytest.approx(0.005), pytest.approx(0.004))
    plain = window(0.004, None).compared
    assert plain is not None
    assert plain.itl_seconds == pytest.approx(0.004)


def test_counters_hold_a_pair_against_the_nearer_bound() -> None:
    """Slow ones against the most, fast ones against the least."""
    assert nearest(paired(0.0051, MOST), STEP) is MOST
    assert nearest(paired(0.0049, MOST), STEP) is STEP
    assert nearest(paired(0.0051, None), STEP) is STEP
