"""Places in line: in order, within a class, bounded, lost in time."""

from __future__ import annotations

import itertools

from stepscope.core.waiting_line import MOST_PLACES, WaitingLine


def make() -> WaitingLine:
    numbers = itertools.count()
    return WaitingLine(lambda: f"ticket-{next(numbers)}")


def test_those_before_a_ticket_are_ahead_of_it_and_all_are_ahead_of_who_has_none() -> None:
    """Other classes do not count; a ticket that comes back keeps its position."""
    line = make()
    first, second = line.keep(None, "chat", 10, 1, 0.0), line.keep(None, "chat", 20, 1, 0.0)
    line.keep(None, "long", 500, 1, 0.0)
    assert line.ahead_tokens("chat", first, 0.5) == 0
    assert line.ahead_tokens("chat", second, 0.5) == 10
    assert line.ahead_tokens("chat", None, 0.5) == line.ahead_tokens("chat", "forged", 0.5) == 30
    assert line.keep(first, "chat", 15, 1, 0.5) == first
    assert line.ahead_tokens("chat", second, 0.5) == 15
    line.leave(first)
    line.leave(None)
    assert line.ahead_tokens("chat", second, 0.5) == 0


def test_a_place_is_lost_when_its_owner_does_not_come_back() -> None:
    """Two seconds after its time; it then starts at the end again."""
    line = make()
    first, second = line.keep(None, "chat", 10, 3, 0.0), line.keep(None, "chat", 20, 10, 0.0)
    assert line.ahead_tokens("chat", None, 4.9) == 30
    assert line.ahead_tokens("chat", None, 5.0) == 20
    again = line.keep(first, "chat", 10, 3, 5.0)
    assert again not in (first, second)
    assert line.ahead_tokens("chat", again, 5.0) == 20


def test_the_line_is_bounded() -> None:
    """Who comes when it is full waits without a place."""
    line = make()
    tickets = [line.keep(None, "chat", 1, 1, 0.0) for _ in range(MOST_PLACES + 1)]
    assert tickets[-1] is None
    assert None not in tickets[:-1]
