"""One browser and one world for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import chromium
from stage import Stage


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each has its own context."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The world of this module."""
    with Stage(tmp_path_factory.mktemp("stage")) as started:
        yield started
