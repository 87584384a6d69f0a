"""The values of token admission: policy, budgets, leases, refusals, counts. core/admission.py joins them."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.metrics import REFUSALS

DEFAULT_CLASS, LONG_CLASS = "default", "long"


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
    """What the engine allows and holds at one sample, tokens; None: not known."""

    speed_tokens: float | None = None
    memory_tokens: float | None = None
    held_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Tokens promised to one request until `expires_at_seconds` on the injected clock."""

    lease_id: str
    tokens: float
    class_name: str
    expires_at_seconds: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not now. free_tokens: what would have been admitted. fits_when_empty: False where waiting never helps."""

    reason: str  # of REFUSALS
    class_name: str
    free_tokens: float
    retry_after_seconds: float
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
