"""The values of token admission: policy, budgets, leases, refusals, counts. core/admission.py joins them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from stepscope.metrics import REFUSALS

DEFAULT_CLASS, LONG_CLASS = "default", "long"
LEAST_TTL_SECONDS = 0.1  # as --admission.default-ttl: a lease that has run out on arrival helps nobody
LEAST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 1.0, 10.0  # Retry-After counts whole seconds; a longer guess is not one
_RATE_SECONDS = 30.0  # memory of the rate at which tokens come back: a few chats long


class Lock(Protocol):
    """What `with` needs; `threading.Lock()` is one."""

    def __enter__(self) -> object:
        """Take it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any, /) -> object:
        """Give it back."""


class UnknownClassError(ValueError):
    """A lease names a class that the policy does not have."""


class GrowingLeaseError(ValueError):
    """A lease is to be renewed with more tokens than it has."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """What the operator decided: choices, not measurements, each a setting (docs/admission.md). Times in seconds.

    class_shares: (class, share of the whole budget that its leases may hold together). long_context_tokens: a lease of
    so many tokens belongs to class `long`, whatever class it names. budget_tokens: a budget beside the engine's own.
    admit_unknown: whether to admit while no budget is known (engine down or starting, no promise, no model).
    """

    class_shares: tuple[tuple[str, float], ...] = ((DEFAULT_CLASS, 1.0), (LONG_CLASS, 0.5))
    long_context_tokens: float = 32_768.0
    budget_tokens: float | None = None
    default_ttl_seconds: float = 60.0
    longest_ttl_seconds: float = 600.0
    max_leases: int = 10_000
    admit_unknown: bool = True
    observe_only: bool = False


@dataclass(frozen=True, slots=True)
class EngineTokens:
    """What the engine allows and holds at one sample, tokens; None: not known.

    stands_still: whatever holds tokens makes no progress. Either the engine hangs, or all its requests were cancelled
    and its gauges stay as they were until the next step; only a request can tell which.
    """

    speed_tokens: float | None = None
    memory_tokens: float | None = None
    held_tokens: float | None = None
    stands_still: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """Tokens promised to one request until `expires_at_seconds` on the injected clock."""

    lease_id: str
    tokens: float
    class_name: str
    expires_at_seconds: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not now. fits_when_empty: False where waiting never helps, and then there is no time to come back.

    free_tokens: what this class could still have had; None where no budget is known.
    """

    reason: str  # of REFUSALS
    class_name: str
    free_tokens: float | None
    retry_after_seconds: float | None
    fits_when_empty: bool
    ticket: str | None = None  # a place in line, where one was asked for


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """One class since the start: counters, then what is in flight now."""

    name: str
    share: float
    admitted: int = 0
    refused: tuple[int, ...] = (0,) * len(REFUSALS)
    would_refuse: tuple[int, ...] = (0,) * len(REFUSALS)
    expired: int = 0
    leaked_tokens: float = 0.0  # of leases that ran out instead of being released
    leases: int = 0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class AdmissionCounts:
    """Everything at one moment. outside_tokens: held by the engine without a lease; None: not known."""

    classes: tuple[ClassCounts, ...]
    observe_only: bool
    budget_tokens: float | None
    limit: str | None  # which budget is the smallest: speed, memory, configured
    leased_tokens: float
    free_tokens: float | None
    outside_tokens: float | None
    inherited_tokens: float
    engine: EngineTokens
    empty_speed_tokens: float | None = None  # speed budget when the engine was last empty; None: not seen


class ReturnRate:
    """The rate at which tokens come back, fading over half a minute: a guess of when so many will be free."""

    def __init__(self, now: float) -> None:
        self._tokens = 0.0
        self._at = now

    def note(self, tokens: float, now: float) -> None:
        """So many tokens came back."""
        self._tokens = self._faded(now) + tokens
        self._at = now

    def seconds_until(self, tokens: float, now: float) -> float:
        """When so many are likely to have come back, within the bounds of a Retry-After."""
        rate = self._faded(now) / _RATE_SECONDS
        seconds = tokens / rate if rate > 0.0 else LEAST_RETRY_SECONDS
        return min(max(seconds, LEAST_RETRY_SECONDS), _MOST_RETRY_SECONDS)

    def _faded(self, now: float) -> float:
        return self._tokens * math.exp(-(now - self._at) / _RATE_SECONDS)
