"""Each example gateway in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from admission_helpers import leasing, simulated
from gateway_stand import BUDGET_TOKENS, Stand, fastapi_command, gateway, node_command
from stepscope import settings as table


@pytest.fixture(params=[node_command, fastapi_command], ids=["node", "fastapi"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """How to start each gateway."""
    make: Callable[[], list[str]] = request.param
    return make()


@pytest.fixture
def stand(command: list[str]) -> Iterator[Stand]:
    """Engine, sidecar, gateway."""
    budget = (table.ADMISSION_BUDGET_TOKENS, float(BUDGET_TOKENS))
    with (
        simulated() as engine,
        leasing(engine.url, budget) as leases,
        gateway(command, engine.url, leases) as (port, process),
    ):
        yield Stand(port, process, leases, engine)
