"""The context budget as a library: never more than the budget, nothing lost, nothing leaked, and why it said no."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from budget_helpers import POLICY, lease, make, refusal
from stepscope.core.admission import ContextBudget, UnknownClassError
from stepscope.core.leases import EngineTokens, Lease, Refusal


def test_leases_fill_the_budget_and_what_is_released_fits_again() -> None:
    """100,000 tokens: four of 25,000, no fifth, and one again after one is back."""
    budget, _ = make()
    held = [lease(budget.acquire(25_000)) for _ in range(4)]
    said = refusal(budget.acquire(1))
    assert (said.reason, said.free_tokens, said.fits_when_empty) == ("configured", 0.0, True)
    assert budget.release(held[0].lease_id)
    assert not budget.release(held[0].lease_id)
    assert lease(budget.acquire(25_000)).class_name == "chat"


def test_two_agents_cannot_starve_forty_chats() -> None:
    """Long contexts hold half at most, whatever class they name; a long one that never fits is told so."""
    budget, _ = make()
    assert lease(budget.acquire(40_000, class_name="chat")).class_name == "long"
    said = refusal(budget.acquire(30_000))
    assert (said.reason, said.class_name, said.free_tokens) == ("class_share", "long", 10_000)
    assert said.fits_when_empty
    assert not refusal(budget.acquire(60_000)).fits_when_empty
    assert [lease(budget.acquire(2_000)) for _ in range(30)]


def test_a_share_below_one_keeps_chats_from_starving_the_agents() -> None:
    """Chats that fill what they may leave the rest to long contexts, which otherwise wait as long as chats come."""
    for share, served in ((1.0, False), (0.6, True)):
        budget, _ = make(replace(POLICY, class_shares=(("chat", share), ("long", 0.5))))
        while isinstance(budget.acquire(2_000), Lease):
            pass
        assert isinstance(budget.acquire(40_000, queue=True), Lease) == served


def test_the_smallest_of_the_budgets_counts_and_is_named() -> None:
    """Speed, memory, or what the operator set."""
    budget, _ = make()
    for speed, memory, name in ((50_000, 80_000, "speed"), (90_000, 20_000, "memory"), (2e6, 3e6, "configured")):
        budget.observe(EngineTokens(speed, memory, 0.0))
        counts = budget.counts()
        assert (counts.limit, counts.budget_tokens) == (name, min(speed, memory, 100_000))
    budget.observe(EngineTokens(10_000, None, 0.0))
    assert refusal(budget.acquire(20_000)).reason == "speed"


def test_a_lease_of_a_crashed_gateway_runs_out() -> None:
    """Its tokens are free at the end of its time, not before; it is counted, and releasing it late is harmless."""
    budget, clock = make()
    gone = lease(budget.acquire(100_000 / 4, ttl_seconds=10))
    rest = [lease(budget.acquire(25_000, ttl_seconds=500)) for _ in range(3)]
    clock.now += 9.999
    refusal(budget.acquire(1))
    clock.now += 0.001
    assert lease(budget.acquire(25_000))
    assert not budget.release(gone.lease_id)
    chat = budget.counts().classes[0]
    assert (chat.expired, chat.leaked_tokens, chat.leases) == (1, 25_000, 4)
    assert budget.release(rest[0].lease_id)


def test_renewing_prolongs_and_shrinks_but_never_grows() -> None:
    """The tokens a lease gives up are free at once; a lease that has run out cannot be renewed."""
    budget, clock = make()
    held = lease(budget.acquire(25_000, ttl_seconds=10))
    clock.now += 8
    shrunk = budget.renew(held.lease_id, tokens=5_000, ttl_seconds=10)
    assert shrunk is not None
    assert (shrunk.tokens, shrunk.expires_at_seconds) == (5_000, clock.now + 10)
    assert budget.counts().leased_tokens == 5_000
    with pytest.raises(ValueError, match="can only shrink"):
        budget.renew(held.lease_id, tokens=6_000)
    with pytest.raises(ValueError, match="can only shrink"):
        budget.renew(held.lease_id, tokens=math.nan)
    clock.now += 11
    assert budget.renew(held.lease_id) is None
    assert budget.renew("never-given") is None


def test_a_lease_asks_for_no_more_time_than_the_longest() -> None:
    """Which is what a crash can cost."""
    budget, clock = make(replace(POLICY, longest_ttl_seconds=30.0))
    assert lease(budget.acquire(1, ttl_seconds=1e9)).expires_at_seconds == clock.now + 30


@pytest.mark.parametrize("tokens", [0, -1, math.nan, math.inf])
def test_nonsense_is_an_error_and_changes_nothing(tokens: float) -> None:
    """Not a refusal: waiting would not help."""
    budget, _ = make()
    with pytest.raises(ValueError, match="tokens must be"):
        budget.acquire(tokens)
    with pytest.raises(ValueError, match="ttl_seconds must be"):
        budget.acquire(1, ttl_seconds=tokens)
    with pytest.raises(UnknownClassError, match="class must be one of chat, long"):
        budget.acquire(1, class_name="vip")
    assert budget.counts().leased_tokens == 0


def test_traffic_that_does_not_ask_takes_from_the_budget() -> None:
    """What the engine holds beyond all leases is a gap: published, and not given away twice."""
    budget, clock = make()
    budget.observe(EngineTokens(held_tokens=0.0))
    clock.now += POLICY.longest_ttl_seconds
    lease(budget.acquire(25_000))
    budget.observe(EngineTokens(held_tokens=20_000))  # less than was promised: all is well
    assert budget.counts().outside_tokens == 0
    budget.observe(EngineTokens(held_tokens=70_000))
    counts = budget.counts()
    assert (counts.outside_tokens, counts.free_tokens) == (45_000, 30_000)
    refusal(budget.acquire(30_001))
    budget.observe(EngineTokens(held_tokens=None))  # a failed sample lets nothing go
    assert budget.counts().outside_tokens == 45_000


def test_a_release_between_two_samples_is_no_gap() -> None:
    """The engine's figure may be from before it."""
    budget, clock = make()
    budget.observe(EngineTokens(held_tokens=0.0))
    clock.now += POLICY.longest_ttl_seconds
    held = lease(budget.acquire(25_000))
    budget.observe(EngineTokens(held_tokens=25_000))
    budget.release(held.lease_id)
    budget.observe(EngineTokens(held_tokens=25_000))
    assert budget.counts().outside_tokens == 0
    budget.observe(EngineTokens(held_tokens=25_000))
    assert budget.counts().outside_tokens == 25_000


def test_after_a_restart_it_starts_from_the_engine_s_own_usage() -> None:
    """What ran before falls with the engine's usage, never rises with new leases, and is over after the longest TTL."""
    budget, clock = make()
    budget.observe(EngineTokens(held_tokens=80_000))
    assert budget.counts().free_tokens == 20_000
    refusal(budget.acquire(25_000))
    lease(budget.acquire(20_000, ttl_seconds=600))
    budget.observe(EngineTokens(held_tokens=95_000))  # 80,000 of before, 15,000 of the new lease
    assert budget.counts().free_tokens == 0
    budget.observe(EngineTokens(held_tokens=30_000))
    assert budget.counts().inherited_tokens == 30_000
    clock.now += POLICY.longest_ttl_seconds - 1
    refusal(budget.acquire(29_000 + 30_000, class_name="long"))
    clock.now += 1
    budget.observe(EngineTokens(held_tokens=15_000))
    assert budget.counts().inherited_tokens == 0


def test_without_any_budget_the_policy_decides() -> None:
    """Admit by default: a watcher must not take the service down; refuse where that was asked for."""
    open_policy = replace(POLICY, budget_tokens=None)
    budget, _ = make(open_policy)
    assert lease(budget.acquire(10**9))
    strict, _ = make(replace(open_policy, admit_unknown=False))
    assert refusal(strict.acquire(1)).reason == "unknown"
    strict.observe(EngineTokens(speed_tokens=100.0))
    assert lease(strict.acquire(1))


def test_observe_only_counts_what_it_would_have_refused() -> None:
    """And refuses nothing but what would fill this process's own memory."""
    budget, _ = make(replace(POLICY, observe_only=True, max_leases=3))
    for _ in range(3):
        lease(budget.acquire(25_000 * 4))
    chat, long = budget.counts().classes
    assert (sum(long.refused), sum(long.would_refuse), long.admitted) == (0, 3, 3)
    assert refusal(budget.acquire(1)).reason == "leases"
    assert chat.leases == 0


def test_retry_after_follows_the_rate_at_which_tokens_come_back() -> None:
    """Within a second and ten."""
    budget, clock = make()
    held = [lease(budget.acquire(20_000, ttl_seconds=500)) for _ in range(5)]
    assert refusal(budget.acquire(20_000)).retry_after_seconds == 1.0  # nothing is known yet
    for one in held:
        clock.now += 3
        budget.release(one.lease_id)
        lease(budget.acquire(20_000, ttl_seconds=500))
    seconds = refusal(budget.acquire(20_000)).retry_after_seconds
    assert 3 <= seconds <= 10  # 20,000 tokens each 3 s, the mean over 30 s not yet full
    clock.now += 300
    assert refusal(budget.acquire(20_000)).retry_after_seconds == 10.0


def test_a_place_in_line_is_kept_for_who_comes_back() -> None:
    """Within its class, ahead of later ones, behind earlier ones, and not for who stays away or could never fit."""
    budget, clock = make()
    held = [lease(budget.acquire(25_000, ttl_seconds=500)) for _ in range(4)]
    first = refusal(budget.acquire(25_000, queue=True))
    second = refusal(budget.acquire(25_000, queue=True))
    assert first.ticket != second.ticket
    assert refusal(budget.acquire(25_000)).ticket is None
    assert refusal(budget.acquire(200_000, queue=True)).ticket is None
    budget.release(held[0].lease_id)
    assert refusal(budget.acquire(1)).reason == "turn"
    assert refusal(budget.acquire(25_000, ticket=second.ticket)).reason == "turn"
    assert lease(budget.acquire(25_000, ticket=first.ticket))
    budget.release(held[1].lease_id)
    clock.now += 60  # the second never came back
    assert lease(budget.acquire(25_000))


class Machine(RuleBasedStateMachine):
    """Any sequence of calls, against a plain dictionary of what must be alive."""

    leases = Bundle("leases")

    @initialize()
    def start(self) -> None:
        self.budget, self.clock = make()
        self.budget.observe(EngineTokens(held_tokens=0.0))
        self.alive: dict[str, Lease] = {}

    def prune(self) -> None:
        self.alive = {key: value for key, value in self.alive.items() if value.expires_at_seconds > self.clock.now}

    @rule(target=leases, tokens=st.integers(1, 60_000), ttl=st.floats(0.5, 50))
    def acquire(self, tokens: int, ttl: float) -> str:
        self.prune()
        free = 100_000 - sum(value.tokens for value in self.alive.values())
        answer = self.budget.acquire(tokens, ttl)
        if isinstance(answer, Refusal):
            long = sum(value.tokens for value in self.alive.values() if value.class_name == "long")
            assert tokens > free or (tokens >= 30_000 and tokens > 50_000 - long)
            return "none"
        assert tokens <= free
        self.alive[answer.lease_id] = answer
        return answer.lease_id

    @rule(key=consumes(leases))
    def release(self, key: str) -> None:
        self.prune()
        assert self.budget.release(key) == (key in self.alive)
        self.alive.pop(key, None)

    @rule(key=leases, share=st.floats(0, 1), ttl=st.floats(0.5, 50))
    def renew(self, key: str, share: float, ttl: float) -> None:
        self.prune()
        old = self.alive.get(key)
        new = self.budget.renew(key, tokens=max(1, int(old.tokens * share)) if old else 1, ttl_seconds=ttl)
        assert (new is None) == (old is None)
        if new is not None:
            self.alive[key] = new

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def sums_agree(self) -> None:
        self.prune()
        counts = self.budget.counts()
        assert counts.leased_tokens == sum(value.tokens for value in self.alive.values()) <= 100_000
        assert counts.leased_tokens == sum(part.tokens for part in counts.classes)
        assert sum(part.leases for part in counts.classes) == len(self.alive)


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnySequence = Machine.TestCase


def test_fifty_thousand_pairs_from_many_threads_never_exceed_the_budget() -> None:
    """With cancels and leases nobody gives back: the sum stays within, and nothing is left after the time is over."""
    ids = itertools.count()
    budget = ContextBudget(
        replace(POLICY, max_leases=10_000), clock=time.monotonic, lock=threading.Lock(), new_id=lambda: str(next(ids))
    )
    over: list[float] = []
    pairs, threads = 50_000, 16

    def work(seed: int) -> None:
        rng = random.Random(seed)
        done = 0
        while done < pairs // threads:
            answer = budget.acquire(rng.randint(1, 20_000), ttl_seconds=0.3)
            if isinstance(answer, Refusal):
                time.sleep(0.0005)
                continue
            done += 1
            if rng.random() < 0.01:
                continue  # killed: never released
            if rng.random() < 0.5:
                budget.renew(answer.lease_id, tokens=max(1, answer.tokens // 2))
            leased = budget.counts().leased_tokens
            if leased > 100_000:
                over.append(leased)
            budget.release(answer.lease_id)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not over
    time.sleep(0.31)
    counts = budget.counts()
    chat = counts.classes[0]
    assert (counts.leased_tokens, chat.leases) == (0.0, 0)
    assert sum(part.admitted for part in counts.classes) == pairs // threads * threads
    assert chat.expired > 0
