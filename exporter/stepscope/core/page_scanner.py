"""`scan` with a memory: an engine prints the same lines again and again, and only the values change.

While the page keeps its layout (every line begins as it did last time), the wanted values stand at known places, and
nothing is searched, split or looked up. What comes out is always exactly what `scan` would give.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from stepscope.core.exposition import RawSample, scan

_LONGEST_REMEMBERED = (
    2 * 2**20
)  # characters; 16 engines on a page are 0.6 million. Foreign giants are not kept in memory


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the lines of a page begin. `wanted`: (line, where its value begins, name, series) of each wanted sample."""

    beginnings: tuple[str, ...]  # a sample up to its value, a comment as a whole; for the empty end of the page nothing
    wanted: tuple[tuple[int, int, str, str], ...]


class PageScanner:
    """Reads the wanted samples of one page after another, fast while they look alike."""

    def __init__(self, wanted: Container[str]) -> None:
        self._wanted = wanted
        self._layout: _Layout | None = None

    def samples(self, text: str) -> Sequence[RawSample]:
        """The samples whose name is wanted, in page order. Raises NotMetricsError as `scan` does."""
        layout = self._layout
        if layout is not None:
            known = _recall(layout, text)
            if known is not None:
                return known
        found = list(scan(text, self._wanted))
        self._layout = _layout_of(text, found) if len(text) <= _LONGEST_REMEMBERED else None
        return found


def _recall(layout: _Layout, text: str) -> list[RawSample] | None:
    """The samples of a page with this layout; None if it has another one, or any value is more than a plain number."""
    lines = text.split("\n")
    if len(lines) != len(layout.beginnings) or lines[-1] or not all(map(str.startswith, lines, layout.beginnings)):
        return None
    samples = []
    new = tuple.__new__
    try:
        for at, begin, name, series in layout.wanted:
            value = lines[at][begin:]
            if "_" in value:  # Python reads 1_000, Prometheus does not
                return None
            samples.append(new(RawSample, (name, series, float(value))))
    except ValueError:
        return None
    return samples


def _layout_of(text: str, samples: Sequence[RawSample]) -> _Layout | None:
    """The layout of a page; None where a line is not plainly `series value` (a blank line, a timestamp, a tab)."""
    beginnings, wanted = [], []
    lines = text.split("\n")
    following = iter(samples)
    sample = next(following, None)
    for at, line in enumerate(lines[:-1]):
        if line.startswith("#"):
            beginnings.append(line)
            continue
        series, space, _ = line.rpartition(" ")
        if not space:
            return None
        beginnings.append(series + space)
        if sample is not None and series == sample.series:
            wanted.append((at, len(series) + 1, sample.name, series))
            sample = next(following, None)
    beginnings.append("")
    return _Layout(tuple(beginnings), tuple(wanted)) if wanted and sample is None else None
