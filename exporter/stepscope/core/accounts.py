"""Books time and observations per pair: "for five minutes" then survives missed scrapes and restarts of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.core.sharing import nearest
from stepscope.core.snapshot import Accounts
from stepscope.core.step_model import StepTime
from stepscope.core.window import Pair
from stepscope.metrics import CAUSES, STATES

_STATE_INDEX = {name: at for at, name in enumerate(STATES)}
_CAUSE_INDEX = {name: at for at, name in enumerate(CAUSES)}
# States in which time is not judged against the objective although there may be a prediction.
UNJUDGED = frozenset({"stale", "asleep", "warming_up"})


def added(known: tuple[tuple[str, int], ...], more: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Counts by field, summed."""
    total = dict(known)
    for field, count in more.items():
        total[field] = total.get(field, 0) + count
    return tuple(sorted(total.items()))


def booked(
    accounts: Accounts,
    pair: Pair,
    state: str,
    cause: str | None,
    predicted: StepTime | None,
    target_step_seconds: float | None,
) -> Accounts:
    """The accounts after one pair. A step over its target counts only where somebody promised a speed."""
    seconds = pair.seconds
    states, causes = list(accounts.state_seconds), list(accounts.cause_seconds)
    states[_STATE_INDEX[state]] += seconds
    if cause is not None:
        causes[_CAUSE_INDEX[cause]] += seconds
    observed, expected, compared = (
        accounts.itl_observed_seconds,
        accounts.itl_expected_seconds,
        accounts.itl_compared,
    )
    if state == "measuring" and pair.comparable and pair.predicted is not None and not pair.decoding_is_hidden:
        observed += pair.itl_sum_seconds
        expected += nearest(pair, pair.predicted).itl_seconds * pair.observations
        compared += pair.observations
    judged, over = accounts.judged_seconds, accounts.over_budget_seconds
    step = pair.predicted if pair.predicted is not None else predicted
    if step is not None and state not in UNJUDGED:
        judged += seconds
        if target_step_seconds is not None and step.decode_seconds > target_step_seconds:
            over += seconds
    return Accounts(
        itl_observed_seconds=observed,
        itl_expected_seconds=expected,
        itl_compared=compared,
        judged_seconds=judged,
        over_budget_seconds=over,
        state_seconds=tuple(states),
        cause_seconds=tuple(causes),
        restarts=accounts.restarts,
        invalid_values=accounts.invalid_values,
    )
