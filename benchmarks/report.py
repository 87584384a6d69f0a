"""Tables for a person, and the part of the document that lies between two markers."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import Spread

BEGIN = "<!-- begin measured tables: written by `make bench ARGS=--write` -->"
END = "<!-- end measured tables -->"


@dataclass(frozen=True, slots=True)
class Check:
    """A target and whether this run met it."""

    name: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """The limit itself is met."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def row(self) -> tuple[str, ...]:
        """For the table of targets."""
        bound = "at least" if self.at_least else "at most"
        return (self.name, f"{self.value:.3g} {self.unit}", f"{bound} {self.limit:g} {self.unit}", _word(self.met))


@dataclass(frozen=True, slots=True)
class Table:
    """One measurement: a title, what was done, rows of text, the targets it answers."""

    title: str
    how: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...] = ()


def _word(met: bool) -> str:
    return "yes" if met else "**no**"


def spread_ms(spread: Spread) -> str:
    """Median and 10th to 90th percentile, seconds in, milliseconds out."""
    return f"{spread.median * 1e3:.3g} ({spread.low * 1e3:.3g} - {spread.high * 1e3:.3g})"


def markdown(tables: Sequence[Table]) -> str:
    """All tables, the targets first."""
    parts = [f"Measured on {machine()}.", _table(("target", "measured", "wanted", "met"), _targets(tables))]
    for table in tables:
        parts += [f"### {table.title}", table.how, _table(table.head, table.rows)]
    return "\n\n".join(parts) + "\n"


def _targets(tables: Sequence[Table]) -> tuple[tuple[str, ...], ...]:
    return tuple(check.row() for table in tables for check in table.checks)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def machine() -> str:
    """Processor, cores, kernel, Python, load: what absolute numbers depend on."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    kernel = platform.release().split("-")[0]
    load = os.getloadavg()[1]
    return (
        f"{model}, {os.cpu_count()} cores, Linux {kernel}, Python {platform.python_version()}; "
        f"load average over the last five minutes {load:.1f}"
    )


def insert(document: str, text: str) -> str:
    """`document` with `text` between the markers. Raises ValueError without them."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN!r} and {END!r} are not there")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"
