"""The simulator's HTTP side: metrics, model facts, completions and the fault switches, shaped as vLLM shapes them."""

from __future__ import annotations

import gzip
import ipaddress
import json
import queue
import select
import socket
import sys
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from stepscope.errors import StepscopeError
from stepscope.sim.cohort import Request
from stepscope.sim.completions import Ask, BadRequestError, parse_ask
from stepscope.sim.simulation import Simulation

MAX_BODY_BYTES = 32 * 1024 * 1024  # about four million token ids: far beyond any context
IDLE_SECONDS = 30.0  # a connection that says nothing for so long is closed
PEEK_SECONDS = 0.1  # how often a waiting handler looks whether its client is still there
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Host(Protocol):
    """What the handler needs of the server around it; each call takes the simulation's lock."""

    def read(self, what: str, names: frozenset[str] | None = None) -> object:
        """`page` (text or None), `faults`, `truth`."""

    def submit(self, request: Request) -> None:
        """Send a request; ValueError when it can never run."""

    def abort(self, request: Request) -> None:
        """Cancel a request."""

    def change_faults(self, changes: dict[str, object]) -> None:
        """Switch faults; ConfigError for a bad one."""

    def book_http(self, request_bytes: int, seconds: float) -> None:
        """Count one answered POST /v1/completions."""


class Listener(ThreadingHTTPServer):
    """A listening socket with a daemon thread per connection; it knows them, so that a restart can drop them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], host: Host, simulation: Simulation) -> None:
        """Binds at once; OSError when that fails."""
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.host = host
        self.config = simulation.config
        self.created = int(simulation.epoch_seconds)
        self.connections: set[socket.socket] = set()
        super().__init__(address, Handler)

    def drop_connections(self) -> None:
        """Close every open connection, as a dying process does."""
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                self.connections.discard(connection)  # its client was faster

    def handle_error(self, request: object, client_address: object) -> None:
        """A broken connection is the client's affair; anything else is a slip of ours and is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # passed on as it came


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "uvicorn"
    sys_version = ""
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    server: Listener

    def setup(self) -> None:
        """Remember the connection for `drop_connections`."""
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        """Forget it again."""
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:  # the base class names it so
        """Stay silent."""

    def do_GET(self) -> None:  # http.server's name
        """Read-only paths."""
        url = urlsplit(self.path)
        if url.path == "/metrics":  # the plain path ignores the filter, as vLLM's does
            self._metrics(None, compress=False)
        elif url.path == "/metrics/":
            names = parse_qs(url.query).get("name[]")
            accepted = [part.split(";")[0].strip() for part in self.headers.get("Accept-Encoding", "").split(",")]
            self._metrics(frozenset(names) if names else None, compress="gzip" in accepted)
        elif url.path == "/health":
            self._reply(200, b"", "text/plain")
        elif url.path == "/version":
            self._json(200, {"version": self.server.config.vllm_version})
        elif url.path == "/v1/models":
            self._json(200, self._models())
        elif url.path == "/sim/faults":
            self._json(200, self.server.host.read("faults"))
        elif url.path == "/sim/truth":
            self._json(200, self.server.host.read("truth"))
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:  # http.server's name
        """Completions and faults."""
        path = urlsplit(self.path).path
        try:
            if path not in ("/v1/completions", "/sim/faults"):
                raise BadRequestError("Not Found", 404)
            if path == "/sim/faults" and not ipaddress.ip_address(self.client_address[0].split("%")[0]).is_loopback:
                raise BadRequestError("faults are switched from this host only", 403)
            body, size = self._body()
            if path == "/sim/faults":
                self._faults(body)
            else:
                self._completion(parse_ask(body, self.server.config), size)
        except BadRequestError as error:
            self._json(error.code, error.json())

    def _metrics(self, names: frozenset[str] | None, *, compress: bool) -> None:
        page = self.server.host.read("page", names)
        if not isinstance(page, str):  # caught in the instant of a restart
            self.close_connection = True
            return
        body = page.encode()
        self._reply(200, gzip.compress(body) if compress else body, CONTENT_TYPE, gzipped=compress)

    def _models(self) -> dict[str, object]:
        config = self.server.config
        card = {
            "id": config.model_name,
            "object": "model",
            "created": self.server.created,
            "owned_by": "vllm",
            "root": config.model_root,
            "parent": None,
            "max_model_len": config.max_model_len,
            "permission": [],
        }
        return {"object": "list", "data": [card]}

    def _faults(self, body: dict[str, object]) -> None:
        self.server.connections.discard(self.connection)  # a restart must not cut its own answer
        self.close_connection = True
        try:
            self.server.host.change_faults(body)
        except StepscopeError as error:
            raise BadRequestError(str(error)) from None
        self._json(200, self.server.host.read("faults"))

    def _body(self) -> tuple[dict[str, object], int]:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            raise BadRequestError("Content-Length required", 411) from None
        if not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True
            raise BadRequestError(f"body above {MAX_BODY_BYTES} bytes", 413)
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError):
            raise BadRequestError("body is not JSON") from None
        if not isinstance(body, dict):
            raise BadRequestError("body is not a JSON object")
        return body, length

    def _completion(self, ask: Ask, body_bytes: int) -> None:
        began = time.monotonic()
        events: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        request = Request(
            ask.prompt_tokens,
            ask.max_tokens,
            on_tokens=(lambda _, tokens: events.put((tokens, ""))) if ask.stream else None,
            on_end=lambda _, reason: events.put((0, reason)),
        )
        try:
            self.server.host.submit(request)
        except ValueError as error:
            raise BadRequestError(str(error)) from None
        try:
            if ask.stream:
                whole = self._stream(ask, events)
            else:
                whole = self._answer(ask, events)
        except OSError:
            whole = False
        if whole:
            self.server.host.book_http(body_bytes, time.monotonic() - began)
        else:
            self.server.host.abort(request)
            self.close_connection = True

    def _next(self, events: queue.SimpleQueue[tuple[int, str]]) -> tuple[int, str]:
        """The next event; (0, "abort") once the client is gone."""
        while True:
            try:
                return events.get(timeout=PEEK_SECONDS)
            except queue.Empty:
                readable, _, _ = select.select([self.connection], [], [], 0)
                if readable and not self.connection.recv(1, socket.MSG_PEEK):
                    return (0, "abort")

    def _answer(self, ask: Ask, events: queue.SimpleQueue[tuple[int, str]]) -> bool:
        while True:
            _, reason = self._next(events)
            if reason:
                break
        if reason != "length":
            return False
        self._json(200, ask.chunk(ask.max_tokens, last=True, usage=ask.usage()))
        return True

    def _stream(self, ask: Ask, events: queue.SimpleQueue[tuple[int, str]]) -> bool:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while sent < ask.max_tokens:
            tokens, reason = self._next(events)
            if reason:
                return False
            sent += tokens
            self._event(json.dumps(ask.chunk(tokens, last=sent >= ask.max_tokens)))
        if ask.usage_chunk:
            self._event(json.dumps(ask.chunk(0, last=False, usage=ask.usage())))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return True

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _json(self, code: int, value: object) -> None:
        self._reply(code, json.dumps(value).encode(), "application/json")

    def _reply(self, code: int, body: bytes, content_type: str, *, gzipped: bool = False) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        if gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def truth_json(simulation: Simulation) -> dict[str, object]:
    """What no page shows: the phase and each engine's true state."""
    states = [asdict(state) for state in simulation.states()]
    return {"phase": simulation.phase, "seconds": simulation.now_seconds, "engines": states}
