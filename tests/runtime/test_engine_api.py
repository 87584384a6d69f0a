"""Version and models: what the engine says, or one line why it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from runtime.hostile_server import Behaviour, HostileServer, answer, by_path, hanging, raw
from stepscope.runtime.engine_api import Answer, ServedModel, fetch_models, fetch_version
from stepscope.runtime.engine_client import EngineClient
from stepscope.runtime.scrape_options import ScrapeOptions


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


@pytest.fixture
def client(server: HostileServer) -> Iterator[EngineClient]:
    made = EngineClient(ScrapeOptions(server.url, deadline_seconds=2.0))
    yield made
    made.close()


def says(document: object) -> Behaviour:
    return answer(json.dumps(document), content_type="application/json")


def test_version_and_models_are_read(server: HostileServer, client: EngineClient) -> None:
    models = [
        {"id": "chat", "object": "model", "root": "Qwen/Qwen3-8B", "parent": None, "max_model_len": 40960},
        {"id": "adapter", "root": "/adapters/a", "parent": "chat", "max_model_len": None},
    ]
    server.behave = by_path(
        {"/version": says({"version": "0.32.0"}), "/v1/models": says({"object": "list", "data": models})}
    )
    assert fetch_version(client) == Answer("0.32.0")
    assert fetch_models(client) == Answer(
        [ServedModel("chat", "Qwen/Qwen3-8B", 40960), ServedModel("adapter", "/adapters/a", None, "chat")]
    )
    assert server.asked[0].headers["accept"] == "application/json"
    assert server.connections == 1


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (answer("no", status="401 Unauthorized"), "HTTP status 401 (Unauthorized)"),
        (answer("no", status="404 Not Found"), "HTTP status 404 (Not Found)"),
        (answer("<html>"), "not JSON"),
        (answer("[" * 500_000), "not JSON"),
        (answer(b"\xff\xfe\xfa"), "not JSON"),
        (answer("[]"), "not a JSON object"),
        (answer(" " * (2**20 + 1)), "above the limit of 1048576"),
        (answer("{}"), "in the answer"),
        (says({"version": 5, "data": "x"}), "in the answer"),
        (says({"version": "", "data": [1, None, {}, {"id": 7}, {"id": "x" * 1000}]}), "in the answer"),
        (says({"version": "1\n2", "data": [{"id": "a\u0000b"}]}), "in the answer"),
        (raw(b""), "without an answer"),
        (hanging(), "no whole answer within 0.3 s"),
    ],
)
def test_whatever_else_comes_is_no_value_and_a_reason(
    server: HostileServer, client: EngineClient, behave: Behaviour, reason: str
) -> None:
    server.behave = behave
    version = fetch_version(client, deadline_seconds=0.3)
    models = fetch_models(client, deadline_seconds=0.3)
    assert version.value is None
    assert models.value is None
    for said, path in ((version.reason, "/version"), (models.reason, "/v1/models")):
        assert said is not None
        assert reason in said
        assert f"{server.url}{path}" in said
        assert "\n" not in said


def test_odd_fields_of_a_model_are_unknown_and_the_rest_is_kept(server: HostileServer, client: EngineClient) -> None:
    rows = [{"id": "a", "root": 5, "max_model_len": True}, {"id": "b", "max_model_len": -1}, {"root": "no id"}]
    server.behave = says({"data": rows})
    assert fetch_models(client).value == [ServedModel("a", None, None), ServedModel("b", None, None)]
