"""The decoding sequences advanced together, against the same sums done one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.sim.cohort import Cohort, Request


def test_a_sequence_that_left_and_came_back_ends_once() -> None:
    """Preempted and recomputed within one step of the others, its end falls on the same step as before."""
    cohort = Cohort(16, 0)
    request = Request(10, 5)
    cohort.join(request, 10)
    cohort.advance()
    kv_tokens = cohort.kv_tokens(request)
    cohort.leave(request)
    cohort.advance()
    cohort.join(request, kv_tokens + 1)
    ends = []
    for _ in range(10):
        cohort.advance()
        ends += cohort.pop_ended()
    assert ends == [request]


@given(
    block_size=st.sampled_from([1, 16, 128]),
    drafts=st.integers(0, 4),
    joins=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 40), st.integers(0, 4)), min_size=1, max_size=10),
)
def test_blocks_and_sums_are_those_of_every_sequence_by_itself(
    block_size: int, drafts: int, joins: list[tuple[int, int, int]]
) -> None:
    """Sequences join at different steps, accept drafts, and always hold ceil((context + drafts) / size) blocks."""
    cohort = Cohort(block_size, drafts)
    held = 0
    for kv_tokens, steps, accepted in joins:
        request = Request(kv_tokens, 10_000, own_blocks=-(-kv_tokens // block_size))
        held += request.own_blocks
        cohort.join(request, kv_tokens)
        for _ in range(steps):
            held += cohort.blocks_needed()
            cohort.advance()
            wanted = sum(-(-(cohort.kv_tokens(r) + drafts) // block_size) for r in cohort.members)
            assert held == wanted == sum(map(cohort.held_blocks, cohort.members))
        if accepted <= drafts:
            cohort.extend(request, accepted)
        assert held == sum(map(cohort.held_blocks, cohort.members))
        assert cohort.context_tokens == sum(map(cohort.kv_tokens, cohort.members))
        assert cohort.context_tokens_squared == sum(cohort.kv_tokens(r) ** 2 for r in cohort.members)
    for request in list(cohort.members):
        held -= cohort.leave(request)
    assert held == cohort.context_tokens == cohort.context_tokens_squared == cohort.blocks_needed() == 0
