"""Draws docs/images/admission.svg: forty chats and two long sessions on a simulated H100, with admission and without.

    python tools/admission_picture.py [FILE]

Simulated time, so that ten minutes take seconds and every run draws the same. The simulator's step times are its own;
the budget is predicted by stepscope's law, and leases go through the same `ContextBudget` as in the sidecar.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.core.admission import ContextBudget
from stepscope.core.budget import speed_budget_tokens
from stepscope.core.leases import AdmissionPolicy, EngineTokens, Lease
from stepscope.core.plan_svg import Panel, panel_top, svg
from stepscope.core.step_model import Load, StepLaw, WeightBytes
from stepscope.sim.build import build_config
from stepscope.sim.cohort import Request
from stepscope.sim.presets import MODELS
from stepscope.sim.simulation import Simulation

CHATS, CHAT_PROMPT, CHAT_OUTPUT = 40, 1000, 2000  # 2,000 tokens of context on average
AGENTS, AGENT_PROMPT, AGENT_OUTPUT = 2, 100_000, 3000
OBJECTIVE, HEADROOM = 37.0, 0.9  # tokens/s and user; what 40 chats and one session leave room for, and two do not
AGENTS_JOIN_SECONDS, END_SECONDS = 60.0, 300.0
SAMPLE_SECONDS, WINDOW_SECONDS = 1.0, 5.0
CHUNK_TOKENS, SMALLER_CHUNKS = 2048, (512, 256)
WARM_SECONDS = 5.0  # into the run, before any figure is taken
# The budget is what the plan and the sidecar would say of Qwen3-8B on an H100 at 60 % of its bandwidth.
LAW = StepLaw(WeightBytes(MODELS["qwen3-8b"].decode_weight_bytes), 0.6 * 3.35e12, MODELS["qwen3-8b"].kv_bytes_per_token)


@dataclass
class Run:
    """What one run showed. speeds: (second, tokens/s of everybody in the last window); agents: who was served when."""

    speeds: list[tuple[float, float]] = field(default_factory=list)
    tokens: list[tuple[float, float]] = field(default_factory=list)
    chat_speeds: list[float] = field(default_factory=list)  # of whole answers given while the sessions wanted service
    agents: list[tuple[int, float, float]] = field(default_factory=list)  # (session, from, to)
    refused: int = 0


class User:
    """Asks, reads, asks again; with a budget it leases before each request and comes back when it was refused."""

    def __init__(
        self,
        run: Run,
        simulation: Simulation,
        budget: ContextBudget | None,
        sizes: tuple[int, int],
        session: int | None,
    ) -> None:
        self._run, self._simulation, self._budget = run, simulation, budget
        self._prompt, self._output = sizes
        self._session = session  # None: a chat
        self._ticket: str | None = None

    def begin(self, generated_tokens: int = 0) -> None:
        """Lease, then send; `generated_tokens` above 0: it is that far into its answer."""
        lease: Lease | None = None
        if self._budget is not None:
            answer = self._budget.acquire(self._prompt + self._output, 600.0, queue=True, ticket=self._ticket)
            self._ticket = None
            if not isinstance(answer, Lease):
                self._run.refused += 1
                self._ticket = answer.ticket
                self._simulation.at(self._simulation.now_seconds + answer.retry_after_seconds, self.begin)
                return
            lease = answer
        started = self._simulation.now_seconds
        request = Request(self._prompt, self._output)
        request.on_end = lambda now, _: self._end(request, started, now, lease)
        if generated_tokens:
            self._simulation.place(request, generated_tokens)
        else:
            self._simulation.submit(request)

    def _end(self, request: Request, started: float, now: float, lease: Lease | None) -> None:
        if self._budget is not None and lease is not None:
            self._budget.release(lease.lease_id)
        if self._session is not None:
            self._run.agents.append((self._session, started, now))
        elif request.first_token_seconds >= AGENTS_JOIN_SECONDS:
            self._run.chat_speeds.append((self._output - 1) / (now - request.first_token_seconds))
        self._simulation.at(max(now, self._simulation.now_seconds), self.begin)


def play(*, admission: bool, seconds: float = END_SECONDS, chunk_tokens: int = CHUNK_TOKENS) -> Run:
    """One run of `seconds` simulated seconds; chunk_tokens: the engine's --max-num-batched-tokens."""
    simulation, run = Simulation(build_config(max_num_batched_tokens=chunk_tokens)), Run()
    budget = _budget(lambda: simulation.now_seconds) if admission else None
    chats = [User(run, simulation, budget, (CHAT_PROMPT, CHAT_OUTPUT), None) for _ in range(CHATS)]
    agents = [User(run, simulation, budget, (AGENT_PROMPT, AGENT_OUTPUT), n) for n in range(AGENTS)]
    for index, chat in enumerate(chats):
        chat.begin(1 + int((index + 0.5) / CHATS * (CHAT_OUTPUT - 1)))
    for agent in agents:
        simulation.at(AGENTS_JOIN_SECONDS, agent.begin)
    history: list[tuple[float, float, float]] = []
    for at in range(1, int(seconds / SAMPLE_SECONDS) + 1):
        simulation.advance(at * SAMPLE_SECONDS)
        _sample(simulation, run, history, budget)
    return run


def _budget(clock: Callable[[], float]) -> ContextBudget:
    numbers = itertools.count()
    budget = ContextBudget(AdmissionPolicy(), clock=clock, lock=_Nobody(), new_id=lambda: str(next(numbers)))
    budget.observe(EngineTokens(speed_budget_tokens(LAW, Load(CHATS, 0.0), HEADROOM / OBJECTIVE), None, 0.0))
    return budget


class _Nobody:
    """A lock for one thread."""

    def __enter__(self) -> None:
        """Nobody else is there."""

    def __exit__(self, *_: object) -> None:
        """Nobody waited."""


def _sample(
    simulation: Simulation, run: Run, history: list[tuple[float, float, float]], budget: ContextBudget | None
) -> None:
    engine, now = simulation.engines[0], simulation.now_seconds
    gaps = engine.counters.inter_token_latency_seconds
    history.append((now, gaps.sum, gaps.count))
    before = next(row for row in history if now - row[0] <= WINDOW_SECONDS)
    if gaps.count > before[2] and now >= WARM_SECONDS:
        run.speeds.append((now, (gaps.count - before[2]) / (gaps.sum - before[1])))
    held = float(engine.state().context_tokens + engine.state().prefill_context_tokens)
    run.tokens.append((now, held))
    if budget is not None:
        budget.observe(EngineTokens(budget.counts().engine.speed_tokens, None, held))


def draw(without: Run, with_: Run) -> str:
    """The picture."""
    top = max(speed for _, speed in (*without.speeds, *with_.speeds))
    panels = []
    for index, (title, run) in enumerate((("without admission", without), ("with admission", with_))):
        slowest, median = min(run.chat_speeds), statistics.median(run.chat_speeds)
        words = f"{title}: answers of the 40 chats at {median:.0f} tokens/s in the median, {slowest:.0f} the slowest"
        panel = Panel(
            words,
            panel_top(index),
            END_SECONDS,
            top,
            "seconds. Blue: tokens/s in windows of 5 s. Orange: a long session is served",
        )
        panel.line(run.speeds, dots=False)
        panel.mark_y(OBJECTIVE, f"promised {OBJECTIVE:g} tokens/s")
        panel.mark_x(AGENTS_JOIN_SECONDS, "two sessions of 100,000 tokens join")
        for session, start, end in run.agents:
            height = 2.0 + 3.0 * session
            panel.line([(start, height), (end, height)], "#c26a00", dots=False)
        panels.append(panel)
    return svg(panels, "Forty chats and two long sessions on one GPU, without and with token admission")


def main() -> int:
    """Write the picture and say what it shows."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs/images/admission.svg")
    runs = play(admission=False), play(admission=True)
    target.write_text(draw(*runs), encoding="utf-8")
    for name, run in zip(("without", "with"), runs, strict=True):
        calm = statistics.median(speed for at, speed in run.speeds if at < AGENTS_JOIN_SECONDS)
        served = [f"{session}: {start:.0f}-{end:.0f} s" for session, start, end in run.agents]
        sys.stdout.write(
            f"{name} admission: {calm:.1f} tokens/s before; then answers of chats at "
            f"{statistics.median(run.chat_speeds):.1f} in the median, slowest {min(run.chat_speeds):.1f}; "
            f"sessions served {', '.join(served)}; {run.refused} refusals\n"
        )
    for chunk in (CHUNK_TOKENS, *SMALLER_CHUNKS):
        slowest, seconds_below, session_seconds = dips(play(admission=True, chunk_tokens=chunk))
        sys.stdout.write(
            f"with admission and chunks of {chunk}: {slowest:.1f} tokens/s in the slowest {WINDOW_SECONDS:.0f} s, "
            f"{seconds_below:.0f} s below {OBJECTIVE:g}; a session takes {session_seconds:.0f} s\n"
        )
    return 0


def dips(run: Run) -> tuple[float, float, float]:
    """(slowest window, tokens/s; seconds whose window is below the promise; mean seconds of a session)."""
    speeds = [speed for at, speed in run.speeds if at >= AGENTS_JOIN_SECONDS]
    below = SAMPLE_SECONDS * sum(speed < OBJECTIVE for speed in speeds)
    return min(speeds), below, statistics.mean(end - start for _, start, end in run.agents)


if __name__ == "__main__":
    sys.exit(main())
