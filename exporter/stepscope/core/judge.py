"""What one engine's window says: state, verdict, budgets, accounts, and the view that is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepscope.core import compare, window
from stepscope.core.accounts import added, booked
from stepscope.core.budget import speed_budget_tokens
from stepscope.core.estimate import Facts, KvState, load_of
from stepscope.core.memory import Memory, Policy, Step
from stepscope.core.sample import EngineSample
from stepscope.core.sharing import decided
from stepscope.core.snapshot import EngineView
from stepscope.core.step_model import Load, predict
from stepscope.core.window import Pair, Window

# A calibration holds a little beyond the loads it saw: the law is linear in them. Beyond that it is out_of_range.
RANGE_SLACK = 1.25


def judge(step: Step, facts: Facts, policy: Policy, invalid: Mapping[str, int]) -> tuple[Memory, EngineView]:
    """State, verdict, budgets and accounts of one engine."""
    memory, kv, pair = step.memory, step.kv, step.pair
    sample, at, law = memory.sample, memory.at_seconds, facts.law
    now = decided(window.gather(memory.pairs))
    running = sample.requests_running or 0.0
    in_pair = pair.observations if pair is not None else 0.0
    idle = running == 0.0 and in_pair == 0.0
    sequences = now.sequences if now.sequences is not None and not idle else None
    load = load_of(kv, sequences if sequences is not None else running)
    # Drafted positions work in the budget as in the prediction, or the one would not invert the other.
    positions = next(
        (p.positions_per_sequence for p in reversed(memory.pairs) if p.observations > 0.0),
        memory.positions_per_sequence,
    )
    if load is not None:
        load = replace(load, positions_per_sequence=positions)
    latest = predict(law, load) if law is not None and load is not None else None
    predicted = now.predicted if now.predicted is not None and not idle else latest

    state = compare.state(
        compare.Situation(
            asleep=sample.awake is False,
            has_law=law is not None,
            has_kv=_kv_is_known(kv, facts),
            running=running,
            observations_in_pair=in_pair,
            unmoved_samples=memory.unmoved_samples,
            unmoved_seconds=at - memory.moved_at_seconds,
            open_prompt_tokens=pair.open_prompt_tokens if pair is not None else 0.0,
            seconds_in_life=at - memory.life_start_seconds,
            observations_in_life=memory.observations_in_life,
            warm_up_seconds=policy.warm_up_seconds,
            window=now,
            in_range=_in_range(now, load, facts),
        )
    )
    # An engine that speculates goes on doing so after a pause: its target must not shrink while nothing is drafted.
    tokens_per_step = now.tokens_per_step if now.tokens_per_step is not None else memory.tokens_per_step
    target_step = target_itl = None
    if policy.objective_tokens_per_second:
        # The promise is tokens per second and user; a speculative step yields several.
        target_itl = tokens_per_step / policy.objective_tokens_per_second
        target_step = policy.headroom * target_itl
    # Without a prefill cost the decode step is still known, the inter-token latency is not.
    prefill_known = now.predicted is not None or idle or not _prefill_cost_is_missing(now, facts)
    decoding, prefilling = _phases(sample, pair, now)
    tokens = kv.tokens_in_flight
    per_sequence = tokens / decoding if tokens is not None and decoding else None
    if idle:
        mean = measured = interference = drift = cause = None
    else:
        mean = now.itl_mean_seconds
        judged = compare.verdict(
            compare.Evidence(
                state=state,
                itl_mean_seconds=_mean(now.predicted_sum_seconds, now.predicted_observations),
                predicted=now.predicted,
                compared_mean_seconds=_mean(now.compared_sum_seconds, now.compared_observations),
                compared=now.compared,
                preemptions=now.preemptions,
                target_step_seconds=target_step,
                target_itl_seconds=target_itl,
                usual_step_seconds=memory.usual_step.median,
                usual_tokens_per_sequence=memory.usual_tokens_per_sequence.median,
                load=load,
                law=law,
            )
        )
        measured, interference = judged.measured_step_seconds, judged.interference_ratio
        drift, cause = judged.drift_ratio, judged.cause
    usual_step, usual_tokens = memory.usual_step, memory.usual_tokens_per_sequence
    if running > 0.0 and predicted is not None and state not in ("stale", "asleep"):
        usual_step = usual_step.add(at, predicted.decode_seconds)
        if per_sequence is not None:
            usual_tokens = usual_tokens.add(at, per_sequence)

    accounts = memory.accounts
    if invalid:
        accounts = replace(accounts, invalid_values=added(accounts.invalid_values, invalid))
    if step.has_pair_time and pair is not None:
        accounts = booked(accounts, pair, state, cause, predicted, target_step)
    memory = replace(
        memory,
        accounts=accounts,
        usual_step=usual_step,
        usual_tokens_per_sequence=usual_tokens,
        positions_per_sequence=positions,
        tokens_per_step=tokens_per_step,
    )

    bucket = window.median_bucket(memory.pairs) if mean is not None else None
    speed_budget = None
    # Without a capacity a law in tokens counts in a unit of its own, which nobody can hold against requests.
    if law is not None and target_step is not None and not (facts.law_in_tokens and kv.capacity_tokens is None):
        budget_load = Load(max(1.0, sequences or running), 0.0, positions_per_sequence=positions)
        speed_budget = speed_budget_tokens(law, budget_load, target_step, kv.bytes_per_token)
    view = EngineView(
        model_name=sample.model_name,
        engine=sample.engine,
        at_seconds=at,
        state=state,
        accounts=accounts,
        cause=cause,
        kv_usage_ratio=sample.kv_usage,
        capacity_tokens=kv.capacity_tokens,
        capacity_source=kv.capacity_source,
        requests_decoding=decoding,
        requests_prefilling=prefilling,
        requests_waiting=sample.requests_waiting,
        tokens_in_flight=tokens,
        tokens_per_sequence=per_sequence,
        shared_prefix_tokens=(pair.shared_tokens or None) if pair is not None else None,
        decode_batch_size=sequences,
        prefill_tokens_per_step=now.prefill_tokens_per_step if mean is not None else None,
        tokens_per_step=tokens_per_step if mean is not None else None,
        itl_mean_seconds=mean,
        itl_median_seconds=bucket[2] if bucket else None,
        itl_median_lower_bound_seconds=bucket[0] if bucket else None,
        itl_median_upper_bound_seconds=bucket[1] if bucket else None,
        prediction_in_median_bucket=(
            bucket[0] <= predicted.itl_seconds <= bucket[1] if bucket and predicted and prefill_known else None
        ),
        ttft_mean_seconds=now.ttft_mean_seconds,
        measured_step_seconds=measured,
        predicted=predicted,
        prefill_known=prefill_known,
        drift_ratio=drift,
        prefill_interference_ratio=interference,
        target_step_seconds=target_step,
        target_itl_seconds=target_itl,
        target_ttft_seconds=policy.objective_ttft_seconds,
        speed_budget_tokens=speed_budget,
        memory_budget_tokens=kv.capacity_tokens,
        observations=now.observations,
    )
    return memory, view


def _mean(total: float, count: float) -> float | None:
    return total / count if count > 0.0 else None


def _kv_is_known(kv: KvState, facts: Facts) -> bool:
    """True if the bytes a step reads follow from the usage gauge, whatever it says right now."""
    if kv.kv_bytes is not None or kv.bytes_per_token is not None or facts.law_in_tokens:
        return True
    return kv.capacity_tokens is not None and facts.law is not None and facts.law.kv_bytes_per_token is not None


def _prefill_cost_is_missing(now: Window, facts: Facts) -> bool:
    return (
        facts.law is not None
        and facts.law.prefill_cost_seconds_per_token is None
        and now.prefill_seen_tokens_per_step > 0.0
    )


def _in_range(now: Window, load: Load | None, facts: Facts) -> bool:
    if facts.law is None or facts.law.valid_range is None or load is None:
        return True
    at = replace(load, prefill_tokens_per_step=now.prefill_seen_tokens_per_step)
    return facts.law.valid_range.covers(at, RANGE_SLACK)


def _phases(sample: EngineSample, pair: Pair | None, now: Window) -> tuple[float | None, float | None]:
    """(decoding, prefilling) requests at the sample; (None, None) where nothing tells them apart."""
    running = sample.requests_running
    if running is None or pair is None:
        return (0.0, 0.0) if running == 0.0 else (None, None)
    decoding = pair.sequences if pair.sequences is not None else now.sequences
    if decoding is None:
        if running == 0.0 or pair.open_prompt_tokens > 0.0:
            return 0.0, running
        return None, None
    # The mean of the pair and the gauge at its end differ a little while requests come and go.
    prefilling = float(round(running - decoding)) if running - decoding > 0.5 else 0.0
    return running - prefilling, prefilling
