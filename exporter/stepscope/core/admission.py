"""Token admission: leases on a budget of context tokens, so that a request starts only where the promise still holds.

`ContextBudget` is a library of its own: no clock, thread or socket; they are passed in.

    budget = ContextBudget(AdmissionPolicy(), clock=time.monotonic, lock=threading.Lock(), new_id=lambda: uuid4().hex)
    budget.observe(EngineTokens(speed_tokens=134_000, memory_tokens=377_000, held_tokens=80_000))
    answer = budget.acquire(108_000)          # a Lease or a Refusal
    budget.release(answer.lease_id)

Used = leased + outside. Outside is what the engine holds and no lease accounts for: traffic that does not ask, gateways
that declare too little, and after a restart of this process everything that ran before it. While the engine stands
still and nothing is leased, one lease may be given without regard to outside: the engine that only waits for work shows
by its next step what it really holds, and one that hangs has cost one request.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import replace

from stepscope.core.leases import (
    LEAST_RETRY_SECONDS,
    LEAST_TTL_SECONDS,
    LONG_CLASS,
    AdmissionCounts,
    AdmissionPolicy,
    ClassCounts,
    EngineTokens,
    GrowingLeaseError,
    Lease,
    Lock,
    Refusal,
    ReturnRate,
    UnknownClassError,
)
from stepscope.core.waiting_line import WaitingLine
from stepscope.metrics import REFUSALS

__all__ = ["ContextBudget", "GrowingLeaseError", "UnknownClassError"]

_REASON_INDEX = {reason: index for index, reason in enumerate(REFUSALS)}


class ContextBudget:
    """The leases on one engine's tokens. Every method is atomic under `lock` and costs O(log leases)."""

    def __init__(
        self, policy: AdmissionPolicy, *, clock: Callable[[], float], lock: Lock, new_id: Callable[[], str]
    ) -> None:
        """`clock`: monotonic seconds. `new_id`: an id that nobody can guess, new on each call."""
        self._policy = policy
        self._clock = clock
        self._lock = lock
        self._new_id = new_id
        self._shares = dict(policy.class_shares)
        self._counts = {name: ClassCounts(name, share) for name, share in policy.class_shares}
        self._leases: dict[str, Lease] = {}
        self._line = WaitingLine(new_id)
        self._ends: list[tuple[float, str]] = []  # heap; entries of leases that were renewed or released are stale
        self._leased = 0.0
        self._highest_leased = 0.0  # since the last observation
        self._engine = EngineTokens()
        self._outside: float | None = None
        self._inherited = 0.0
        self._inherited_until: float | None = None  # None: the engine has not been seen yet
        self._empty_speed = math.inf  # speed budget of the engine without sequences, each of which costs; inf: not seen
        self._returned = ReturnRate(clock())

    def acquire(
        self,
        tokens: float,
        ttl_seconds: float | None = None,
        class_name: str | None = None,
        *,
        queue: bool = False,
        ticket: str | None = None,
    ) -> Lease | Refusal:
        """A lease, or why there is none. ttl_seconds is cut to the policy's longest.

        queue: keep a place in line if it is refused; ticket: the place of an earlier refusal, to be shown again.
        Raises UnknownClassError, and ValueError for tokens or a time that are not positive and finite.
        """
        if not 0.0 < tokens < math.inf:
            raise ValueError("tokens must be a positive number")
        with self._lock:
            seconds, name = self._ttl(ttl_seconds), self._class(tokens, class_name)
            now = self._expire()
            refusal = self._judge(tokens, name, self._line.ahead_tokens(name, ticket, now))
            counts = self._counts[name]
            if refusal is not None:
                index = _REASON_INDEX[refusal.reason]
                # The number of leases bounds this process's own memory: it holds in every mode.
                if not self._policy.observe_only or refusal.reason == "leases":
                    self._counts[name] = replace(counts, refused=_plus_one(counts.refused, index))
                    back = refusal.retry_after_seconds
                    if not (queue or ticket is not None) or back is None:
                        return refusal
                    return replace(refusal, ticket=self._line.keep(ticket, name, tokens, back, now))
                counts = replace(counts, would_refuse=_plus_one(counts.would_refuse, index))
            lease = Lease(self._new_id(), tokens, name, now + seconds)
            self._line.leave(ticket)
            self._counts[name] = replace(counts, admitted=counts.admitted + 1)
            self._add(lease)
            return lease

    def renew(self, lease_id: str, *, tokens: float | None = None, ttl_seconds: float | None = None) -> Lease | None:
        """The lease with fewer tokens (what the request really uses) and a new end; None: not known, or run out.

        Raises GrowingLeaseError for more tokens than it has: they might not be there, and the request already runs;
        ValueError for tokens or a time that are not positive and finite.
        """
        with self._lock:
            seconds, now = self._ttl(ttl_seconds), self._expire()
            old = self._leases.get(lease_id)
            if old is None:
                return None
            if tokens is not None and not tokens <= old.tokens:
                raise GrowingLeaseError("a lease can only shrink: release it and take another")
            if tokens is not None and tokens <= 0.0:
                raise ValueError("tokens must be a positive number: to give all back, release the lease")
            self._remove(old)
            lease = replace(old, tokens=old.tokens if tokens is None else tokens, expires_at_seconds=now + seconds)
            self._returned.note(old.tokens - lease.tokens, now)
            self._add(lease)
            return lease

    def knows(self, lease_id: str) -> bool:
        """Whether the lease is in flight."""
        with self._lock:
            self._expire()
            return lease_id in self._leases

    def release(self, lease_id: str) -> bool:
        """Give a lease back. False: not known, or it had run out."""
        with self._lock:
            now = self._expire()
            lease = self._leases.get(lease_id)
            if lease is None:
                return False
            self._remove(lease)
            self._returned.note(lease.tokens, now)
            return True

    def expire(self) -> None:
        """Take back what has run out; every other method does it too."""
        with self._lock:
            self._expire()

    def observe(self, engine: EngineTokens) -> None:
        """What the engine allows and holds now. Call it at every sample."""
        with self._lock:
            now = self._expire()
            self._engine = engine
            held = engine.held_tokens
            if engine.speed_tokens is None or held == 0.0:
                self._empty_speed = math.inf if engine.speed_tokens is None else engine.speed_tokens
            if held is None:
                return  # what was outside stays: an engine that cannot be read has not let go of anything
            # Against the highest sum since the last sample: the engine's figure is from some moment in between.
            gap = max(0.0, held - max(self._highest_leased, self._leased))
            if self._inherited_until is None:
                self._inherited, self._inherited_until = gap, now + self._policy.longest_ttl_seconds
            # Which requests those were is not known, only that together they hold no more than the engine does.
            self._inherited = min(self._inherited, held) if now < self._inherited_until else 0.0
            self._outside = max(gap, self._inherited)
            self._highest_leased = self._leased

    def change(self, policy: AdmissionPolicy) -> None:
        """Another policy from now on. Leases that were given stay as they are, also above a budget that became smaller.

        A class that is no longer there keeps its counts, with a share of 0, and its leases until they end.
        """
        with self._lock:
            self._expire()
            self._policy, self._shares = policy, dict(policy.class_shares)
            self._empty_speed = math.inf
            for name in [*self._counts, *self._shares]:
                kept = self._counts.get(name, ClassCounts(name, 0.0))
                self._counts[name] = replace(kept, share=self._shares.get(name, 0.0))

    def counts(self) -> AdmissionCounts:
        """A snapshot for metrics and pages."""
        with self._lock:
            self._expire()
            budget, limit = self._budget()
            return AdmissionCounts(
                classes=tuple(self._counts.values()),
                observe_only=self._policy.observe_only,
                budget_tokens=budget,
                limit=limit,
                leased_tokens=self._leased,
                free_tokens=self._free(budget),
                outside_tokens=self._outside,
                inherited_tokens=self._inherited,
                engine=self._engine,
                empty_speed_tokens=self._empty_speed if math.isfinite(self._empty_speed) else None,
            )

    def _ttl(self, ttl_seconds: float | None) -> float:
        if ttl_seconds is None:
            return self._policy.default_ttl_seconds
        if not 0.0 < ttl_seconds < math.inf:
            raise ValueError("ttl_seconds must be a positive number")
        if ttl_seconds < LEAST_TTL_SECONDS:
            raise ValueError(f"ttl_seconds must be at least {LEAST_TTL_SECONDS:g}")
        return min(ttl_seconds, self._policy.longest_ttl_seconds)

    def _class(self, tokens: float, class_name: str | None) -> str:
        if class_name is not None and class_name not in self._shares:
            raise UnknownClassError(f"class must be one of {', '.join(self._shares)}")
        if tokens >= self._policy.long_context_tokens and LONG_CLASS in self._shares:
            return LONG_CLASS
        return class_name if class_name is not None else next(iter(self._shares))

    def _budget(self) -> tuple[float | None, str | None]:
        """(the smallest known budget, which one it is)."""
        known = [
            (tokens, name)
            for tokens, name in (
                (self._engine.speed_tokens, "speed"),
                (self._engine.memory_tokens, "memory"),
                (self._policy.budget_tokens, "configured"),
            )
            if tokens is not None
        ]
        return min(known, default=(None, None))

    def _free(self, budget: float | None) -> float | None:
        return None if budget is None else budget - self._leased - (self._outside or 0.0)

    def _judge(self, tokens: float, name: str, ahead: float) -> Refusal | None:
        budget, limit = self._budget()
        free = self._free(budget)
        if len(self._leases) >= self._policy.max_leases:
            return self._refusal("leases", name, free, tokens)
        if budget is None or free is None:
            unknown = Refusal("unknown", name, None, LEAST_RETRY_SECONDS, fits_when_empty=True)
            return None if self._policy.admit_unknown else unknown
        if self._engine.stands_still and not self._leases:
            free = budget
        fixed = (tokens for tokens in (self._engine.memory_tokens, self._policy.budget_tokens) if tokens is not None)
        most = max(budget, min(self._empty_speed, *fixed, math.inf))
        if tokens > free:
            return self._refusal(str(limit), name, free, tokens - free, fits=tokens <= most)
        share = self._shares[name]
        of_class = share * budget - self._counts[name].tokens
        if tokens > of_class:
            return self._refusal("class_share", name, of_class, tokens - of_class, fits=tokens <= share * most)
        left = min(free, of_class) - ahead
        return self._refusal("turn", name, left, tokens - left) if tokens > left else None

    def _refusal(self, reason: str, name: str, free: float | None, short: float, *, fits: bool = True) -> Refusal:
        back = self._returned.seconds_until(short, self._clock()) if fits else None
        return Refusal(reason, name, None if free is None else max(0.0, free), back, fits)

    def _add(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        heapq.heappush(self._ends, (lease.expires_at_seconds, lease.lease_id))
        if len(self._ends) > 64 + 4 * len(self._leases):  # drop what renewals and releases left behind
            self._ends = [(kept.expires_at_seconds, kept.lease_id) for kept in self._leases.values()]
            heapq.heapify(self._ends)
        self._count(lease, 1)
        self._highest_leased = max(self._highest_leased, self._leased)

    def _remove(self, lease: Lease) -> None:
        del self._leases[lease.lease_id]
        self._count(lease, -1)

    def _count(self, lease: Lease, sign: int) -> None:
        counts = self._counts[lease.class_name]
        leases = counts.leases + sign
        # Sums of fractions keep a remainder; without leases there is nothing.
        tokens = counts.tokens + sign * lease.tokens if leases else 0.0
        self._counts[lease.class_name] = replace(counts, leases=leases, tokens=tokens)
        self._leased = self._leased + sign * lease.tokens if self._leases else 0.0

    def _expire(self) -> float:
        """Take back what has run out; returns the time."""
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            end, lease_id = heapq.heappop(self._ends)
            lease = self._leases.get(lease_id)
            if lease is None or lease.expires_at_seconds != end:
                continue
            self._remove(lease)
            counts = self._counts[lease.class_name]
            self._counts[lease.class_name] = replace(
                counts, expired=counts.expired + 1, leaked_tokens=counts.leaked_tokens + lease.tokens
            )
        return now


def _plus_one(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*counts[:index], counts[index] + 1, *counts[index + 1 :])
