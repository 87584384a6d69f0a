"""Which loads a calibration puts on an engine, how long they take, and how they shrink to the time there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

STREAMS = 32  # batch of the wide probes where neither memory nor time is short: what a busy chat server runs
SHORT_TOKENS = 256  # a chat's first turn; its KV is nothing beside the weights of any model
LONG_TOKENS = 16_384  # one stream's longest context: beyond, a prompt's quadratic attention takes most of the time
UNKNOWN_LENGTH_TOKENS = 4096  # longest context tried where the engine does not say its own
POOL_SHARE = 0.8  # of the KV capacity that a probe may fill: past about 0.9 engines begin to preempt
GROWTH_TOKENS = 1024  # room left below the longest context for what a probe generates
MIXED_OUTPUTS = (64, 16)  # short answers, so that prompts make up a part of each step: about a tenth, and a third

MIN_STEPS = 48  # the mean of so many steps scatters by a seventh of one step's own scatter
MIXED_WAVES = 2.0  # times each stream is replaced while a mixed probe is measured
START_SECONDS = 1.0  # connecting, first readings, hanging up
SLACK = 1.25  # estimates are from the first steps; attention and batch cost more than bytes alone


@dataclass(frozen=True, slots=True)
class Probe:
    """One load. decode: so many streams that decode side by side; mixed: each is replaced after its output."""

    kind: Literal["decode", "mixed"]
    streams: int
    prompt_tokens: int
    output_tokens: int = 0  # of a mixed probe

    def __str__(self) -> str:
        """As progress and reports show it."""
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        out = f" in, {self.output_tokens} out" if self.kind == "mixed" else ""
        return f"{streams} x {self.prompt_tokens:,} tokens{out}"


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine can hold: longest context and KV capacity, in tokens. None: it does not say."""

    max_model_len: int | None = None
    capacity_tokens: float | None = None

    @property
    def longest(self) -> int:
        """Longest prompt that leaves room for what is generated."""
        length = self.max_model_len or UNKNOWN_LENGTH_TOKENS
        longest = length - min(GROWTH_TOKENS, length // 4)
        fits = self.fits(1)
        return max(1, longest if math.isinf(fits) else min(longest, int(fits)))

    def fits(self, streams: int) -> float:
        """Context tokens for each of so many streams."""
        if self.capacity_tokens is None:
            return math.inf
        return POOL_SHARE * self.capacity_tokens / streams


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the engine is, as far as is known: one stream's step, the bytes read in it, and its prompts.

    A prompt of p tokens takes p x (prefill_seconds_per_token + p x prefill_growth): attention grows with the context.
    """

    step_seconds: float
    step_bytes: float
    kv_bytes_per_token: float
    prefill_seconds_per_token: float
    prefill_growth: float = 0.0  # seconds per token and token of the prompt

    def prompt_seconds(self, probe: Probe) -> float:
        """Of all prompts of a probe, one after another."""
        each = self.prefill_seconds_per_token + probe.prompt_tokens * self.prefill_growth
        return probe.streams * probe.prompt_tokens * each

    def seconds(self, probe: Probe, measure_seconds: float) -> float:
        """About how long a probe takes, prompts included."""
        prompts = self.prompt_seconds(probe)
        read = self.step_bytes + probe.streams * probe.prompt_tokens * self.kv_bytes_per_token
        step = self.step_seconds * read / self.step_bytes
        measured = max(measure_seconds, MIN_STEPS * step)
        if probe.kind == "mixed":
            measured = max(measured, MIXED_WAVES * (prompts + probe.output_tokens * step))
        return START_SECONDS + SLACK * (prompts + measured)

    def slower(self, factor: float) -> Pace:
        """The same with prompts that take so many times as long."""
        return replace(
            self,
            prefill_seconds_per_token=factor * self.prefill_seconds_per_token,
            prefill_growth=factor * self.prefill_growth,
        )


def prefill_pace(short: tuple[float, float], longer: tuple[float, float]) -> tuple[float, float]:
    """(seconds per token, growth) from (prompt tokens, seconds to the first token) of two prompts."""
    (few, few_seconds), (many, many_seconds) = short, longer
    if many <= few:
        return few_seconds / few, 0.0
    growth = max(0.0, (many_seconds / many - few_seconds / few) / (many - few))
    return many_seconds / many - growth * many, growth


def plan(room: Room, *, streams: int | None = None, short: int | None = None, long: int | None = None) -> list[Probe]:
    """The probes, the most telling first: 1 and N streams, short and long contexts, then prompts mixed in.

    streams, short, long: as the operator wants them, else as the engine's room allows.
    """
    short = min(short or SHORT_TOKENS, room.longest)
    most = room.fits(1) / (2.0 * short)
    wide = streams or int(max(2.0, min(STREAMS, most)))
    lone = min(long or LONG_TOKENS, room.longest)
    beside = max(short, int(min(lone, room.fits(wide))))
    some = max(2, wide // 4)
    middle = max(short, int(math.sqrt(short * min(lone, room.fits(some)))))
    probes = [
        Probe("decode", 1, short),
        Probe("decode", wide, short),
        Probe("decode", wide, beside),
        Probe("mixed", max(2, wide // 2), 2 * short, MIXED_OUTPUTS[0]),
        Probe("decode", 1, lone),
        Probe("decode", some, middle),
        Probe("mixed", some, 2 * short, MIXED_OUTPUTS[1]),
        Probe("mixed", some, min(8 * short, room.longest), MIXED_OUTPUTS[0]),
    ]
    return list(dict.fromkeys(probe for probe in probes if probe.prompt_tokens <= room.longest))


def shrink(probes: Sequence[Probe], pace: Pace, measure_seconds: float, seconds: float) -> tuple[list[Probe], bool]:
    """(probes that fit into the time, whether anything was left out or made smaller).

    The slowest is halved again and again: its context down to twice a short one, then its streams down to two; what is
    still too much at the end of the list is left out.
    """
    fitting, changed = list(probes), False
    least = 2 * min((probe.prompt_tokens for probe in probes), default=1)
    while fitting and sum(pace.seconds(probe, measure_seconds) for probe in fitting) > seconds:
        changed = True
        order = sorted(range(len(fitting)), key=lambda at: pace.seconds(fitting[at], measure_seconds), reverse=True)
        for at in order:
            smaller = _smaller(fitting[at], least)
            if smaller is not None:
                fitting[at] = smaller
                break
        else:
            fitting.pop()
    return list(dict.fromkeys(fitting)), changed


def after_refusal(todo: Sequence[Probe], refused: Probe, streams: int = 0) -> list[Probe]:
    """What is left to do once the engine could not take a probe. streams: how many of its requests did run.

    Of one stream the context was too long: nothing as long is tried. Of several they were too many: that one is tried
    again with those that ran, or half of them, and nothing wider follows.
    """
    if refused.streams == 1:
        return [probe for probe in todo if probe.prompt_tokens < refused.prompt_tokens]
    most = min(streams or refused.streams // 2, refused.streams - 1)
    narrower = [replace(probe, streams=min(probe.streams, most)) for probe in (refused, *todo)]
    return list(dict.fromkeys(narrower))


def _smaller(probe: Probe, least: int) -> Probe | None:
    if probe.kind == "decode" and probe.prompt_tokens > least:
        return replace(probe, prompt_tokens=max(least, probe.prompt_tokens // 2))
    if probe.streams > 2:
        return replace(probe, streams=max(2, probe.streams // 2))
    return None
