"""The real engine and one run beside it, shared by all live tests; the table of the run ends up in the summary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from live.calibration import Calibrated, calibrate
from live.drive import Record, drive
from live.engine import Engine, Pool, running_engine
from live.machine import hardware_flags
from live.report import table
from live.truth import Truth, truths

_TABLE = pytest.StashKey[str]()


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what happened, and each sample beside its truth."""

    record: Record
    truths: list[Truth]
    pool: Pool


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A real engine that nobody else uses."""
    with running_engine() as found:
        running = sum(value for _, value in found.page()["vllm:num_requests_running"])
        if running:
            pytest.fail(f"{found.url} is at work on {running:.0f} requests of somebody else: the truth would be wrong")
        yield found


@pytest.fixture(scope="session")
def hardware() -> list[str]:
    """Flags that describe the machine."""
    return hardware_flags()


@pytest.fixture(scope="session")
def run(engine: Engine, hardware: list[str], request: pytest.FixtureRequest) -> Run:
    """The load of `drive`, with the sidecar beside it."""
    record, pool = drive(engine, hardware), engine.pool()
    found = truths(record, pool)
    request.config.stash[_TABLE] = table(record, found, pool)
    return Run(record, found, pool)


@pytest.fixture(scope="session")
def calibrated(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """The engine's calibration, measured once: five minutes."""
    return calibrate(engine, tmp_path_factory.mktemp("calibrate") / "calibration.yaml")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table where it can be copied from."""
    text = config.stash.get(_TABLE, None)
    if text is not None:
        terminalreporter.section("sidecar / clients of the real engine (medians; worst: outside what clients can tell)")
        terminalreporter.write_line(text)
