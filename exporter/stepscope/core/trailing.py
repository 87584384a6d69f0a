"""What has been usual in the last hour: medians of slots, cheap and of constant size."""

from __future__ import annotations

from dataclasses import dataclass

SLOT_SECONDS = 10.0
SLOTS = 360  # one hour


@dataclass(frozen=True, slots=True)
class Trailing:
    """A value's means over slots of 10 s. The median is taken anew only when a slot closes."""

    slots: tuple[float, ...] = ()
    slot_start_seconds: float = 0.0
    slot_sum: float = 0.0
    slot_count: int = 0
    closed_median: float | None = None

    @property
    def median(self) -> float | None:
        """The median of the last hour, the open slot alone while there is no other; None before the first value."""
        if self.closed_median is not None:
            return self.closed_median
        return self.slot_sum / self.slot_count if self.slot_count else None

    def add(self, at_seconds: float, value: float) -> Trailing:
        """With one more value."""
        if self.slot_count and at_seconds - self.slot_start_seconds >= SLOT_SECONDS:
            slots = (*self.slots, self.slot_sum / self.slot_count)[-SLOTS:]
            return Trailing(slots, at_seconds, value, 1, _median(slots))
        start = self.slot_start_seconds if self.slot_count else at_seconds
        return Trailing(self.slots, start, self.slot_sum + value, self.slot_count + 1, self.closed_median)


def _median(values: tuple[float, ...]) -> float:
    # Not statistics.median: that module brings decimals and fractions along, a good half megabyte for two lines.
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0
