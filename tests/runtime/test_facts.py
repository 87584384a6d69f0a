"""What is served on what: asked of the engine at most once a minute, said to the core, published with its source."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeEngine, page_of
from model_configs import LLAMA
from runtime.hostile_server import Behaviour, HostileServer, answer, by_path, hanging
from stepscope import settings as table
from stepscope.config import Settings
from stepscope.core.sample import Reading
from stepscope.errors import ConfigError, FactError
from stepscope.runtime.engine_client import EngineClient
from stepscope.runtime.facts import FactsKeeper, given_of
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.setting_kinds import Setting


class Engine:
    """A server with /version and /v1/models, and a keeper that asks it by a clock of the test's own."""

    def __init__(self, server: HostileServer, caches: Path) -> None:
        self.server = server
        self.caches = caches
        self.now = 0.0
        self.client = EngineClient(ScrapeOptions(server.url, deadline_seconds=2.0))
        self.serve("0.32.0", [{"id": "chat", "root": "org/model"}])

    def serve(self, version: str | None, models: list[dict[str, Any]] | None) -> None:
        routes: dict[str, Behaviour] = {}
        if version is not None:
            routes["/version"] = answer(json.dumps({"version": version}), content_type="application/json")
        if models is not None:
            routes["/v1/models"] = answer(json.dumps({"data": models}), content_type="application/json")
        self.server.behave = by_path(routes)

    def keeper(self, *pairs: tuple[Setting[Any], Any]) -> FactsKeeper:
        settings = Settings.of((table.HARDWARE_GPU, "H100-SXM"), (table.MODEL_HF_CACHE, (self.caches,)), *pairs)
        return FactsKeeper(settings, self.client, {}, clock=lambda: self.now)

    def in_cache(self, model_id: str, **changes: Any) -> None:
        """A model of this id lies in the Hugging Face cache."""
        folder = self.caches / ("models--" + model_id.replace("/", "--"))
        snapshot = folder / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")
        (snapshot / "config.json").write_text(json.dumps({**LLAMA, **changes}))

    @property
    def asked(self) -> list[str]:
        return [asked.path for asked in self.server.asked]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with HostileServer() as server:
        made = Engine(server, tmp_path / "hub")
        yield made
        made.client.close()


def reading(model_name: str = "chat", *more: FakeEngine) -> Reading:
    return page_of(FakeEngine(model_name=model_name).reading(), *(other.reading() for other in more))


def test_the_model_is_the_one_that_the_engine_was_given(engine: Engine) -> None:
    """`root` of /v1/models, found in the Hugging Face cache; version and source are published."""
    engine.in_cache("org/model")
    keeper = engine.keeper()
    facts = keeper.for_reading(reading())
    assert facts.model is not None
    assert facts.model.name == "org/model"
    assert facts.law is not None
    assert keeper.engine_version == "0.32.0"
    assert dict(keeper.assumed.model_labels)["source"].endswith("config.json")
    assert keeper.assumed.missing == ()


def test_the_engine_is_asked_once_while_all_is_known(engine: Engine) -> None:
    """A sample costs it one page and nothing else."""
    engine.in_cache("org/model")
    keeper = engine.keeper()
    for _ in range(5):
        keeper.for_reading(reading())
        engine.now += 100.0
    assert engine.asked == ["/version", "/v1/models"]


def test_what_is_open_is_asked_again_once_a_minute(engine: Engine) -> None:
    """The model may still be loading; a wrong key may be put right."""
    keeper = engine.keeper()
    assert keeper.for_reading(reading()).law is None
    assert "--model.id" in keeper.assumed.missing[0]
    for _ in range(11):
        engine.now += 5.0
        keeper.for_reading(reading())
    assert engine.asked == ["/version", "/v1/models"]
    engine.in_cache("org/model")
    engine.now += 5.0
    assert keeper.for_reading(reading()).law is not None
    assert engine.asked == ["/version", "/v1/models"] * 2


def test_another_model_or_life_or_number_of_engines_asks_anew(engine: Engine) -> None:
    """Without waiting for the minute."""
    engine.in_cache("org/model")
    keeper = engine.keeper()
    keeper.for_reading(reading())
    keeper.for_reading(reading("other"))
    keeper.for_reading(reading("other", FakeEngine("1", "other")))
    keeper.engine_restarted()
    engine.serve("0.33.0", [{"id": "chat", "root": "org/model"}])
    keeper.for_reading(reading("other", FakeEngine("1", "other")))
    assert engine.asked.count("/version") == 4
    assert keeper.engine_version == "0.33.0"


def test_an_adapter_s_model_is_its_base(engine: Engine) -> None:
    """Adapters are listed too, with their own paths."""
    engine.in_cache("org/model")
    engine.serve(
        "0.32.0", [{"id": "lora", "root": "/adapters/x", "parent": "chat"}, {"id": "chat", "root": "org/model"}]
    )
    facts = engine.keeper().for_reading(reading("lora"))
    assert facts.model is not None
    assert facts.model.name == "org/model"


def test_an_engine_that_does_not_say_is_known_by_the_page_s_name(engine: Engine) -> None:
    """/v1/models may want a key; the served name is often the id."""
    engine.in_cache("org/model")
    engine.serve(None, None)
    keeper = engine.keeper()
    facts = keeper.for_reading(reading("org/model"))
    assert facts.model is not None
    assert keeper.engine_version is None


def test_a_hung_engine_delays_a_sample_by_seconds_and_no_more(engine: Engine) -> None:
    """Both questions have their own deadline."""
    engine.server.behave = hanging()
    keeper = engine.keeper()
    began = time.monotonic()
    assert keeper.for_reading(reading()).law is None
    assert time.monotonic() - began < 8.0
    assert "chat" in keeper.assumed.missing[0]


def test_an_explicit_model_needs_no_answer(engine: Engine) -> None:
    """The operator's word wins over the engine's."""
    engine.in_cache("org/mine", num_hidden_layers=8)
    engine.in_cache("org/model")
    keeper = engine.keeper((table.MODEL_ID, "org/mine"))
    facts = keeper.for_reading(reading())
    assert facts.model is not None
    assert (facts.model.name, facts.model.layers) == ("org/mine", 8)
    assert engine.asked == ["/version"]


def test_explicit_numbers_alone_are_a_model(engine: Engine) -> None:
    """Named as the engine calls it."""
    keeper = engine.keeper((table.MODEL_WEIGHT_BYTES, 1e10), (table.MODEL_KV_BYTES_PER_TOKEN, 1e5))
    facts = keeper.for_reading(reading())
    assert facts.model is not None
    assert (facts.model.name, facts.model.source) == ("chat", "given")
    assert facts.law is not None
    assert facts.law.kv_bytes_per_token == 1e5


def test_explicit_numbers_replace_those_of_the_model(engine: Engine) -> None:
    """One by one; the source says so."""
    engine.in_cache("org/model")
    keeper = engine.keeper((table.MODEL_WEIGHT_BYTES, 1e10), (table.MODEL_ACTIVE_PARAMS, 5e9))
    facts = keeper.for_reading(reading())
    assert facts.model is not None
    assert facts.model.weights.always_bytes == facts.model.total_weight_bytes == 1e10
    assert facts.model.active_params == 5e9
    assert facts.model.source.endswith(", given")
    per_token = engine.keeper((table.MODEL_KV_BYTES_PER_TOKEN, 7.0)).for_reading(reading())
    assert per_token.law is not None
    assert per_token.law.kv_bytes_per_token == 7.0


def test_the_page_s_cache_type_decides_the_bytes_of_kv(engine: Engine) -> None:
    """fp8 halves them; the operator's word wins over the page's."""
    engine.in_cache("org/model")
    plain = engine.keeper().for_reading(reading())
    page = page_of(FakeEngine(model_name="chat", extra={"kv_cache_dtype": "fp8"}).reading())
    halved = engine.keeper().for_reading(page)
    forced = engine.keeper((table.MODEL_KV_CACHE_DTYPE, "fp8")).for_reading(reading())
    assert plain.law is not None
    assert halved.law is not None
    assert forced.law is not None
    assert plain.law.kv_bytes_per_token == 2 * (halved.law.kv_bytes_per_token or 0)
    assert forced.law.kv_bytes_per_token == halved.law.kv_bytes_per_token


def test_what_was_guessed_and_what_is_missing_can_be_said(engine: Engine) -> None:
    """One line each, for the log."""
    engine.in_cache("org/model")
    keeper = engine.keeper()
    assert keeper.to_say() == ()
    keeper.for_reading(reading())
    assert any(line.startswith("assumed: nothing was calibrated") for line in keeper.to_say())
    empty = engine.keeper()
    empty.for_reading(reading("unknown"))
    engine.serve("0.32.0", [])
    nothing = FactsKeeper(Settings.of(), engine.client, {"HF_HOME": str(engine.caches)})
    nothing.for_reading(reading("unknown/none"))
    assert any(line.startswith("missing: model facts") for line in nothing.to_say())


def test_wrong_explicit_facts_are_said_at_once(engine: Engine, tmp_path: Path) -> None:
    """When the sidecar starts, not when the engine does."""
    with pytest.raises(FactError, match="no configuration found"):
        engine.keeper((table.MODEL_CONFIG, tmp_path / "none"))
    with pytest.raises(FactError, match="GPU 'H1000' is not in the table"):
        given_of(Settings.of((table.HARDWARE_GPU, "H1000")))
    with pytest.raises(ConfigError, match="calibration file"):
        given_of(Settings.of((table.CALIBRATION_FILE, tmp_path / "none.yaml")))


def test_explicit_calibration_numbers_are_a_calibration() -> None:
    """What is not given is 0; without a bandwidth there is none."""
    given = given_of(
        Settings.of((table.CALIBRATION_EFFECTIVE_BANDWIDTH, 1e12), (table.CALIBRATION_SEQUENCE_COST, 2e-5))
    )
    assert given.calibration is not None
    assert (given.calibration.step_overhead_seconds, given.calibration.sequence_cost_seconds) == (0.0, 2e-5)
    assert given_of(Settings.of()).calibration is None
