"""Sockets for one origin whose every operation ends at one deadline, or at once when another thread says stop.

The read timeout of an HTTP library counts from the last byte, so a server that trickles a byte a second never trips it.
Here each socket operation (connect, handshake, send, receive) first sets its own timeout to what is left of the total.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import certifi

_ABORT_POLL_SECONDS = 0.05  # how soon a stop is seen while a name lookup hangs; nothing else polls

# (family, socket address), as socket.getaddrinfo gives them
Address = tuple[socket.AddressFamily, Any]


class FileError(OSError):
    """A TLS or token file cannot be used; the text names it and is fit for an operator."""


class Guard:
    """Deadline, emergency stop and bookkeeping of the request in flight; one request at a time.

    `abort` takes no lock, so that a signal handler may call it in the very thread that waits for the engine.
    """

    def __init__(self, connect_timeout_seconds: float) -> None:
        self.connect_timeout_seconds = connect_timeout_seconds
        self.aborted = False
        self.connecting = False
        self.connects = 0
        self.received_bytes = 0
        self._until_seconds = 0.0
        self._socket: socket.socket | None = None
        self._lookup: tuple[threading.Thread, queue.SimpleQueue[list[Address] | Exception]] | None = None

    def start(self, until_seconds: float) -> None:
        """Every operation from now on ends before `until_seconds` (time.monotonic)."""
        self._until_seconds = until_seconds
        self.connecting = False

    def remaining_seconds(self) -> float:
        """Seconds left, above 0. Raises TimeoutError when none are, ConnectionAbortedError after `abort`."""
        if self.aborted:
            raise ConnectionAbortedError("stopped")
        left = self._until_seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline")
        return left

    def hold(self, sock: socket.socket) -> None:
        """Make `sock` the one that `abort` shuts. Checked after the assignment: an abort in between is not missed."""
        self._socket = sock
        self.remaining_seconds()

    def abort(self) -> None:
        """End the operation in flight and refuse all later ones, for good. Any thread, or a signal handler."""
        self.aborted = True
        sock = self._socket
        if sock is not None:
            with suppress(OSError):
                # SSLSocket.shutdown would also drop the TLS state under the reading thread's feet.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def connect(self, host: str, port: int) -> socket.socket:
        """A connected socket bound to this guard. Each address gets an equal share of the connect timeout that is left.

        Raises OSError (the last address's) or socket.gaierror.
        """
        self.connects += 1
        self.connecting = True
        until = time.monotonic() + min(self.connect_timeout_seconds, self.remaining_seconds())
        addresses = self._resolve(host, port, until)
        error: OSError = OSError("the name has no address")
        for index, (family, address) in enumerate(addresses):
            sock = GuardedSocket(family, socket.SOCK_STREAM)
            sock.guard = self
            try:
                self.hold(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                share = (until - time.monotonic()) / (len(addresses) - index)
                if share <= 0:
                    raise TimeoutError("connect")
                sock.settimeout(share)
                sock.connect(address)
                self.remaining_seconds()
            except OSError as failure:
                sock.close()
                error = failure
                if self.aborted:
                    break
                continue
            self.connecting = False
            return sock
        raise error

    def _resolve(self, host: str, port: int, until_seconds: float) -> list[Address]:
        """Addresses of a host. A resolver that hangs cannot be interrupted, so names are looked up in a daemon thread.

        That costs a thread per new connection by name, none per scrape; one hung lookup is waited for, never doubled.
        """
        with suppress(OSError):
            return _lookup(host, port, socket.AI_NUMERICHOST)
        if self._lookup is None or not self._lookup[0].is_alive():
            answers: queue.SimpleQueue[list[Address] | Exception] = queue.SimpleQueue()

            def look() -> None:
                try:
                    answers.put(_lookup(host, port, 0))
                except (OSError, UnicodeError) as error:
                    answers.put(error)

            thread = threading.Thread(target=look, name="stepscope-resolve", daemon=True)
            self._lookup = (thread, answers)
            thread.start()
        pending = self._lookup[1]
        while True:
            self.remaining_seconds()
            left = until_seconds - time.monotonic()
            if left <= 0:
                raise TimeoutError("name lookup")
            with suppress(queue.Empty):
                answer = pending.get(timeout=min(left, _ABORT_POLL_SECONDS))
                self._lookup = None
                if isinstance(answer, Exception):
                    raise answer
                return answer


def _lookup(host: str, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]


class GuardedSocket(socket.socket):
    """A plain socket that never waits past its guard's deadline, however slowly bytes trickle in."""

    guard: Guard

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(self.guard.remaining_seconds())
        count = super().recv_into(buffer, nbytes, flags)
        self.guard.received_bytes += count
        return count

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.settimeout(self.guard.remaining_seconds())
        super().sendall(data, flags)


class GuardedContext(ssl.SSLContext):
    """A client TLS context that hands its guard to the sockets it wraps."""

    guard: Guard


class GuardedTlsSocket(ssl.SSLSocket):
    """The same for TLS. OpenSSL's handshake and read take the socket timeout as a total for the call."""

    @property
    def guard(self) -> Guard:
        return cast(GuardedContext, self.context).guard

    def do_handshake(self, block: bool = False) -> None:
        # The plain socket was detached when this one took over its descriptor: abort must know the new one.
        self.guard.hold(self)
        self.settimeout(self.guard.remaining_seconds())
        super().do_handshake(block)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        self.settimeout(self.guard.remaining_seconds())
        count = super().recv_into(buffer, nbytes, flags)
        self.guard.received_bytes += count
        return count

    def send(self, data: Any, flags: int = 0) -> int:
        self.settimeout(self.guard.remaining_seconds())
        return super().send(data, flags)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What to trust and what to show. Without `ca_file`: the system's store and the certifi bundle."""

    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    insecure_skip_verify: bool = False

    def stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes when a file is rotated, by rename or by symbolic link. Raises OSError."""
        paths = (self.ca_file, self.client_cert_file, self.client_key_file)
        return tuple(None if path is None else file_stamp(path) for path in paths)

    def context(self, guard: Guard) -> GuardedContext:
        """A fresh context. Raises FileError."""
        context = GuardedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.guard = guard
        context.sslsocket_class = GuardedTlsSocket
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_file is not None:
            _load(self.ca_file, lambda: context.load_verify_locations(str(self.ca_file)))
        else:
            context.load_default_certs()
            context.load_verify_locations(certifi.where())
        if self.client_cert_file is not None:
            cert, key = self.client_cert_file, self.client_key_file
            # Without a password function OpenSSL would ask for one on the terminal, and wait.
            _load(cert, lambda: context.load_cert_chain(cert, key, password=lambda: ""))
        return context


def file_stamp(path: Path) -> tuple[int, int, int]:
    """(mtime in ns, inode, size) of a file. Raises OSError whose text names it."""
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


def _load(path: Path, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:
        # ssl's own text does not name the file.
        raise FileError(f"cannot use the TLS file {path}: {error}") from error
