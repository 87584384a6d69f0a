"""The tables say what was measured, and go where they belong."""

from __future__ import annotations

import pytest
from report import BEGIN, END, Check, Table, insert, markdown

from shared_data import REPOSITORY


def test_a_check_is_met_at_its_limit_and_not_beyond() -> None:
    """In both directions."""
    assert Check("cost", 1.5, 1.5, "ms").met
    assert not Check("cost", 1.51, 1.5, "ms").met
    assert Check("ratio", 8.0, 8.0, "times", at_least=True).met
    assert not Check("ratio", 7.9, 8.0, "times", at_least=True).met


def test_a_missed_target_is_shown_first_and_in_bold() -> None:
    """Nobody has to search for it."""
    text = markdown([Table("T", "how", ("a", "b"), (("1", "2"),), (Check("cost", 2.0, 1.5, "ms"),))])
    assert "| cost | 2 ms | at most 1.5 ms | **no** |" in text
    assert text.index("**no**") < text.index("### T")
    assert "| 1 | 2 |" in text


def test_only_what_lies_between_the_markers_is_replaced() -> None:
    """What people wrote stays."""
    document = f"# Title\n\n{BEGIN}\n\nold\n{END}\n\nprose\n"
    once = insert(document, "new\n")
    assert once == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nprose\n"
    assert insert(once, "new\n") == once


def test_without_markers_nothing_is_written() -> None:
    """An error rather than a guess."""
    with pytest.raises(ValueError, match="markers"):
        insert("# Title\n", "new\n")


def test_the_document_has_room_for_the_tables() -> None:
    """Both markers are there, in this order."""
    text = (REPOSITORY / "docs" / "performance.md").read_text()
    assert text.index(BEGIN) < text.index(END)
