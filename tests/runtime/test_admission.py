"""The lease routes of a real sidecar beside a simulated engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from admission_helpers import ask, leasing, simulated, text
from stepscope import settings as table
from stepscope.core.snapshot import Accounts, EngineView
from stepscope.errors import ConfigError
from stepscope.runtime.admission_watch import engine_tokens
from stepscope.runtime.json_http import Rate
from stepscope.runtime.token_file import TokenFile
from stepscope.setting_kinds import shares as shares_of
from stepscope.sim.scenario import Group, Phase, Scenario
from waiting import eventually

TEN_CHATS = Scenario((Phase("ten chats", 600.0, (Group("chat", 10, 4000, 4000, aged=True),)),))
BOTH_BUDGETS = ("speed_budget_tokens", "memory_budget_tokens")


def budget_known(base: str) -> bool:
    document = ask(f"{base}/v1/budget", "GET").document
    return all(document[name] is not None for name in (*BOTH_BUDGETS, "outside_tokens"))


def test_a_lease_is_taken_shrunk_renewed_and_given_back() -> None:
    """201 with a place, 200, 409 for more, 204, and then 404."""
    with simulated() as engine, leasing(engine.url) as base:
        assert eventually(lambda: budget_known(base), 8.0)
        taken = ask(f"{base}/v1/leases", "POST", {"tokens": 3000, "ttl_seconds": 30})
        assert taken.status == 201
        assert taken.document["tokens"] == 3000
        assert taken.document["class"] == "default"
        assert 29 < taken.document["ttl_seconds"] <= 30
        where = f"{base}{taken.headers['Location']}"
        assert where.endswith(taken.document["id"])
        assert len(taken.document["id"]) >= 24  # nobody can guess it
        assert ask(where, "PATCH", {"tokens": 1200}).document["tokens"] == 1200
        assert ask(where, "PATCH").status == 200
        assert ask(where, "PATCH", {"tokens": 1300}).status == 409
        assert ask(f"{base}/v1/budget", "GET").document["leased_tokens"] == 1200
        assert ask(where, "DELETE").status == 204
        gone = ask(where, "DELETE")
        assert (gone.status, gone.document["error"]) == (
            404, "no such lease: released, run out, or leased from another engine",
        )  # fmt: skip
        assert ask(where, "GET").status == 405
        assert ask(f"{base}/v1/leases", "GET").headers["Allow"] == "POST"


def test_what_does_not_fit_is_refused_with_the_reason_and_a_time() -> None:
    """The promise of 50 tokens/s allows 142,000 tokens; the long class nine tenths of it."""
    shares = (table.ADMISSION_CLASS_SHARES, shares_of("chat=1,long=0.9"))
    with simulated() as engine, leasing(engine.url, shares) as base:
        assert eventually(lambda: budget_known(base), 8.0)
        known = ask(f"{base}/v1/budget", "GET").document
        assert known["limit"] == "speed"
        assert known["budget_tokens"] == pytest.approx((0.018 * 2.01e12 - 15.136e9) / 147456, rel=0.01)
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 108_000}).document["class"] == "long"
        full = ask(f"{base}/v1/leases", "POST", {"tokens": 40_000})
        assert full.status == 429
        assert full.headers["Retry-After"] == "1"
        assert full.document["reason"] == "speed"
        assert full.document["free_tokens"] == pytest.approx(known["budget_tokens"] - 108_000)
        share = ask(f"{base}/v1/leases", "POST", {"tokens": 33_000}).document
        assert (share["reason"], share["class"], share["fits_when_empty"]) == ("class_share", "long", True)
        page = text(f"{base}/metrics")
        assert 'stepscope_admission_refused_total{class="long",reason="speed"} 1.0' in page
        assert 'stepscope_admission_leased_tokens{class="long"} 108000.0' in page
        assert "stepscope_admission_enforced 1.0" in page


def test_who_waits_in_line_is_served_first() -> None:
    """The ticket of a refusal keeps the place; whoever asks later is told that it is not its turn."""
    with simulated() as engine, leasing(engine.url, (table.ADMISSION_BUDGET_TOKENS, 10_000.0)) as base:
        first = ask(f"{base}/v1/leases", "POST", {"tokens": 9_000})
        waiting = ask(f"{base}/v1/leases", "POST", {"tokens": 9_000, "queue": True}).document
        assert waiting["ticket"]
        assert ask(f"{base}{first.headers['Location']}", "DELETE").status == 204
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 9_000}).document["reason"] == "turn"
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 9_000, "ticket": waiting["ticket"]}).status == 201


def test_an_engine_in_use_before_the_start_counts_as_it_is() -> None:
    """After a restart of the sidecar nobody gets what runs already; and traffic without leases is a gap."""
    with simulated(TEN_CHATS) as engine, leasing(engine.url) as base:
        assert eventually(lambda: (ask(f"{base}/v1/budget", "GET").document["outside_tokens"] or 0) > 0, 8.0)
        known = ask(f"{base}/v1/budget", "GET").document
        assert known["leased_tokens"] == 0
        assert known["outside_tokens"] == pytest.approx(60_000, rel=0.1)  # ten of 4,000 + 4,000 / 2
        assert known["free_tokens"] == pytest.approx(known["budget_tokens"] - known["outside_tokens"])
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 100_000}).status == 429
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 3_000}).status == 201


def test_observe_only_says_yes_and_counts() -> None:
    """The first thing to run."""
    with simulated() as engine, leasing(engine.url, (table.ADMISSION_OBSERVE_ONLY, True)) as base:
        assert eventually(lambda: budget_known(base), 8.0)
        for _ in range(3):
            assert ask(f"{base}/v1/leases", "POST", {"tokens": 100_000}).status == 201
        page = text(f"{base}/metrics")
        assert 'stepscope_admission_would_refuse_total{class="long",reason="speed"} 2.0' in page
        assert "stepscope_admission_enforced 0.0" in page


def test_a_lost_lease_is_back_after_its_time() -> None:
    """And is counted as run out, with its tokens."""
    with simulated() as engine, leasing(engine.url) as base:
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 5000, "ttl_seconds": 0.4}).status == 201
        assert ask(f"{base}/v1/budget", "GET").document["leased_tokens"] == 5000
        assert eventually(lambda: ask(f"{base}/v1/budget", "GET").document["leased_tokens"] == 0, 2.0)
        page = text(f"{base}/metrics")
        assert 'stepscope_admission_expired_total{class="default"} 1.0' in page
        assert 'stepscope_admission_leaked_tokens_total{class="default"} 5000.0' in page


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        (b"", 400, "the body is not JSON"),
        (b"[1]", 400, "the body is not a JSON object"),
        (b"[" * 4000, 400, "the body is not JSON"),
        (b"{}", 400, "tokens is missing: prompt tokens + the most that may be generated"),
        (b'{"tokens": "5"}', 400, "tokens must be a number"),
        (b'{"tokens": true}', 400, "tokens must be a number"),
        (b'{"tokens": NaN}', 400, "tokens must be a number"),
        (b'{"tokens": 1e400}', 400, "tokens must be at most 1e15"),
        (b'{"tokens": 1e300}', 400, "tokens must be at most 1e15"),
        (b'{"tokens": -1e300}', 400, "tokens must be a positive number"),
        (b'{"tokens": 1%s}' % (b"0" * 400), 400, "tokens must be at most 1e15"),
        (b'{"tokens": 5, "ttl_seconds": 0.0001}', 400, "ttl_seconds must be at least 0.1"),
        (b'{"tokens": 0}', 400, "tokens must be a positive number"),
        (b'{"tokens": 5, "ttl_seconds": -1}', 400, "ttl_seconds must be a positive number"),
        (b'{"tokens": 5, "class": 7}', 400, "class must be a text"),
        (b'{"tokens": 5, "ticket": 7}', 400, "ticket must be a text"),
        (b'{"tokens": 5, "queue": 1}', 400, "queue must be true or false"),
        (b'{"tokens": 5, "class": "vip"}', 400, "class must be one of default, long"),
        (b'{"tokens": 5, "ttl": 9}', 400, "unknown key 'ttl' (known: class, queue, ticket, tokens, ttl_seconds)"),
        (b'{"tokens": 5}' + b" " * 5000, 413, "the body is larger than 4096 bytes"),
    ],
)
def test_a_wrong_request_is_told_why(shared_base: str, body: bytes, status: int, line: str) -> None:
    """One line; nothing is leased."""
    answer = ask(f"{shared_base}/v1/leases", "POST", body)
    assert (answer.status, answer.document["error"]) == (status, line)
    assert ask(f"{shared_base}/v1/budget", "GET").document["leased_tokens"] == 0


@pytest.fixture(scope="module")
def shared_base() -> Iterator[str]:
    """A sidecar for the tests that leave nothing behind. The engine is down: then there is no budget, and all pass."""
    with leasing("http://127.0.0.1:9") as base:
        yield base


def test_while_the_engine_is_down_requests_pass(shared_base: str) -> None:
    """A watcher does not take a service down; it can be told to."""
    taken = ask(f"{shared_base}/v1/leases", "POST", {"tokens": 10**9})
    assert taken.status == 201
    assert ask(f"{shared_base}{taken.headers['Location']}", "DELETE").status == 204
    with leasing("http://127.0.0.1:9", (table.ADMISSION_WHEN_UNKNOWN, "refuse")) as base:
        refused = ask(f"{base}/v1/leases", "POST", {"tokens": 1})
        assert (refused.status, refused.document["reason"]) == (429, "unknown")


def test_only_the_token_or_a_password_opens_the_routes(tmp_path: Path) -> None:
    """A new token in the file counts from the next request on."""
    token, web = tmp_path / "token", tmp_path / "web.yml"
    token.write_text("first-secret\n")
    # The hash of "password", cost 4: bcrypt.hashpw(b"password", bcrypt.gensalt(4)).

    web.write_text(
        f"basic_auth_users: {{reader: {json.dumps(bcrypt.hashpw(b'password', bcrypt.gensalt(10)).decode())}}}\n"
    )
    basic = "Basic cmVhZGVyOnBhc3N3b3Jk"
    pairs = ((table.ADMISSION_BEARER_TOKEN_FILE, token), (table.WEB_CONFIG_FILE, web))
    with leasing("http://127.0.0.1:9", *pairs) as base:
        leases = f"{base}/v1/leases"
        assert ask(leases, "POST", {"tokens": 1}, Authorization="Bearer first-secret").status == 201
        assert ask(leases, "POST", {"tokens": 1}, Authorization=basic).status == 201
        assert ask(leases, "POST", {"tokens": 1}).status == 401
        wrong = ask(leases, "POST", {"tokens": 1}, Authorization="Bearer other-secret")
        assert (wrong.status, wrong.headers["WWW-Authenticate"]) == (401, 'Bearer realm="stepscope"')
        assert ask(f"{base}/metrics", "GET", Authorization="Bearer first-secret").status == 401
        token.write_text("second-secret\n")
        assert ask(leases, "POST", {"tokens": 1}, Authorization="Bearer first-secret").status == 401
        assert ask(leases, "POST", {"tokens": 1}, Authorization="Bearer second-secret").status == 201


def test_without_a_token_only_this_host_is_served(shared_base: str) -> None:
    """A page of another site in a browser here is not."""
    assert ask(f"{shared_base}/v1/budget", "GET").status == 200
    assert ask(f"{shared_base}/v1/budget", "GET", Origin="http://evil.example").status == 403
    assert ask(f"{shared_base}/v1/budget", "GET", X_Forwarded_For="203.0.113.9").status == 403


def test_too_many_requests_are_turned_away_unjudged() -> None:
    """With a time to come back, and counted apart."""
    with leasing("http://127.0.0.1:9", (table.ADMISSION_MAX_REQUESTS_PER_SECOND, 5.0)) as base:
        answers = [ask(f"{base}/v1/leases", "POST", {"tokens": 1}) for _ in range(12)]
        assert [answer.status for answer in answers[:5]] == [201] * 5
        last = answers[-1]
        assert (last.status, last.document["reason"], last.headers["Retry-After"]) == (429, "rate", "1")
        assert 'stepscope_admission_rejected_requests_total{reason="rate"}' in text(f"{base}/metrics")


def test_a_rate_flows_back_over_time() -> None:
    """A second's worth fits, no more."""
    now = [0.0]
    rate = Rate(2.0, lambda: now[0])
    assert [rate.take() for _ in range(3)] == [True, True, False]
    now[0] = 0.5
    assert [rate.take(), rate.take()] == [True, False]
    now[0] = 100.0
    assert [rate.take() for _ in range(3)] == [True, True, False]


def test_several_engines_share_one_budget_and_a_silent_one_holds_what_it_says() -> None:
    """Unknown in one is unknown in all; one that stands still may hang, one that nobody uses holds nothing."""
    view = EngineView("m", "0", 0.0, "measuring", Accounts(), speed_budget_tokens=100.0, memory_budget_tokens=300.0,
                      tokens_in_flight=60.0)  # fmt: skip
    other = dataclasses.replace(view, engine="1", state="stale", speed_budget_tokens=120.0)
    both = engine_tokens([view, other])
    assert (both.speed_tokens, both.memory_tokens, both.held_tokens) == (220.0, 600.0, 120.0)
    idle = dataclasses.replace(view, engine="2", state="idle")
    assert engine_tokens([view, idle]).held_tokens == 60.0
    for views, still in (([view, other], False), ([other, idle], True), ([other, other], True), ([idle], False)):
        assert engine_tokens(views).stands_still is still
    assert not engine_tokens([]).stands_still
    assert engine_tokens([view, dataclasses.replace(view, speed_budget_tokens=None)]).speed_tokens is None
    assert engine_tokens([]).memory_tokens is None


def test_without_admission_there_are_neither_routes_nor_series() -> None:
    """Nothing changes for who does not want it."""
    with leasing("http://127.0.0.1:9", (table.ADMISSION_ENABLED, False)) as base:
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1}).status == 404
        assert ask(f"{base}/v1/leases/x", "DELETE").status == 404
        assert "admission" not in text(f"{base}/metrics")


def test_a_token_file_that_is_no_token_is_a_wrong_configuration(tmp_path: Path) -> None:
    """Not there, empty, too short, two words."""
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=r"^--admission\.bearer-token-file=.*missing: No such file or directory"):
        TokenFile(missing)
    for content in ("", "short", "two words here", "x" * 4097):
        missing.write_text(content)
        with pytest.raises(ConfigError, match="not one word of 8 to 4096 printable ASCII characters"):
            TokenFile(missing)
    missing.write_text("long-enough")
    token = TokenFile(missing)
    assert token.accepts("bearer long-enough")
    assert not token.accepts("Basic long-enough")
    assert not token.accepts(None)
    missing.unlink()
    assert not token.accepts("Bearer long-enough")
