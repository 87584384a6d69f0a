"""The engine's own counters over a stretch of load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.engine_span import active, engine_span, moved, requests
from stepscope.core.estimate import Facts
from stepscope.core.sample import EngineSample, Histogram, Reading

FACTS = Facts()


def sample(at: float, *, engine: str = "0", n: float = 4.0, usage: float = 0.5) -> EngineSample:
    """An engine that takes 10 ms a step with n sequences and 20 prompt tokens, since time 0."""
    steps = at / 0.010
    return EngineSample(
        model_name="m", engine=engine, requests_running=n, requests_waiting=1.0, kv_usage=usage,
        capacity_label_tokens=1000.0, itl_seconds=Histogram(steps * n * 0.010, steps * n), engine_steps=steps,
        prompt_tokens_computed=20.0 * steps, prefix_hits=steps, generation_tokens=n * steps, preemptions=0.0,
    )  # fmt: skip


def readings(*times: float, **more: float) -> list[Reading]:
    return [Reading(at, (sample(at, **more),), single_process=True) for at in times]  # type: ignore[arg-type]


def test_means_are_exact() -> None:
    """S/N, N/K, P/K, usage x capacity."""
    span = engine_span(readings(1.0, 2.0, 3.0), FACTS, 0.0, 10.0)
    assert span is not None
    assert (span.seconds, span.observations) == pytest.approx((2.0, 800.0))
    assert span.itl_seconds == pytest.approx(0.010)
    assert span.sequences == pytest.approx(4.0)
    assert span.tokens_in_flight == 500.0
    assert span.prefill_tokens_per_step == pytest.approx(20.0)
    assert (span.cached_tokens, span.generation_tokens) == pytest.approx((200.0, 800.0))
    assert (span.running_most, span.waiting_most, span.tokens_per_step) == (4.0, 1.0, 1.0)


def test_only_readings_inside_count() -> None:
    """Two at least."""
    assert engine_span(readings(1.0, 2.0, 3.0), FACTS, 1.5, 2.5) is None
    span = engine_span(readings(1.0, 2.0, 3.0), FACTS, 1.5, 3.0)
    assert span is not None
    assert span.seconds == 1.0


def test_engines_of_one_page_weigh_by_what_they_did() -> None:
    """An idle rank does not halve the batch."""
    both = [
        Reading(at, (sample(at), replace(sample(0.0, engine="1", n=0.0), kv_usage=0.0)), single_process=True)
        for at in (1.0, 2.0)
    ]
    span = engine_span(both, FACTS, 0.0, 10.0)
    assert span is not None
    assert span.sequences == pytest.approx(4.0)
    assert span.tokens_in_flight == 500.0


def test_an_engine_that_stands_still_runs_nothing() -> None:
    """Whatever its gauges say: they are left from requests that were cancelled."""
    frozen = sample(0.0, engine="1", n=3.0)
    first, last = (Reading(at, (sample(at), frozen), single_process=True) for at in (1.0, 2.0))
    assert active(first, last) == (4.0, 1.0)
    span = engine_span([first, last], FACTS, 0.0, 10.0)
    assert span is not None
    assert span.running_most == 4.0


def test_a_restart_or_an_idle_engine_gives_nothing() -> None:
    """A fallen counter; no gap at all."""
    first, last = readings(1.0, 2.0)
    assert engine_span([replace(first, at_seconds=1.0, engines=last.engines), replace(last, engines=first.engines)],
                       FACTS, 0.0, 10.0) is None  # fmt: skip
    assert engine_span([first, replace(first, at_seconds=2.0)], FACTS, 0.0, 10.0) is None


def test_speculative_steps_yield_more_than_a_token() -> None:
    """1 + accepted / drafts."""
    first, last = readings(1.0, 2.0)
    drafted = replace(last, engines=(replace(last.engines[0], drafts=100.0, accepted_tokens=150.0),))
    plain = replace(first, engines=(replace(first.engines[0], drafts=0.0, accepted_tokens=0.0),))
    span = engine_span([plain, drafted], FACTS, 0.0, 10.0)
    assert span is not None
    assert span.tokens_per_step == 2.5


def test_requests_and_movement_are_seen() -> None:
    """Running and waiting; any counter."""
    first, last = readings(1.0, 2.0)
    assert requests(first) == 5.0
    assert moved(first, last)
    assert not moved(first, replace(first, at_seconds=2.0))
