"""Places in line for requests that were refused and will come back, so that large ones are served in their turn.

Without it, whoever asks at the right moment wins: small requests fill each gap, and one session that ends its turn and
asks again at once is always ahead of the one that waits for its Retry-After.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOST_PLACES = 64  # who comes later waits without a place; the line is walked on every request
_SLACK_SECONDS = 2.0  # beyond Retry-After, which HTTP rounds up to whole seconds


@dataclass(frozen=True, slots=True)
class _Place:
    class_name: str
    tokens: float
    until_seconds: float


class WaitingLine:
    """First come, first served within a class. A place is lost when its owner does not come back in time."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._places: dict[str, _Place] = {}  # oldest first

    def ahead_tokens(self, class_name: str, ticket: str | None, now: float) -> float:
        """Tokens that those before this ticket wait for; of everybody without a (valid) ticket."""
        total = 0.0
        for known, place in list(self._places.items()):
            if known == ticket:
                break
            if place.until_seconds <= now:
                del self._places[known]
            elif place.class_name == class_name:
                total += place.tokens
        return total

    def keep(
        self, ticket: str | None, class_name: str, tokens: float, back_in_seconds: float, now: float
    ) -> str | None:
        """The ticket of a place, a new one unless `ticket` is still valid; None where the line is full."""
        place = _Place(class_name, tokens, now + back_in_seconds + _SLACK_SECONDS)
        if ticket is None or ticket not in self._places:
            if len(self._places) >= MOST_PLACES:
                return None
            ticket = self._new_id()
        self._places[ticket] = place  # an existing key keeps its position
        return ticket

    def leave(self, ticket: str | None) -> None:
        """Served: the place is free."""
        if ticket is not None:
            self._places.pop(ticket, None)
