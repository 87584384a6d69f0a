"""Runs the sampler at its interval: never two at once, never a lost schedule, no thread left at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

_JOB = "sample"
_CLOCK_STEP_SECONDS = 0.05  # smaller differences are slewed away


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]  # the library has no types
    """Keeps its times when the wall clock is set, by which APScheduler plans.

    Set back by an hour nothing would run for an hour; set forward it would count every run that seems to be missed.
    """

    longest_wait_seconds = 1.0  # the clock may be set between our reading it and APScheduler's
    _wall_minus_monotonic: float | None = None

    def _process_jobs(self) -> float | None:
        offset = datetime.now(UTC).timestamp() - time.monotonic()
        known, self._wall_minus_monotonic = self._wall_minus_monotonic, offset
        if known is not None and abs(offset - known) > _CLOCK_STEP_SECONDS:
            for job in self.get_jobs():
                job.modify(next_run_time=job.next_run_time + timedelta(seconds=offset - known))
        wait: float | None = super()._process_jobs()
        return None if wait is None else min(wait, self.longest_wait_seconds)


class Schedule:
    """One job at a fixed interval, first run at once."""

    def __init__(self, job: Callable[[], None], interval_seconds: float) -> None:
        # APScheduler warns on every run that it skips because the last one still hangs; the outcome counter says so.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._scheduler = _Scheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            # coalesce: after a pause (suspended machine, hung scrape) one run makes up for all that were due.
            # misfire_grace_time None: a late run is still run; the default of one second loses it (apscheduler#146).
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._job = job
        self._interval_seconds = self._scheduler.longest_wait_seconds = interval_seconds

    def start(self) -> None:
        """Start the threads and run the job for the first time."""
        self._scheduler.add_job(
            self._job, "interval", seconds=self._interval_seconds, id=_JOB, next_run_time=datetime.now(UTC)
        )
        self._scheduler.start()

    def every(self, interval_seconds: float) -> None:
        """Change the interval."""
        if interval_seconds != self._interval_seconds:
            self._interval_seconds = self._scheduler.longest_wait_seconds = interval_seconds
            self._scheduler.reschedule_job(_JOB, trigger="interval", seconds=interval_seconds)

    def after_this_run(self, action: Callable[[], None]) -> None:
        """Run `action` once, when no run of the job is in progress (they share one worker)."""
        self._scheduler.add_job(action, next_run_time=datetime.now(UTC))

    def stop(self, *, wait: bool = True) -> None:
        """No further run. `wait`: until a run in progress has ended; whoever stops must end a hung scrape first."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=wait)
