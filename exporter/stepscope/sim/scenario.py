"""Load as data: phases of user groups, and the generator that plays them inside the simulator, without HTTP."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stepscope.sim.cohort import Request


@dataclass(frozen=True, slots=True)
class Group:
    """Users alike, each in a closed loop: ask, read the answer to its end, think, ask again."""

    name: str  # a group of the same value in consecutive phases goes on without a break
    count: int
    prompt_tokens: int
    output_tokens: int
    think_seconds: float = 0.0
    stagger_seconds: float = 0.0  # user i starts i times this later
    delay_seconds: float = 0.0
    aged: bool = False  # start in the steady state: user i is (i + 1/2) / count through its answer
    shared_prefix_tokens: int = 0  # first tokens of the prompt that are the same for the whole group
    once: bool = False  # one request per user
    spread: float = 0.0  # prompt and output lengths vary uniformly by this share either way


@dataclass(frozen=True, slots=True)
class Phase:
    """`seconds` of load; users of groups that the next phase lacks leave at its end, their requests cancelled."""

    name: str
    seconds: float
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Phases one after the other; the last one goes on until the simulator stops."""

    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """Length of all phases."""
        return sum(phase.seconds for phase in self.phases)


# A chat holds 1,000 to 3,000 tokens, 2,000 on average, of which few are prefill: later turns hit the prefix cache.
CHATS = Group("chat", count=40, prompt_tokens=1000, output_tokens=2000, aged=True)
AGENTS = Group("agent", count=2, prompt_tokens=100_000, output_tokens=8_000)
# 48,000 prompt tokens about every 3 seconds: close to half of the engine's time is prefill.
BURSTS = Group("burst", count=6, prompt_tokens=8_000, output_tokens=8, think_seconds=1.5)

SCENARIOS = {
    "demo": Scenario(
        (
            Phase("40 chats", 45.0, (CHATS,)),
            Phase("two 100,000-token agents join", 40.0, (CHATS, AGENTS)),
            Phase("agents leave, prompt bursts", 35.0, (CHATS, BURSTS)),
        )
    ),
    "steady": Scenario((Phase("40 chats", 600.0, (CHATS,)),)),
}


class World(Protocol):
    """What the generator needs of the simulation."""

    now_seconds: float

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` at a simulated time."""

    def submit(self, request: Request) -> None:
        """Send a request now; ValueError when it can never run."""

    def place(self, request: Request, generated_tokens: int) -> None:
        """Begin with a request that is under way; ValueError when it can never run."""

    def abort(self, request: Request) -> None:
        """Cancel a request."""


class _User:
    """One member of a group; at most one request at a time."""

    def __init__(self, world: World, group: Group, rng: random.Random) -> None:
        self._world = world
        self._group = group
        self._random = rng
        self._request: Request | None = None
        self.gone = False
        self.rejected = False

    def ask(self, aged_share: float = 0.0) -> None:
        """Send the next request, or begin `aged_share` of the way through its answer."""
        if self.gone or self._request is not None:
            return
        group = self._group
        request = Request(
            self._length(group.prompt_tokens, 1 + group.shared_prefix_tokens),
            self._length(group.output_tokens, 1),
            prefix=group.name if group.shared_prefix_tokens else None,
            prefix_tokens=group.shared_prefix_tokens,
            on_end=self._ended,
        )
        self._request = request
        try:
            if aged_share:
                self._world.place(request, 1 + int(aged_share * (request.output_tokens - 1)))
            else:
                self._world.submit(request)
        except ValueError:  # it can never run: this user gives up, others go on
            self._request = None
            self.gone = self.rejected = True

    def leave(self) -> None:
        """Cancel what runs and never come back."""
        self.gone = True
        if self._request is not None:
            self._world.abort(self._request)

    def _length(self, tokens: int, least: int) -> int:
        spread = self._group.spread
        return max(least, round(tokens * self._random.uniform(1 - spread, 1 + spread))) if spread else tokens

    def _ended(self, seconds: float, reason: str) -> None:
        self._request = None
        if self.gone or reason == "abort" or (self._group.once and reason == "length"):
            return
        self._world.at(max(seconds, self._world.now_seconds) + self._group.think_seconds, self.ask)


class Player:
    """Plays a scenario into a world; `phase` is the name of the phase that runs now."""

    def __init__(self, world: World, scenario: Scenario, seed: int) -> None:
        """The first phase starts at once, at the world's present time."""
        self._world = world
        self._random = random.Random(seed)
        self._groups: dict[Group, list[_User]] = {}
        self.phase = ""
        at = world.now_seconds
        for phase in scenario.phases:
            if at <= world.now_seconds:
                self._start(phase)
            else:
                world.at(at, lambda phase=phase: self._start(phase))  # type: ignore[misc]  # binds the loop's value
            at += phase.seconds

    @property
    def rejected_users(self) -> int:
        """Users of the present groups whose request can never run."""
        return sum(user.rejected for users in self._groups.values() for user in users)

    def _start(self, phase: Phase) -> None:
        self.phase = phase.name
        for group in [g for g in self._groups if g not in phase.groups]:
            for user in self._groups.pop(group):
                user.leave()
        for group in phase.groups:
            if group in self._groups:
                continue
            users = [_User(self._world, group, self._random) for _ in range(group.count)]
            self._groups[group] = users
            for i, user in enumerate(users):
                if group.aged:
                    user.ask(aged_share=(i + 0.5) / group.count)
                else:
                    start = self._world.now_seconds + group.delay_seconds + i * group.stagger_seconds
                    self._world.at(start, user.ask)
