"""One engine over time: folds samples into pairs and hands the window to the judge. Pure: state in, state out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepscope.core import prefill, sharing, window
from stepscope.core.estimate import Facts, kv_state, load_of_pair
from stepscope.core.judge import judge
from stepscope.core.memory import Memory, Policy, Step
from stepscope.core.representative import gauges_stand_for_steps, holds_long_prompt
from stepscope.core.sample import EngineSample, Reading
from stepscope.core.snapshot import Accounts, EngineView
from stepscope.core.step_model import predict
from stepscope.core.window import Pair

__all__ = ["Memory", "Policy", "observe"]

# So many samples in a row at which usage and running do not move, and a KV block filled by each request meanwhile: of a
# handful of short requests one such sample may be chance, and requests in step fill their blocks all at once.
_FROZEN_SAMPLES, _FROZEN_BLOCKS = 3, 1.0
# Mean gap x steps over time, after a preemption: beyond it a resumed request brought its wait along.
_OVERLAP_LIMIT = 1.05
_PAIR_INTERVALS = 3.0  # a pair may span this many scrape intervals, or the window if that is longer


def observe(
    memories: Mapping[str, Memory], reading: Reading, facts: Facts, policy: Policy
) -> tuple[dict[str, Memory], tuple[EngineView, ...]]:
    """Fold one reading in. Engines that are not on the page keep their memory; the caller forgets them in time."""
    invalid: dict[str, dict[str, int]] = {}
    for engine, field, count in reading.invalid_values:
        invalid.setdefault(engine, {})[field] = count
    steps = [_difference(memories.get(s.engine), s, reading, facts, policy) for s in reading.engines]
    if facts.lockstep and len(steps) > 1:
        steps = _slowest_for_all(steps)
    updated, views = dict(memories), []
    for step in steps:
        label = step.memory.sample.engine
        memory, view = judge(step, facts, policy, invalid.get(label, {}))
        updated[label] = memory
        views.append(view)
    return updated, tuple(views)


def _difference(memory: Memory | None, sample: EngineSample, reading: Reading, facts: Facts, policy: Policy) -> Step:
    """Take the difference to the last sample, or begin a new life."""
    at = reading.at_seconds
    kv = kv_state(sample, facts)
    tokens = kv.tokens_in_flight
    if memory is None or _is_new_life(memory, sample, reading):
        accounts = memory.accounts if memory is not None else Accounts()
        if memory is not None:
            accounts = replace(accounts, restarts=accounts.restarts + 1)
        fresh = Memory(
            sample,
            at,
            tokens,
            life_start_seconds=at,
            process_start_seconds=reading.process_start_seconds,
            moved_at_seconds=at,
            accounts=accounts,
        )
        if memory is not None:
            usual = memory.usual_step, memory.usual_tokens_per_sequence
            fresh = replace(fresh, usual_step=usual[0], usual_tokens_per_sequence=usual[1])
        return Step(fresh, kv, None, has_pair_time=False)

    before, seconds = memory.sample, at - memory.at_seconds
    observations, itl_sum = window.observed(before, sample)
    steps, sequences = window.batch(before, sample, seconds, reading.single_process)
    placed = prefill.advance(
        memory.ledger,
        before,
        sample,
        tokens_before=memory.tokens_in_flight,
        tokens_after=tokens,
        steps=steps,
        sequences=sequences,
        decoding_before=memory.decoding,
        block_tokens=sample.block_size or 0.0,
    )
    # A sliding window that is full grows no more: usage may stand still with nothing wrong.
    grows = facts.model is None or not facts.model.hybrid
    blocks = window.still_blocks(before, sample) if grows else None
    still_samples = memory.still_samples + 1 if blocks else 0
    still_blocks = memory.still_blocks + blocks if blocks else 0.0
    preempted = window.increase(before.preemptions, sample.preemptions) > 0.0
    requeued = memory.requeued or preempted
    oldest = memory.pairs[0].first if memory.pairs else before
    # Tokens say little of a hybrid model's bytes, and its gauge counts other things than tokens.
    shared = sharing.advance(memory.sharing, oldest, sample, tokens, sequences if grows else None, seconds)
    drafts = window.increase(before.drafts, sample.drafts)
    drafted = window.increase(before.draft_tokens, sample.draft_tokens)
    pair = Pair(
        first=before,
        last=sample,
        start_seconds=memory.at_seconds,
        end_seconds=at,
        observations=observations,
        itl_sum_seconds=itl_sum,
        steps=steps,
        sequences=sequences,
        prefill_tokens=placed.computed_tokens,
        prefill_accounted=placed.accounted,
        open_prompt_tokens=placed.ledger.open_tokens,
        positions_per_sequence=1.0 + drafted / drafts if drafts > 0.0 else 1.0,
        gauges_moved=still_samples < _FROZEN_SAMPLES or still_blocks < _FROZEN_BLOCKS,
        holds_waits=requeued and not _gaps_are_steps(observations, itl_sum, steps, seconds, reading),
        prefill_seen=_seen(memory, sample, sequences),
    )
    # With frozen gauges, or shared tokens that come and go with no request's own, no balance of tokens places prompts.
    booked = window.increase(before.prompt_tokens_computed, sample.prompt_tokens_computed)
    if not pair.gauges_moved:
        pair = replace(pair, prefill_tokens=booked, prefill_accounted=True)
    if facts.law is not None and observations > 0.0:
        load = load_of_pair(pair, kv, facts)
        predicted = predict(facts.law, load) if load is not None else None
        if predicted is not None:
            shared = shared.judged(predicted, tokens)
        if shared.is_felt:
            pair = replace(pair, shared_tokens=shared.tokens, prefill_tokens=booked, prefill_accounted=True)
            load = load_of_pair(pair, kv, facts)
            predicted = predict(facts.law, load) if load is not None else None
            if load is not None:
                every = replace(load, tokens_in_flight=load.tokens_in_flight + shared.most_tokens)
                pair = replace(pair, most=predict(facts.law, every))
        may_compare = (
            pair.prefill_accounted
            and pair.gauges_moved
            and not pair.holds_waits
            and predicted is not None
            and gauges_stand_for_steps(
                pair, predicted, memory.tokens_in_flight, tokens, single_process=reading.single_process
            )
        )
        # A preempted request's gap holds its time in the queue, and an engine that emptied within the pair shows the
        # tokens of the void, not of the steps: neither is to be compared with a decode step.
        quiet = not preempted and sample.requests_running != 0.0
        long_prompt = holds_long_prompt(pair, memory.ledger.open_tokens, facts.law.prefill_cost_seconds_per_token)
        pair = replace(pair, predicted=predicted, comparable=quiet and may_compare, holds_long_prompt=long_prompt)
    moved = window.has_moved(before, sample)
    longest = max(policy.window_seconds, _PAIR_INTERVALS * policy.interval_seconds)
    usable = 0.0 < seconds <= longest * 1.05  # a little slack for the scheduler's own jitter
    kept = tuple(p for p in memory.pairs if p.start_seconds >= at - policy.window_seconds - 1e-3)
    advanced = Memory(
        sample=sample,
        at_seconds=at,
        tokens_in_flight=tokens,
        life_start_seconds=memory.life_start_seconds,
        process_start_seconds=reading.process_start_seconds,
        observations_in_life=memory.observations_in_life + observations,
        pairs=(*kept, pair) if usable else kept,
        ledger=placed.ledger,
        decoding=sequences if sequences is not None else memory.decoding,
        unmoved_samples=0 if moved else memory.unmoved_samples + 1,
        moved_at_seconds=at if moved else memory.moved_at_seconds,
        requeued=requeued and sample.requests_waiting != 0.0,
        still_samples=still_samples,
        still_blocks=still_blocks,
        positions_per_sequence=memory.positions_per_sequence,
        tokens_per_step=memory.tokens_per_step,
        usual_step=memory.usual_step,
        usual_tokens_per_sequence=memory.usual_tokens_per_sequence,
        sharing=shared,
        accounts=memory.accounts,
    )
    return Step(advanced, kv, pair, has_pair_time=usable)


def _seen(memory: Memory, sample: EngineSample, sequences: float | None) -> float:
    """Share of the pair's prompt tokens that decoding requests can have felt, from the window's running gauges."""
    samples = (memory.sample, sample, *(pair.first for pair in memory.pairs))
    return prefill.seen_share(sequences or 0.0, max(s.requests_running or 0.0 for s in samples))


def _gaps_are_steps(observations: float, itl_sum: float, steps: float | None, seconds: float, reading: Reading) -> bool:
    """True if no gap of the pair can hold a wait; False also where several API servers count steps more than once."""
    overlap = window.overlap(observations, itl_sum, steps, seconds) if reading.single_process else None
    return overlap is not None and overlap <= _OVERLAP_LIMIT


def _is_new_life(memory: Memory, sample: EngineSample, reading: Reading) -> bool:
    """True if the sample belongs to another process or model than the last one, or a counter fell."""
    before, after = memory.process_start_seconds, reading.process_start_seconds
    return (
        sample.model_name != memory.sample.model_name
        or (before is not None and after is not None and before != after)
        or window.is_reset(memory.sample, sample)
    )


def _slowest_for_all(steps: list[Step]) -> list[Step]:
    """Ranks in lockstep take the time of the slowest: each pair's prediction becomes the slowest one."""
    predicted = [s.pair.predicted for s in steps if s.pair is not None and s.pair.predicted is not None]
    if not predicted:
        return steps
    slowest = max(predicted, key=lambda p: p.itl_seconds)
    slowed = []
    for step in steps:
        pair = step.pair
        if pair is not None and pair.predicted is not None and step.memory.pairs and step.memory.pairs[-1] is pair:
            pair = replace(pair, predicted=slowest)
            step = replace(step, pair=pair, memory=replace(step.memory, pairs=(*step.memory.pairs[:-1], pair)))
        slowed.append(step)
    return slowed
