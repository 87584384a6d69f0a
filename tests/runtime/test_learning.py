"""Learning beside the sampler: the law in place, the file, a new version, recalibration, and faults of our own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from learning_loads import POLICY, realistic, varied, watched
from stepscope.core.estimate import Facts
from stepscope.core.memory import Memory
from stepscope.core.snapshot import Assumed
from stepscope.runtime.baseline_file import Identity, read_baseline, write_baseline
from stepscope.runtime.learning import Learning

LOG = logging.getLogger("stepscope.test.learning")
ENGINE = Identity("m", "0.32.0")
ASSUMED = Assumed(missing=("model facts: give --model.id",))


@pytest.fixture(scope="module")
def memories() -> list[Memory]:
    """A quarter of an hour of varied load."""
    return list(watched(realistic(), varied(2, 10), 900.0, seed=2))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger=LOG.name):
        yield caplog


def feed(learning: Learning, memories: list[Memory], engine: Identity = ENGINE) -> tuple[Facts, Assumed]:
    """Every sample as the sampler does it; what is in place afterwards."""
    for memory in memories:
        learning.facts(Facts(), ASSUMED, engine)
        learning.after({"0": memory}, memory.at_seconds, Facts(), POLICY.warm_up_seconds)
    return learning.facts(Facts(), ASSUMED, engine)


def test_a_learned_law_takes_its_place_and_is_kept(
    memories: list[Memory], tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """Said once, nothing missing any more, and there again after a restart without a single sample."""
    file = tmp_path / "state.json"
    facts, assumed = feed(Learning(LOG, file, unix_clock=lambda: 1.7e9), memories)
    assert facts.law is not None
    assert (facts.law.source, assumed.law, assumed.missing) == ("learned", facts.law, ())
    assert assumed.baseline_residual_ratio == facts.law.residual_ratio
    assert [r.message for r in said.records if r.message.startswith("learned:")] != []
    again, _ = Learning(LOG, file).facts(Facts(), ASSUMED, ENGINE)
    assert again.law == facts.law


def test_a_calibration_stands_and_both_residuals_are_known(memories: list[Memory]) -> None:
    """The file's law is used; what was learned beside it is published as a residual."""
    learning = Learning(LOG)
    feed(learning, memories)
    law = learning.facts(Facts(), ASSUMED, ENGINE)[0].law
    assert law is not None
    own = replace(law, source="file")
    facts, assumed = learning.facts(Facts(law=own), Assumed(law=own), ENGINE)
    assert facts.law is own
    assert assumed.law is own
    assert assumed.baseline_residual_ratio == law.residual_ratio


def test_recalibration_forgets_the_law_and_the_file(memories: list[Memory], tmp_path: Path) -> None:
    """From the next sample on."""
    file = tmp_path / "state.json"
    learning = Learning(LOG, file)
    feed(learning, memories)
    assert read_baseline(file) is not None
    learning.recalibrate()
    assert learning.facts(Facts(), ASSUMED, ENGINE)[0].law is None
    assert not file.exists()


def test_another_engine_version_is_learned_anew(memories: list[Memory], said: pytest.LogCaptureFixture) -> None:
    """A version that is not known for a moment changes nothing; another one does, and the reason is said."""
    learning = Learning(LOG)
    feed(learning, memories)
    assert learning.facts(Facts(), ASSUMED, Identity("m"))[0].law is not None
    assert learning.facts(Facts(), ASSUMED, Identity("m", "0.33.0"))[0].law is None
    assert "engine_version was 0.32.0, is 0.33.0" in said.text


@pytest.mark.parametrize("broken", [True, False])
def test_a_file_that_does_not_fit_is_ignored_with_a_reason(
    memories: list[Memory], tmp_path: Path, said: pytest.LogCaptureFixture, broken: bool
) -> None:
    """Cut in the middle, or of another model: learning begins with nothing."""
    file = tmp_path / "state.json"
    feed(Learning(LOG, file), memories)
    if broken:
        file.write_text(file.read_text()[:100])
    else:
        kept = read_baseline(file)
        assert kept is not None
        write_baseline(file, kept[0], Identity("other", "0.32.0"), 1.7e9)
    assert Learning(LOG, file).facts(Facts(), ASSUMED, ENGINE)[0].law is None
    assert "ignored: state file" in said.text
    assert ("not JSON" if broken else "model_name was other, is m") in said.text


def test_a_folder_that_cannot_be_written_is_said_and_nothing_more(
    memories: list[Memory], tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """The law is used all the same."""
    facts, _ = feed(Learning(LOG, tmp_path / "gone" / "state.json"), memories)
    assert facts.law is not None
    assert "not kept: state file" in said.text


def test_a_fault_of_ours_does_not_stop_the_judging(memories: list[Memory], said: pytest.LogCaptureFixture) -> None:
    """What cannot be learned from is logged, and learning begins anew."""
    learning = Learning(LOG)
    learning.facts(Facts(), ASSUMED, ENGINE)
    learning.after({"0": None}, 0.0, Facts(), 60.0)  # type: ignore[dict-item]  # no memory: a slip of the caller
    assert "learning failed inside stepscope" in said.text
    assert feed(learning, memories)[0].law is not None
