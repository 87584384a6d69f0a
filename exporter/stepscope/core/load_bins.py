"""Gathers what an engine does under which load: pairs into episodes, episodes into bins of bounded number.

An episode ends when no prompt is open. Prompt tokens are booked late; over an episode what was booked is what was
computed. Bins of batch x tokens x prefill keep a rare load from being forgotten and a long plateau from outweighing it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stepscope.core import window
from stepscope.core.estimate import KvState
from stepscope.core.memory import Memory
from stepscope.core.window import Pair

BINS_PER_DOUBLING = 2  # of batch and of tokens; with 1, 2 or 4 the recorded tapes are learned equally well
PREFILL_BINS_PER_DOUBLING = 0.5  # prompt tokens are placed less exactly: powers of four
MAX_BINS = 96  # 15 minutes of load that changes every 90 s fill about 45
FORGET_EPISODES = 16  # from so many on a bin's past counts half, so that a fault met while learning fades
EPISODE_SECONDS = 30.0  # at most: under steady traffic some prompt is always open
EPISODE_OBSERVATIONS = 50  # at least: 0.1 / sqrt(50) = 1.4 % where a step jitters by 10 %
PAIR_OBSERVATIONS = 10  # at least, as for a verdict
SHARED_LIMIT = 0.15  # of the tokens in flight, read more than once: beyond it the drift limit's worth of KV is unknown
TORN = 1.1  # sequences per step above running by more than this factor and one request are not of one moment

Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Bin:
    """Sums over episodes of like load. `weighted_*`: times observations, as a request sees them."""

    episodes: float
    observations: float
    itl_sum_seconds: float
    weighted_sequences: float
    weighted_tokens: float
    prefill_tokens: float  # as decoding requests saw them
    steps: float

    @property
    def sequences(self) -> float:
        """Mean sequences per step."""
        return self.weighted_sequences / self.observations

    @property
    def tokens_in_flight(self) -> float:
        """Mean tokens in flight."""
        return self.weighted_tokens / self.observations

    @property
    def prefill_tokens_per_step(self) -> float:
        """Mean computed prompt tokens per step."""
        return self.prefill_tokens / self.steps

    @property
    def itl_seconds(self) -> float:
        """Mean inter-token latency."""
        return self.itl_sum_seconds / self.observations

    @property
    def key(self) -> Key:
        """Which bin so much load belongs to."""
        prefill = self.prefill_tokens_per_step
        return (
            round(BINS_PER_DOUBLING * math.log2(max(self.sequences, 1.0))),
            round(BINS_PER_DOUBLING * math.log2(max(self.tokens_in_flight, 1.0))),
            0 if prefill < 1.0 else 1 + int(PREFILL_BINS_PER_DOUBLING * math.log2(prefill)),
        )


@dataclass(frozen=True, slots=True)
class Episode:
    """Pairs in a row, summed. The load's `episodes` is 1."""

    start_seconds: float
    end_seconds: float
    load: Bin

    @property
    def seconds(self) -> float:
        """Length."""
        return self.end_seconds - self.start_seconds


def extended(episode: Episode | None, pair: Pair, kv: KvState) -> Episode | None:
    """The episode with one more pair, or a new one; None where the pair's load is not known."""
    if kv.load_tokens is None or pair.sequences is None or not pair.steps:
        return None
    n = pair.observations
    seen = pair.prefill_seen * pair.prefill_tokens
    load = Bin(1.0, n, pair.itl_sum_seconds, n * pair.sequences, n * kv.load_tokens, seen, pair.steps)
    if episode is None or episode.end_seconds != pair.start_seconds:
        return Episode(pair.start_seconds, pair.end_seconds, load)
    return Episode(episode.start_seconds, pair.end_seconds, replace(_sum(episode.load, load, 1.0), episodes=1.0))


def is_over(episode: Episode, pair: Pair) -> bool:
    """True if the episode ends with this pair: it holds enough, and what it computed is booked, or it gets too long."""
    enough = episode.load.observations >= EPISODE_OBSERVATIONS
    return enough and (pair.open_prompt_tokens == 0.0 or episode.seconds >= EPISODE_SECONDS)


def binned(bins: Mapping[Key, Bin], load: Bin) -> dict[Key, Bin]:
    """The bins with one more load. Where there is no room for a new bin, the one of fewest episodes goes."""
    key, updated = load.key, dict(bins)
    known = updated.get(key)
    if known is None and len(updated) >= MAX_BINS:
        del updated[min(updated, key=lambda old: updated[old].episodes)]
    if known is not None:
        load = _sum(known, load, 0.5 if known.episodes >= FORGET_EPISODES else 1.0)
    updated[key] = load
    return updated


def may_enter(pair: Pair, memory: Memory, warm_up_seconds: float) -> bool:
    """True if a pair tells about decoding: engine warm, awake and busy, nothing preempted, torn, stale, shared."""
    first, last = pair.first, pair.last
    return (
        pair.start_seconds - memory.life_start_seconds >= warm_up_seconds
        and pair.observations >= PAIR_OBSERVATIONS
        and pair.prefill_accounted
        and first.awake is not False
        and last.awake is not False
        and bool(first.requests_running)
        and bool(last.requests_running)
        and window.increase(first.preemptions, last.preemptions) == 0.0
        and not _is_torn(pair)
        and pair.gauges_moved
        and not pair.holds_waits
        and not shares_prefixes(memory)
    )


def shares_prefixes(memory: Memory) -> bool:
    """True if requests read so many tokens of each other that the usage gauge does not tell what a step reads."""
    return memory.sharing.tokens > SHARED_LIMIT * (memory.tokens_in_flight or math.inf)


def _is_torn(pair: Pair) -> bool:
    running = max(pair.first.requests_running or 0.0, pair.last.requests_running or 0.0)
    return pair.sequences is None or pair.sequences > TORN * running + 1.0


def _sum(past: Bin, more: Bin, keep: float) -> Bin:
    return Bin(
        keep * past.episodes + more.episodes,
        keep * past.observations + more.observations,
        keep * past.itl_sum_seconds + more.itl_sum_seconds,
        keep * past.weighted_sequences + more.weighted_sequences,
        keep * past.weighted_tokens + more.weighted_tokens,
        keep * past.prefill_tokens + more.prefill_tokens,
        keep * past.steps + more.steps,
    )
