"""Reads the body of a streamed completion as it comes: how many tokens so far, how it ended, what went wrong."""

from __future__ import annotations

import json
import re
from typing import Any

_DATA = b"data:"
_RUNNING_COUNT = re.compile(rb'"completion_tokens": ?(\d+)')  # vLLM and SGLang, where continuous_usage_stats is asked
_MAX_LINE_BYTES = 2**20  # an event holds one token and a usage count
_OUT_OF_MEMORY = re.compile(r"out of (\w+ )?memory|outofmemory|\boom\b", re.IGNORECASE)
# Statuses of an engine or a gateway that is full or was asked for too much: 429 and 503 by RFC 6585 and 9110, 413 for
# the body; 400 and 422 count only with one of the words below (vLLM, SGLang and TGI name the limit that was met).
_FULL = frozenset({413, 429, 503, 529})
_TOO_MUCH = re.compile(r"maximum|too (long|large|many)|exceed|longer than|overloaded|queue", re.IGNORECASE)


class StreamError(Exception):
    """The server said that it failed. `outcome`: out_of_memory, rejected, denied or failed."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def failure(status: int, text: str) -> StreamError:
    """What an answer with an error means. status: the HTTP status, or the code inside an event."""
    said = " ".join(_message(text).split())[:200] or "no reason given"
    if _OUT_OF_MEMORY.search(said):
        return StreamError("out_of_memory", said)
    if status in _FULL or (status in (400, 422, 424) and _TOO_MUCH.search(said)):
        return StreamError("rejected", f"HTTP {status}: {said}")
    return StreamError("denied" if status in (401, 403) else "failed", f"HTTP {status}: {said}")


def _message(text: str) -> str:
    """The sentence inside an error body, whatever it is wrapped in."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(3):
        if not isinstance(value, dict):
            break
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), str(value))
    return str(value)


class EventReader:
    """Takes pieces of a server-sent event stream. `tokens`: so far; `usage`: the server's own final count, or None."""

    def __init__(self) -> None:
        self.tokens = 0
        self.done = False
        self.prompt_tokens: int | None = None
        self.usage_tokens: int | None = None
        self.counts_itself = False  # the server gives a running count
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Take a piece. Raises StreamError for what the server reports, ValueError or RecursionError for nonsense."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise ValueError("an event without an end")
        for line in lines:
            if line.startswith(_DATA):
                self._event(line[len(_DATA) :].strip())

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        # The quick way, for all events but the first and the last: no JSON is built.
        if self.counts_itself and b'"choices":[]' not in data and b'"error"' not in data:
            found = _RUNNING_COUNT.search(data)
            if found is not None:
                self.tokens = max(self.tokens, int(found[1]))
                return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("an event that is no object")
        error = event.get("error")
        if error:
            code = error.get("code") if isinstance(error, dict) else None
            raise failure(code if isinstance(code, int) else 500, json.dumps(error))
        usage, choices = event.get("usage"), event.get("choices") or []
        if isinstance(usage, dict):
            self._usage(usage, running=bool(choices))
        if choices and not self.counts_itself and _brings_text(choices[0]):
            self.tokens += 1

    def _usage(self, usage: dict[str, Any], *, running: bool) -> None:
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and prompt > 0:
            self.prompt_tokens = prompt
        if isinstance(completion, int):
            self.usage_tokens = completion
            if running:
                self.counts_itself = True
                self.tokens = max(self.tokens, completion)


def _brings_text(choice: Any) -> bool:
    """Whether a choice of an event holds text; the first event of a chat holds a role only."""
    if not isinstance(choice, dict):
        return False
    if "text" in choice:
        return bool(choice["text"])
    delta = choice.get("delta")
    return isinstance(delta, dict) and bool(delta.get("content") or delta.get("reasoning_content"))
