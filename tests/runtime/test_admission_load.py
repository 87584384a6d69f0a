"""Leases under load: many clients that crash and cancel, a real sidecar in its own process, a ledger that watches."""

from __future__ import annotations

import asyncio
import time

from lease_load import BUDGET_TOKENS, TTL_SECONDS, get, load, sampling_delays, stand

# A machine that tests share with others is not the one for promises in milliseconds: those are measured by
# `python tests/lease_load.py` and stand in docs/admission.md. Here, what holds on any machine.
CLIENTS, PAIRS = 200, 1500


def test_many_clients_never_exceed_the_budget_and_leave_nothing() -> None:
    """Keep-alive connections beyond the usual 32 places; samples go on; after the TTL no token is held."""
    with stand(0.5, "--admission.max-requests-per-second=1e6") as (port, _):
        ledger = asyncio.run(load(port, CLIENTS, PAIRS, None, 30.0))
        assert not ledger.errors
        assert ledger.pairs >= PAIRS
        assert ledger.killed > 0
        assert 0 < ledger.highest <= BUDGET_TOKENS
        deadline = time.monotonic() + TTL_SECONDS + 5.0
        while get(port, "/v1/budget")["leased_tokens"] > 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert max(sampling_delays(port, 0.5), default=0.0) < 1.0
