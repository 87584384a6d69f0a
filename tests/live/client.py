"""Streams completions from a real engine and writes down when each token came: the truth for the sidecar."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ground_truth import Stream

# Ordinary tokens of any vocabulary; the tiny model of the tests has 2,000.
_LOWEST_TOKEN, _HIGHEST_TOKEN = 300, 1899
_SOCKET_SECONDS = 120.0  # longest wait for one token: a long prompt ahead of it on a busy machine


def get(url: str, path: str, *, timeout_seconds: float = 20.0) -> bytes:
    """The body of a 200 answer; straight to the server, whatever the proxy variables say. Raises OSError otherwise."""
    connection = _connection(url, timeout_seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise OSError(f"GET {url}{path}: status {response.status}")
        return body
    except http.client.HTTPException as error:
        raise OSError(f"GET {url}{path}: {error!r}") from error
    finally:
        connection.close()


def get_json(url: str, path: str) -> dict[str, Any]:
    """The JSON object of a 200 answer."""
    document: dict[str, Any] = json.loads(get(url, path))
    return document


class Request:
    """One streaming completion in a thread of its own; `stream` fills as tokens come, on the monotonic clock."""

    def __init__(self, url: str, body: dict[str, Any], prompt_tokens: int) -> None:
        self.stream = Stream(time.monotonic(), prompt_tokens)
        self.error: str | None = None
        self._connection = _connection(url, _SOCKET_SECONDS)
        self._body = json.dumps(body).encode()
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="live-request", daemon=True)
        self._thread.start()

    @property
    def has_token(self) -> bool:
        """True from its first token on."""
        return bool(self.stream.arrivals)

    def wait(self, timeout_seconds: float) -> bool:
        """Until its stream has ended; False if that takes longer."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Hang up, as a user who closes the window."""
        self._cancelled = True
        sock: socket.socket | None = self._connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended by itself

    def _run(self) -> None:
        try:
            self._read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self._cancelled:
                self.error = repr(error)
        finally:
            self.stream.ended = time.monotonic()
            self._connection.close()

    def _read(self) -> None:
        connection, arrivals = self._connection, self.stream.arrivals
        connection.request("POST", "/v1/completions", self._body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"status {response.status}: {response.read(300)!r}")
        while line := response.readline():
            at = time.monotonic()
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise OSError(str(event["error"])[:300])
                # The engine's own running count: a busy frontend may put the tokens of two steps into one event.
                count = event["usage"]["completion_tokens"]
                arrivals.extend([at] * (count - len(arrivals)))


class Client:
    """Makes requests to one engine and remembers all of them."""

    def __init__(self, url: str) -> None:
        """Raises OSError when the engine does not say which model it serves."""
        self.url = url
        self.model: str = get_json(url, "/v1/models")["data"][0]["id"]
        self.requests: list[Request] = []
        self._random = random.Random()  # seeded by the system: a repeated prompt would come from the prefix cache

    def start(self, prompt_tokens: int, new_tokens: int) -> Request:
        """Send a prompt of so many random tokens and stream so many new ones, whatever the model makes of them."""
        body = {
            "model": self.model,
            "prompt": [self._random.randint(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(prompt_tokens)],
            "max_tokens": new_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        request = Request(self.url, body, prompt_tokens)
        self.requests.append(request)
        return request

    @property
    def streams(self) -> list[Stream]:
        """What is known of every request so far."""
        return [request.stream for request in self.requests]

    @property
    def errors(self) -> list[str]:
        """What went wrong, cancelled requests aside."""
        return [request.error for request in self.requests if request.error is not None]

    def cancel_all(self) -> None:
        """Hang up on everything that still runs, and wait until no thread is left."""
        for request in self.requests:
            request.cancel()
        for request in self.requests:
            request.wait(10.0)


def all_answer(requests: Sequence[Request], timeout_seconds: float) -> bool:
    """Wait until every request has its first token; False if that takes longer or one failed."""
    until = time.monotonic() + timeout_seconds
    while not all(request.has_token for request in requests):
        if time.monotonic() > until or any(request.error for request in requests):
            return False
        time.sleep(0.02)
    return True


def _connection(url: str, timeout_seconds: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_seconds)
