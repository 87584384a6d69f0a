"""Fault switches."""

from __future__ import annotations

import itertools

import pytest

from stepscope.errors import ConfigError
from stepscope.sim.faults import Faults, NoisyNeighbour


def test_changes_give_a_new_value_and_leave_the_rest() -> None:
    """Text from a command line is understood too."""
    faults = Faults().updated({"throttle": "1.4", "hang": "true", "sleep": 2})
    assert faults == Faults(throttle=1.4, hang=True, sleep=2)
    assert faults.updated({"hang": False}) == Faults(throttle=1.4, sleep=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trottle": 2}, "faults: unknown fault 'trottle', did you mean throttle?"),
        ({"zzz": 2}, "faults: unknown fault 'zzz' (known: throttle, noisy_neighbour,"),
        ({"throttle": "fast"}, "faults: throttle must be a number, not 'fast'"),
        ({"throttle": float("nan")}, "faults: throttle must be a number, not nan"),
        ({"throttle": 0}, "faults: throttle must be within 0.1..1000, not 0"),
        ({"lost_blocks": 1.5}, "faults: lost_blocks must be within 0..0.99, not 1.5"),
        ({"hang": 3}, "faults: hang must be true or false, not 3"),
        ({"sleep": 3}, "faults: sleep must be 0, 1 or 2, not 3"),
        ({"throttle": True}, "faults: throttle must be a number, not True"),
    ],
)
def test_a_wrong_switch_is_named(changes: dict[str, object], message: str) -> None:
    """One line that says what and where."""
    with pytest.raises(ConfigError) as error:
        Faults().updated(changes)
    assert str(error.value).startswith(message)


def test_a_noisy_neighbour_comes_in_bursts_and_is_the_same_for_the_same_seed() -> None:
    """About a third of the time busy."""
    first, second = NoisyNeighbour(5), NoisyNeighbour(5)
    factors = [first.factor(i * 0.02, 1.8) for i in range(50_000)]
    assert factors == [second.factor(i * 0.02, 1.8) for i in range(50_000)]
    assert set(factors) == {1.0, 1.8}
    assert 0.2 < factors.count(1.8) / len(factors) < 0.5
    changes = sum(a != b for a, b in itertools.pairwise(factors))
    assert changes < 1000
