"""docs/admission.md does what it says: its commands are taken, its requests are answered as printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from admission_helpers import ask, leasing
from shared_data import REPOSITORY
from stepscope import config
from stepscope import settings as table
from stepscope.cli import parser_of
from stepscope.config import Settings
from stepscope.errors import ConfigError

PAGE = (REPOSITORY / "docs" / "admission.md").read_text()


def start_command() -> list[str]:
    block = PAGE.partition("    stepscope serve ")[2].partition("\n\n")[0]
    return block.replace("\\\n", " ").split()


def serve(*flags: str) -> Settings:
    return config.load("serve", parser_of("serve").parse_args(list(flags)), {})


@pytest.fixture
def base() -> Iterator[str]:
    """A server with the default classes."""
    with leasing("http://127.0.0.1:9") as running:
        yield running


def test_the_start_command_is_taken_and_enforces_the_promise() -> None:
    """It has all that a speed budget needs: promise and GPU (the model is asked of the engine)."""
    settings = serve(*start_command())
    assert settings[table.ADMISSION_ENABLED]
    assert settings[table.OBJECTIVE_TOKENS_PER_SECOND] == 37.0
    assert settings[table.HARDWARE_GPU] is not None


def test_the_requests_of_the_table_are_answered_as_printed(base: str) -> None:
    """In their order, with the id of the first."""
    rows = re.findall(r"^\| `(\w+) (/v1/[\w/]+)(?: (\{.*?\}))?` \| `?(\d{3})?", PAGE, re.MULTILINE)
    assert [(method, path) for method, path, _, _ in rows] == [
        ("POST", "/v1/leases"), ("PATCH", "/v1/leases/ID"), ("DELETE", "/v1/leases/ID"), ("GET", "/v1/budget"),
    ]  # fmt: skip
    lease = ""
    for method, path, body, status in rows:
        answer = ask(base + path.replace("ID", lease), method, body.encode() or None)
        assert answer.status == int(status or 200), (method, path, answer.document)
        lease = answer.document.get("id", lease)


def test_the_keys_that_the_page_names_are_those_of_the_answers() -> None:
    """Of a lease and of a refusal."""
    keys = [set(re.findall(r'"(\w+)"', group)) for group in re.findall(r'\{("id".*?|"error".*?)\}', PAGE)]
    with leasing("http://127.0.0.1:9", (table.ADMISSION_BUDGET_TOKENS, 1000.0)) as running:
        given = ask(f"{running}/v1/leases", "POST", {"tokens": 900}).document
        refused = ask(f"{running}/v1/leases", "POST", {"tokens": 900}).document
    assert keys == [set(given), set(refused)]


def test_every_file_that_the_page_names_is_there() -> None:
    """Scripts, examples, modules, pages."""
    named = re.findall(r"`(?:python )?((?:tests|tools|examples|exporter)/[\w./-]+)`", PAGE)
    linked = re.findall(r"\]\(([\w.-]+\.md)\)", PAGE)
    assert {"tests/lease_load.py", "tools/admission_picture.py"} <= set(named)
    assert not [name for name in named if not (REPOSITORY / name).exists()]
    assert not [name for name in linked if not (REPOSITORY / "docs" / name).exists()]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--admission.default-ttl=5m", "--admission.longest-ttl=2m"),
         "--admission.default-ttl: 5m is above admission.longest-ttl, 120s"),
        (("--admission.max-connections=1e9",),
         '--admission.max-connections: "1e9" is above the largest allowed, 32768'),
        (("--admission.max-connections=0",), '--admission.max-connections: "0" is below the smallest allowed, 1'),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_one_clear_error(flags: tuple[str, ...], message: str) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError) as caught:
        serve(*flags)
    assert str(caught.value) == message


def test_a_longest_time_below_the_usual_one_shortens_it() -> None:
    """Only who names both has contradicted himself."""
    assert serve("--admission.longest-ttl=10s")[table.ADMISSION_LONGEST_TTL] == 10.0
    with leasing("http://127.0.0.1:9", (table.ADMISSION_LONGEST_TTL, 10.0)) as running:
        assert ask(f"{running}/v1/leases", "POST", {"tokens": 1}).document["ttl_seconds"] <= 10.0
