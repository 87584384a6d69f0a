"""What one recorded tape teaches, judged on others: within 3 points of their own noise floor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from shared_data import shared_path
from stepscope.core.estimate import Facts
from stepscope.core.fit import fit
from stepscope.core.law_terms import Point
from stepscope.core.learn import Learner, fitted, learned
from stepscope.core.memory import Policy
from stepscope.core.score import quantile
from stepscope.core.step_model import Load, StepLaw, predict
from stepscope.core.window import PREFILL_SHARE_LIMIT, Pair
from tapes import load, replay

POLICY = Policy(interval_seconds=1.0, window_seconds=10.0, warm_up_seconds=5.0)
PAIRS_PER_WINDOW = 3


@dataclass(frozen=True)
class Window:
    """Three pairs in a row: (pair, tokens in flight) each, and the mean gap."""

    rows: tuple[tuple[Pair, float], ...]

    @property
    def observations(self) -> float:
        return sum(pair.observations for pair, _ in self.rows)

    @property
    def mean(self) -> float:
        return sum(pair.itl_sum_seconds for pair, _ in self.rows) / self.observations

    @property
    def is_clean(self) -> bool:
        return not any(pair.prefill_tokens or pair.open_prompt_tokens for pair, _ in self.rows)


def rows_of(name: str) -> list[tuple[Pair, float]]:
    """Every pair of a tape with the tokens at its end."""
    rows = []
    for at, _, view, memories in replay(load(shared_path("data", "tapes"), name), Facts(), POLICY):
        memory = memories.get("0")
        if view is not None and memory is not None and memory.pairs and memory.pairs[-1].end_seconds == at:
            rows.append((memory.pairs[-1], memory.tokens_in_flight or 0.0))
    return rows


def windows(name: str) -> list[Window]:
    rows = rows_of(name)
    cut = [Window(tuple(rows[i : i + PAIRS_PER_WINDOW])) for i in range(0, len(rows) - 2, PAIRS_PER_WINDOW)]
    return [
        w
        for w in cut
        if w.observations >= 10
        and all(p.observations and p.sequences and p.prefill_accounted and p.last.requests_running for p, _ in w.rows)
    ]


def noise_floor(name: str) -> float:
    """Median in-sample error of the richest law, fitted to the tape's own windows without prefill."""
    points = [
        Point(
            sum((p.sequences or 0.0) * p.observations for p, _ in w.rows) / w.observations,
            sum(tokens * p.observations for p, tokens in w.rows) / w.observations,
            0.0,
            w.mean,
        )
        for w in windows(name)
        if w.is_clean
    ]
    return fit(points).score.median_abs_error


def judged_errors(law: StepLaw, name: str) -> list[float]:
    """Errors on the windows that the sidecar would judge: prompt chunks do not dominate them."""
    errors = []
    for w in windows(name):
        total = prefill = 0.0
        for pair, tokens in w.rows:
            step = predict(law, Load(pair.sequences or 0.0, tokens, pair.prefill_seen_tokens_per_step))
            assert step is not None
            total += step.itl_seconds * pair.observations
            prefill += step.prefill_seconds * pair.observations
        if prefill <= PREFILL_SHARE_LIMIT * total:
            errors.append(abs(total / w.observations / w.mean - 1.0))
    return errors


def gathered(*names: str) -> Learner:
    """All that these tapes give to learn from."""
    learner = Learner()
    for name in names:
        for at, _, view, memories in replay(load(shared_path("data", "tapes"), name), Facts(), POLICY):
            if view is not None:
                learner = learned(learner, memories, at, Facts(), POLICY.warm_up_seconds)
        learner = replace(learner, open={})
    return learner


@pytest.fixture(scope="module")
def taught() -> StepLaw:
    """What tape ramp teaches, a calibration by hand: few and many requests, short and long."""
    learner = gathered("ramp")
    return fitted(tuple(learner.bins.values()), learner.reach, Facts(), None)[0].law


@pytest.mark.parametrize(("name", "least"), [("agents_join", 25), ("prefill", 25), ("cancel", 5), ("restart", 4)])
def test_another_tape_is_predicted_within_three_points_of_its_noise_floor(
    taught: StepLaw, name: str, least: int
) -> None:
    """Long sessions that join chats, and prompt bursts, of which the teaching tape has none; no fact is given."""
    errors = judged_errors(taught, name)
    assert len(errors) >= least
    assert quantile(errors, 0.5) <= noise_floor(name) + 0.03


def test_one_tape_is_too_little_for_the_sidecar_and_two_would_do() -> None:
    """Tape ramp has hardly a prompt, and the sidecar says so; with agents that join nothing is lacking but time."""
    lacks = []
    for names in (("ramp",), ("ramp", "agents_join")):
        learner = gathered(*names)
        lacks.append(fitted(tuple(learner.bins.values()), learner.reach, Facts(), None)[1])
    assert "prefill_cost_seconds_per_token" in lacks[0]
    assert lacks[1] == ""
