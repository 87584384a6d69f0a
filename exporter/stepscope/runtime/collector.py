"""Renders the last snapshot for Prometheus. Two scrapers, or a person with curl, change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

from stepscope.core.publish import families
from stepscope.core.snapshot import Snapshot
from stepscope.metrics import BY_NAME


class SnapshotCollector(Collector):
    """Builds every family anew from the snapshot; nothing lives between two scrapes, so nothing can leak."""

    def __init__(self, current: Callable[[], Snapshot], clock: Callable[[], float], hold_seconds: float) -> None:
        """`clock`: the monotonic clock of the samples. `hold_seconds`: how long gauges outlive their last sample."""
        self._current = current
        self._clock = clock
        self.hold_seconds = hold_seconds

    def describe(self) -> list[Metric]:
        """Nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families that have samples."""
        for name, rows in families(self._current(), self._clock(), self.hold_seconds):
            if not rows:
                continue
            metric = BY_NAME[name]
            full_name, label_names = metric.full_name, metric.label_names
            # The library adds _total to the samples' family itself.
            family = Metric(full_name.removesuffix("_total"), metric.help, metric.kind)
            family.samples = [
                Sample(full_name, dict(zip(label_names, labels, strict=True)), value) for labels, value in rows
            ]
            yield family


def make_registry(collector: SnapshotCollector) -> CollectorRegistry:
    """A registry of our own: no process_ or python_ series, nothing that another library registered."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def render(registry: CollectorRegistry, accept_header: str) -> tuple[bytes, str]:
    """(body, content type) in the format that the Accept header asks for: text 0.0.4 or OpenMetrics."""
    encoder, content_type = choose_encoder(accept_header)
    return encoder(registry), content_type
