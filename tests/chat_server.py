"""A small server that streams completions as engines other than vLLM do, or fails in every way that one can."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

TOKENS_PER_WORD, TOKENS_AROUND = 3, 11


@dataclass
class Manner:
    """How the server behaves. page: its metrics page; None: 404."""

    path: str = "/v1/chat/completions"
    takes_extras: bool = False
    says_usage: bool = True
    status: int = 200
    error: str = ""  # body of an error answer
    error_event_after: int | None = None  # tokens before an error comes inside the stream
    cut_after: int | None = None  # tokens before the connection ends
    hang_after: int | None = None  # tokens before nothing more comes
    stop_after: int | None = None  # tokens before the answer ends well, however many were asked for
    never_stops: bool = False  # however few were asked for
    good_requests: int | None = None  # answered ones, before every other is refused with 503
    gap_seconds: float = 0.002
    slow_after_requests: int | None = None  # requests before the gap is slow_seconds
    slow_seconds: float = 0.0
    page: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    manner: Manner
    stopping: threading.Event

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, json.dumps({"data": [{"id": "some-model", "max_model_len": 4096}]}), "application/json")
        elif self.path == "/metrics" and self.manner.page is not None:
            self._answer(200, self.manner.page, "text/plain; version=0.0.4")
        else:
            self._answer(404, "{}", "application/json")

    def do_POST(self) -> None:
        manner = self.manner
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        manner.asked.append(body)
        manner.headers.append(dict(self.headers.items()))
        if manner.good_requests is not None and len(manner.asked) > manner.good_requests:
            self._answer(503, "no more", "application/json")
        elif manner.status != 200:
            self._answer(manner.status, manner.error, "application/json")
        elif self.path != manner.path:
            self._answer(404, json.dumps({"detail": "Not Found"}), "application/json")
        elif "ignore_eos" in body and not manner.takes_extras:
            self._answer(422, json.dumps({"error": "unknown field ignore_eos"}), "application/json")
        else:
            try:
                self._stream(body)
            except OSError:
                self.close_connection = True

    def _stream(self, body: dict[str, Any]) -> None:
        manner = self.manner
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        slow = manner.slow_after_requests is not None and len(manner.asked) > manner.slow_after_requests
        tokens = int(body["max_tokens"])
        if manner.stop_after is not None:
            tokens = min(tokens, manner.stop_after)
        for number in count() if manner.never_stops else range(tokens):
            if number == manner.cut_after:
                return
            if number == manner.hang_after:
                self.stopping.wait(30.0)
                return
            if number == manner.error_event_after:
                self._event({"error": {"message": manner.error, "code": 500}})
                return
            time.sleep(manner.slow_seconds if slow else manner.gap_seconds)
            self._event({"choices": [{"index": 0, "delta": {"content": " x"}}]})
        if manner.says_usage:
            words = len(body["messages"][0]["content"].split())
            prompt = TOKENS_PER_WORD * words + TOKENS_AROUND
            self._event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\r\n\r\n")
        self.wfile.flush()

    def _answer(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def chat_server(manner: Manner) -> Iterator[str]:
    """Its base URL while it runs."""
    stopping = threading.Event()
    handler = type("Handler", (_Handler,), {"manner": manner, "stopping": stopping})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(5.0)
