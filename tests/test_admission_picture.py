"""The picture of docs/admission.md: what it claims holds, and the committed file is what the command draws."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import sys
from types import ModuleType

import pytest

from shared_data import REPOSITORY


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    """The command as a module."""
    spec = importlib.util.spec_from_file_location("admission_picture", REPOSITORY / "tools" / "admission_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_admission_keeps_the_promise_and_serves_the_sessions_in_turn(picture: ModuleType) -> None:
    """Every answer of a chat stays above 37 tokens/s; without, half of the calm speed is gone for all of them."""
    without, with_ = picture.play(admission=False), picture.play(admission=True)
    calm = statistics.median(speed for at, speed in with_.speeds if at < picture.AGENTS_JOIN_SECONDS)
    assert calm == pytest.approx(75, abs=1)
    assert min(with_.chat_speeds) > picture.OBJECTIVE
    assert max(without.chat_speeds[5:]) < picture.OBJECTIVE
    assert statistics.median(without.chat_speeds) < 0.5 * calm
    assert len(with_.chat_speeds) > 100
    sessions = sorted(with_.agents, key=lambda served: served[1])
    assert [session for session, _, _ in sessions][:2] == [0, 1]
    assert all(before[2] <= after[1] for before, after in itertools.pairwise(sessions))
    assert with_.refused > 0
    committed = (REPOSITORY / "docs" / "images" / "admission.svg").read_text()
    assert committed == picture.draw(without, with_), "run python tools/admission_picture.py"


def test_small_chunks_take_the_dips_away(picture: ModuleType) -> None:
    """What a token budget cannot: a step with a chunk is as long whoever was let in. Sessions hardly take longer."""
    whole, small = (picture.dips(picture.play(admission=True, chunk_tokens=chunk)) for chunk in (2048, 256))
    assert whole[0] < 0.7 * picture.OBJECTIVE
    assert whole[1] > 10.0
    assert small[0] > picture.OBJECTIVE
    assert small[1] == 0.0
    assert small[2] < 1.1 * whole[2]
