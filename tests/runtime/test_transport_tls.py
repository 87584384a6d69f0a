"""The same promises over TLS, with an authority of one's own, client certificates and their rotation."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runtime.hostile_server import PAGE, Behaviour, HostileServer, chunked, hanging, head, trickling
from stepscope.errors import ScrapeError
from stepscope.runtime.scrape import ScrapeOptions, Scraper

DEADLINE_SECONDS = 0.4
SLACK_SECONDS = 0.5  # a busy two-core machine; every behaviour below would last for many seconds without a deadline

HEAD = head()
SLOW: dict[str, Behaviour] = {
    "silence": hanging(),
    "headers a byte at a time": trickling(HEAD[:20], HEAD[20:]),
    "body a byte at a time": trickling(HEAD, PAGE.encode()),
}


def fetch_failing(scraper: Scraper) -> tuple[ScrapeError, float]:
    """The error of a fetch that must fail, and how long it took in seconds."""
    started = time.monotonic()
    with pytest.raises(ScrapeError) as caught:
        scraper.fetch()
    return caught.value, time.monotonic() - started


class Authority:
    """A certificate authority of one's own in a folder; issues certificates for an address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.file = folder / "ca.pem"
        certificate = self._build(self._name, self._key.public_key(), x509.BasicConstraints(True, None), [])
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, address: str, password: bytes | None = None) -> tuple[Path, Path]:
        """(certificate file, key file)."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.IPAddress(ipaddress.ip_address(address))]
        certificate = self._build(subject, key.public_key(), x509.BasicConstraints(False, None), names)
        cert_file, key_file = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
        return cert_file, key_file

    def server_context(self, address: str = "127.0.0.1", *, clients: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server", address))
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(str(self.file))
        return context

    def _build(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        constraints: x509.BasicConstraints,
        names: list[x509.IPAddress],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(constraints, critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_page_comes_over_one_kept_connection_when_the_authority_is_trusted(authority: Authority) -> None:
    with HostileServer(tls=authority.server_context()) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, ca_file=authority.file))
        assert [scraper.fetch().text for _ in range(3)] == [PAGE] * 3
        assert server.connections == 1
        scraper.close()


def test_an_unknown_authority_and_a_foreign_name_are_refused_with_the_reason(authority: Authority) -> None:
    with HostileServer(tls=authority.server_context("127.0.0.9")) as server:
        unknown = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0))
        error, _ = fetch_failing(unknown)
        assert (error.outcome, "certificate not accepted: unable to get" in str(error)) == ("connection", True)
        unknown.close()
        foreign = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, ca_file=authority.file))
        error, _ = fetch_failing(foreign)
        assert (error.outcome, "IP address mismatch" in str(error)) == ("connection", True)
        foreign.close()
        assert server.asked == []


@pytest.mark.filterwarnings("error")
def test_verification_can_be_switched_off_without_a_warning_per_connection(authority: Authority) -> None:
    with HostileServer(tls=authority.server_context("127.0.0.9")) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, insecure_skip_verify=True))
        assert scraper.fetch().text == PAGE
        scraper.close()


def test_a_client_certificate_is_shown_and_a_rotated_one_is_used_for_the_next_connection(authority: Authority) -> None:
    cert_file, key_file = authority.issue("client", "127.0.0.1")
    with HostileServer(tls=authority.server_context(clients=True)) as server:
        options = ScrapeOptions(
            server.url,
            deadline_seconds=5.0,
            ca_file=authority.file,
            client_cert_file=cert_file,
            client_key_file=key_file,
        )
        scraper = Scraper(options)
        assert scraper.fetch().text == PAGE
        cert_file.write_text("not a certificate")
        assert scraper.fetch().text == PAGE
        server.drop_connections()
        error, _ = fetch_failing(scraper)
        assert (error.outcome, f"cannot use the TLS file {cert_file}" in str(error)) == ("connection", True)
        authority.issue("client", "127.0.0.1")
        assert scraper.fetch().text == PAGE
        scraper.close()
        without = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, ca_file=authority.file))
        error, _ = fetch_failing(without)
        assert error.outcome == "connection"
        without.close()


def test_a_locked_key_is_an_error_and_never_a_question_on_the_terminal(authority: Authority) -> None:
    cert_file, key_file = authority.issue("locked", "127.0.0.1", password=b"secret")
    with HostileServer(tls=authority.server_context()) as server:
        options = ScrapeOptions(
            server.url,
            deadline_seconds=5.0,
            ca_file=authority.file,
            client_cert_file=cert_file,
            client_key_file=key_file,
        )
        scraper = Scraper(options)
        error, seconds = fetch_failing(scraper)
        assert (error.outcome, str(cert_file) in str(error), seconds < 3) == ("connection", True, True)
        scraper.close()


def test_a_missing_authority_file_is_named(tmp_path: Path) -> None:
    with HostileServer() as server:
        url = server.url.replace("http:", "https:")
        scraper = Scraper(ScrapeOptions(url, deadline_seconds=5.0, ca_file=tmp_path / "none.pem"))
        error, _ = fetch_failing(scraper)
        assert (error.outcome, str(tmp_path / "none.pem") in str(error)) == ("connection", True)
        scraper.close()


@pytest.mark.parametrize("name", ["silence", "headers a byte at a time", "body a byte at a time"])
def test_a_slow_server_costs_the_deadline_and_no_more(authority: Authority, name: str) -> None:
    with HostileServer(SLOW[name], tls=authority.server_context()) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=DEADLINE_SECONDS, ca_file=authority.file))
        error, seconds = fetch_failing(scraper)
        assert (error.outcome, seconds < DEADLINE_SECONDS + SLACK_SECONDS) == ("timeout", True)
        scraper.close()


def test_a_handshake_that_never_comes_ends_at_the_deadline_or_at_a_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        slow = Scraper(ScrapeOptions(url, deadline_seconds=DEADLINE_SECONDS, insecure_skip_verify=True))
        error, seconds = fetch_failing(slow)
        assert (error.outcome, seconds < DEADLINE_SECONDS + SLACK_SECONDS) == ("timeout", True)
        slow.close()
        stopped = Scraper(ScrapeOptions(url, deadline_seconds=20.0, insecure_skip_verify=True))
        timer = threading.Timer(0.2, stopped.abort)
        timer.start()
        error, seconds = fetch_failing(stopped)
        timer.join()
        assert (error.outcome, seconds < 0.2 + SLACK_SECONDS) == ("connection", True)
        stopped.close()


def test_a_stop_ends_a_hung_answer_at_once(authority: Authority) -> None:
    with HostileServer(hanging(HEAD), tls=authority.server_context()) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=20.0, ca_file=authority.file))
        timer = threading.Timer(0.3, scraper.abort)
        timer.start()
        error, seconds = fetch_failing(scraper)
        timer.join()
        assert (error.outcome, seconds < 0.3 + SLACK_SECONDS) == ("connection", True)
        scraper.close()


def test_a_server_without_tls_is_a_connection_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(4096)

        thread = threading.Thread(target=greet)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        scraper = Scraper(ScrapeOptions(url, deadline_seconds=5.0, insecure_skip_verify=True))
        error, _ = fetch_failing(scraper)
        thread.join()
        scraper.close()
    assert (error.outcome, "TLS failed" in str(error)) == ("connection", True)


def test_a_large_page_in_chunks_comes_whole(authority: Authority) -> None:
    pieces = [b"a_metric 1\n" * 1000 for _ in range(100)]
    with HostileServer(chunked(pieces), tls=authority.server_context()) as server:
        scraper = Scraper(ScrapeOptions(server.url, deadline_seconds=5.0, ca_file=authority.file))
        assert scraper.fetch().content_bytes == 1_100_000
        scraper.close()
