"""Leases under too many requests: what overload refuses, and what it must never refuse."""

from __future__ import annotations

from pathlib import Path

from admission_helpers import ask, leasing, text
from stepscope import settings as table

NOBODY = "http://127.0.0.1:9"  # an engine that is down: every lease is given
RATE = 3.0


def test_leases_in_flight_are_renewed_and_released_at_any_rate() -> None:
    """Refused requests for leases do not keep the tokens of the others from coming back."""
    with leasing(NOBODY, (table.ADMISSION_MAX_REQUESTS_PER_SECOND, RATE)) as base:
        leases = f"{base}/v1/leases"
        answers = [ask(leases, "POST", {"tokens": 1000}) for _ in range(40)]
        held = [answer.headers["Location"] for answer in answers if answer.status == 201]
        assert held
        assert {answer.status for answer in answers} == {201, 429}
        for where in held:
            assert [ask(f"{base}{where}", "PATCH", {"tokens": 500}).status for _ in range(5)] == [200] * 5
            assert ask(leases, "POST", {"tokens": 1}).document.get("reason", "rate") == "rate"
        assert [ask(f"{base}{where}", "DELETE").status for where in held] == [204] * len(held)
        page = text(f"{base}/metrics")
        assert 'stepscope_admission_leased_tokens{class="default"} 0.0' in page
        assert 'stepscope_admission_leaked_tokens_total{class="default"} 0.0' in page


def test_ids_that_nobody_was_given_are_bounded_and_take_nothing_from_the_gateways() -> None:
    """A flood of guesses is turned away, and leases are given as before."""
    with leasing(NOBODY, (table.ADMISSION_MAX_REQUESTS_PER_SECOND, RATE)) as base:
        statuses = [ask(f"{base}/v1/leases/guess-{number}", "DELETE").status for number in range(30)]
        assert statuses[0] == 404
        assert statuses.count(429) >= 20
        assert ask(f"{base}/v1/leases/guess", "PATCH", {"tokens": 1}).status == 429
        assert ask(f"{base}/v1/leases", "POST", {"tokens": 1}).status == 201
        assert 'stepscope_admission_rejected_requests_total{reason="rate"}' in text(f"{base}/metrics")


def test_who_shows_no_token_takes_nothing_from_who_does(tmp_path: Path) -> None:
    """Its requests have a limit of their own."""
    token = tmp_path / "token"
    token.write_text("a-secret-word\n")
    pairs = ((table.ADMISSION_MAX_REQUESTS_PER_SECOND, RATE), (table.ADMISSION_BEARER_TOKEN_FILE, token))
    with leasing(NOBODY, *pairs) as base:
        guesses = [ask(f"{base}/v1/leases", "POST", {"tokens": 1}, Authorization=f"Bearer {n}") for n in range(20)]
        assert {answer.status for answer in guesses} == {401, 429}
        shown = ask(f"{base}/v1/leases", "POST", {"tokens": 1}, Authorization="Bearer a-secret-word")
        assert shown.status == 201
        where = f"{base}{shown.headers['Location']}"
        assert ask(where, "DELETE").status in (401, 429)  # an id is no token
        assert ask(where, "DELETE", Authorization="Bearer a-secret-word").status == 204
