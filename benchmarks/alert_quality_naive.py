"""The rule people write first: the interpolated median gap against (weights + KV) / bandwidth, 15 % off for 5 min."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from alert_quality_cases import FAULT_SECONDS
from alert_quality_laws import INTERVAL_SECONDS

from stepscope.core.compare import DRIFT_LIMIT
from stepscope.core.estimate import Facts, kv_state
from stepscope.core.model_spec import ModelSpec
from stepscope.core.sample import Histogram, Reading

RANGE_SAMPLES = round(300.0 / INTERVAL_SECONDS)  # histogram_quantile(0.5, rate(..._bucket[5m]))
FOR_SAMPLES = RANGE_SAMPLES
CALIBRATE_SAMPLES = RANGE_SAMPLES  # its bandwidth is set so that the first five minutes are right


class Naive:
    """One engine watched by the naive rule, its bandwidth calibrated on the first five minutes."""

    def __init__(self, model: ModelSpec, facts: Facts) -> None:
        """`facts`: the model's bytes; the law in them is not used."""
        self._model, self._facts = model, replace(facts, law=None)
        self._rows: deque[tuple[Histogram, float]] = deque(maxlen=RANGE_SAMPLES + 1)  # (histogram, bytes read)
        self._bandwidth: float | None = None
        self._slow_samples = 0
        self._firing: list[tuple[float, bool]] = []
        self._healthy: tuple[Histogram, Histogram] | None = None

    def add(self, reading: Reading) -> None:
        """The next page."""
        sample = reading.engines[0]
        tokens = kv_state(sample, self._facts).tokens_in_flight
        if sample.itl_seconds is None or tokens is None:
            return
        if self._rows and sample.itl_seconds.count < self._rows[-1][0].count:
            self._rows.clear()  # a restart
            self._slow_samples = 0
        read_bytes = self._model.weights.read_bytes(1.0) + tokens * (self._model.kv_bytes_per_token or 0.0)
        self._rows.append((sample.itl_seconds, read_bytes))
        if reading.at_seconds <= FAULT_SECONDS:
            first = self._healthy[0] if self._healthy is not None else sample.itl_seconds
            self._healthy = (first, sample.itl_seconds)
        median = interpolated_median(self._rows[0][0], sample.itl_seconds)
        mean_bytes = sum(row[1] for row in self._rows) / len(self._rows)
        if median is None:
            return
        if self._bandwidth is None:
            if len(self._rows) > CALIBRATE_SAMPLES:
                self._bandwidth = mean_bytes / median
            return
        slow = median / (mean_bytes / self._bandwidth) - 1.0 > DRIFT_LIMIT
        self._slow_samples = self._slow_samples + 1 if slow else 0
        self._firing.append((reading.at_seconds, self._slow_samples > FOR_SAMPLES))

    def firing(self) -> list[tuple[float, bool]]:
        """(time, whether the rule fires)."""
        return self._firing

    @property
    def healthy_itl_seconds(self) -> float:
        """Mean gap before the fault."""
        if self._healthy is None:
            return 0.0
        first, last = self._healthy
        return (last.sum - first.sum) / max(last.count - first.count, 1.0)


def interpolated_median(first: Histogram, last: Histogram) -> float | None:
    """histogram_quantile(0.5) of what came between; None without observations."""
    before = dict(first.buckets)
    counts = [(bound, value - before.get(bound, 0.0)) for bound, value in last.buckets]
    total = counts[-1][1] if counts else 0.0
    if total <= 0.0:
        return None
    lower = below = 0.0
    for bound, count in counts:
        if count >= total / 2.0:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (total / 2.0 - below) / (count - below)
        lower, below = bound, count
    return None
