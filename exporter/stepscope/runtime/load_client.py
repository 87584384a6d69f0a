"""Puts streaming requests on an OpenAI-compatible engine and notes when each token came.

Prompts are random, so that no prefix cache can help. Each request has a connection and a deadline of its own; `abort`
shuts the connections at once, which every engine takes as the client's hanging up.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import string
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from stepscope import __version__
from stepscope.core.load_trace import Trace
from stepscope.runtime.scrape_options import DEFAULT_PORTS, ScrapeOptions
from stepscope.runtime.stream_events import EventReader, StreamError, failure
from stepscope.runtime.transport import FileError, Guard, TlsFiles

# How a request may end. rejected: the engine is full, or the request too large for it; denied: no permission;
# failed: any other error of the server; cut: its answer ended early; aborted: by us.
OUTCOMES = ("ok", "timeout", "connection", "rejected", "out_of_memory", "denied", "failed", "cut", "aborted")

# Token ids that every vocabulary holds as ordinary text: control tokens lie below (up to 999 in Mistral's Tekken) or at
# the end of a vocabulary, and none in use is smaller.
LOWEST_TOKEN, HIGHEST_TOKEN = 1000, 1899
_WORD_LETTERS = 5  # 26^5 words: a prompt hardly ever repeats one, and never a prefix
_READ_BYTES = 64 * 1024
_ERROR_BYTES = 16 * 1024  # of an answer that is no stream


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine wants to be asked.

    extras: it takes vLLM's and SGLang's further fields (ignore_eos, continuous_usage_stats). tokens_per_word and
    tokens_around: what a prompt of words comes to, measured; unused where prompts are token ids.
    """

    path: str = "/v1/completions"
    token_ids: bool = True
    extras: bool = True
    tokens_per_word: float = 1.0
    tokens_around: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """silent_seconds: longest wait for the next token (a long prompt may stand before it); until: of everything."""

    silent_seconds: float = 120.0
    until_seconds: float = float("inf")  # time.monotonic


class Stream:
    """One request. `run` sends it and blocks until it has ended; everything else may be read meanwhile."""

    def __init__(self, client: LoadClient, prompt_tokens: int, output_tokens: int, label: str) -> None:
        self.label = label
        self.prompt_tokens: float = prompt_tokens
        self.prompt_is_counted = False  # the server said how many tokens the prompt has
        self.output_tokens = output_tokens
        self.sent_seconds = 0.0
        self.ended_seconds: float | None = None
        self.arrivals: list[tuple[float, float]] = []
        self.outcome = ""  # empty while it runs
        self.reason = ""
        self._client = client
        self._guard = Guard(client.options.connect_timeout_seconds)
        self._aborted = False

    @property
    def decoding(self) -> bool:
        """It has a first token and has not ended."""
        return bool(self.arrivals) and not self.outcome

    def trace(self, now: float) -> Trace:
        """What is known so far; what still runs ends now."""
        ended = now if self.ended_seconds is None else self.ended_seconds
        return Trace(
            self.sent_seconds, self.prompt_tokens, tuple(self.arrivals), ended, self.outcome or "running", self.label
        )

    def abort(self) -> None:
        """Hang up, now or as soon as it begins. Any thread, or a signal handler."""
        self._aborted = True
        self._guard.abort()

    def run(self) -> None:
        """Never raises: `outcome` and `reason` say how it went."""
        client, reader = self._client, EventReader()
        body = client.body(int(self.prompt_tokens), self.output_tokens)
        self.prompt_tokens = client.tokens_of(int(self.prompt_tokens))
        self.sent_seconds = client.clock()
        try:
            self._exchange(body, reader)
            outcome, reason = ("ok", "") if reader.done else ("cut", "the stream ended before its last event")
            if reader.done and not self.arrivals:
                outcome, reason = "failed", "the stream brought no token"
        except StreamError as error:
            outcome, reason = error.outcome, str(error)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            outcome, reason = _explain(error, self._guard.connecting)
            if outcome == "timeout" and time.monotonic() >= client.limits.until_seconds:
                # Not the server's silence: it may have been in the middle of a quick answer.
                tokens = self.arrivals[-1][1] if self.arrivals else 0.0
                come = f"{tokens:,.0f} tokens" if tokens > 1.0 else "one token" if tokens else "no token"
                reason = f"the time was over when {come} had come ({self.output_tokens:,} asked for)"
        if self._aborted:
            outcome, reason = "aborted", ""
        self._settle(reader)
        self.ended_seconds = client.clock()
        self.reason, self.outcome = reason, outcome

    def _settle(self, reader: EventReader) -> None:
        """Put the server's own counts in place of ours, where it gave them."""
        if reader.prompt_tokens is not None:
            self.prompt_tokens, self.prompt_is_counted = reader.prompt_tokens, True
        total = reader.usage_tokens
        if total and reader.tokens and not reader.counts_itself and total != reader.tokens:
            share = total / reader.tokens  # several tokens an event, or tokens without text
            self.arrivals = [(when, count * share) for when, count in self.arrivals]

    def _exchange(self, body: bytes, reader: EventReader) -> None:
        client, guard = self._client, self._guard
        self._wait_from_now()
        sock = client.connect(guard)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what it answered tells more, if it did
                sock.sendall(client.head(len(body)) + body)
            answer = http.client.HTTPResponse(sock, method="POST")
            try:
                answer.begin()
                if answer.status != 200:
                    raise failure(answer.status, answer.read(_ERROR_BYTES).decode("utf-8", "replace"))
                while piece := answer.read1(_READ_BYTES):
                    before = reader.tokens
                    try:
                        reader.feed(piece)
                    finally:  # an error may stand behind tokens in the same piece
                        if reader.tokens > before:
                            self.arrivals.append((client.clock(), float(reader.tokens)))
                            self._wait_from_now()
            finally:
                answer.close()
        finally:
            sock.close()

    def _wait_from_now(self) -> None:
        limits = self._client.limits
        self._guard.start(min(time.monotonic() + limits.silent_seconds, limits.until_seconds))


class LoadClient:
    """Makes requests to one engine. `dialect` is the usual one of vLLM until `load_dialect.detect` knows better."""

    def __init__(
        self,
        options: ScrapeOptions,
        model: str,
        *,
        key_file: Path | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """seed: None for prompts that nobody sent before. Raises ConfigError through `options`; opens nothing."""
        self.options = options
        self.model = model
        self.dialect = Dialect()
        self.limits = limits or Limits()
        self.clock = clock
        self._random = random.Random(seed)
        self._random_lock = threading.Lock()
        self._key_file = key_file
        self._tls = TlsFiles(
            options.ca_file, options.client_cert_file, options.client_key_file, options.insecure_skip_verify
        )

    def stream(self, prompt_tokens: int, output_tokens: int, label: str = "") -> Stream:
        """A request of about so many prompt tokens, not yet sent."""
        return Stream(self, prompt_tokens, output_tokens, label)

    def body(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The JSON of one request, its prompt fresh."""
        dialect = self.dialect
        document: dict[str, object] = {"model": self.model, "max_tokens": output_tokens, "temperature": 0}
        document["stream"] = True
        document["stream_options"] = {"include_usage": True}
        with self._random_lock:
            prompt: object
            if dialect.token_ids:
                prompt = self._random.choices(range(LOWEST_TOKEN, HIGHEST_TOKEN + 1), k=max(1, prompt_tokens))
            else:
                count = max(1, round((prompt_tokens - dialect.tokens_around) / dialect.tokens_per_word))
                prompt = " ".join("".join(self._random.choices(string.ascii_lowercase, k=_WORD_LETTERS))
                                  for _ in range(count))  # fmt: skip
        if dialect.path.endswith("/chat/completions"):
            document["messages"] = [{"role": "user", "content": prompt}]
        else:
            document["prompt"] = prompt
        if dialect.extras:
            document["ignore_eos"] = True
            document["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return json.dumps(document).encode()

    def tokens_of(self, prompt_tokens: int) -> float:
        """What a prompt that was asked for comes to."""
        dialect = self.dialect
        if dialect.token_ids:
            return float(max(1, prompt_tokens))
        words = max(1, round((prompt_tokens - dialect.tokens_around) / dialect.tokens_per_word))
        return dialect.tokens_around + words * dialect.tokens_per_word

    def head(self, body_bytes: int) -> bytes:
        """Request line and headers. Raises OSError where the key's file cannot be read."""
        parts = urlsplit(self.options.api_url(self.dialect.path))
        lines = [
            f"POST {parts.path} HTTP/1.1",
            f"Host: {parts.netloc}",
            f"User-Agent: stepscope/{__version__}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Accept-Encoding: identity",
            "Connection: close",
            f"Content-Length: {body_bytes}",
        ]
        if self._key_file is not None:
            key = self._key_file.read_text(encoding="ascii", errors="replace").strip()
            if not key.isprintable() or not key.isascii() or " " in key or not key:
                raise FileError(f"API key file {self._key_file} is not one printable word")
            lines.append(f"Authorization: Bearer {key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def connect(self, guard: Guard) -> socket.socket:
        """A new connection bound to a guard, with TLS where the address says so. Raises OSError."""
        parts = urlsplit(self.options.metrics_url)
        host = parts.hostname or ""
        sock = guard.connect(host, parts.port or DEFAULT_PORTS[parts.scheme])
        if parts.scheme != "https":
            return sock
        try:
            return self._tls.context(guard).wrap_socket(sock, server_hostname=host)
        except BaseException:
            sock.close()
            raise


def _explain(error: Exception, connecting: bool) -> tuple[str, str]:
    if connecting and isinstance(error, TimeoutError):
        return "connection", "no connection within the time allowed"
    if isinstance(error, TimeoutError):
        return "timeout", "no token within the time allowed"
    if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected | ConnectionResetError):
        return "cut", "the connection ended before the answer did"
    if isinstance(error, FileError):
        return "connection", str(error)
    if isinstance(error, ssl.SSLError):
        return "connection", f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError):
        return "connection", error.strerror or str(error) or type(error).__name__
    if isinstance(error, http.client.HTTPException):
        return "connection", "the answer is not HTTP"
    return "failed", f"an answer that is not understood: {' '.join(str(error).split())[:120]}"
