"""Which requests take part in the next step: continuous batching with chunked prefill and preemption by recompute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from stepscope.sim.blocks import BlockPool
from stepscope.sim.cohort import Cohort, Request
from stepscope.sim.physics import StepWork
from stepscope.sim.presets import EngineConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: what it costs, its prompt chunks, and who was scheduled for the first time in it."""

    work: StepWork
    chunks: tuple[tuple[Request, int], ...]  # (request, prompt tokens computed in this step)
    admitted: tuple[Request, ...]


class Scheduler:
    """Queues and blocks of one engine. Decodes come first, prompt chunks share the rest of the token budget."""

    def __init__(self, config: EngineConfig) -> None:
        """Nothing waits, nothing runs."""
        self._config = config
        self._positions = 1 + config.draft_tokens
        self.pool = BlockPool(config.num_gpu_blocks)
        self.cohort = Cohort(config.block_size, config.draft_tokens)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # prefilling and decoding, in order of admission
        self.prefilling: dict[Request, None] = {}
        self.preempted_total = 0

    def largest_request_tokens(self) -> int:
        """Prompt plus output tokens that can ever run: longer ones would wait for ever."""
        room = self.pool.total * self._config.block_size - self._config.draft_tokens
        return min(room, self._config.max_model_len)

    def schedule(self, now_seconds: float) -> Plan | None:
        """Plan the next step and hand out its blocks; None when nothing can run."""
        preempted_before = self.preempted_total
        while self.running and self.cohort.blocks_needed() > self.pool.free:
            self._preempt(next(reversed(self.running)), now_seconds)
        self.pool.take(self.cohort.blocks_needed())
        budget = self._config.max_num_batched_tokens - len(self.cohort) * self._positions
        chunks: list[tuple[Request, int]] = []
        for request in list(self.prefilling):
            if budget <= 0:
                break
            if request not in self.prefilling:  # preempted for one before it
                continue
            chunk = min(request.target_tokens - request.computed_tokens, budget)
            if not self._make_room(request, chunk, now_seconds):
                break
            chunks.append((request, chunk))
            budget -= chunk
        admitted = []
        if self.preempted_total == preempted_before:  # vLLM admits nobody in a step that preempted
            while self.waiting and budget > 0 and len(self.running) < self._config.max_num_seqs:
                request = self.waiting[0]
                if not self._admit(request):
                    break
                if request.scheduled_seconds < 0:
                    request.scheduled_seconds = now_seconds
                    admitted.append(request)
                chunk = min(request.target_tokens - request.computed_tokens, budget)
                self._allocate(request, chunk)
                chunks.append((request, chunk))
                budget -= chunk
        return self._plan(chunks, admitted)

    def computed(self, request: Request, chunk: int) -> bool:
        """A chunk of the prompt is done; True when it was the last one. Shares the prefix as soon as it is whole."""
        request.computed_tokens += chunk
        if (
            request.prefix is not None
            and not request.shared_blocks
            and self._config.prefix_caching
            and request.computed_tokens >= request.prefix_tokens
        ):
            blocks = request.prefix_tokens // self._config.block_size
            if self.pool.adopt(request.prefix, blocks):
                request.own_blocks -= blocks
                request.shared_blocks = blocks
        return request.computed_tokens >= request.target_tokens

    def start_decoding(self, request: Request) -> None:
        """The prompt is computed and its first token (or the next one after a preemption) is out."""
        del self.prefilling[request]
        self.cohort.join(request, request.target_tokens)

    def place(self, request: Request, kv_tokens: int) -> None:
        """Put a request that is already under way straight into the batch. ValueError without room for it."""
        blocks = -(-kv_tokens // self._config.block_size)
        if not self.pool.take(blocks):
            raise ValueError("no KV blocks left for a request under way")
        request.own_blocks = blocks
        self.running[request] = None
        self.cohort.join(request, kv_tokens)

    def remove(self, request: Request) -> None:
        """Forget a request between steps, wherever it stands, and free its blocks."""
        if request.state == "waiting":
            self.waiting.remove(request)
        else:
            self._release(request)
        request.state = "ended"

    def _release(self, request: Request) -> None:
        if request.state == "decoding":
            self.pool.give_back(self.cohort.leave(request))
        else:
            del self.prefilling[request]
            self.pool.give_back(request.own_blocks)
        if request.shared_blocks and request.prefix is not None:
            self.pool.let_go(request.prefix)
        request.own_blocks = request.shared_blocks = 0
        del self.running[request]

    def _preempt(self, request: Request, now_seconds: float) -> None:
        if request.state == "decoding":  # what it generated must be computed again too
            request.target_tokens = self.cohort.kv_tokens(request) + 1
            request.last_token_seconds = now_seconds
        self._release(request)
        request.computed_tokens = 0
        request.preemptions += 1
        request.state = "waiting"
        self.waiting.appendleft(request)
        self.preempted_total += 1

    def _make_room(self, request: Request, chunk: int, now_seconds: float) -> bool:
        """Blocks for a running prompt's next chunk, if need be from prompts admitted after it. Decodes keep theirs."""
        while not self._allocate(request, chunk):
            last = next(reversed(self.prefilling))
            if last is request:
                return False
            self._preempt(last, now_seconds)
        return True

    def _allocate(self, request: Request, chunk: int) -> bool:
        needed = -(-(request.computed_tokens + chunk) // self._config.block_size)
        more = max(0, needed - request.shared_blocks - request.own_blocks)
        if not self.pool.take(more):
            return False
        request.own_blocks += more
        return True

    def _admit(self, request: Request) -> bool:
        """Move the first waiting request to running if blocks for its whole context are free."""
        cached_blocks = self.pool.cached_blocks(request.prefix) if self._config.prefix_caching else 0
        needed = -(-request.target_tokens // self._config.block_size) - cached_blocks
        if cached_blocks and request.prefix is not None:
            needed += self.pool.blocks_to_hold(request.prefix)
        if needed > self.pool.free:
            return False
        self.waiting.popleft()
        if cached_blocks and request.prefix is not None:
            self.pool.hold(request.prefix)
            request.shared_blocks = cached_blocks
            request.computed_tokens = cached_blocks * self._config.block_size
            if request.scheduled_seconds < 0:
                request.cached_tokens = request.computed_tokens
        request.state = "prefilling"
        self.running[request] = None
        self.prefilling[request] = None
        return True

    def _plan(self, chunks: list[tuple[Request, int]], admitted: list[Request]) -> Plan | None:
        n = len(self.cohort)
        if not n and not chunks:
            return None
        if n:
            self.cohort.advance()
        work = StepWork(
            n,
            self._positions,
            self.cohort.context_tokens,
            self.cohort.context_tokens_squared,
            tuple((chunk, request.computed_tokens) for request, chunk in chunks),
        )
        return Plan(work, tuple(chunks), tuple(admitted))
