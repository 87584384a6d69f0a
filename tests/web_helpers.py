"""Real clients, certificates and files for the tests of the HTTP server."""

from __future__ import annotations

import datetime
import gzip
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stepscope.runtime.web import Limits, Request, Response, Route, WebServer
from stepscope.runtime.webconfig import WebConfig

LOG = logging.getLogger("test_web")
PAGE = b"# HELP stepscope_config_ok 1 when the configuration is valid.\nstepscope_config_ok 1\n"
LONG = b"stepscope_requests 1\n" * 500


def text(body: bytes, *headers: tuple[str, str]) -> Response:
    """A plain answer."""
    return Response(200, body, "text/plain; charset=utf-8", headers)


def broken(request: Request) -> Response:
    """A route with a fault."""
    raise RuntimeError("secret detail")


ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "/metrics"): lambda request: text(PAGE),
    ("GET", "/long"): lambda request: text(LONG),
    ("GET", "/packed"): lambda request: text(gzip.compress(LONG), ("Content-Encoding", "gzip")),
    ("GET", "/picture"): lambda request: Response(200, LONG, "image/png"),
    ("GET", "/huge"): lambda request: Response(200, bytes(32 * 1024 * 1024), "application/octet-stream"),
    ("GET", "/broken"): broken,
    ("GET", "/bad-header"): lambda request: text(PAGE, ("X-Split", "a\r\nSet-Cookie: b")),
    ("POST", "/echo"): lambda request: text(request.body + repr(sorted(request.query.items())).encode()),
    ("GET", "/whoami"): lambda request: text(f"{request.client_address} {request.headers['X-Name']}".encode()),
}


@contextmanager
def serving(
    routes: dict[tuple[str, str], Route] | None = None,
    limits: Limits | None = None,
    listen: str = "127.0.0.1:0",
    config: WebConfig | None = None,
) -> Iterator[WebServer]:
    """A running server, stopped at the end."""
    server = WebServer(listen, ROUTES if routes is None else routes, config or WebConfig(), log=LOG, limits=limits)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass(frozen=True, slots=True)
class Reply:
    """One response as a client read it from the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A socket client that sends exactly the bytes it is told to."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        raw = socket.create_connection((host, port), timeout=10)
        self.sock = raw if tls is None else tls.wrap_socket(raw, server_hostname=host)
        self._rest = bytearray()

    def send(self, data: bytes) -> Client:
        """Send raw bytes."""
        self.sock.sendall(data)
        return self

    def get(self, path: str = "/metrics", *, method: str = "GET", **headers: str) -> Reply:
        """One request over this connection; header names are written with _ for -."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        host = "" if "Host" in headers else "Host: localhost\r\n"
        self.send(f"{method} {path} HTTP/1.1\r\n{host}{lines}\r\n".encode())
        return self.reply(head_only=method == "HEAD")

    def reply(self, *, head_only: bool = False) -> Reply:
        """Read one response; fails when the server closes before its end."""
        while b"\r\n\r\n" not in self._rest:
            self._read_more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")  # of a bytearray: whole pages are added to it fast
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if head_only else int(headers.get("content-length", "0"))
        while len(self._rest) < length:
            self._read_more()
        body = bytes(self._rest[:length])
        del self._rest[:length]
        return Reply(int(first.split(" ")[1]), headers, body)

    def closed_within(self, seconds: float) -> bool:
        """Whether the server ends the connection in time (a reset counts)."""
        self.sock.settimeout(seconds)
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                if not self.sock.recv(65536):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        return False

    def close(self) -> None:
        """Leave."""
        self.sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_more(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError(f"closed by the server after {bytes(self._rest[:200])!r}")
        self._rest += data


class Authority:
    """A certificate authority that writes certificates and keys into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca_file = folder / f"{name}.pem"
        certificate = self._sign(self._name, self._key, ca=True)
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, key_password: bytes | None = None) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key, valid for localhost and the loopback addresses; returns both paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, ca=False)
        cert_file, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if key_password is not None:
            encryption = serialization.BestAvailableEncryption(key_password)
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return cert_file, key_file

    def client_context(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's context that trusts only this authority."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def _sign(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        loopback = ipaddress.ip_address("127.0.0.1")
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(loopback)])
        authority = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False)
            .sign(self._key, hashes.SHA256())
        )
