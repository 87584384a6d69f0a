"""Every recorded tape, replayed through the core, against what the clients of the real engine saw."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from ground_truth import Stream, in_prefill, steps_between, streams
from shared_data import shared_path
from stepscope.core.estimate import Facts, kv_state
from stepscope.core.memory import Memory, Policy
from stepscope.core.model_spec import from_hf_config, from_numbers
from stepscope.core.snapshot import EngineView
from stepscope.core.step_model import StepLaw, WeightBytes
from tapes import Tape, load, replay

TAPES = ("ramp", "agents_join", "prefill", "cancel", "restart", "ngram", "mfu", "gemma3")
BLOCK_TOKENS = 128
# The usage gauge leaves out the one block that vLLM reserves (the null block); the capacity label counts it.
NULL_BLOCK = 511 / 512
POLICY = Policy(interval_seconds=1.0, window_seconds=10.0, warm_up_seconds=10.0)
MIN_OBSERVATIONS = 50


@dataclass(frozen=True)
class Moment:
    """One sample of the sidecar with the window that it judged."""

    at: float
    start: float
    steps: float
    view: EngineView
    memory: Memory


NOTHING = Facts()


def moments(tape: Tape, facts: Facts = NOTHING) -> list[Moment]:
    """All samples whose window holds enough observations."""
    found = []
    for at, _, view, memories in replay(tape, facts, POLICY):
        if view is None or view.itl_mean_seconds is None:
            continue
        pairs = memories["0"].pairs
        if sum(pair.observations for pair in pairs) >= MIN_OBSERVATIONS:
            steps = sum(pair.steps or 0.0 for pair in pairs)
            found.append(Moment(at, pairs[0].start_seconds, steps, view, memories["0"]))
    return found


@pytest.fixture(scope="module", params=TAPES)
def tape(request: pytest.FixtureRequest) -> Tape:
    """One recorded tape."""
    return load(shared_path("data", "tapes"), request.param)


def gaps_in(tape: Tape, moment: Moment) -> list[float]:
    return [gap for at, gap, _ in tape.gaps if moment.start < at <= moment.at]


def test_the_mean_is_what_the_clients_saw(tape: Tape) -> None:
    """5 %: the client's side includes frontend delay. In fact 0.3 %, and 1.7 % where several tokens share a chunk."""
    seen = moments(tape)
    assert seen
    for moment in seen:
        gaps = gaps_in(tape, moment)
        assert moment.view.itl_mean_seconds == pytest.approx(sum(gaps) / len(gaps), rel=0.05), moment.at


def test_the_batch_is_what_the_clients_saw(tape: Tape) -> None:
    """3 % in steps, or the steps that gave nobody a gap.

    A step in which nobody but new prompts got a token is a step of the engine and no gap of any client; there are at
    most as many as first tokens in the window, and one more at each edge of the window.
    """
    known = streams(tape)
    for moment in moments(tape):
        gaps = gaps_in(tape, moment)
        steps = steps_between(known, moment.start, moment.at)
        firsts = sum(1 for s in known if moment.start < s.arrivals[0] <= moment.at)
        assert abs(moment.steps - steps) <= max(0.03 * steps, firsts + 1), moment.at
        if not firsts:
            assert moment.view.decode_batch_size == pytest.approx(len(gaps) / steps, rel=0.03), moment.at


def test_tokens_in_flight_are_what_the_clients_held(tape: Tape) -> None:
    """3 % beyond block rounding: the truth plus nothing to one block of 128 for each running request.

    Moments in which a prompt is being computed are left out: its client cannot know how far it is.
    """
    if tape.name == "gemma3":
        pytest.skip("hybrid model: bytes are right and tokens are not (see the test of bytes)")
    known = streams(tape)
    compared = 0
    for moment in moments(tape):
        running = [s for s in known if s.decodes_at(moment.at)]
        if in_prefill(tape, known, moment.at) or not running:
            continue
        truth = _tokens(tape, running, moment)
        ours = (moment.view.tokens_in_flight or 0.0) * NULL_BLOCK
        assert 0.97 * truth <= ours <= 1.03 * (truth + BLOCK_TOKENS * len(running)), moment.at
        compared += 1
    assert compared >= 8


def _tokens(tape: Tape, running: list[Stream], moment: Moment) -> float:
    if tape.name != "ngram":
        return sum(s.tokens_at(moment.at) for s in running)
    # A chunk of a speculative stream holds several tokens; the prompt is counted once.
    per_chunk = moment.view.tokens_per_step or 1.0
    return sum(s.prompt_tokens + (s.tokens_at(moment.at) - s.prompt_tokens) * per_chunk for s in running)


def test_prompt_tokens_are_neither_lost_nor_doubled(tape: Tape) -> None:
    """However they are placed in time, their sum over the tape is what the engine booked, cut-off prompts aside."""
    placed = booked = 0.0
    last = None
    for _, reading, _, memories in replay(tape, Facts(), POLICY):
        if reading is None:
            continue
        memory = memories["0"]
        pair = memory.pairs[-1] if memory.pairs else None
        if pair is not None and pair is not last and pair.end_seconds == memory.at_seconds:
            last = pair
            placed += pair.prefill_tokens
            booked += (pair.last.prompt_tokens_computed or 0.0) - (pair.first.prompt_tokens_computed or 0.0)
    assert booked > 0.0
    assert placed == pytest.approx(booked, rel=0.1)


def facts_of_the_tiny_model() -> Facts:
    """The engine of the tapes: 32,768 B of KV per token; parameters read off tape ramp by hand."""
    law = StepLaw(
        weights=WeightBytes(112e6),
        effective_bandwidth_bytes_per_second=1.09e10,
        kv_bytes_per_token=32768.0,
        step_overhead_seconds=0.0105,
        sequence_cost_seconds=0.0008,
        prefill_cost_seconds_per_token=1.1e-3,
        source="file",
    )
    return Facts(law=law, model=from_numbers(112e6, 32768.0))


def tape_named(name: str) -> Tape:
    return load(shared_path("data", "tapes"), name)


def states(name: str, facts: Facts) -> list[tuple[float, str]]:
    return [(at, view.state) for at, _, view, _ in replay(tape_named(name), facts, POLICY) if view is not None]


def test_long_prompts_are_seen_while_they_are_computed() -> None:
    """Two agents' prompts of 6,000 tokens each take a second a step: from 62 s to 94 s nothing else is judged."""
    inside = [state for at, state in states("agents_join", facts_of_the_tiny_model()) if 63.0 < at < 94.0]
    assert set(inside) == {"prefilling"}


def test_no_throttled_engine_is_invented_by_prompt_bursts() -> None:
    """Where a 1,500-token prompt comes every few seconds the mean rises by half; it is prefill, never unexplained."""
    view_causes = [
        view.cause
        for at, _, view, _ in replay(tape_named("prefill"), facts_of_the_tiny_model(), POLICY)
        if view is not None and 50.0 < at < 100.0
    ]
    assert set(view_causes) <= {"prefill", "none"}
    assert view_causes.count("prefill") > 0.5 * len(view_causes)


def test_a_restart_is_counted_once_and_warms_up_again() -> None:
    """The engine is stopped, refuses, and comes back with counters at zero."""
    views = [view for _, _, view, _ in replay(tape_named("restart"), facts_of_the_tiny_model(), POLICY) if view]
    assert views[-1].accounts.restarts == 1
    assert min(view.accounts.itl_observed_seconds for view in views) >= 0.0
    before = [view.accounts.itl_compared for view in views]
    assert before == sorted(before)


def test_after_everybody_left_the_engine_is_idle() -> None:
    """Ten streams cancelled at once: idle from then on, and no verdict."""
    after = [state for at, state in states("cancel", facts_of_the_tiny_model()) if at > 22.0]
    assert set(after) == {"idle"}


def test_speculative_steps_yield_several_tokens() -> None:
    """Three drafted tokens, nearly all accepted: close to four tokens a step, four positions computed."""
    seen = moments(tape_named("ngram"))
    assert all(3.5 < (m.view.tokens_per_step or 0.0) <= 4.0 for m in seen)
    assert all(3.5 < p.positions_per_sequence <= 4.0 for m in seen for p in m.memory.pairs if p.observations > 20)


def test_the_engines_own_byte_count_is_preferred_when_it_moves() -> None:
    """With --enable-mfu-metrics the memory term's bytes are the engine's: weights plus the KV of the step.

    5 %: the engine counts the tokens of each step, the clients those at the end of the window.
    """
    tape, facts = tape_named("mfu"), facts_of_the_tiny_model()
    known, compared = streams(tape), 0
    for moment in moments(tape, facts):
        running = [s for s in known if s.decodes_at(moment.at)]
        pair = moment.memory.pairs[-1]
        if in_prefill(tape, known, moment.at) or pair.prefill_tokens or pair.predicted is None or not running:
            continue
        assert facts.law is not None
        seconds = pair.predicted.weights_seconds + pair.predicted.kv_cache_seconds
        truth = 112e6 + 32768.0 * sum(s.tokens_at(moment.at) for s in running)
        assert seconds * facts.law.effective_bandwidth_bytes_per_second == pytest.approx(truth, rel=0.05)
        compared += 1
    assert compared >= 8


def test_bytes_in_flight_of_a_hybrid_model_are_what_its_layers_keep() -> None:
    """Two of six layers keep everything, four the last 512 tokens: three groups of two layers in one pool.

    A request holds a block per 128 tokens in the full group, and in each of the two sliding groups the blocks that its
    window touches: 4 or 5, and up to one more that is about to be freed. Hence within one block per group and request.
    """
    config = Path(__file__).parent / "data" / "configs" / "gemma3-tape.json"
    model = from_hf_config(json.loads(config.read_text()), name="gemma3-tape")
    tape, compared = tape_named("gemma3"), 0
    known = streams(tape)
    for moment in moments(tape, Facts(model=model)):
        running = [s for s in known if s.decodes_at(moment.at)]
        if in_prefill(tape, known, moment.at) or not running:
            continue
        held = [-(-s.tokens_at(moment.at) // BLOCK_TOKENS) for s in running]
        blocks = sum(full + 2 * min(full, 5) for full in held)
        kv = kv_state(moment.memory.sample, Facts(model=model))
        assert kv.kv_bytes is not None
        assert abs(kv.kv_bytes / 262_144 - blocks) <= 3 * len(running), moment.at
        compared += 1
    assert compared >= 8
