"""What can go wrong on purpose. A set of faults is a frozen value; changing it gives a new one."""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from stepscope.errors import ConfigError

NOISE_BURST_SECONDS = 2.0  # mean length of a noisy neighbour's burst: the simulator's choice
NOISE_PAUSE_SECONDS = 4.0  # mean pause between bursts: the simulator's choice


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults in force. Defaults mean none."""

    throttle: float = 1.0  # every step takes this many times as long (power or thermal cap)
    noisy_neighbour: float = 1.0  # the same, but in bursts only
    frozen_gauges: bool = False  # running, waiting and usage keep their values whatever happens
    hang: bool = False  # no step ends any more: counters stand still while the gauges say busy
    lost_blocks: float = 0.0  # share 0..1 of the KV blocks taken away: a preemption storm
    sleep: int = 0  # vLLM's sleep level: 0 awake, 1 weights offloaded, 2 everything discarded

    def updated(self, changes: Mapping[str, object]) -> Faults:
        """A copy with `changes`. ConfigError names an unknown key, with the nearest known one, or a bad value."""
        known = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        values: dict[str, float | int | bool] = {}
        for key, value in changes.items():
            if key not in known:
                nearest = difflib.get_close_matches(key, known, n=1)
                hint = f", did you mean {nearest[0]}?" if nearest else f" (known: {', '.join(known)})"
                raise ConfigError(f"faults: unknown fault {key!r}{hint}")
            values[key] = _convert(key, value, known[key])
        return replace(self, **values)  # type: ignore[arg-type]  # each value has its field's type: _convert


def _convert(key: str, value: object, kind: type) -> float | int | bool:
    if kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
            return value.lower() in ("true", "1")
        raise ConfigError(f"faults: {key} must be true or false, not {value!r}")
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
    except ValueError:
        raise ConfigError(f"faults: {key} must be a number, not {value!r}") from None
    if kind is int:
        if number not in (0, 1, 2):
            raise ConfigError(f"faults: {key} must be 0, 1 or 2, not {value!r}")
        return int(number)
    low, high = (0.0, 0.99) if key == "lost_blocks" else (0.1, 1000.0)
    if not low <= number <= high:
        raise ConfigError(f"faults: {key} must be within {low:g}..{high:g}, not {value!r}")
    return number


class NoisyNeighbour:
    """Alternates between quiet and busy; both lengths are exponential. Deterministic from its seed."""

    def __init__(self, seed: int) -> None:
        """Busy from the first step on."""
        self._random = random.Random(seed)
        self._busy = False
        self._until_seconds = 0.0

    def factor(self, now_seconds: float, slowdown: float) -> float:
        """What a step that begins now is multiplied by."""
        while now_seconds >= self._until_seconds:
            self._busy = not self._busy
            mean = NOISE_BURST_SECONDS if self._busy else NOISE_PAUSE_SECONDS
            self._until_seconds = max(self._until_seconds, now_seconds) + self._random.expovariate(1.0 / mean)
        return slowdown if self._busy else 1.0
