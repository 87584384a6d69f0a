"""What the clients of a tape knew: which request had received how many tokens at any moment."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from tapes import Tape

# Client times are rounded to 0.1 ms, gaps to 0.01 ms.
_ROUNDING_SECONDS = 4e-4


@dataclass
class Stream:
    """One request: prompt length, token arrival times, and when its client was done with it (inf: cut off)."""

    started: float
    prompt_tokens: int
    arrivals: list[float] = field(default_factory=list)
    ended: float = float("inf")

    def decodes_at(self, at: float) -> bool:
        """Past its first token and not past its last."""
        return self.arrivals[0] <= at <= self.arrivals[-1]

    def tokens_at(self, at: float) -> int:
        """Context tokens: prompt and what was generated so far."""
        return self.prompt_tokens + bisect_right(self.arrivals, at)


def streams(tape: Tape) -> list[Stream]:
    """Rebuild every request from the gaps between its tokens.

    A gap [t, g] continues the request whose last token came at t - g. Requests of one name that decode in the same step
    cannot be told apart, and need not be: what is summed over them is the same. `end` events close a request.
    """
    waiting: dict[str, list[Stream]] = {}
    for event in tape.events:
        if event["ev"] == "start":
            waiting.setdefault(event["name"], []).append(Stream(event["t"], event["n_in"]))
    timeline: list[tuple[float, int, float, str]] = [(t, 1, gap, name) for t, gap, name in tape.gaps]
    timeline += [(e["t"], 2, float(e["n"]), e["name"]) for e in tape.events if e["ev"] == "end"]
    live: dict[str, list[Stream]] = {}
    found: list[Stream] = []
    for at, kind, value, name in sorted(timeline):
        running = live.setdefault(name, [])
        if kind == 2:
            if running:
                done = min(running, key=lambda s: (abs(len(s.arrivals) - value), -s.arrivals[-1]))
                done.ended = at
                running.remove(done)
            continue
        previous = at - value
        candidates = [s for s in running if abs(s.arrivals[-1] - previous) < _ROUNDING_SECONDS]
        if candidates:
            stream = min(candidates, key=lambda s: abs(s.arrivals[-1] - previous))
        else:
            begun = [s for s in waiting.get(name, ()) if s.started <= previous + _ROUNDING_SECONDS]
            if not begun:  # a chunk that a client read late: it continues the nearest
                min(running, key=lambda s: abs(s.arrivals[-1] - previous)).arrivals.append(at)
                continue
            stream = begun[0]
            waiting[name].remove(stream)
            stream.arrivals.append(previous)
            running.append(stream)
            found.append(stream)
        stream.arrivals.append(at)
    return found


def in_prefill(tape: Tape, known: list[Stream], at: float) -> bool:
    """True if some request has been sent and has no first token yet."""
    begun = sum(1 for e in tape.events if e["ev"] == "start" and e["t"] <= at)
    return begun > sum(1 for s in known if s.arrivals[0] <= at)


def steps_between(known: list[Stream], start: float, end: float) -> int:
    """Decode steps as the clients saw them: the tokens of one request at a time, handed on when it ends."""
    at, steps = start, 0
    while at < end:
        active = [s for s in known if s.arrivals[0] <= at + 1e-4 and s.arrivals[-1] > at + 1e-4]
        if not active:
            later = [s.arrivals[0] for s in known if at < s.arrivals[0] < end]
            if not later:
                break
            at = min(later)
            continue
        longest = max(active, key=lambda s: s.arrivals[-1])
        steps += sum(1 for t in longest.arrivals if at + 1e-4 < t <= end)
        at = min(longest.arrivals[-1], end)
    return steps
