"""Sizing: the most requests that one replica serves under each constraint, how many replicas, and what tokens cost.

Constraints: memory (weights + overhead + KV <= VRAM x utilisation), bandwidth and compute (a decode step within
headroom / objective), the latency objectives (TPOT: mean inter-token latency within 1 / objective with the prefill of
others in it; TTFT: a prompt's chunks, each sharing its step with a decode step), and prompts (beyond it they queue).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stepscope.core.budget import speed_budget_tokens
from stepscope.core.plan import itl_seconds, step, step_alone, ttft_seconds
from stepscope.core.plan_demand import Demand, Replica
from stepscope.core.step_model import Load, StepLaw, sequences_seconds

MOST_REQUESTS = 1 << 20  # ends the search; far above any engine's --max-num-seqs
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Limit:
    """Most requests (of the mix's mean context) and tokens under one constraint; low and high by the law's spread."""

    name: str
    requests: int
    low_requests: int
    high_requests: int
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Sizing:
    """One tensor-parallel size: what a replica of it carries, and how many are needed for the peak with its reserve.

    replicas: None where no number of replicas helps. low and high: with as many requests as each can carry at most and
    at least; None: at that end none helps. doubt: why this size may not work at all.
    """

    replica: Replica
    limits: tuple[Limit, ...]
    single_stream_seconds: float | None
    replicas: int | None
    why_not: str = ""
    low_replicas: int | None = None
    high_replicas: int | None = None
    doubt: str = ""

    @property
    def binding(self) -> Limit | None:
        """The constraint that allows fewest; None without any."""
        return min(self.limits, key=lambda limit: limit.requests, default=None)

    @property
    def least_requests(self) -> int | None:
        """Requests of a replica at the slow end of what is known."""
        return min((limit.low_requests for limit in self.limits), default=None)

    @property
    def most_requests(self) -> int | None:
        """Requests of a replica at the fast end."""
        return min((limit.high_requests for limit in self.limits), default=None)

    @property
    def gpus(self) -> int | None:
        """GPUs of all replicas."""
        return None if self.replicas is None else self.replicas * self.replica.gpu_count

    @property
    def low_gpus(self) -> int | None:
        """GPUs if each carries as many as it may."""
        return None if self.low_replicas is None else self.low_replicas * self.replica.gpu_count

    @property
    def high_gpus(self) -> int | None:
        """GPUs if each carries as few."""
        return None if self.high_replicas is None else self.high_replicas * self.replica.gpu_count


def largest(fits: Callable[[int], bool]) -> int:
    """The largest number of requests that fits, 0 if not even one does; `fits` must not become true again."""
    if not fits(1):
        return 0
    low = 1
    while low < MOST_REQUESTS and fits(2 * low):
        low *= 2
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def limits(replica: Replica, demand: Demand) -> tuple[Limit, ...]:
    """Every constraint that can be judged."""
    found: list[Limit] = []
    room = replica.kv_room_bytes
    if room is not None:
        low, high = replica.kv_room_low_bytes, replica.kv_room_high_bytes
        fit, least, most = (_fit(replica, demand, room if one is None else one) for one in (room, low, high))
        found.append(Limit("memory", fit, least, most, max(0.0, room / replica.kv_bytes_per_token)))
    if demand.objective_tokens_per_second is not None:
        promised = 1.0 / demand.objective_tokens_per_second
        target = demand.headroom * promised
        # The roof lifted: what bandwidth alone would allow. Only compute: what arithmetic alone would.
        lifted = replace(replica.law, compute_flops_per_second=None)
        airy = replace(replica, law=lifted, compute_flops_per_second=None)
        bandwidth = _limit("bandwidth", target, lambda n: _decode(airy, demand, n), replica.law)
        # Tokens among as many as the limit allows, or as the mix has: each sequence costs time of its own.
        most = bandwidth.requests if bandwidth.requests < MOST_REQUESTS else 1
        load = Load(max(demand.requests, 1.0, most), 0.0)
        budget = speed_budget_tokens(replica.law_for(load.sequences), load, target)
        found.append(replace(bandwidth, tokens=budget))
        if replica.compute_seconds(1):
            found.append(_limit("compute", target, lambda n: _compute(replica, n), replica.law))
        if demand.prefill_per_step(2) and itl_seconds(replica, demand, 2) is not None:
            found.append(_limit("tpot", promised, lambda n: itl_seconds(replica, demand, n), replica.law))
    if demand.ttft_seconds is not None and ttft_seconds(replica, demand, 1) is not None:
        promised = demand.ttft_seconds
        found.append(_limit("ttft", promised, lambda n: ttft_seconds(replica, demand, n), replica.law))
    if demand.prefill_tokens_per_step is None and demand.most_decoding < MOST_REQUESTS:
        found.append(Limit("prompts", *([1 + int(demand.most_decoding)] * 3)))
    if demand.max_num_seqs is not None:
        found.append(Limit("max_num_seqs", *([demand.max_num_seqs] * 3)))
    return tuple(found)


def size(replica: Replica, demand: Demand) -> Sizing:
    """Limits of one replica and the number of replicas that carry the mix with its reserve, spread evenly."""
    found = limits(replica, demand)
    alone = step(replica, demand, 1)
    sizing = Sizing(replica, found, None if alone is None else alone.decode_seconds, None)
    binding = sizing.binding
    why_not = _no_room(replica, demand) or _too_slow(replica, demand)
    if not why_not and binding is None:
        why_not = "no constraint is known: give an objective or the GPU's memory"
    if why_not or binding is None:
        return replace(sizing, why_not=why_not)
    if binding.requests < 1:
        return replace(sizing, why_not=f"not even one request meets the {binding.name} limit: replicas do not help")
    return replace(
        sizing,
        replicas=_replicas(demand, binding.requests),
        low_replicas=_replicas(demand, sizing.most_requests),
        high_replicas=_replicas(demand, sizing.least_requests),
        doubt=_doubt(replica, demand),
    )


def _replicas(demand: Demand, requests: int | None) -> int | None:
    return math.ceil(demand.requests * (1.0 + demand.reserve) / requests - 1e-9) if requests else None


def _no_room(replica: Replica, demand: Demand) -> str:
    """Why the memory cannot hold the longest context of the mix; empty where it can."""
    room, memory = replica.kv_room_bytes, replica.memory_bytes
    if room is None:
        return ""
    if room <= 0.0:
        if memory is not None and replica.resident_weight_bytes < memory * replica.gpu_count:
            return (
                f"the weights fit into the GPU memory, but not with {replica.overhead_bytes:.3g} bytes of overhead per "
                f"GPU in {replica.utilization:g} of it"
            )
        return "the weights do not fit into the GPU memory"
    if demand.longest_tokens * replica.kv_bytes_per_token > room:
        return f"one context of {demand.longest_tokens:.0f} tokens does not fit into the memory left for KV"
    return ""


def _too_slow(replica: Replica, demand: Demand) -> str:
    """Why the longest context of the mix cannot meet the promise even alone; empty where it can, or all are alike."""
    promised, longest = demand.objective_tokens_per_second, demand.longest_tokens
    if promised is None or longest <= demand.mean_tokens:
        return ""
    alone = step_alone(replica, longest)
    if alone is None or alone.decode_seconds <= demand.headroom / promised:
        return ""
    return (
        f"one context of {longest:.0f} tokens alone decodes at {1.0 / alone.decode_seconds:.1f} tokens/s, "
        f"{promised / demand.headroom:.1f} are needed (objective over headroom): replicas do not help"
    )


def _doubt(replica: Replica, demand: Demand) -> str:
    room, high = replica.kv_room_low_bytes, replica.overhead_high_bytes
    if room is None or high is None or demand.longest_tokens * replica.kv_bytes_per_token <= room:
        return ""
    return f"no room for one longest context if the engine takes {high:.3g} bytes per GPU beside weights and KV"


def cost_per_million_tokens(price_per_gpu_hour: float, gpus: float, tokens_per_second: float) -> float:
    """Price of a million generated tokens at a rate."""
    return price_per_gpu_hour * gpus / (SECONDS_PER_HOUR * tokens_per_second) * 1e6


def peak_concurrency(
    daily_users: float, requests_per_user: float, peak_share: float, peak_seconds: float, request_seconds: float
) -> float:
    """Requests at once in the peak, by Little's law: arrivals per second x seconds per request."""
    return daily_users * requests_per_user * peak_share / peak_seconds * request_seconds


def _decode(replica: Replica, demand: Demand, requests: int) -> float | None:
    time = step(replica, demand, requests)
    return None if time is None else time.decode_seconds


def _fit(replica: Replica, demand: Demand, room_bytes: float) -> int:
    tokens = max(0.0, room_bytes / replica.kv_bytes_per_token)
    return int(tokens / demand.mean_tokens) if demand.mean_tokens else MOST_REQUESTS


def _compute(replica: Replica, requests: int) -> float:
    """A step whose reads cost nothing; under a law without a roof the arithmetic alone, at its peak."""
    law, arithmetic = replica.law_for(requests), replica.compute_seconds(requests)
    if law.compute_flops_per_second is None:
        return arithmetic
    return law.step_overhead_seconds + arithmetic + sequences_seconds(law, Load(requests, 0.0))


def _limit(
    name: str,
    target_seconds: float,
    seconds: Callable[[int], float | None],
    law: StepLaw,
) -> Limit:
    def most(factor: float) -> int:
        return largest(lambda n: (time := seconds(n)) is not None and time * factor <= target_seconds)

    # A step that is slower than the best guess (high factor) leaves room for fewer requests: the low end.
    return Limit(name, most(1.0), most(law.high_factor), most(law.low_factor))
