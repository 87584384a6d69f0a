"""A finished plan as a JSON document, and that document as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepscope.core.plan import Row, Span, prefill_seconds, row
from stepscope.core.plan_demand import Demand
from stepscope.core.sizing import MOST_REQUESTS, Limit, Sizing, cost_per_million_tokens, peak_concurrency

# core/defaults.py: `reduce_work` times the best time of a ring, per sequence; benchmarks/pool.py fits it.
POOLED_REDUCES = (
    "part of the pooled law: what a ring moves over the link, times a factor fitted on public figures of vLLM at 1 to "
    "8 GPUs; what does not grow with the batch is in the overhead per layer"
)


@dataclass(frozen=True, slots=True)
class Money:
    """Price of one GPU for an hour, and rates (tokens/s) that somebody wants priced."""

    price_per_gpu_hour: float
    currency: str = ""
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Users:
    """How a day's users make a peak: requests each, the share of them in the peak, lengths of the peak in seconds."""

    daily: tuple[float, ...]
    requests_each: float
    peak_share: float
    peak_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found. `sizing`: of the replica that was asked about; `sizes`: at other tensor-parallel sizes too."""

    demand: Demand
    rows: tuple[Row, ...]
    sizing: Sizing
    sizes: tuple[Sizing, ...]
    money: Money | None = None
    users: Users | None = None


def document(plan: Plan) -> dict[str, Any]:
    """The plan as plain values; names carry units, None where something cannot be known."""
    demand, replica, binding = plan.demand, plan.sizing.replica, plan.sizing.binding
    best = recommended(plan)
    prefill, law = prefill_seconds(replica, demand), replica.law
    return {
        "law": {
            "source": replica.law.source,
            "effective_bandwidth_bytes_per_second": replica.law.effective_bandwidth_bytes_per_second,
            "step_overhead_seconds": replica.law.step_overhead_seconds,
            "sequence_cost_seconds": replica.law.sequence_cost_seconds,
            "prefill_cost_seconds_per_token": replica.law.prefill_cost_seconds_per_token,
            "low_factor": replica.law.low_factor,
            "high_factor": replica.law.high_factor,
        },
        "demand": {
            "requests": demand.requests,
            "context_tokens": demand.mean_tokens,
            "prompt_tokens": demand.prompt_tokens,
            "mean_prompt_tokens": demand.mean_prompt_tokens,
            "chunk_tokens": demand.chunk_tokens,
            "output_tokens": demand.output_tokens,
            "objective_tokens_per_second": demand.objective_tokens_per_second,
            "headroom": demand.headroom,
            "ttft_objective_seconds": demand.ttft_seconds,
            "reserve": demand.reserve,
        },
        "limits": {limit.name: _limit(limit, replica.kv_room_bytes) for limit in plan.sizing.limits},
        "binding": None if binding is None else binding.name,
        "requests": None if binding is None else _requests(binding.requests),
        "requests_low": _requests(plan.sizing.least_requests),
        "requests_high": _requests(plan.sizing.most_requests),
        "overhead_bytes": replica.overhead_bytes,
        "overhead_low_bytes": replica.overhead_low_bytes,
        "overhead_high_bytes": replica.overhead_high_bytes,
        "concurrency": [_row(found, plan) for found in plan.rows],
        "prefill_seconds": prefill,
        "prefill_low_seconds": None if prefill is None else prefill * law.low_factor,
        "prefill_high_seconds": None if prefill is None else prefill * law.high_factor,
        "prefill_seconds_linear": prefill_seconds(replica, demand, linear=True),
        "sizes": [_size(size, plan) for size in plan.sizes],
        "gpus": None if best is None else best.gpus,
        "gpus_low": None if best is None else best.low_gpus,
        "gpus_high": None if best is None else best.high_gpus,
        "gpus_doubt": "" if best is None else best.doubt,
        "tensor_parallel": None if best is None else best.replica.gpu_count,
        "cost_per_million_tokens": _costs(plan),
        "currency": plan.money.currency if plan.money else "",
        "peaks": list(_peaks(plan)),
    }


def recommended(plan: Plan) -> Sizing | None:
    """The size that needs the fewest GPUs; one that may not work at all only where no other does."""
    possible = [size for size in plan.sizes if size.gpus is not None]
    return min(possible, key=lambda size: (bool(size.doubt), size.gpus or 0), default=None)


def _requests(count: int | None) -> int | None:
    return None if count is None or count >= MOST_REQUESTS else count


def _limit(limit: Limit, room: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "requests": _requests(limit.requests),
        "low_requests": _requests(limit.low_requests),
        "high_requests": _requests(limit.high_requests),
    }
    if limit.tokens is not None:
        found["tokens"] = limit.tokens
    if limit.name == "memory":
        found["bytes"] = room
    return found


def _row(found: Row, plan: Plan) -> dict[str, Any]:
    objective, itl, rate = plan.demand.objective_tokens_per_second, found.itl, found.tokens_per_second
    speed = Span(1.0 / itl.best, 1.0 / itl.high, 1.0 / itl.low) if itl is not None and itl.best else None
    count = plan.sizing.replica.gpu_count
    return {
        "requests": found.requests,
        "tokens_in_flight": found.tokens_in_flight,
        "step_seconds": found.step_seconds,
        "step_low_seconds": found.step_low_seconds,
        "step_high_seconds": found.step_high_seconds,
        "memory_seconds": found.memory_seconds,
        "compute_seconds": found.compute_seconds,
        "communication_seconds": found.communication_seconds,
        "bound_by": found.bound_by,
        "prefill_tokens_per_step": found.prefill_tokens_per_step,
        "prompts_queue": found.prompts_queue,
        "decoding_requests": found.decoding_requests,
        **_span("itl", "_seconds", itl),
        **_span("tokens_per_second_per_user", "", speed),
        **_span("tokens_per_second", "", rate),
        **_span("ttft", "_seconds", found.ttft),
        "fits_memory": found.fits_memory,
        "meets_objective": None if objective is None or speed is None else speed.best >= objective,
        "cost_per_million_tokens": _price(plan, _of(rate, "best"), count),
        "cost_low_per_million_tokens": _price(plan, _of(rate, "high"), count),
        "cost_high_per_million_tokens": _price(plan, _of(rate, "low"), count),
    }


def _span(name: str, unit: str, span: Span | None) -> dict[str, float | None]:
    """Three entries: best, low, high."""
    parts = (None, None, None) if span is None else (span.best, span.low, span.high)
    return dict(zip((f"{name}{unit}", f"{name}_low{unit}", f"{name}_high{unit}"), parts, strict=True))


def _of(span: Span | None, end: str) -> float | None:
    return None if span is None else float(getattr(span, end))


def _price(plan: Plan, rate: float | None, gpus: int) -> float | None:
    return cost_per_million_tokens(plan.money.price_per_gpu_hour, gpus, rate) if plan.money and rate else None


def _rate(size: Sizing, demand: Demand, requests: int | None) -> Span | None:
    """Generated tokens/s of a replica that serves so many."""
    found = row(size.replica, demand, requests) if requests and requests < MOST_REQUESTS else None
    return None if found is None else found.tokens_per_second


def _rates(size: Sizing, demand: Demand) -> Span | None:
    """Generated tokens/s of a replica at its limit; low: as few requests as it may carry, each as slow as it may be."""
    binding = size.binding
    best = _rate(size, demand, None if binding is None or size.replicas is None else binding.requests)
    low, high = _rate(size, demand, size.least_requests), _rate(size, demand, size.most_requests)
    return None if best is None else Span(best.best, low.low if low else 0.0, high.high if high else best.high)


def _full_load(size: Sizing) -> int | None:
    """Requests that fit, whatever their speed."""
    hard = [limit.requests for limit in size.limits if limit.name in ("memory", "max_num_seqs")]
    return min(hard, default=None)


def _size(size: Sizing, plan: Plan) -> dict[str, Any]:
    binding, demand, replica = size.binding, plan.demand, size.replica
    requests = None if binding is None else binding.requests
    rate = _rates(size, demand)
    return {
        "tensor_parallel": replica.gpu_count,
        "requests_per_replica": None if requests is None else _requests(requests),
        "binding": None if binding is None else binding.name,
        "single_stream_tokens_per_second": 1.0 / size.single_stream_seconds if size.single_stream_seconds else None,
        "communication_seconds": replica.communication_seconds(1),
        "communication_at_limit_seconds": replica.communication_seconds(requests or 1),
        "communication_source": _link(size),
        "replicas": size.replicas,
        "gpus": size.gpus,
        "gpus_low": size.low_gpus,
        "gpus_high": size.high_gpus,
        "tokens_per_second_per_gpu": None if rate is None else rate.best / replica.gpu_count,
        "cost_per_million_tokens": _price(plan, _of(rate, "best"), replica.gpu_count),
        "cost_low_per_million_tokens": _price(plan, _of(rate, "high"), replica.gpu_count),
        "cost_high_per_million_tokens": _price(plan, _of(rate, "low"), replica.gpu_count),
        "why_not": size.why_not,
        "doubt": size.doubt,
    }


def _link(size: Sizing) -> str | None:
    if size.replica.gpu_count < 2:
        return None
    collective = size.replica.collective
    if size.replica.reduce_seconds_per_sequence:
        return POOLED_REDUCES
    if collective is None:
        return "not counted apart: in the law's overhead, or not measured for this GPU"
    return f"{collective.all_reduce.name}, {collective.all_reduce.source}"


def _costs(plan: Plan) -> dict[str, Any] | None:
    if plan.money is None:
        return None
    size, gpus = plan.sizing, plan.sizing.replica.gpu_count
    promised = plan.demand.objective_tokens_per_second is not None
    at_limit = _rates(size, plan.demand) if promised else None
    full = _rate(size, plan.demand, _full_load(size))
    return {
        **_prices(plan, "at_objective", at_limit, gpus),
        **_prices(plan, "at_full_load", full, gpus),
        "at_tokens_per_second": {f"{rate:g}": _price(plan, rate, gpus) for rate in plan.money.rates},
    }


def _prices(plan: Plan, name: str, rate: Span | None, gpus: int) -> dict[str, float | None]:
    """Price with its low (the fast end of the rate) and high."""
    return {
        name: _price(plan, _of(rate, "best"), gpus),
        f"{name}_low": _price(plan, _of(rate, "high"), gpus),
        f"{name}_high": _price(plan, _of(rate, "low"), gpus),
    }


def _peaks(plan: Plan) -> Iterator[dict[str, Any]]:
    """A row per number of daily users and length of the peak."""
    users, demand, binding = plan.users, plan.demand, plan.sizing.binding
    if users is None or demand.output_tokens is None or binding is None or plan.sizing.replicas is None:
        return
    rate = _rate(plan.sizing, demand, binding.requests)
    if rate is None:
        return
    request_seconds = binding.requests * demand.output_tokens / rate.best  # Little's law
    for daily in users.daily:
        for seconds in users.peak_seconds:
            peak = peak_concurrency(daily, users.requests_each, users.peak_share, seconds, request_seconds)
            replicas = max(1, -int(-peak * (1.0 + demand.reserve) // binding.requests))
            yield {
                "daily_users": daily,
                "peak_seconds": seconds,
                "request_seconds": request_seconds,
                "peak_requests": peak,
                "replicas": replicas,
                "gpus": replicas * plan.sizing.replica.gpu_count,
            }
