"""Token admission over HTTP: gateways lease context tokens of this engine before they send it a request.

POST /v1/leases, PATCH and DELETE /v1/leases/ID, GET /v1/budget. The decisions are core/admission.py's.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.admission import ContextBudget, GrowingLeaseError
from stepscope.core.leases import AdmissionPolicy, Lease, Refusal
from stepscope.core.snapshot import AdmissionView, Snapshot
from stepscope.metrics import REJECTIONS
from stepscope.runtime.admission_watch import Watch, out_of_reach
from stepscope.runtime.http1 import Request, Response
from stepscope.runtime.json_http import JSON_TYPE, Rate, answer_json, fault, number_of, read_object
from stepscope.runtime.routes import Route, loopback_or_authenticated
from stepscope.runtime.token_file import TokenFile

MOST_BODY_BYTES = 4096  # a lease takes about 60
_PATHS = frozenset({"/v1/leases", "/v1/leases/*", "/v1/budget"})


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
        self._clock = clock
        token_file = settings[table.ADMISSION_BEARER_TOKEN_FILE]
        self._token = TokenFile(token_file) if token_file is not None else None
        self._started = settings
        self.budget = ContextBudget(
            policy_from(settings), clock=clock, lock=threading.Lock(), new_id=lambda: secrets.token_urlsafe(18)
        )
        self._watch = Watch(settings, self.budget, log, clock)
        self._set_rates(settings)
        self._rejected = [0] * len(REJECTIONS)
        self._rejecting = threading.Lock()

    def _set_rates(self, settings: Settings) -> None:
        per_second = settings[table.ADMISSION_MAX_REQUESTS_PER_SECOND]
        self._rate = Rate(per_second, self._clock)
        # Who shows no token, or an id that nobody was given, must not use up what the gateways may ask.
        self._rate_of_strangers = Rate(per_second, self._clock)

    def reload(self, settings: Settings) -> tuple[str, ...]:
        """Use other settings from now on, leases and counters kept; returns the names of those that take a restart.

        Raises ConfigError for a token file that cannot be used, and then changes nothing.
        """
        token_file = settings[table.ADMISSION_BEARER_TOKEN_FILE]
        if self._token is not None and token_file is not None:
            self._token = TokenFile(token_file)
        self._watch.reload(settings)
        self.budget.change(policy_from(settings))
        self._set_rates(settings)
        return _fixed_changes(self._started, settings)

    @property
    def bearer_paths(self) -> frozenset[str]:
        """Paths whose bearer token is checked here."""
        return _PATHS if self._token is not None else frozenset()

    def routes(self) -> dict[tuple[str, str], Route]:
        """To be added to the server's."""
        return {
            ("POST", "/v1/leases"): self._guarded(self._acquire),
            ("PATCH", "/v1/leases/*"): self._guarded(self._renew, of_lease=True),
            ("DELETE", "/v1/leases/*"): self._guarded(self._release, of_lease=True),
            ("GET", "/v1/budget"): self._guarded(self._show),
        }

    def view(self) -> AdmissionView:
        """For the metrics."""
        return AdmissionView(self.budget.counts(), tuple(self._rejected))

    def after_sample(self, snapshot: Snapshot) -> None:
        """Take over what the engine allows and holds. Called after every sample, good or bad."""
        self._watch.take(snapshot)

    def _guarded(self, handle: Callable[[Request], Response], *, of_lease: bool = False) -> Route:
        """The route behind the token and the limits on rate and body.

        A lease in flight is renewed and released at any rate: what overload refuses there would stay leased until its
        TTL, and make the overload worse.
        """

        def route(request: Request) -> Response:
            refused = self._unauthorized(request)
            is_stranger = refused is not None or (of_lease and not self.budget.knows(_lease_id(request)))
            rate = self._rate_of_strangers if is_stranger else self._rate
            if (is_stranger or not of_lease) and not rate.take():
                return self._reject(
                    "rate", answer_json(429, {"reason": "rate", "error": "too many requests"}, retry=1.0)
                )
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
        except ValueError as error:
            return fault(400, str(error))
        if isinstance(answer, Refusal):
            never = answer.reason == "speed" and not answer.fits_when_empty and out_of_reach(self.budget.counts())
            return _refusal(answer, _OUT_OF_REACH if never else f"no room for {tokens:.0f} tokens now")
        return answer_json(201, self._lease(answer), location=f"/v1/leases/{answer.lease_id}")

    def _renew(self, request: Request) -> Response:
        try:
            asked = read_object(request.body or b"{}", {"tokens", "ttl_seconds"})
            tokens, ttl = number_of(asked, "tokens"), number_of(asked, "ttl_seconds")
            lease = self.budget.renew(_lease_id(request), tokens=tokens, ttl_seconds=ttl)
        except GrowingLeaseError as error:
            return fault(409, str(error))
        except ValueError as error:
            return fault(400, str(error))
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
                "warnings": list(self._watch.warnings),
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


def _lease_id(request: Request) -> str:
    return request.path.rpartition("/")[2]


def _refusal(refusal: Refusal, text: str) -> Response:
    seconds = refusal.retry_after_seconds
    return answer_json(
        429,
        {
            "error": f"{text} ({refusal.reason})",
            "reason": refusal.reason,
            "class": refusal.class_name,
            "free_tokens": refusal.free_tokens,
            "retry_after_seconds": None if seconds is None else round(seconds, 3),
            "fits_when_empty": refusal.fits_when_empty,
            "ticket": refusal.ticket,
        },
        retry=seconds,
    )


_OUT_OF_REACH = f"--{table.OBJECTIVE_TOKENS_PER_SECOND.name} is out of reach: not even an empty engine keeps it"
_NO_LEASE = fault(404, "no such lease: released, run out, or leased from another engine")
