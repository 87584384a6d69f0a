"""Token admission over HTTP: gateways lease context tokens of this engine before they send it a request.

POST /v1/leases, PATCH and DELETE /v1/leases/ID, GET /v1/budget. The decisions are core/admission.py's.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.admission import ContextBudget, UnknownClassError
from stepscope.core.leases import AdmissionPolicy, EngineTokens, Lease, Refusal
from stepscope.core.snapshot import AdmissionView, EngineView, Snapshot
from stepscope.metrics import OUTCOMES, REJECTIONS
from stepscope.runtime.http1 import Request, Response
from stepscope.runtime.json_http import JSON_TYPE, Rate, answer_json, fault, number_of, read_object
from stepscope.runtime.routes import Route, loopback_or_authenticated
from stepscope.runtime.token_file import TokenFile

MOST_BODY_BYTES = 4096  # a lease takes about 60
_PATHS = frozenset({"/v1/leases", "/v1/leases/*", "/v1/budget"})
_QUIET_SECONDS = 60.0  # between two log lines about tokens outside the leases
_GAP_SAMPLES = 3  # in a row: a cancelled request is released at once and leaves the engine a step later


def policy_from(settings: Settings) -> AdmissionPolicy:
    """What the operator decided."""
    return AdmissionPolicy(
        class_shares=settings[table.ADMISSION_CLASS_SHARES].pairs,
        long_context_tokens=settings[table.ADMISSION_LONG_CONTEXT_TOKENS],
        budget_tokens=settings[table.ADMISSION_BUDGET_TOKENS],
        default_ttl_seconds=min(settings[table.ADMISSION_DEFAULT_TTL], settings[table.ADMISSION_LONGEST_TTL]),
        longest_ttl_seconds=settings[table.ADMISSION_LONGEST_TTL],
        max_leases=settings[table.ADMISSION_MAX_LEASES],
        admit_unknown=settings[table.ADMISSION_WHEN_UNKNOWN] == "admit",
        observe_only=settings[table.ADMISSION_OBSERVE_ONLY],
    )


def _fixed_changes(started: Settings, now: Settings) -> tuple[str, ...]:
    """Settings that differ from those of the start and take a restart: routes, places for connections, who may pass."""
    token_file = table.ADMISSION_BEARER_TOKEN_FILE
    differs = {
        table.ADMISSION_ENABLED.name: started[table.ADMISSION_ENABLED] != now[table.ADMISSION_ENABLED],
        table.ADMISSION_MAX_CONNECTIONS.name: (
            started[table.ADMISSION_MAX_CONNECTIONS] != now[table.ADMISSION_MAX_CONNECTIONS]
        ),
        # Another file is fine; whether there is one decides which routes ask for it.
        token_file.name: (started[token_file] is None) != (now[token_file] is None),
    }
    return tuple(name for name, different in differs.items() if different)


class Admission:
    """The leases of one engine page, and the routes to them. Routes run on many threads.

    Several engines on one page (data parallel ranks) share one budget, their sum: a client cannot choose the rank.
    """

    def __init__(
        self,
        settings: Settings,
        log: logging.Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError for a token file that cannot be used."""
        self._log = log
        self._clock = clock
        self._hold_seconds = settings[table.SAMPLE_HOLD]
        token_file = settings[table.ADMISSION_BEARER_TOKEN_FILE]
        self._token = TokenFile(token_file) if token_file is not None else None
        self._started = settings
        self.budget = ContextBudget(
            policy_from(settings), clock=clock, lock=threading.Lock(), new_id=lambda: secrets.token_urlsafe(18)
        )
        self._rate = Rate(settings[table.ADMISSION_MAX_REQUESTS_PER_SECOND], clock)
        self._rejected = [0] * len(REJECTIONS)
        self._rejecting = threading.Lock()
        self._seen_samples = 0
        self._gap_samples = 0
        self._said_at_seconds = -math.inf

    def reload(self, settings: Settings) -> tuple[str, ...]:
        """Use other settings from now on, leases and counters kept; returns the names of those that take a restart.

        Raises ConfigError for a token file that cannot be used, and then changes nothing.
        """
        token_file = settings[table.ADMISSION_BEARER_TOKEN_FILE]
        if self._token is not None and token_file is not None:
            self._token = TokenFile(token_file)
        self._hold_seconds = settings[table.SAMPLE_HOLD]
        self.budget.change(policy_from(settings))
        self._rate = Rate(settings[table.ADMISSION_MAX_REQUESTS_PER_SECOND], self._clock)
        return _fixed_changes(self._started, settings)

    @property
    def bearer_paths(self) -> frozenset[str]:
        """Paths whose bearer token is checked here."""
        return _PATHS if self._token is not None else frozenset()

    def routes(self) -> dict[tuple[str, str], Route]:
        """To be added to the server's."""
        return {
            ("POST", "/v1/leases"): self._guarded(self._acquire),
            ("PATCH", "/v1/leases/*"): self._guarded(self._renew),
            ("DELETE", "/v1/leases/*"): self._guarded(self._release),
            ("GET", "/v1/budget"): self._guarded(self._show),
        }

    def view(self) -> AdmissionView:
        """For the metrics."""
        return AdmissionView(self.budget.counts(), tuple(self._rejected))

    def after_sample(self, snapshot: Snapshot) -> None:
        """Take over what the engine allows and holds. Called after every sample, good or bad."""
        fresh = [view for view in snapshot.engines if self._clock() - view.at_seconds <= self._hold_seconds]
        engine = engine_tokens(fresh)
        samples = snapshot.scrapes[OUTCOMES.index("ok")]
        if not snapshot.engine_up or samples == self._seen_samples:
            # The last good figures of the budget are held like every other value; what is held is not seen anew.
            engine = EngineTokens(engine.speed_tokens, engine.memory_tokens)
        self._seen_samples = samples
        self.budget.observe(engine)
        self._watch_gap()

    def _watch_gap(self) -> None:
        counts = self.budget.counts()
        # For a while after a start the gateways still hold leases of the process before this one.
        gap = (counts.outside_tokens or 0.0) > 0.0 and counts.inherited_tokens == 0.0
        self._gap_samples = self._gap_samples + 1 if gap else 0
        if self._gap_samples >= _GAP_SAMPLES and self._clock() - self._said_at_seconds >= _QUIET_SECONDS:
            self._said_at_seconds = self._clock()
            self._log.warning(
                "admission: the engine holds %.0f tokens without a lease (%.0f are leased): somebody does not ask, or "
                "declares too little",
                counts.outside_tokens,
                counts.leased_tokens,
            )

    def _guarded(self, handle: Callable[[Request], Response]) -> Route:
        """The route behind the limits on rate and body, and the token."""

        def route(request: Request) -> Response:
            if not self._rate.take():
                return self._reject(
                    "rate", answer_json(429, {"reason": "rate", "error": "too many requests"}, retry=1.0)
                )
            refused = self._unauthorized(request)
            if refused is not None:
                return self._reject("unauthorized", refused)
            if len(request.body) > MOST_BODY_BYTES:
                return self._reject("malformed", fault(413, f"the body is larger than {MOST_BODY_BYTES} bytes"))
            response = handle(request)
            return self._reject("malformed", response) if response.status == 400 else response

        return route

    def _unauthorized(self, request: Request) -> Response | None:
        if self._token is None:
            return loopback_or_authenticated(request)
        if request.authenticated or self._token.accepts(request.headers.get("authorization")):
            return None
        headers = (("WWW-Authenticate", 'Bearer realm="stepscope"'),)
        return answer_json(401, {"error": "a valid bearer token is needed"}, headers=headers)

    def _reject(self, reason: str, response: Response) -> Response:
        with self._rejecting:
            self._rejected[REJECTIONS.index(reason)] += 1
        return response

    def _acquire(self, request: Request) -> Response:
        try:
            asked = read_object(request.body, {"tokens", "ttl_seconds", "class", "queue", "ticket"})
            tokens, ttl = number_of(asked, "tokens"), number_of(asked, "ttl_seconds")
            if tokens is None:
                return fault(400, "tokens is missing: prompt tokens + the most that may be generated")
            name, ticket, queue = asked.get("class"), asked.get("ticket"), asked.get("queue", False)
            for key, value in (("class", name), ("ticket", ticket)):
                if value is not None and not isinstance(value, str):
                    return fault(400, f"{key} must be a text")
            if not isinstance(queue, bool):
                return fault(400, "queue must be true or false")
            answer = self.budget.acquire(tokens, ttl, name, queue=queue, ticket=ticket)
        except (UnknownClassError, ValueError) as error:
            return fault(400, str(error))
        if isinstance(answer, Refusal):
            return _refusal(answer, tokens)
        return answer_json(201, self._lease(answer), location=f"/v1/leases/{answer.lease_id}")

    def _renew(self, request: Request) -> Response:
        try:
            asked = read_object(request.body or b"{}", {"tokens", "ttl_seconds"})
            tokens, ttl = number_of(asked, "tokens"), number_of(asked, "ttl_seconds")
        except ValueError as error:
            return fault(400, str(error))
        try:
            lease = self.budget.renew(_lease_id(request), tokens=tokens, ttl_seconds=ttl)
        except ValueError as error:
            return fault(409, str(error))
        return _NO_LEASE if lease is None else answer_json(200, self._lease(lease))

    def _release(self, request: Request) -> Response:
        return Response(204, b"", JSON_TYPE) if self.budget.release(_lease_id(request)) else _NO_LEASE

    def _show(self, _: Request) -> Response:
        counts = self.budget.counts()
        return answer_json(
            200,
            {
                "enforced": not counts.observe_only,
                "budget_tokens": counts.budget_tokens,
                "limit": counts.limit,
                "speed_budget_tokens": counts.engine.speed_tokens,
                "memory_budget_tokens": counts.engine.memory_tokens,
                "leased_tokens": counts.leased_tokens,
                "outside_tokens": counts.outside_tokens,
                "inherited_tokens": counts.inherited_tokens,
                "free_tokens": counts.free_tokens,
                "classes": {
                    c.name: {
                        "share": c.share,
                        "leases": c.leases,
                        "tokens": c.tokens,
                        "share_tokens": None if counts.budget_tokens is None else c.share * counts.budget_tokens,
                    }
                    for c in counts.classes
                },
            },
        )

    def _lease(self, lease: Lease) -> dict[str, Any]:
        return {
            "id": lease.lease_id,
            "tokens": lease.tokens,
            "class": lease.class_name,
            "ttl_seconds": round(lease.expires_at_seconds - self._clock(), 3),
        }


def engine_tokens(views: list[EngineView]) -> EngineTokens:
    """The sum over engines; None where one of them cannot say.

    An engine that nobody uses, or in which nothing moves, is taken to hold nothing: after all requests were cancelled
    its gauges stay as they were until the next step, which would never come if they kept everybody out.
    """

    def total(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    return EngineTokens(
        speed_tokens=total([view.speed_budget_tokens for view in views]),
        memory_tokens=total([view.memory_budget_tokens for view in views]),
        held_tokens=total([0.0 if view.state in ("idle", "stale") else view.tokens_in_flight for view in views]),
    )


def _lease_id(request: Request) -> str:
    return request.path.rpartition("/")[2]


def _refusal(refusal: Refusal, tokens: float) -> Response:
    seconds = refusal.retry_after_seconds
    return answer_json(
        429,
        {
            "error": f"no room for {tokens:.0f} tokens now ({refusal.reason})",
            "reason": refusal.reason,
            "class": refusal.class_name,
            "free_tokens": refusal.free_tokens,
            "retry_after_seconds": round(seconds, 3),
            "fits_when_empty": refusal.fits_when_empty,
            "ticket": refusal.ticket,
        },
        retry=seconds,
    )


_NO_LEASE = fault(404, "no such lease: released, run out, or leased from another engine")
