"""The last snapshot is swapped in whole; the history is short, bounded and plain JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from golden_snapshot import golden_snapshot
from stepscope.core.snapshot import Snapshot
from stepscope.runtime.state import HISTORY_SECONDS, State, history_point

BARE = Snapshot("1.0", "rev", "3.11")


def test_a_reader_keeps_the_snapshot_that_it_took() -> None:
    """Whatever is published meanwhile."""
    state = State(BARE)
    taken = state.snapshot
    state.publish(replace(BARE, engine_up=True))
    assert (taken.engine_up, state.snapshot.engine_up) == (False, True)


def test_without_a_time_nothing_enters_the_history() -> None:
    """A reload publishes; it is no sample."""
    state = State(BARE)
    state.publish(BARE)
    assert state.history(0.0) == []


def test_the_history_ends_after_a_quarter_of_an_hour() -> None:
    """Oldest first."""
    state = State(BARE)
    for at in range(0, 2000, 5):
        state.publish(BARE, float(at))
    points = state.history(1995.0)
    assert [p["time_unix_seconds"] for p in points] == [float(at) for at in range(1095, 2000, 5)]
    assert len(points) == HISTORY_SECONDS / 5 + 1


def test_a_fast_sampler_does_not_grow_the_history() -> None:
    """About one point a second."""
    state = State(BARE)
    for at in range(10_000):
        state.publish(BARE, 1000.0 + at / 5)
    assert 850 <= len(state.history(3000.0)) <= 1000


def test_a_point_says_what_a_graph_needs() -> None:
    """The published values of each engine, as plain JSON."""
    snapshot = golden_snapshot()
    view = snapshot.engines[0]
    point = json.loads(json.dumps(history_point(snapshot, 1.23456)))
    (engine,) = point["engines"]
    assert (point["time_unix_seconds"], point["engine_up"]) == (1.235, True)
    assert engine["itl_mean_seconds"] == view.itl_mean_seconds
    assert engine["state"] == "measuring"
    assert sum(engine["components_seconds"].values()) == pytest.approx(engine["predicted_itl_seconds"])


def test_while_the_engine_is_down_a_point_holds_no_engine() -> None:
    """The gap is what the graph must show; held values are not new ones."""
    assert history_point(replace(golden_snapshot(), engine_up=False), 1.0)["engines"] == []
    without = replace(golden_snapshot().engines[0], predicted=None)
    point = history_point(replace(golden_snapshot(), engines=(without,)), 1.0)
    assert point["engines"][0]["components_seconds"] is None


def test_a_schedule_of_one_second_loses_no_point_to_its_jitter() -> None:
    """Samples come a few milliseconds early as often as late; these are gaps between publications beside an engine."""
    gaps = (1.022, 0.951, 1.001, 0.997, 1.002, 0.999, 1.0, 0.996)
    state, now = State(BARE), 0.0
    for at in range(80):
        now += gaps[at % len(gaps)]
        state.publish(BARE, now)
    assert len(state.history(now)) == 80
