"""Finds programs that only the machine's package manager installs; tests that need them skip visibly without."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRE_VARIABLE = "STEPSCOPE_REQUIRE_TOOLS"


def require_tool(name: str) -> str:
    """The path of a program. Missing: a skip that says so, or a failure if STEPSCOPE_REQUIRE_TOOLS is set."""
    path = shutil.which(name)
    if path is not None:
        return path
    message = f"{name} is not installed (as root: .ci/run installs it)"
    if os.environ.get(REQUIRE_VARIABLE):
        pytest.fail(message)
    pytest.skip(message)
