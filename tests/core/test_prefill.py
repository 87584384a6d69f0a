"""Prompt tokens are placed where the engine computed them, not where it booked them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompt_server import PromptServer
from stepscope.core.prefill import PrefillLedger, advance, seen_share
from stepscope.core.sample import EngineSample

BLOCK = 16.0


def started(**fields: object) -> PromptServer:
    server = PromptServer(**fields)  # type: ignore[arg-type]  # names from the tests below
    server.booked = server.queries = sum(server.sizes)
    server.sample()
    return server


def test_chunks_are_placed_in_the_pairs_that_computed_them() -> None:
    """A prompt of 1,500 in chunks of 500: booked at its end, placed as it was computed."""
    server = started()
    server.begin(1500)
    for _ in range(3):
        server.step(20)
        server.chunk(500)
        server.sample()
    server.step(20)
    server.sample()
    assert server.placed[1:] == pytest.approx([500, 500, 500, 0])
    assert all(amount >= 0 for amount in server.placed)


def test_cached_tokens_are_not_computed_tokens() -> None:
    """1,000 of 1,500 came from the prefix cache: their blocks fill at once, for nothing."""
    server = started()
    server.begin(1500, hits=1000)
    server.chunk(250)
    first = server.sample()
    server.chunk(250)
    server.sample()
    assert first.ledger.open_tokens == 500
    assert sum(server.placed) == pytest.approx(500)
    assert server.placed[1] == pytest.approx(250)


def test_inside_a_long_prompt_the_open_tokens_are_its_length() -> None:
    """However little of it is done."""
    server = started()
    server.begin(6000)
    server.chunk(100)
    placed = server.sample()
    assert (placed.ledger.open_tokens, placed.accounted) == (6000, True)


def test_a_prompt_that_begins_and_ends_in_one_pair_is_what_was_booked() -> None:
    """Nothing is open at either end."""
    server = started()
    server.begin(300)
    server.chunk(300)
    placed = server.sample()
    assert (placed.computed_tokens, placed.ledger.open_tokens, placed.accounted) == (300, 0, True)


def test_finished_requests_do_not_hide_prefill() -> None:
    """The tokens that they free come back through the counters of finished requests."""
    server = started()
    server.begin(1000)
    server.chunk(400)
    server.sample()
    server.chunk(400)
    server.finish_one()
    server.step(20)
    placed = server.sample()
    assert placed.computed_tokens == pytest.approx(400)
    assert placed.accounted


_events = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 4000)),
        st.tuples(st.just("chunk"), st.integers(1, 2000)),
        st.tuples(st.just("step"), st.integers(1, 60)),
        st.tuples(st.just("finish"), st.just(0)),
    ),
    max_size=40,
)


def play(server: PromptServer, events: list[tuple[str, int]]) -> None:
    for name, amount in events:
        if name == "begin" and not server.prompt:
            server.begin(amount)
        elif name == "chunk" and server.prompt:
            server.chunk(amount)
        elif name == "step":
            server.step(amount)
        elif name == "finish" and server.decoders > 1:
            server.finish_one()
        server.sample()
    if server.prompt:
        server.chunk(server.prompt)
    server.sample()


@given(_events)
def test_over_the_life_of_prompts_the_sum_is_exactly_what_is_booked(events: list[tuple[str, int]]) -> None:
    """With blocks of one token, whatever comes and goes meanwhile."""
    server = started()
    before = server.booked
    play(server, events)
    assert min(server.placed) >= 0
    assert sum(server.placed) == pytest.approx(server.booked - before)


@given(_events)
def test_block_rounding_never_makes_prefill_negative_or_loses_it(events: list[tuple[str, int]]) -> None:
    """The usage gauge moves in whole blocks; what is booked comes out at least."""
    server = started(block=BLOCK)
    before = server.booked
    play(server, events)
    assert min(server.placed) >= 0
    assert sum(server.placed) >= server.booked - before - 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_block_rounding_adds_little(seed: int) -> None:
    """Blocks of 128 and eight streams beside the prompt: at most 5 % more than is booked."""
    draw = random.Random(seed)
    sizes = [float(draw.randint(100, 2000)) for _ in range(8)]
    server = started(block=128.0, decoders=8, sizes=sizes)
    before = server.booked
    server.begin(draw.randint(1000, 6000))
    while server.prompt:
        server.step(draw.randint(1, 20))
        server.chunk(draw.choice([128, 256, 512]))
        server.sample()
    server.step(20)
    server.sample()
    booked = server.booked - before
    assert booked <= sum(server.placed) <= 1.05 * booked


def test_an_aborted_prompt_is_forgotten_when_nothing_runs() -> None:
    """Its queries were counted and will never be booked."""
    server = started()
    server.begin(5000)
    server.chunk(100)
    assert server.sample().ledger.open_tokens == 5000
    server.cancel_all()
    assert server.sample().ledger.open_tokens == 0
    server.decoders, server.sizes = 2, [50.0, 50.0]
    server.begin(700)
    server.chunk(300)
    assert server.sample().ledger.open_tokens == 700


def test_an_aborted_prompt_is_forgotten_when_everybody_decodes_twice_in_a_row() -> None:
    """While the others go on; once could be a coincidence."""
    server = started()
    server.begin(5000)
    server.chunk(100)
    server.sample()
    server.abort_prompt()
    server.step(20)
    assert server.sample().ledger.open_tokens == 5000
    server.step(20)
    settled = server.sample()
    assert (settled.ledger.open_tokens, settled.computed_tokens, settled.accounted) == (0, 0, True)


def test_waiting_requests_or_few_steps_do_not_settle_an_offset() -> None:
    """Somebody may be about to go on with his prompt."""
    for steps, waiting in ((20.0, 1.0), (2.0, 0.0), (None, 0.0)):
        server = started()
        server.begin(5000)
        server.chunk(100)
        server.sample()
        server.abort_prompt()
        for _ in range(5):
            server.step(20)
            placed = server.sample(steps, waiting=waiting)
        assert placed.ledger.open_tokens == 5000, (steps, waiting)


def test_gauges_that_stand_still_do_not_settle_an_offset() -> None:
    """Usage and running are frozen, and the prompt that they do not show is being computed all the time."""
    server = started()
    server.begin(90_000)
    server.sample()
    for _ in range(5):
        server.prompt, prompt = 0.0, server.prompt  # neither gauge knows of it
        server.generated += 8 * server.decoders
        assert server.sample().ledger.open_tokens == 90_000
        server.prompt = prompt


def test_a_cancel_of_everything_is_neither_negative_nor_phantom_prefill() -> None:
    """The usage falls by thousands of tokens that no counter explains: this pair cannot be accounted."""
    server = started()
    server.begin(3000)
    server.chunk(1000)
    server.sample()
    server.sizes, server.decoders = server.sizes[:1], 1
    placed = server.sample()
    assert placed.computed_tokens == 0
    assert not placed.accounted
    server.cancel_all()
    calm = server.sample()
    assert (calm.computed_tokens, calm.accounted, calm.ledger.open_tokens) == (0, True, 0)


@given(_events, st.integers(0, 40), st.integers(1, 3))
def test_cancels_never_make_prefill_out_of_nothing(events: list[tuple[str, int]], at: int, calm: int) -> None:
    """After everybody has left nothing is open, and what follows adds nothing."""
    server = started(block=BLOCK)
    for name, amount in events[:at]:
        if name == "begin" and not server.prompt:
            server.begin(amount)
        elif name == "chunk" and server.prompt:
            server.chunk(amount)
        server.sample()
    server.cancel_all()
    server.sample()
    for _ in range(calm):
        placed = server.sample(None)
        assert (placed.computed_tokens, placed.ledger.open_tokens, placed.accounted) == (0, 0, True)
    assert min(server.placed) >= 0


def test_without_prefix_caching_somebody_in_prefill_is_seen_by_the_running_gauge() -> None:
    """How long his prompt is cannot be known; the growth of the usage still places its tokens."""
    server = started(caching=False)
    server.begin(1000)
    server.chunk(400)
    placed = server.sample()
    assert placed.ledger.open_tokens == float("inf")
    assert (placed.computed_tokens, placed.accounted) == (400, True)
    server.chunk(600)
    assert server.sample().computed_tokens == pytest.approx(600)
    server.step(20)
    calm = server.sample()
    assert (calm.computed_tokens, calm.ledger.open_tokens) == (0, 0)


def test_without_usage_an_open_prompt_cannot_be_accounted() -> None:
    """It is said so, and what is booked stands."""
    first = EngineSample("m", "0", requests_running=2.0, prefix_queries=10.0, prompt_tokens_computed=10.0)
    last = EngineSample(
        "m", "0", requests_running=2.0, prefix_queries=500.0, prefix_hits=0.0, prompt_tokens_computed=110.0
    )
    placed = advance(
        PrefillLedger(),
        first,
        last,
        tokens_before=None,
        tokens_after=None,
        steps=10.0,
        sequences=1.0,
        decoding_before=1.0,
        block_tokens=16.0,
    )
    assert (placed.computed_tokens, placed.accounted, placed.ledger.open_tokens) == (100, False, 390)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.001, 1.0)), min_size=1, max_size=30))
def test_no_gap_holds_more_of_a_chunk_than_its_seen_share(chunks: list[tuple[int, float]]) -> None:
    """Steps of (requests running, seconds of a chunk of one of them); the others decode, and do so alone in between."""
    most = max(running for running, _ in chunks)
    steps = [(running - 1, seconds) for running, seconds in chunks] + [(running, 0.0) for running, _ in chunks]
    gaps = sum(decoding for decoding, _ in steps)
    if gaps:
        felt = sum(decoding * seconds for decoding, seconds in steps) / gaps
        per_step = sum(seconds for _, seconds in steps) / len(steps)
        assert min(felt, per_step) <= seen_share(gaps / len(steps), most) * per_step * (1.0 + 1e-9)


@pytest.mark.parametrize("users", [1, 2, 8, 16])
def test_users_who_ask_again_at_once_feel_the_prompts_of_the_others(users: int) -> None:
    """A tenth of the steps carries a prompt of one of them: what the gaps hold is exactly what the share says."""
    steps = [(users - 1, 0.05)] + [(users, 0.0)] * 9
    gaps = sum(decoding for decoding, _ in steps)
    felt = sum(decoding * seconds for decoding, seconds in steps) / gaps
    assert felt == pytest.approx(seen_share(gaps / len(steps), users) * 0.05 / len(steps))


def test_somebody_whom_no_sample_caught_is_still_counted() -> None:
    """Eight decode in every step although prompts are computed: there are nine, whatever the gauges showed."""
    assert seen_share(8.0, 8.0) == 1.0
    assert seen_share(7.9, 8.0) == pytest.approx(7.0 / 7.9)
    assert (seen_share(0.95, 1.0), seen_share(0.95, 0.0)) == (0.0, 0.0)
    assert seen_share(0.0, 0.0) == 1.0  # nothing is known
