"""The situations of every alert. A case names all alerts that fire; nothing else may."""

from __future__ import annotations

from rules import cases_engine, cases_prediction, cases_self, cases_speed
from rules.promtool import Case
from rules.situations import QUIET

# By alert; "quiet" holds what must never wake anybody, whatever the alert.
CASES: dict[str, tuple[Case, ...]] = {
    **cases_speed.CASES,
    **cases_prediction.CASES,
    **cases_engine.CASES,
    **cases_self.CASES,
    "quiet": QUIET,
}
