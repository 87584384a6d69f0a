"""Leases under load: many clients that crash and cancel, a real sidecar in its own process, a ledger that watches."""

from __future__ import annotations

import asyncio
import time

from lease_load import EDGE, PRESSING, load
from lease_stand import get, sampling_delays, stand

# A machine that tests share with others is not the one for promises in milliseconds: those are measured by
# `python tests/lease_load.py` and stand in docs/admission.md. Here, what holds on any machine.
CLIENTS, PAIRS, TTL_SECONDS = 200, 500, 3.0
BUDGET_TOKENS = 100_000  # a third of what they ask for together


def test_many_clients_use_the_whole_budget_never_more_and_leave_nothing() -> None:
    """Keep-alive connections beyond the usual 32 places; samples go on; after the TTL no token is held."""
    with stand(0.5, "--admission.max-requests-per-second=1e6", budget_tokens=BUDGET_TOKENS) as (port, _):
        ledger = asyncio.run(load(port, CLIENTS, PAIRS, None, 30.0, PRESSING, ttl=TTL_SECONDS))
        assert not ledger.errors
        assert ledger.pairs >= PAIRS
        assert ledger.killed > 0
        assert ledger.refused > 0
        assert EDGE * BUDGET_TOKENS <= ledger.highest <= BUDGET_TOKENS  # by the clients' own count
        assert EDGE * BUDGET_TOKENS <= ledger.highest_said <= BUDGET_TOKENS
        deadline = time.monotonic() + TTL_SECONDS + 5.0
        while get(port, "/v1/budget")["leased_tokens"] > 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert max(sampling_delays(port, 0.5), default=0.0) < 1.0
