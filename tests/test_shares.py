"""The kind of setting that gives each class of requests its share of the token budget."""

from __future__ import annotations

import pytest

from stepscope import settings as table
from stepscope.config import Settings
from stepscope.setting_kinds import shares


def test_shares_keep_their_order_and_are_written_as_they_are_read() -> None:
    """The first is for requests that name no class; /config shows what a flag would say."""
    read = shares("chat=1, long=0.25")
    assert read.pairs == (("chat", 1.0), ("long", 0.25))
    assert shares(str(read)) == read
    shown = Settings.of((table.ADMISSION_CLASS_SHARES, read)).as_dict()["admission.class-shares"]["value"]
    assert shown == "chat=1,long=0.25"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", '"" is not NAME=SHARE (example: default=1,long=0.5)'),
        ("chat", '"chat" is not NAME=SHARE (example: default=1,long=0.5)'),
        ("Chat=1", '"Chat=1" is not NAME=SHARE (example: default=1,long=0.5)'),
        ("chat=1,chat=0.5", '"chat" is named twice'),
        ("chat=0", '"0" is not above 0'),
        ("chat=1.5", '"1.5" is above the largest allowed, 1'),
        ("chat=much", '"much" is not a number (examples: 50, 0.9, 16.4e9)'),
        (",".join(f"c{i}=1" for i in range(9)), '"c0=1,c1=1,c2=1,c3=1,c4=1,c5=1,c6=1,c7=1,c8=1" has more than 8 names'),
    ],
)
def test_wrong_shares_are_told_why(text: str, line: str) -> None:
    """The second half of an operator's line."""
    with pytest.raises(ValueError) as error:
        shares(text)
    assert str(error.value) == line
