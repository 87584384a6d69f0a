"""Which pairs may teach, how they become episodes, and that memory stays bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fake_engine import FakeEngine
from folding import Fold
from stepscope.core.estimate import Facts, kv_state
from stepscope.core.load_bins import FORGET_EPISODES, MAX_BINS, Bin, binned, extended, is_over, may_enter
from stepscope.core.memory import Memory
from stepscope.core.sharing import Sharing
from stepscope.core.window import Pair

LOAD = Bin(1.0, 100.0, 3.0, 800.0, 2e6, 0.0, 12.5)  # 8 requests, 20,000 tokens, gaps of 30 ms


def memory() -> Memory:
    """An engine that decodes steadily."""
    engine, fold = FakeEngine(), Fold()
    fold(engine.decode(5.0, batch=8, itl=0.03, tokens=20_000))
    fold(engine.decode(5.0, batch=8, itl=0.03, tokens=21_000))
    return fold.memories["0"]


def test_a_steady_pair_may_teach() -> None:
    """Nothing speaks against it."""
    now = memory()
    assert may_enter(now.pairs[-1], now, 0.0)


@pytest.mark.parametrize(
    ("pair", "sample"),
    [
        ({"observations": 9.0}, {}),
        ({"prefill_accounted": False}, {}),
        ({"gauges_moved": False}, {}),
        ({"holds_waits": True}, {}),
        ({"sequences": 12.0}, {}),  # 12 per step of 8 that run: counters and gauges are not of one moment
        ({"sequences": None}, {}),
        ({}, {"preemptions": 1.0}),
        ({}, {"awake": False}),
        ({}, {"requests_running": 0.0}),
    ],
)
def test_whatever_taints_a_pair_keeps_it_out(pair: dict[str, Any], sample: dict[str, Any]) -> None:
    """One reason is enough."""
    now = memory()
    tainted = replace(now.pairs[-1], last=replace(now.pairs[-1].last, **sample), **pair)
    assert not may_enter(tainted, now, 0.0)


def test_prefixes_that_requests_share_keep_a_pair_out() -> None:
    """Of 21,000 tokens in flight 4,000 are read twice: the cache would be priced a fifth too dear."""
    now = memory()
    assert may_enter(now.pairs[-1], replace(now, sharing=Sharing(2_000.0, 9_000.0)), 0.0)
    assert not may_enter(now.pairs[-1], replace(now, sharing=Sharing(4_000.0, 9_000.0)), 0.0)


def test_nothing_is_learned_while_an_engine_warms_up() -> None:
    """The first minute of its life."""
    now = memory()
    assert not may_enter(now.pairs[-1], now, 60.0)


def pair_of(**fields: Any) -> Pair:
    return replace(memory().pairs[-1], **fields)


def test_an_episode_lasts_until_its_prompts_are_booked() -> None:
    """Open prompts hold it open, for half a minute at most; one pair without is an episode of its own."""
    open_pair = pair_of(open_prompt_tokens=500.0)
    kv = kv_state(open_pair.last, Facts())
    episode = extended(None, open_pair, kv)
    assert episode is not None
    assert not is_over(episode, open_pair)
    closing = replace(open_pair, start_seconds=open_pair.end_seconds, end_seconds=open_pair.end_seconds + 5.0)
    closing = replace(closing, open_prompt_tokens=0.0, prefill_tokens=500.0)
    episode = extended(episode, closing, kv)
    assert episode is not None
    assert is_over(episode, closing)
    assert episode.seconds == 10.0
    assert episode.load.prefill_tokens == 500.0
    assert episode.load.itl_seconds == pytest.approx(0.03)
    assert episode.load.episodes == 1.0
    late = replace(open_pair, end_seconds=open_pair.start_seconds + 30.0)
    long = extended(None, late, kv)
    assert long is not None
    assert is_over(long, late)


def test_a_gap_in_time_begins_a_new_episode() -> None:
    """What lies between is not known."""
    first = pair_of()
    kv = kv_state(first.last, Facts())
    later = replace(first, start_seconds=first.end_seconds + 5.0, end_seconds=first.end_seconds + 10.0)
    episode = extended(extended(None, first, kv), later, kv)
    assert episode is not None
    assert episode.seconds == 5.0


def test_like_loads_share_a_bin_and_unlike_ones_do_not() -> None:
    """Two bins per doubling of batch and tokens; prefill in powers of four."""
    near = replace(LOAD, weighted_tokens=2.1e6)
    assert near.key == LOAD.key
    assert replace(LOAD, weighted_tokens=4e6).key != LOAD.key
    assert replace(LOAD, prefill_tokens=125.0).key != LOAD.key
    assert binned(binned({}, LOAD), near)[LOAD.key].observations == 200.0


def test_a_full_bin_forgets_its_past() -> None:
    """A fault that was there while learning fades by half with each further episode."""
    bins: dict[Any, Bin] = {}
    for _ in range(FORGET_EPISODES):
        bins = binned(bins, LOAD)
    bins = binned(bins, replace(LOAD, itl_sum_seconds=6.0))
    only = bins[LOAD.key]
    assert only.episodes == FORGET_EPISODES / 2 + 1
    assert only.itl_seconds == pytest.approx((FORGET_EPISODES / 2 * 3.0 + 6.0) / (100.0 * only.episodes))


def test_there_are_never_more_than_so_many_bins() -> None:
    """The rarest goes."""
    bins: dict[Any, Bin] = {LOAD.key: replace(LOAD, episodes=5.0)}
    for at in range(3 * MAX_BINS):
        bins = binned(bins, replace(LOAD, weighted_tokens=100.0 * 2.0 ** (at / 10), weighted_sequences=100.0 + at))
    assert len(bins) <= MAX_BINS
    assert LOAD.key in bins
