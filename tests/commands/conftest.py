"""`stepscope plan --json` as a function, for the tests of that command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope import cli


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `stepscope plan --json` and gives its document."""

    def run(*flags: str) -> dict[str, Any]:
        status = cli.main(["plan", *flags, "--json"])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        document: dict[str, Any] = json.loads(shown.out)
        return document

    return run
