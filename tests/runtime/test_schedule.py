"""The job runs at its interval: never two at once, never lost, no thread left."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest

from stepscope.runtime.schedule import Schedule
from waiting import eventually


def test_the_first_run_is_at_once() -> None:
    """Not after the first interval."""
    ran = threading.Event()
    schedule = Schedule(ran.set, 300.0)
    schedule.start()
    try:
        assert ran.wait(5.0)
    finally:
        schedule.stop()


def test_a_job_that_outlives_its_interval_never_runs_twice_at_once() -> None:
    """Runs that were due meanwhile are one run afterwards, and the schedule goes on."""
    running, most, runs = 0, 0, 0

    def job() -> None:
        nonlocal running, most, runs
        running += 1
        most = max(most, running)
        time.sleep(0.25)
        runs += 1
        running -= 1

    schedule = Schedule(job, 0.05)
    schedule.start()
    try:
        assert eventually(lambda: runs >= 3)
    finally:
        schedule.stop()
    assert most == 1
    assert runs <= 5


def test_a_job_that_raises_is_run_again() -> None:
    """The sampler never raises; should it, the schedule stands."""
    runs: list[float] = []

    def job() -> None:
        runs.append(time.monotonic())
        raise RuntimeError("broken")

    schedule = Schedule(job, 0.05)
    schedule.start()
    try:
        assert eventually(lambda: len(runs) >= 3)
    finally:
        schedule.stop()


def test_the_interval_can_be_changed_while_it_runs() -> None:
    """From once in five minutes to twenty times a second."""
    runs: list[float] = []
    schedule = Schedule(lambda: runs.append(time.monotonic()), 300.0)
    schedule.start()
    try:
        assert eventually(lambda: len(runs) == 1)
        schedule.every(0.05)
        assert eventually(lambda: len(runs) >= 4)
        schedule.every(0.05)
    finally:
        schedule.stop()


def test_a_wall_clock_that_is_set_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back by an hour, forward, back by days; APScheduler plans by that clock."""
    shifts = [timedelta()]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + shifts[-1]

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", Clock)
    monkeypatch.setattr("stepscope.runtime.schedule.datetime", Clock)
    runs: list[float] = []
    schedule = Schedule(lambda: runs.append(time.monotonic()), 0.1)
    schedule.start()
    try:
        for shift in (timedelta(hours=-1), timedelta(minutes=20), timedelta(days=-9)):
            shifts.append(shift)
            before = len(runs)
            assert eventually(lambda before=before: len(runs) >= before + 3)  # type: ignore[misc]  # binds the loop's value
    finally:
        schedule.stop()


def test_no_thread_is_left() -> None:
    """Also when it never ran, and when it is stopped twice."""
    before = set(threading.enumerate())
    schedule = Schedule(lambda: None, 0.05)
    schedule.stop()
    schedule.start()
    schedule.stop()
    schedule.stop()
    assert eventually(lambda: set(threading.enumerate()) <= before)


def test_stopping_waits_for_the_run_in_progress() -> None:
    """What it publishes is whole."""
    begun, ended = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        time.sleep(0.2)
        ended.set()

    schedule = Schedule(job, 300.0)
    schedule.start()
    assert begun.wait(5.0)
    schedule.stop()
    assert ended.is_set()
