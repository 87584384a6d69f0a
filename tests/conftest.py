"""What every test leaves behind as it found it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from shared_data import REPOSITORY


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command run in this process sets up logging for itself; the next test must not inherit that."""
    root, ours = logging.getLogger(), logging.getLogger("stepscope")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="module")
def benchmarks_importable() -> Iterator[None]:
    """The modules of benchmarks/ can be imported while one module of tests runs."""
    before = sys.path[:]
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    yield
    sys.path[:] = before
