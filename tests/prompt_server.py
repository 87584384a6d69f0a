"""An engine in tokens: what it computes, and what its page says of that, for tests of the prefill ledger."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.prefill import PrefillLedger, PrefillStep, advance
from stepscope.core.sample import EngineSample


@dataclass
class PromptServer:
    """An engine in tokens: `decoders` yield one token a step, one prompt at a time is computed in chunks.

    Bookkeeping as vLLM's: queries when a prompt is scheduled, computed tokens when it ends, usage by whole blocks.
    """

    caching: bool = True
    block: float = 1.0
    decoders: int = 4
    sizes: list[float] = field(default_factory=lambda: [100.0] * 4)
    prompt: float = 0.0
    done: float = 0.0
    prompt_hits: float = 0.0
    queries: float = 0.0
    hits: float = 0.0
    booked: float = 0.0
    generated: float = 0.0
    finished_prompt: float = 0.0
    finished_generation: float = 0.0
    ledger: PrefillLedger = PrefillLedger()
    last: EngineSample | None = None
    tokens: float = 0.0
    placed: list[float] = field(default_factory=list)
    decoding: float | None = None

    def in_flight(self) -> float:
        held = [*self.sizes, self.done] if self.prompt else self.sizes
        return sum(-(-size // self.block) * self.block for size in held)

    def begin(self, tokens: float, hits: float = 0.0) -> None:
        """A prompt is scheduled; `hits` of it are cached."""
        self.prompt, self.done, self.prompt_hits = tokens, hits, hits
        self.queries += tokens
        self.hits += hits

    def chunk(self, tokens: float) -> None:
        """Compute up to `tokens` of the prompt; at its end it is booked and decodes."""
        self.done = min(self.prompt, self.done + tokens)
        if self.done == self.prompt:
            self.booked += self.prompt - self.prompt_hits
            self.sizes.append(self.prompt + 1)
            self.decoders += 1
            self.generated += 1
            self.prompt = self.done = 0.0

    def step(self, steps: int) -> None:
        """Everybody who decodes yields a token a step."""
        self.sizes = [size + steps for size in self.sizes]
        self.generated += steps * self.decoders

    def abort_prompt(self) -> None:
        """The client of the prompt left: nothing is booked."""
        self.prompt = self.done = 0.0

    def finish_one(self) -> None:
        """A request ends and frees its tokens: 60 of them were its prompt."""
        size = self.sizes.pop(0)
        self.decoders -= 1
        self.finished_prompt += 60
        self.finished_generation += size - 60

    def cancel_all(self) -> None:
        """Everybody leaves; cancelled requests are not counted as finished."""
        self.sizes, self.decoders = [], 0
        self.abort_prompt()

    def sample(self, steps: float | None = 20.0, *, waiting: float = 0.0) -> PrefillStep:
        """One scrape: the ledger moves on."""
        now = EngineSample(
            "m",
            "0",
            requests_running=float(self.decoders + (1 if self.prompt else 0)),
            requests_waiting=waiting,
            prefix_queries=self.queries if self.caching else 0.0,
            prefix_hits=self.hits if self.caching else 0.0,
            prompt_tokens_computed=self.booked,
            generation_tokens=self.generated,
            finished_prompt_tokens=self.finished_prompt,
            finished_generation_tokens=self.finished_generation,
        )
        tokens = self.in_flight()
        if self.last is None:
            self.last, self.tokens = now, tokens
        decoding = float(self.decoders) if steps else None
        placed = advance(
            self.ledger,
            self.last,
            now,
            tokens_before=self.tokens,
            tokens_after=tokens,
            steps=steps,
            sequences=decoding,
            decoding_before=self.decoding,
            block_tokens=self.block,
        )
        self.ledger, self.last, self.tokens = placed.ledger, now, tokens
        self.decoding = decoding if decoding is not None else self.decoding
        self.placed.append(placed.computed_tokens)
        return placed
