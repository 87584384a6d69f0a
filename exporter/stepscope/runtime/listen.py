"""Listen addresses: `:10094`, `127.0.0.1:0`, `[::1]:10094`, `localhost:10094`. Parsed once, bound once."""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass

from stepscope.errors import ConfigError

_FLAG = "--web.listen-address"
_EXAMPLE = "for example :10094 or 127.0.0.1:10094"
_BACKLOG = 1024  # not yet accepted: as many gateways may come back at once; the kernel cuts it to its own SOMAXCONN
# An IPv6 socket can be refused by a kernel without IPv6; a used port or a missing right is not such a case.
_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen. `host` "" is every address of the machine; `port` 0 is any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> ListenAddress:
    """Read HOST:PORT, [IPV6]:PORT or :PORT. Raises ConfigError with what is wrong and an example."""
    if "/" in text:
        # Kubernetes sets variables such as STEPSCOPE_PORT=tcp://10.0.0.1:80 for a Service of that name.
        raise ConfigError(f'{_FLAG}: "{text}" is a URL, not an address; give HOST:PORT, {_EXAMPLE}')
    match = re.fullmatch(r"(\[[^\[\]]*\]|[^\[\]]*):([^:]*)", text)
    if match is None:
        raise ConfigError(f'{_FLAG}: "{text}" is not HOST:PORT; {_EXAMPLE}')
    host, digits = str(match[1]), str(match[2])
    bracketed = host.startswith("[")
    if ":" in host and not bracketed:
        raise ConfigError(f'{_FLAG}: "{text}": an IPv6 address needs brackets, for example [::1]:10094')
    if not re.fullmatch(r"[0-9]{1,5}", digits) or int(digits) > 65535:
        raise ConfigError(f'{_FLAG}: "{text}": port "{digits}" is not a number from 0 to 65535')
    if bracketed:
        host = host[1:-1]
        if not _is_ipv6(host):
            raise ConfigError(f'{_FLAG}: "{text}": "{host}" is not an IPv6 address')
    elif not re.fullmatch(r"[A-Za-z0-9._-]*", host):
        raise ConfigError(f'{_FLAG}: "{text}": "{host}" is not a host name or address')
    return ListenAddress(host, int(digits))


def bind(address: ListenAddress) -> socket.socket:
    """A listening, non-blocking socket. Every address means IPv6 and IPv4 at once, IPv4 alone where IPv6 is off.

    Raises ConfigError that names the address: port in use, no permission, no such address, unknown name.
    """
    try:
        candidates = _candidates(address)
    except OSError as error:
        raise ConfigError(f"{_FLAG}: cannot listen on {address}: {error.strerror or error}") from None
    for index, (family, host) in enumerate(candidates):
        try:
            return _listen(family, host, address.port)
        except OSError as error:
            if error.errno in _NO_IPV6 and index + 1 < len(candidates):
                continue
            raise ConfigError(f"{_FLAG}: cannot listen on {address}: {_why(error, address.port)}") from None
    raise ConfigError(f"{_FLAG}: cannot listen on {address}: no usable address")


def name_of(listener: socket.socket) -> ListenAddress:
    """The address a bound socket really has, with the port the kernel chose."""
    host, port = listener.getsockname()[:2]
    return ListenAddress(str(host), int(port))


def _candidates(address: ListenAddress) -> list[tuple[int, str]]:
    if not address.host:
        wanted: list[tuple[int, str]] = [(socket.AF_INET6, "::")] if socket.has_dualstack_ipv6() else []
        return [*wanted, (socket.AF_INET, "0.0.0.0")]
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name such as localhost means both families; clients that are told "localhost" mostly end up on IPv4.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return [(int(found[0][0]), str(found[0][4][0]))]


def _listen(family: int, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere this option lets two programs share one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _why(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use by another process"
    if error.errno == errno.EACCES:
        return f"no permission for port {port}"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return error.strerror or str(error)


def _is_ipv6(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    except OSError:
        return False
    return True
