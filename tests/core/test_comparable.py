"""Which observations may be set against a prediction: not those under frozen gauges, nor waits after preemptions."""

from __future__ import annotations

from fake_engine import FakeEngine
from folding import Fold


def test_frozen_gauges_are_nothing_to_compare_with() -> None:
    """Every request grows by blocks and usage does not move: after three such samples no more is compared."""
    engine, fold = FakeEngine(), Fold()
    for _ in range(8):
        fold(engine.decode(5.0, batch=8, itl=0.03, tokens=20_000))
    assert not fold.memories["0"].pairs[-1].gauges_moved
    assert not fold.memories["0"].pairs[-1].comparable
    fold(engine.decode(5.0, batch=8, itl=0.03, tokens=20_100))
    assert fold.memories["0"].pairs[-1].comparable


def test_the_wait_of_a_preempted_request_is_no_slow_step() -> None:
    """A request was preempted and waited for a minute; the pair in which it resumes holds that minute in one gap."""
    engine, fold = FakeEngine(), Fold()
    tokens = iter(range(20_000, 30_000, 100))
    for _ in range(4):
        fold(engine.decode(5.0, batch=8, itl=0.03, tokens=next(tokens)))
    engine.preemptions, engine.waiting = 1.0, 1.0
    fold(engine.decode(5.0, batch=8, itl=0.03, tokens=next(tokens)))
    assert not fold.memories["0"].pairs[-1].comparable
    fold(engine.decode(5.0, batch=8, itl=0.03, tokens=next(tokens)))
    assert fold.memories["0"].pairs[-1].comparable  # it still waits, and harms nobody
    engine.waiting = 0.0
    engine.itl_sum += 60.0
    engine.itl_counts[-1] += 1.0
    fold(engine.decode(5.0, batch=8, itl=0.03, tokens=next(tokens)))
    assert not fold.memories["0"].pairs[-1].comparable
    fold(engine.decode(5.0, batch=8, itl=0.03, tokens=next(tokens)))
    assert fold.memories["0"].pairs[-1].comparable
