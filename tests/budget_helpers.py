"""A context budget with a clock that stands until it is told to move."""

from __future__ import annotations

import itertools
import threading

from stepscope.core.admission import ContextBudget
from stepscope.core.leases import AdmissionPolicy, Lease, Refusal

POLICY = AdmissionPolicy(
    class_shares=(("chat", 1.0), ("long", 0.5)), long_context_tokens=30_000, budget_tokens=100_000, max_leases=1000
)


class Clock:
    """Time that stands until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(policy: AdmissionPolicy = POLICY) -> tuple[ContextBudget, Clock]:
    clock, numbers = Clock(), itertools.count()
    budget = ContextBudget(policy, clock=clock, lock=threading.Lock(), new_id=lambda: f"lease-{next(numbers)}")
    return budget, clock


def lease(answer: Lease | Refusal) -> Lease:
    assert isinstance(answer, Lease), answer
    return answer


def refusal(answer: Lease | Refusal) -> Refusal:
    assert isinstance(answer, Refusal), answer
    return answer
