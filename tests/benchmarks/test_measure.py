"""The benchmark's instruments measure what they say."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure import Child, Spread, cpu_seconds, free_port, quantile, resident_mib

LISTS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


@given(LISTS, st.floats(0.01, 1.0))
def test_a_quantile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    """Nearest rank: always one of the values."""
    found = quantile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values) - 1e-6
    assert sum(v < found for v in values) < share * len(values) + 1e-6


@given(LISTS)
def test_a_spread_lies_around_its_median(values: list[float]) -> None:
    """Low, median, high in this order."""
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)


def test_without_a_measurement_there_is_no_spread() -> None:
    """Rather an error than a zero."""
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])


def test_the_cpu_time_of_another_process_is_what_it_says_itself() -> None:
    """Also the time of threads that have ended."""
    code = (
        "import threading, time\n"
        "def burn():\n"
        "    while time.thread_time() < 0.1: pass\n"
        "t = threading.Thread(target=burn); t.start(); t.join()\n"
        "print(time.process_time(), flush=True); time.sleep(60)"
    )
    with Child.python("-c", code) as child:
        own = float(child.line())
        seen = cpu_seconds(child.pid)
    assert own >= 0.1
    assert own <= seen < own + 0.1


def test_our_own_cpu_time_is_that_of_the_standard_library() -> None:
    """Same clock, other door."""
    before = time.process_time()
    assert before <= cpu_seconds(os.getpid()) <= time.process_time()


def test_resident_memory_grows_by_what_is_allocated() -> None:
    """32 MiB of touched pages."""
    before = resident_mib(os.getpid())
    block = bytearray(b"x") * (32 * 2**20)
    assert 30.0 < resident_mib(os.getpid()) - before < 40.0
    del block


def test_a_child_that_ends_early_is_an_error_and_no_hang() -> None:
    """Whoever waits for its next line is told."""
    with Child.python("-c", "raise SystemExit(3)") as child, pytest.raises(RuntimeError, match="status 3"):
        child.line()


def test_a_child_is_gone_after_its_block() -> None:
    """No process is left behind."""
    with Child.python("-c", "import time; print('up', flush=True); time.sleep(60)") as child:
        assert child.line() == "up"
        pid = child.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_free_port_is_a_port() -> None:
    """Above the reserved ones."""
    assert 1024 <= free_port() <= 65535
