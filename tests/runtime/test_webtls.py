"""TLS with real certificates and handshakes."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stepscope.errors import ConfigError
from stepscope.runtime.web import Limits, Response, WebServer
from stepscope.runtime.webconfig import WebConfig
from stepscope.runtime.webtls import TlsConfig
from web_helpers import Authority, Client

LOG = logging.getLogger("test_webtls")
ROUTES = {
    ("GET", "/metrics"): lambda request: Response(200, repr(request.authenticated).encode(), "text/plain"),
    ("GET", "/huge"): lambda request: Response(200, bytes(16 * 1024 * 1024), "application/octet-stream"),
}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority whose files live as long as the test."""
    return Authority(tmp_path)


@contextmanager
def serving(tls: TlsConfig, limits: Limits | None = None) -> Iterator[WebServer]:
    server = WebServer("127.0.0.1:0", ROUTES, WebConfig(tls=tls), log=LOG, limits=limits)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def test_pages_come_over_tls_and_connections_are_kept(authority: Authority) -> None:
    """TLS 1.3 by default, several requests on one connection."""
    with (
        serving(TlsConfig(*authority.issue("server"))) as server,
        Client(server.port, tls=authority.client_context()) as client,
    ):
        assert server.scheme == "https"
        assert client.sock.version() == "TLSv1.3"  # type: ignore[attr-defined]  # it is an SSLSocket
        assert [client.get().body for _ in range(3)] == [b"False"] * 3
        assert len(client.get("/huge").body) == 16 * 1024 * 1024


def test_versions_outside_the_configured_ones_are_refused(authority: Authority) -> None:
    """A client that speaks only TLS 1.2 does not get in where 1.3 is the least."""
    old = authority.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    cert, key = authority.issue("server")
    with serving(TlsConfig(cert, key, min_version="TLS13")) as server:
        with pytest.raises(ssl.SSLError, match=r"(?i)version"):
            Client(server.port, tls=old)
        with Client(server.port, tls=authority.client_context()) as client:
            assert client.get().status == 200
    chosen = TlsConfig(cert, key, max_version="TLS12", ciphers=("ECDHE-ECDSA-AES256-GCM-SHA384",))
    with serving(chosen) as server, Client(server.port, tls=authority.client_context()) as client:
        assert client.sock.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"  # type: ignore[attr-defined]


def test_a_required_client_certificate_lets_in_only_its_holders(authority: Authority, tmp_path: Path) -> None:
    """A certificate of the right authority authenticates; none, or one of another authority, ends the connection."""
    cert, key = authority.issue("server")
    tls = TlsConfig(cert, key, client_auth="required", client_ca_file=authority.ca_file)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger").issue("client")
    with serving(tls) as server:
        with Client(server.port, tls=authority.client_context(authority.issue("client"))) as client:
            assert client.get().body == b"True"
        for context in (authority.client_context(), authority.client_context(stranger)):
            # With TLS 1.3 the client learns of the refusal at its first read.
            with pytest.raises(ssl.SSLError, match=r"(?i)certificate|unknown ca"):
                Client(server.port, tls=context).get()


def test_an_optional_client_certificate_authenticates_when_it_is_given(authority: Authority) -> None:
    """VerifyClientCertIfGiven serves both, and tells routes which is which."""
    cert, key = authority.issue("server")
    tls = TlsConfig(cert, key, client_auth="if_given", client_ca_file=authority.ca_file)
    with serving(tls) as server:
        with Client(server.port, tls=authority.client_context()) as client:
            assert client.get().body == b"False"
        with Client(server.port, tls=authority.client_context(authority.issue("client"))) as client:
            assert client.get().body == b"True"


def serial(server: WebServer, authority: Authority) -> str:
    with Client(server.port, tls=authority.client_context()) as client:
        assert client.get().status == 200
        return str(client.sock.getpeercert()["serialNumber"])  # type: ignore[attr-defined]


def test_a_replaced_certificate_is_used_by_the_next_connection(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """No restart for a rotation; open connections go on; half a rotation or rubbish keeps the old certificate."""
    cert, key = authority.issue("server")
    new_cert, new_key = authority.issue("renewed")
    with (
        caplog.at_level(logging.INFO),
        serving(TlsConfig(cert, key)) as server,
        Client(server.port, tls=authority.client_context()) as open_before,
    ):
        before = serial(server, authority)
        cert.write_bytes(new_cert.read_bytes())  # the key does not belong to it yet
        assert serial(server, authority) == before
        assert serial(server, authority) == before
        assert caplog.text.count("TLS goes on with the certificate read before") == 1
        key.unlink()
        assert serial(server, authority) == before
        key.write_bytes(new_key.read_bytes())
        assert serial(server, authority) != before
        assert "TLS certificate files changed and were read again" in caplog.text
        assert open_before.get().status == 200


def test_a_plain_request_to_the_tls_port_is_told_so(authority: Authority) -> None:
    """curl http:// on the https port is a frequent slip."""
    with serving(TlsConfig(*authority.issue("server"))) as server, Client(server.port) as plain:
        reply = plain.get()
        assert (reply.status, reply.body) == (400, b"this port speaks HTTPS, the request was plain HTTP\n")
        assert plain.closed_within(1.5)


def test_stalled_handshakes_keep_nobody_out_and_end(authority: Authority) -> None:
    """More silent, half-sent and slow handshakes than there are places: a page still comes, all end at the deadline."""
    limits = Limits(connections=4, request_seconds=1.0)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the start of a ClientHello
    with serving(TlsConfig(*authority.issue("server")), limits) as server, ExitStack() as stack:
        stalled = [stack.enter_context(Client(server.port)) for _ in range(12)]
        for client in stalled[::2]:
            try:
                client.send(hello)
            except OSError:
                continue  # this one had to make room already
        time.sleep(0.1)
        started = time.monotonic()
        with Client(server.port, tls=authority.client_context()) as client:
            assert client.get().status == 200
        assert time.monotonic() - started < 0.9
        assert all(client.closed_within(2.5) for client in stalled)


def test_a_slow_reader_over_tls_is_dropped_and_stop_is_quick(authority: Authority) -> None:
    """The write deadline counts for the whole response, not for each record; open TLS connections end with stop."""
    limits = Limits(write_seconds=0.4)
    with serving(TlsConfig(*authority.issue("server")), limits) as server:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        slow = authority.client_context().wrap_socket(raw, server_hostname="localhost")
        slow.sendall(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.settimeout(5)
        started = time.monotonic()
        received = 0
        with contextlib.suppress(OSError):  # a reset or a cut record, as the moment has it
            while data := slow.recv(1024):
                received += len(data)
                time.sleep(0.02)
        assert received < 16 * 1024 * 1024
        assert time.monotonic() - started < 4
        slow.close()
        with Client(server.port, tls=authority.client_context()) as idle:
            assert idle.get().status == 200
            started = time.monotonic()
            server.stop()
            assert time.monotonic() - started < 1.0
            assert idle.closed_within(0.5)


def test_unusable_files_are_refused_before_anything_listens(tmp_path: Path) -> None:
    """The error names the key of the configuration."""
    tls = TlsConfig(tmp_path / "a.crt", tmp_path / "a.key")
    with pytest.raises(ConfigError) as caught:
        WebServer("127.0.0.1:0", ROUTES, WebConfig(tls=tls), log=LOG)
    expected = f"tls_server_config.cert_file: cannot read {tmp_path / 'a.crt'}: No such file or directory"
    assert str(caught.value) == expected
