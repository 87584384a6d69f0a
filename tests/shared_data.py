"""Finds the optional folder of recorded tapes and published facts beside the repository; tests skip without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_path(*parts: str) -> Path:
    """The path of a shared file or folder, or a skip that says what is missing."""
    root = Path(os.environ.get("STEPSCOPE_SHARED", REPOSITORY.parent / "shared"))
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared material not here: {'/'.join(parts)} (set STEPSCOPE_SHARED to its folder)")
    return path
