"""How an engine wants to be asked is found out by asking."""

from __future__ import annotations

import time

import pytest

from chat_server import TOKENS_AROUND, TOKENS_PER_WORD, Manner, chat_server
from sim_helpers import small
from stepscope.errors import ConfigError
from stepscope.runtime.load_client import Limits, LoadClient
from stepscope.runtime.load_dialect import detect
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.sim.server import SimServer


def client_of(url: str, model: str = "some-model") -> LoadClient:
    return LoadClient(ScrapeOptions(url, 4.0), model)


def test_vllm_takes_token_ids() -> None:
    """The first form that is tried, and the only request."""
    server = SimServer(small())
    server.start()
    try:
        client = client_of(server.url, "Qwen/Qwen3-8B")
        tried = detect(client)
        assert (client.dialect.path, client.dialect.token_ids, client.dialect.extras) == ("/v1/completions", True, True)
        assert (tried.outcome, tried.prompt_tokens) == ("ok", 64)
    finally:
        server.stop()


@pytest.mark.parametrize("takes_extras", [True, False])
def test_a_chat_engine_takes_words_whose_tokens_are_measured(takes_extras: bool) -> None:
    """Its template's tokens are told from those of a word; a prompt then comes out at the length asked for."""
    with chat_server(Manner(takes_extras=takes_extras)) as url:
        client = client_of(url)
        detect(client)
        dialect = client.dialect
        assert (dialect.path, dialect.token_ids, dialect.extras) == ("/v1/chat/completions", False, takes_extras)
        assert (dialect.tokens_per_word, dialect.tokens_around) == (TOKENS_PER_WORD, TOKENS_AROUND)
        stream = client.stream(500, 3)
        stream.run()
        assert stream.prompt_tokens == pytest.approx(500, abs=TOKENS_PER_WORD)


@pytest.mark.parametrize(
    ("manner", "says"),
    [
        (Manner(says_usage=False), "does not say how many tokens a prompt has"),
        (Manner(path="/generate"), "takes no streamed completion (/v1/chat/completions: HTTP 404: Not Found)"),
        (Manner(status=401, error="no"), "denied: HTTP 401: no (give --engine.api-key-file)"),
        (Manner(status=503, error="loading"), "rejected: HTTP 503: loading"),
        (Manner(takes_extras=True, good_requests=4), "rejected: HTTP 503: no more"),  # the fourth is the first it takes
    ],
)
def test_an_engine_that_cannot_be_asked_is_one_line(manner: Manner, says: str) -> None:
    """It names the flag, the address and the reason."""
    with chat_server(manner) as url, pytest.raises(ConfigError) as error:
        detect(client_of(url))
    assert str(error.value).startswith(f"--engine.url: {url}: ")
    assert says in str(error.value)


def test_an_answer_without_an_end_is_ended_by_the_time() -> None:
    """It is not called silence."""
    with chat_server(Manner(takes_extras=True, never_stops=True)) as url:
        client = LoadClient(ScrapeOptions(url, 4.0), "m", limits=Limits(until_seconds=time.monotonic() + 0.5))
        began = time.monotonic()
        with pytest.raises(
            ConfigError, match=r": timeout: the time was over when [\d,]+ tokens had come \(4 asked for\)"
        ):
            detect(client)
    assert time.monotonic() - began < 1.5
