"""Finds programs that are no part of the virtual environment; tests that need them skip visibly without."""

from __future__ import annotations

import os
import shutil

import pytest

from shared_data import REPOSITORY

REQUIRE_VARIABLE = "STEPSCOPE_REQUIRE_TOOLS"
FETCHED_BY_MAKE = ("helm", "helm3", "kubectl", "actionlint", "hadolint", "zizmor", "yamllint")


def require_tool(name: str) -> str:
    """The path of a program on PATH, in .tools/bin or in .tools/lint/bin.

    Missing: a skip that says so, or a failure if STEPSCOPE_REQUIRE_TOOLS is set.
    """
    # What `make helm-tools` fetched is the version that the tests were written with, so it comes first.
    own = [str(REPOSITORY / ".tools" / folder) for folder in ("bin", "lint/bin")]
    path = shutil.which(name, path=os.pathsep.join([*own, os.environ.get("PATH", os.defpath)]))
    if path is not None:
        return path
    remedy = "make helm-tools fetches it" if name in FETCHED_BY_MAKE else "as root: .ci/run installs it"
    message = f"{name} is not installed ({remedy})"
    if os.environ.get(REQUIRE_VARIABLE):
        pytest.fail(message)
    pytest.skip(message)
