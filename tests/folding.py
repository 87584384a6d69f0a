"""Folds readings into the core one after another, as the sampler does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fake_engine import LAW, FakeEngine
from stepscope.core.estimate import Facts
from stepscope.core.observer import Memory, Policy, observe
from stepscope.core.sample import Reading
from stepscope.core.snapshot import EngineView

# Five seconds apart, six pairs a window, no warm-up unless a test is about it.
POLICY = Policy(interval_seconds=5.0, window_seconds=30.0, warm_up_seconds=0.0)
PROMISE = replace(POLICY, objective_tokens_per_second=25.0, headroom=0.9)  # the step is held to 36 ms


@dataclass
class Fold:
    """The memories of all engines, and every view of the one that a test looks at."""

    facts: Facts = field(default_factory=lambda: Facts(law=LAW))
    policy: Policy = POLICY
    memories: dict[str, Memory] = field(default_factory=dict)

    def __call__(self, reading: Reading) -> EngineView:
        """Fold one page in; the view of its first engine."""
        return self.page(reading)[0]

    def page(self, reading: Reading) -> tuple[EngineView, ...]:
        """Fold one page in; the views of all its engines."""
        self.memories, views = observe(self.memories, reading, self.facts, self.policy)
        return views

    def all(self, readings: Iterable[Reading]) -> EngineView:
        """Fold several pages in; the last view."""
        return [self(reading) for reading in readings][-1]


def busy(engine: FakeEngine, samples: int = 6, *, itl: float = 0.030, tokens: float = 20_000) -> list[Reading]:
    """Eight requests decode as fast as the law of the fake engine says: 10 ms of weights, 20 ms of KV."""
    first = engine.reading()
    return [first, *(engine.decode(5.0, batch=8, itl=itl, tokens=tokens) for _ in range(samples))]
