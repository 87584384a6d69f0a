"""Runs the sampler at its interval: never two at once, never a lost schedule, no thread left at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

_JOB = "sample"


class Schedule:
    """One job at a fixed interval, first run at once."""

    def __init__(self, job: Callable[[], None], interval_seconds: float) -> None:
        # APScheduler warns on every run that it skips because the last one still hangs; the outcome counter says so.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            # coalesce: after a pause (suspended machine, hung scrape) one run makes up for all that were due.
            # misfire_grace_time None: a late run is still run; the default of one second loses it (apscheduler#146).
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._job = job
        self._interval_seconds = interval_seconds

    def start(self) -> None:
        """Start the threads and run the job for the first time."""
        self._scheduler.add_job(
            self._job, "interval", seconds=self._interval_seconds, id=_JOB, next_run_time=datetime.now(UTC)
        )
        self._scheduler.start()

    def every(self, interval_seconds: float) -> None:
        """Change the interval."""
        if interval_seconds != self._interval_seconds:
            self._interval_seconds = interval_seconds
            self._scheduler.reschedule_job(_JOB, trigger="interval", seconds=interval_seconds)

    def after_this_run(self, action: Callable[[], None]) -> None:
        """Run `action` once, when no run of the job is in progress (they share one worker)."""
        self._scheduler.add_job(action, next_run_time=datetime.now(UTC))

    def stop(self, *, wait: bool = True) -> None:
        """No further run. `wait`: until a run in progress has ended; whoever stops must end a hung scrape first."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=wait)
