"""Which loads a calibration tries, and how they shrink to the time there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.probes import MIN_STEPS, Pace, Probe, Room, after_refusal, plan, prefill_pace, shrink

GPU = Pace(8e-3, 15.2e9, 147_456.0, 1 / 40_000)
CPU = Pace(40e-3, 0.2e9, 32_768.0, 1 / 400, 1 / 400 / 5000)


def test_a_large_engine_gets_one_and_many_streams_short_and_long_and_prompts() -> None:
    """The most telling loads come first."""
    probes = plan(Room(131_072, 377_000.0))
    assert probes[:3] == [Probe("decode", 1, 256), Probe("decode", 32, 256), Probe("decode", 32, 9425)]
    assert Probe("decode", 1, 16_384) in probes
    assert sum(probe.kind == "mixed" for probe in probes) == 3


def test_what_the_operator_wants_wins() -> None:
    """Streams and contexts as given, as far as the engine can hold them."""
    probes = plan(Room(131_072, 377_000.0), streams=8, short=100, long=50_000)
    assert probes[0] == Probe("decode", 1, 100)
    assert probes[2] == Probe("decode", 8, 37_700)
    assert Probe("decode", 1, 50_000) in probes


@given(
    st.one_of(st.none(), st.integers(64, 2_000_000)),
    st.one_of(st.none(), st.floats(1000.0, 1e7)),
    st.one_of(st.none(), st.integers(2, 256)),
)
def test_no_probe_is_larger_than_the_engine(length: int | None, capacity: float | None, streams: int | None) -> None:
    """Each prompt is shorter than the longest context; all together fit into the pool, where that is in our hands."""
    probes = plan(Room(length, capacity), streams=streams)
    assert probes[0].streams == 1
    for probe in probes:
        assert 1 <= probe.prompt_tokens < (length or 4096)
        if capacity is not None and streams is None and probe.kind == "decode":
            assert probe.streams * probe.prompt_tokens <= max(0.85 * capacity, 2 * probe.prompt_tokens)


def test_time_makes_the_slowest_smaller_and_never_breaks_the_first() -> None:
    """On a slow engine contexts shrink before streams do."""
    probes = plan(Room(16_384, 65_536.0))
    fitting, changed = shrink(probes, CPU, 4.0, 200.0)
    assert changed
    assert sum(CPU.seconds(probe, 4.0) for probe in fitting) <= 200.0
    assert fitting[0] == probes[0]
    assert {probe.kind for probe in fitting} == {"decode", "mixed"}


def test_enough_time_changes_nothing_and_none_leaves_nothing() -> None:
    """The two ends."""
    probes = plan(Room(131_072, 377_000.0))
    assert shrink(probes, GPU, 4.0, 1000.0) == (probes, False)
    assert shrink(probes, GPU, 4.0, 0.5) == ([], True)


def test_what_the_engine_refused_is_not_tried_again() -> None:
    """Too many streams: with those that ran, else half. Too long a context: nothing as long."""
    wide, lone, small = Probe("decode", 8, 500), Probe("decode", 1, 5000), Probe("decode", 2, 500)
    assert after_refusal([lone, small], wide, 3) == [Probe("decode", 3, 500), lone, small]
    assert after_refusal([lone, small], wide) == [Probe("decode", 4, 500), lone, small]
    assert after_refusal([small, wide], small) == [Probe("decode", 1, 500)]
    assert after_refusal([wide, lone, Probe("decode", 4, 6000)], lone) == [wide]


def test_the_estimate_counts_prompts_steps_and_waves() -> None:
    """At least so many steps, however short the time asked for."""
    assert CPU.seconds(Probe("decode", 1, 400), 0.1) > 400 / 400.0 + MIN_STEPS * 40e-3
    mixed = Probe("mixed", 4, 400, 16)
    assert CPU.seconds(mixed, 0.1) > 3 * 4 * 400 / 400.0
    assert GPU.seconds(Probe("decode", 32, 9000), 4.0) == pytest.approx(1.0 + 1.25 * (7.2 + 4.0), rel=0.01)


def test_a_probe_reads_as_what_it_does() -> None:
    """In progress and reports."""
    assert str(Probe("decode", 1, 1500)) == "1 stream x 1,500 tokens"
    assert str(Probe("mixed", 8, 512, 16)) == "8 streams x 512 tokens in, 16 out"


def test_two_prompts_tell_how_a_longer_one_will_do() -> None:
    """Linear work and quadratic attention; where only overhead shows, nothing grows."""
    per_token, growth = prefill_pace((256, 256 * (1e-3 + 256e-7)), (2048, 2048 * (1e-3 + 2048e-7)))
    assert (per_token, growth) == pytest.approx((1e-3, 1e-7))
    pace = Pace(1.0, 1.0, 1.0, per_token, growth)
    assert pace.prompt_seconds(Probe("decode", 2, 10_000)) == pytest.approx(2 * 10_000 * 2e-3)
    assert pace.slower(2.0).prompt_seconds(Probe("decode", 1, 10_000)) == pytest.approx(10_000 * 4e-3)
    assert prefill_pace((256, 0.2), (2048, 0.4)) == pytest.approx((0.4 / 2048, 0.0))
    assert prefill_pace((256, 0.2), (256, 0.4)) == pytest.approx((0.2 / 256, 0.0))
