"""The HTTP server: a bounded number of clients, none of which can keep the next one out.

One thread accepts, one thread serves each connection. When all places are taken the connection that has waited longest
without a whole request gives up its place, so idle, slow and hostile clients cost a newcomer nothing.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Mapping

from stepscope.errors import StepscopeError
from stepscope.runtime import listen
from stepscope.runtime.connection import Connection, Limits, Phase
from stepscope.runtime.http1 import Request, Response
from stepscope.runtime.routes import Dispatcher, Route, loopback_or_authenticated
from stepscope.runtime.webauth import BasicAuth
from stepscope.runtime.webconfig import WebConfig
from stepscope.runtime.webtls import TlsContexts

__all__ = ["Limits", "Request", "Response", "Route", "WebServer", "loopback_or_authenticated"]

# A connection this young is not shut to make room: many clients may come at once and all be served. A flood of
# connects then waits in the kernel's queue, at most this long for each `Limits.connections` of them.
_GRACE_SECONDS = 0.05
_PAUSE_SECONDS = 0.1  # after the kernel refused to give a connection (no file descriptors, no memory)
_QUIET_SECONDS = 60.0  # between two log lines about that


class WebServer:
    """Serves `routes` ((method, path) -> Route). A GET route answers HEAD as well. Routes run on many threads."""

    def __init__(
        self,
        listen_address: str,
        routes: Mapping[tuple[str, str], Route],
        web_config: WebConfig,
        *,
        log: logging.Logger,
        limits: Limits | None = None,
        bearer_paths: frozenset[str] = frozenset(),
    ) -> None:
        """Nothing is opened yet. bearer_paths: see `Dispatcher`.

        Raises ConfigError for a bad address or unusable certificate files.
        """
        self._wanted = listen.parse(listen_address)
        self._limits = limits or Limits()
        self._log = log
        self._headers = web_config.headers
        self._tls = TlsContexts(web_config.tls, log) if web_config.tls else None
        auth = BasicAuth(web_config.users) if web_config.users else None
        self._dispatcher = Dispatcher(dict(routes), auth, log, bearer_paths)
        self._changed = threading.Condition()  # guards what follows; notified when a connection has ended
        self._connections: dict[Connection, threading.Thread] = {}
        self._stopping = False
        self._accepting: threading.Thread | None = None
        self._bound: listen.ListenAddress | None = None
        self._wake: socket.socket | None = None
        self._last_complaint_seconds = -_QUIET_SECONDS

    @property
    def port(self) -> int:
        """The port really listened on. Only after `start`."""
        if self._bound is None:
            raise StepscopeError("the web server was not started")
        return self._bound.port

    @property
    def address(self) -> str:
        """The address really listened on, such as "[::]:10094". Only after `start`."""
        if self._bound is None:
            raise StepscopeError("the web server was not started")
        return str(self._bound)

    @property
    def scheme(self) -> str:
        """ "http" or "https"."""
        return "https" if self._tls else "http"

    def start(self) -> None:
        """Listen and serve in the background. Raises ConfigError, for one when the port is in use."""
        listener = listen.bind(self._wanted)
        self._bound = listen.name_of(listener)
        wake_reader, self._wake = socket.socketpair()
        self._accepting = threading.Thread(
            target=self._accept_all, args=(listener, wake_reader), name="stepscope-web-accept", daemon=True
        )
        self._accepting.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Stop within the timeout: waiting clients at once, running requests after half of it. May be called twice.

        No thread is left, unless a route itself never returns: that is logged.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._stopping = True
            wake, self._wake = self._wake, None
            self._changed.notify_all()
        if wake is not None:
            wake.close()
        if self._accepting is not None:
            self._accepting.join(timeout_seconds)
        with self._changed:
            threads = [thread for thread in self._connections.values() if thread is not threading.current_thread()]
            for connection in self._connections:
                connection.finish()
            half_seconds = min(timeout_seconds / 2, max(0.0, deadline - time.monotonic()))
            self._changed.wait_for(lambda: not self._connections, half_seconds)
            for connection in self._connections:
                connection.shut()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = sum(thread.is_alive() for thread in threads)
        if left:
            self._log.warning("the web server stopped with %d request(s) still running", left)

    def _accept_all(self, listener: socket.socket, wake: socket.socket) -> None:
        with listener, wake, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while True:
                selector.select()
                if self._stopping:
                    return
                try:
                    sock, peer = listener.accept()
                except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                    continue  # the client left before it was accepted
                except OSError as error:
                    self._complain("cannot accept a connection: %s", error.strerror or error)
                    self._free_one()
                    continue
                self._admit(sock, str(peer[0]).removeprefix("::ffff:"))

    def _admit(self, sock: socket.socket, client_address: str) -> None:
        if not self._make_room():
            sock.close()
            return
        connection = Connection(sock, client_address, self._limits)
        thread = threading.Thread(target=self._serve, args=(connection,), name="stepscope-web-connection", daemon=True)
        with self._changed:
            self._connections[connection] = thread
        try:
            # Without this the kernel may hold back the last packet of an answer for 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread.start()
        except (OSError, RuntimeError) as error:  # the client is gone, or no thread can be had
            self._complain("cannot serve a connection: %s", error)
            self._end(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            tls = self._tls.current if self._tls else None
            connection.serve(self._dispatcher.respond, tls=tls, extra_headers=self._headers)
        except Exception:
            self._log.exception("a connection ended with an unexpected error")
        finally:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        connection.close()
        with self._changed:
            self._connections.pop(connection, None)
            self._changed.notify_all()

    def _make_room(self) -> bool:
        """Wait until there is a place, shutting who waited longest. False: the server is stopping."""
        with self._changed:
            while len(self._connections) >= self._limits.connections and not self._stopping:
                self._changed.wait(self._shut_oldest())
            return not self._stopping

    def _free_one(self) -> None:
        with self._changed:
            self._shut_oldest()
            self._changed.wait(_PAUSE_SECONDS)

    def _shut_oldest(self) -> float:
        """Shut the connection longest without a whole request, else longest writing. Returns seconds to wait for it."""
        candidates = [c for c in self._connections if c.phase in (Phase.WAITING, Phase.WRITING)]
        if not candidates:
            return _GRACE_SECONDS  # all places are in routes, which are short
        oldest = min(candidates, key=lambda c: (c.phase is Phase.WRITING, c.since_seconds))
        age_seconds = time.monotonic() - oldest.since_seconds
        if age_seconds < _GRACE_SECONDS:
            return _GRACE_SECONDS - age_seconds
        oldest.shut()
        return _GRACE_SECONDS

    def _complain(self, message: str, detail: object) -> None:
        now = time.monotonic()
        if now - self._last_complaint_seconds >= _QUIET_SECONDS:
            self._last_complaint_seconds = now
            self._log.warning(message, detail)
