"""Finds out how an engine wants to be asked: token ids or words, completions or chat, with which further fields."""

from __future__ import annotations

from dataclasses import replace

from stepscope.errors import ConfigError
from stepscope.runtime.load_client import Dialect, LoadClient, Stream

# Best first: vLLM and SGLang, other completion servers, chat servers such as TGI, and what knows no further fields.
_CANDIDATES = (
    Dialect("/v1/completions", token_ids=True, extras=True),
    Dialect("/v1/completions", token_ids=False, extras=True),
    Dialect("/v1/completions", token_ids=False, extras=False),
    Dialect("/v1/chat/completions", token_ids=False, extras=True),
    Dialect("/v1/chat/completions", token_ids=False, extras=False),
)
_PROMPT, _LONGER_PROMPT, _OUTPUT = 64, 256, 4  # tokens or words of the requests that try it out
_SLACK_TOKENS = 8  # a beginning-of-text token and the like; far below what a list taken for text would come to
# The request itself was refused, so another form may do: bad request, not found, wrong method or media type, not
# understood. Anything else (no permission, full, broken) would meet every form.
_OTHER_FORM = ("HTTP 400", "HTTP 404", "HTTP 405", "HTTP 415", "HTTP 422", "HTTP 501")


def detect(client: LoadClient) -> Stream:
    """Set the client's dialect; returns the request that succeeded. Raises ConfigError where no form is accepted."""
    refusals = []
    for dialect in _CANDIDATES:
        client.dialect = dialect
        tried = client.stream(_PROMPT, _OUTPUT)
        tried.run()
        if tried.outcome == "ok":
            if dialect.token_ids and abs(tried.prompt_tokens - _PROMPT) > _SLACK_TOKENS:
                continue  # it took the list for text
            if not dialect.token_ids:
                client.dialect = _with_words(client, dialect, tried)
            return tried
        refusals.append(f"{dialect.path}: {tried.reason}")
        if not tried.reason.startswith(_OTHER_FORM):
            raise _ended_badly(client, tried)
    raise ConfigError(f"--engine.url: {client.options.url}: takes no streamed completion ({refusals[-1]})")


def _with_words(client: LoadClient, dialect: Dialect, short: Stream) -> Dialect:
    """Tokens a word and around the prompt, from what the server counts for two lengths.

    client.dialect counts a word as a token, so that prompt lengths are words here.
    """
    longer = client.stream(_LONGER_PROMPT, _OUTPUT)
    longer.run()
    if longer.outcome != "ok":
        raise _ended_badly(client, longer)
    per_word = (longer.prompt_tokens - short.prompt_tokens) / (_LONGER_PROMPT - _PROMPT)
    if not (short.prompt_is_counted and longer.prompt_is_counted) or per_word <= 0.0:
        raise ConfigError(f"--engine.url: {client.options.url}: does not say how many tokens a prompt has (usage)")
    return replace(dialect, tokens_per_word=per_word, tokens_around=short.prompt_tokens - per_word * _PROMPT)


def _ended_badly(client: LoadClient, tried: Stream) -> ConfigError:
    hint = " (give --engine.api-key-file)" if tried.outcome == "denied" else ""
    return ConfigError(f"--engine.url: {client.options.url}: {tried.outcome}: {tried.reason}{hint}")
