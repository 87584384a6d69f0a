"""`POST /-/reload` of a real sidecar with leases: what changes at once, what takes a restart, and nothing is lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from admission_helpers import ask, leasing, text
from stepscope import settings as table
from stepscope.setting_kinds import Setting
from stepscope.setting_kinds import shares as shares_of

NOBODY = "http://127.0.0.1:9"  # an engine that is down: the configured budget alone counts


def test_another_policy_counts_at_once_and_leases_stay() -> None:
    """Budget, classes, long context, TTLs, observe-only; what was leased is still leased and can be given back."""
    later: list[tuple[Setting[Any], Any]] = []
    with leasing(NOBODY, (table.ADMISSION_BUDGET_TOKENS, 10_000.0), later=later) as base:
        leases = f"{base}/v1/leases"
        held = ask(leases, "POST", {"tokens": 8_000, "ttl_seconds": 500})
        assert ask(leases, "POST", {"tokens": 4_000}).status == 429
        later += [
            (table.ADMISSION_BUDGET_TOKENS, 20_000.0),
            (table.ADMISSION_CLASS_SHARES, shares_of("chat=0.5,long=0.1")),
            (table.ADMISSION_LONG_CONTEXT_TOKENS, 3_000.0),
            (table.ADMISSION_DEFAULT_TTL, 7.0),
            (table.ADMISSION_LONGEST_TTL, 9.0),
        ]
        assert ask(f"{base}/-/reload", "POST").status == 200
        budget = ask(f"{base}/v1/budget", "GET").document
        assert (budget["budget_tokens"], budget["leased_tokens"]) == (20_000, 8_000)
        assert {name: one["share"] for name, one in budget["classes"].items()} == {
            "default": 0.0, "long": 0.1, "chat": 0.5,
        }  # fmt: skip
        given = ask(leases, "POST", {"tokens": 2_000}).document
        assert given["class"] == "chat"
        assert 6.0 < given["ttl_seconds"] <= 7.0
        assert 8.0 < ask(leases, "POST", {"tokens": 1, "ttl_seconds": 500}).document["ttl_seconds"] <= 9.0
        assert ask(leases, "POST", {"tokens": 1, "class": "default"}).status == 400
        refused = ask(leases, "POST", {"tokens": 3_000}).document
        assert (refused["class"], refused["reason"]) == ("long", "class_share")
        # A lease of a class that is gone is renewed and given back as any other.
        where = f"{base}{held.headers['Location']}"
        assert ask(where, "PATCH", {"tokens": 7_000}).status == 200
        assert ask(where, "DELETE").status == 204
        later.append((table.ADMISSION_OBSERVE_ONLY, True))
        assert ask(f"{base}/-/reload", "POST").status == 200
        assert ask(leases, "POST", {"tokens": 10**6}).status == 201
        page = text(f"{base}/metrics")
        assert "stepscope_admission_enforced 0.0" in page
        assert 'stepscope_admission_admitted_total{class="default"} 1.0' in page  # counters do not start anew
        assert 'stepscope_admission_refused_total{class="default",reason="configured"} 1.0' in page


def test_a_budget_below_what_is_leased_takes_nothing_back() -> None:
    """It lets nobody in until enough has come back."""
    later: list[tuple[Setting[Any], Any]] = [(table.ADMISSION_BUDGET_TOKENS, 5_000.0)]
    with leasing(NOBODY, (table.ADMISSION_BUDGET_TOKENS, 10_000.0), later=later) as base:
        held = ask(f"{base}/v1/leases", "POST", {"tokens": 8_000})
        assert ask(f"{base}/-/reload", "POST").status == 200
        assert ask(f"{base}/v1/budget", "GET").document["free_tokens"] == -3_000
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1}).status == 429
        assert ask(f"{base}{held.headers['Location']}", "DELETE").status == 204
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 5_000}).status == 201


def test_what_takes_a_restart_is_said_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Routes, places for connections, and whether there is a token."""
    token = tmp_path / "token"
    token.write_text("first-secret\n")
    later: list[tuple[Setting[Any], Any]] = [
        (table.ADMISSION_MAX_CONNECTIONS, 7),
        (table.ADMISSION_BEARER_TOKEN_FILE, token),
    ]
    with caplog.at_level(logging.INFO, logger="test_admission"), leasing(NOBODY, later=later) as base:
        for _ in range(2):
            assert ask(f"{base}/-/reload", "POST").status == 200
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1}).status == 201  # still without a token
    line = "reloaded; takes a restart: --admission.max-connections, --admission.bearer-token-file"
    assert caplog.messages.count(line) == 2
    enabled = [(table.ADMISSION_ENABLED, True)]
    with caplog.at_level(logging.INFO, logger="test_admission"):
        with leasing(NOBODY, (table.ADMISSION_ENABLED, False), later=enabled) as base:
            assert ask(f"{base}/-/reload", "POST").status == 200
            assert ask(f"{base}/v1/leases", "POST", {"tokens": 1}).status == 404
        with leasing(NOBODY, later=[]) as base:
            assert ask(f"{base}/-/reload", "POST").status == 200
    assert "reloaded; takes a restart: --admission.enabled" in caplog.messages
    assert caplog.messages.count("reloaded") == 1


def test_another_token_file_counts_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    """Neither the token nor the budget beside it."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("first-secret\n")
    later: list[tuple[Setting[Any], Any]] = [
        (table.ADMISSION_BEARER_TOKEN_FILE, second),
        (table.ADMISSION_BUDGET_TOKENS, 100.0),
    ]
    with leasing(NOBODY, (table.ADMISSION_BEARER_TOKEN_FILE, first), later=later) as base:
        refused = ask(f"{base}/-/reload", "POST")
        assert refused.status == 500
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 5_000}, Authorization="Bearer first-secret").status == 201
        second.write_text("second-secret\n")
        assert ask(f"{base}/-/reload", "POST").status == 200
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1}, Authorization="Bearer first-secret").status == 401
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 5_000}, Authorization="Bearer second-secret").status == 429
