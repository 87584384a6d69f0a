"""The scanner with a memory gives what the one without gives, on every page after every other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded_pages import agents_join, whole_page
from stepscope.core.exposition import RawSample, scan
from stepscope.core.page_scanner import PageScanner
from stepscope.engines.vllm import WANTED
from stepscope.errors import NotMetricsError

NAMES = ("a", "b")
# Pieces that pages are made of, with everything that once moved, hid or faked a sample.
LINES = st.sampled_from(
    [
        *(f"{name}{labels} {value}" for name in ("a", "b", "other", "ab") for labels in ("", '{x="1"}', '{x="} a 5"}')
          for value in ("1", "2.5", "NaN", "+Inf", "1_0", "1 1700000000", "")),
        "# HELP a a 5", "# a 7", "", " ", "a\t3", "a  4", 'a {x="1"} 6', 'a{x="1"}8', "a", 'a{x="1"} 1 # {t="1"} 0.5',
        "a 1 # {t=\"1\"} 0.5", 'a{x="1" 9', "} 5", "a 1\r",
    ]
)  # fmt: skip
PAGES = st.lists(LINES, min_size=1, max_size=6).map(lambda lines: "\n".join(lines) + "\n")


def whatever(read: object) -> object:
    """What a reader gives or says, NaN made comparable."""
    try:
        samples: Sequence[RawSample] = list(read())  # type: ignore[operator]  # one of the two readers below
    except NotMetricsError as error:
        return str(error)
    return [(name, series, repr(value)) for name, series, value in samples]


@given(st.lists(PAGES, min_size=2, max_size=5))
def test_it_reads_every_page_after_every_other_as_the_plain_scan_does(pages: list[str]) -> None:
    """Each page also twice: the second time it has the layout of the first."""
    scanner = PageScanner(NAMES)
    for page in [twin for once in pages for twin in (once, once)]:
        assert whatever(lambda page=page: scanner.samples(page)) == whatever(lambda page=page: scan(page, NAMES))


@given(st.lists(LINES, min_size=1, max_size=6), st.data())
def test_a_page_that_differs_in_one_line_is_read_anew(lines: list[str], data: st.DataObject) -> None:
    """A foreign line may turn into a wanted one without any other sign."""
    at = data.draw(st.integers(0, len(lines) - 1))
    changed = [*lines[:at], data.draw(LINES), *lines[at + 1 :]]
    scanner = PageScanner(NAMES)
    for page in ("\n".join(lines) + "\n", "\n".join(changed) + "\n"):
        assert whatever(lambda page=page: scanner.samples(page)) == whatever(lambda page=page: scan(page, NAMES))


def test_recorded_pages_are_read_as_the_plain_scan_reads_them() -> None:
    """Real pages in a row, a whole one between cut ones."""
    scanner = PageScanner(WANTED)
    pages = [text for _, text in agents_join()]
    for page in [*pages[:20], whole_page(), *pages[20:]]:
        assert scanner.samples(page) == list(scan(page, WANTED))


def test_a_page_cut_after_a_remembered_one_is_still_refused() -> None:
    """Its last line has no end, however well it begins."""
    scanner = PageScanner(NAMES)
    scanner.samples("a 1\nb 2\n")
    scanner.samples("a 1\nb 2\n")
    with pytest.raises(NotMetricsError, match="cut"):
        scanner.samples("a 1\nb 2")
