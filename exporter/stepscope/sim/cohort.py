"""All decoding sequences of one engine, advanced together.

Each of them grows by one token per step, so one shared clock does for all: a sequence's KV tokens are its offset plus
the clock. Sums of contexts, the blocks the next step needs and the sequences that end are found without touching every
sequence, which makes a plain decode step cost the same for 1 and for 256 sequences.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Request:
    """One request and where it stands. Times are seconds on the simulated clock, set by the engine."""

    prompt_tokens: int
    output_tokens: int  # it always ends by length, after this many
    prefix: str | None = None  # requests with the same key share their first `prefix_tokens` tokens
    prefix_tokens: int = 0  # below prompt_tokens
    on_tokens: Callable[[float, int], None] | None = None  # (time, tokens) for every step that yields some
    on_end: Callable[[float, str], None] | None = None  # (time, "length", "abort" or "lost")
    state: str = "waiting"  # waiting, prefilling, decoding, ended
    arrival_seconds: float = 0.0
    scheduled_seconds: float = -1.0  # first time in a step; -1 before
    first_token_seconds: float = -1.0
    last_token_seconds: float = -1.0  # kept up to date outside the cohort only
    target_tokens: int = 0  # context to compute before the next token: the prompt, plus what a preemption lost
    computed_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    own_blocks: int = 0  # while not in the cohort
    shared_blocks: int = 0  # of the prefix it holds
    preemptions: int = 0
    offset: int = 0  # in the cohort: KV tokens = offset + clock
    ends_at: int = 0  # in the cohort: clock at which its last token is out

    def __post_init__(self) -> None:
        """Raise ValueError for what no engine accepts."""
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if self.prefix is not None and not 0 <= self.prefix_tokens < self.prompt_tokens:
            raise ValueError("a shared prefix must be shorter than the prompt")
        self.target_tokens = self.prompt_tokens


class Cohort:
    """The decoding sequences. Their blocks follow from their KV tokens; `_owed` are those not yet handed out."""

    def __init__(self, block_size: int, draft_tokens: int) -> None:
        """`draft_tokens` positions beyond the next token need room as well."""
        self._block_size = block_size
        self._lookahead = draft_tokens
        self.members: dict[Request, None] = {}
        self.clock = 0  # decode steps begun
        self.context_tokens = 0
        self.context_tokens_squared = 0
        self._crossing = [0] * block_size  # sequences that need one more block when the clock is at index modulo size
        self._owed: dict[Request, int] = {}
        self._ends: list[tuple[int, int, Request]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self.members)

    def kv_tokens(self, request: Request) -> int:
        """Context tokens of the sequence, with the one its running step computes."""
        return request.offset + self.clock

    def generated(self, request: Request) -> int:
        """Tokens put out so far, with the one its running step yields."""
        return self.kv_tokens(request) - request.prompt_tokens + 1

    def held_blocks(self, request: Request) -> int:
        """Blocks handed out to the sequence, without the shared prefix."""
        return self._blocks(request) - request.shared_blocks - self._owed.get(request, 0)

    def join(self, request: Request, kv_tokens: int) -> None:
        """`kv_tokens` are computed and the token after them is out; `own_blocks` are held."""
        request.offset = kv_tokens - self.clock
        request.ends_at = request.prompt_tokens + request.output_tokens - 1 - request.offset
        request.state = "decoding"
        self.members[request] = None
        self.context_tokens += kv_tokens
        self.context_tokens_squared += kv_tokens * kv_tokens
        self._crossing[self._index(request)] += 1
        owed = self._blocks(request) - request.shared_blocks - request.own_blocks
        if owed > 0:
            self._owed[request] = owed
        self._note_end(request)

    def leave(self, request: Request) -> int:
        """Remove a sequence between steps; returns the blocks it held, without the shared prefix."""
        blocks = self.held_blocks(request)
        kv_tokens = self.kv_tokens(request)
        del self.members[request]
        self._owed.pop(request, None)
        self.context_tokens -= kv_tokens
        self.context_tokens_squared -= kv_tokens * kv_tokens
        self._crossing[self._index(request)] -= 1
        return blocks

    def blocks_needed(self) -> int:
        """Blocks the next step needs beyond those held."""
        needed = self._crossing[self.clock % self._block_size]
        return needed + sum(self._owed.values()) if self._owed else needed

    def advance(self) -> None:
        """The next step begins and its blocks are handed out."""
        self._owed.clear()
        n = len(self.members)
        self.clock += 1
        self.context_tokens_squared += 2 * self.context_tokens + n
        self.context_tokens += n

    def extend(self, request: Request, accepted: int) -> None:
        """The step that just ended yielded `accepted` drafted tokens more; their room is owed until the next step."""
        before = self._blocks(request)
        kv_tokens = self.kv_tokens(request)
        self._crossing[self._index(request)] -= 1
        request.offset += accepted
        request.ends_at -= accepted
        self._crossing[self._index(request)] += 1
        self.context_tokens += accepted
        self.context_tokens_squared += accepted * (2 * kv_tokens + accepted)
        if (owed := self._blocks(request) - before) > 0:
            self._owed[request] = self._owed.get(request, 0) + owed
        self._note_end(request)

    def pop_ended(self) -> list[Request]:
        """Sequences whose last token is out, in the order they joined; they stay members until they leave."""
        ended = []
        while self._ends and self._ends[0][0] <= self.clock:
            at, _, request = heapq.heappop(self._ends)
            if request in self.members and request.ends_at == at:
                request.ends_at = -1  # it may have left and come back with the same end: a second entry must not count
                ended.append(request)
        return ended

    def _blocks(self, request: Request) -> int:
        return -(-(self.kv_tokens(request) + self._lookahead) // self._block_size)

    def _index(self, request: Request) -> int:
        return -(request.offset + self._lookahead) % self._block_size

    def _note_end(self, request: Request) -> None:
        self._serial += 1
        heapq.heappush(self._ends, (request.ends_at, self._serial, request))
        if len(self._ends) > 64 + 8 * len(self.members):  # drop the entries that drafts and aborts left behind
            live = {r: entry for entry in self._ends if (r := entry[2]) in self.members and r.ends_at == entry[0]}
            self._ends = list(live.values())
            heapq.heapify(self._ends)
