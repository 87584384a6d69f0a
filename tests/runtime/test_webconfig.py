"""The web configuration file: what is right is read whole, what is wrong is one exact line."""

from __future__ import annotations

import sys
from pathlib import Path

import bcrypt
import pytest

from stepscope.errors import ConfigError
from stepscope.runtime import webconfig
from stepscope.runtime.webconfig import WebConfig
from web_helpers import Authority

DATA = Path(__file__).parent / "webconfig_data"
TLS = "tls_server_config"
NO_HASH = 'not a bcrypt hash; make one with: htpasswd -nBC 10 "" | tr -d ":\\n"'

# stem of the bad file -> the message after its path
FAULTS = {
    "ca-without-client-auth": (
        f":4: {TLS}.client_ca_file: needs client_auth_type VerifyClientCertIfGiven or RequireAndVerifyClientCert"
    ),
    "cert-not-there": f": {TLS}.cert_file: cannot read {DATA}/not-there.crt: No such file or directory",
    "cipher-unknown": (
        f':5: {TLS}.cipher_suites: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA265" is not a supported cipher suite, '
        "did you mean TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256?"
    ),
    "ciphers-not-a-list": f":4: {TLS}.cipher_suites: must be a list",
    "client-auth-unverified": (
        f':4: {TLS}.client_auth_type: "RequireAnyClientCert" is not supported; '
        "use NoClientCert or VerifyClientCertIfGiven or RequireAndVerifyClientCert"
    ),
    "client-auth-without-ca": f":4: {TLS}.client_auth_type: needs client_ca_file",
    "empty-cert": f":2: {TLS}.cert_file: must be the name of a file",
    "header-two-lines": (":3: http_server_config.headers.Content-Security-Policy: must be printable ASCII on one line"),
    "header-value": (
        ':3: http_server_config.headers.X-Frame-Options: "allow" is not supported; use deny or sameorigin'
    ),
    "http2-not-boolean": ":2: http_server_config.http2: must be true or false",
    "key-twice": ":3: http_server_config.http2: given twice",
    "list-at-top": ":1: must be a mapping of keys to values",
    "no-cert": f":1: {TLS}: cert_file is missing",
    "no-key": f":1: {TLS}: key_file is missing",
    "not-yaml": (":2: not valid YAML: while parsing a flow node, expected the node content, but found '<stream end>'"),
    "null-cert": f":2: {TLS}.cert_file: must be a text",
    "old-tls": f':4: {TLS}.min_version: "TLS10" is not supported; use TLS12 or TLS13',
    "password-costly": ":2: basic_auth_users.alice: bcrypt cost 20 is not within 4 and 16",
    "password-mistyped": f":2: basic_auth_users.alice: {NO_HASH}",
    "password-null": ":2: basic_auth_users.alice: must be a text",
    "password-plain": f":2: basic_auth_users.alice: {NO_HASH}",
    "section-is-text": f":1: {TLS}: must be a mapping of keys to values",
    "two-documents": (":2: not valid YAML: expected a single document in the stream, but found another document"),
    "unknown-header": (":3: unknown key http_server_config.headers.X-Frame-Option, did you mean X-Frame-Options?"),
    "unknown-http-key": ":2: unknown key http_server_config.http3, did you mean http2?",
    "unknown-section": f":1: unknown key tls_server_confg, did you mean {TLS}?",
    "unknown-tls-key": f":3: unknown key {TLS}.key_fil, did you mean key_file?",
    "unrelated-key": f":1: unknown key listen; known are {TLS}, http_server_config, basic_auth_users",
    "unsupported-inline-key": f":3: {TLS}.key: not supported here (use key_file)",
    "unsupported-rate-limit": ":1: rate_limit: not supported here (connections are limited anyway)",
    "unsupported-sans": f":4: {TLS}.client_allowed_sans: not supported here (use a CA of its own for the clients)",
    "user-twice": ":3: basic_auth_users.alice: given twice",
    "user-with-colon": ":2: basic_auth_users.a:b: a user name cannot contain a colon",
    "versions-crossed": f":4: {TLS}.min_version: is above max_version",
}


def test_every_bad_file_is_in_the_table() -> None:
    """A bad file without its message would test nothing."""
    assert {path.stem for path in DATA.glob("*.yml")} == set(FAULTS)


@pytest.mark.parametrize("stem", FAULTS)
def test_a_fault_is_one_exact_line(stem: str) -> None:
    """The line names the file, the line in it, the key, and the nearest valid key where one is near."""
    path = DATA / f"{stem}.yml"
    with pytest.raises(ConfigError) as caught:
        webconfig.load(path)
    assert str(caught.value) == f"{path}{FAULTS[stem]}"


@pytest.mark.parametrize("stem", ["password-plain", "password-mistyped", "password-costly", "user-twice"])
def test_a_fault_never_shows_a_password_or_hash(stem: str) -> None:
    """Error lines end up in logs."""
    with pytest.raises(ConfigError) as caught:
        webconfig.load(DATA / f"{stem}.yml")
    secret = (DATA / f"{stem}.yml").read_text().splitlines()[1].split(": ")[1]
    assert secret not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config:\n", "basic_auth_users: {}\n"])
def test_an_empty_file_means_plain_http_for_everybody(tmp_path: Path, text: str) -> None:
    """As with the exporter toolkit, an empty section is an absent one."""
    path = tmp_path / "web.yml"
    path.write_text(text)
    assert webconfig.load(path) == WebConfig()


def test_a_whole_file_is_read_with_paths_relative_to_it(tmp_path: Path) -> None:
    """Every supported key at once; the hashes do not show when the configuration is printed."""
    authority = Authority(tmp_path)
    authority.issue("server")
    alice = bcrypt.hashpw(b"opensesame", bcrypt.gensalt(4)).decode()
    path = tmp_path / "web.yml"
    path.write_text(
        "tls_server_config:\n"
        "  cert_file: server.crt\n"
        f"  key_file: {tmp_path / 'server.key'}\n"
        "  client_auth_type: RequireAndVerifyClientCert\n"
        "  client_ca_file: ca.pem\n"
        "  min_version: TLS12\n"
        "  max_version: TLS12\n"
        "  cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n"
        "http_server_config:\n"
        "  http2: false\n"
        "  headers:\n"
        "    Strict-Transport-Security: max-age=31536000\n"
        "    X-XSS-Protection: ''\n"
        "    X-Frame-Options:\n"
        "basic_auth_users:\n"
        f"  alice: {alice}\n"
        f"  1234: {alice}\n"
    )
    config = webconfig.load(path)
    assert config.tls is not None
    assert config.tls.files == (
        ("cert_file", tmp_path / "server.crt"),
        ("key_file", tmp_path / "server.key"),
        ("client_ca_file", tmp_path / "ca.pem"),
    )
    assert config.tls.client_auth == "required"
    assert (config.tls.min_version, config.tls.max_version) == ("TLS12", "TLS12")
    assert config.tls.ciphers == ("ECDHE-ECDSA-AES256-GCM-SHA384",)
    assert config.headers == (("Strict-Transport-Security", "max-age=31536000"),)
    assert config.users == {"alice": alice.encode(), "1234": alice.encode()}
    assert alice not in repr(config)


def test_unusable_certificates_are_told_apart(tmp_path: Path) -> None:
    """Wrong key, encrypted key (OpenSSL would ask on the terminal), no PEM, no CA: each has its own words."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    _, other_key = authority.issue("other")
    _, locked_key = authority.issue("locked", key_password=b"x")
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    path = tmp_path / "web.yml"

    def message(cert_file: Path, key_file: Path, more: str = "") -> str:
        path.write_text(f"tls_server_config:\n  cert_file: {cert_file}\n  key_file: {key_file}\n{more}")
        with pytest.raises(ConfigError) as caught:
            webconfig.load(path)
        return str(caught.value).removeprefix(f"{path}: tls_server_config.")

    assert message(cert, other_key) == f"key_file: {other_key} is not the key of {cert}"
    assert message(cert, locked_key) == f"key_file: {locked_key} is encrypted; an unencrypted key is needed"
    assert message(rubbish, key) == f"key_file: {rubbish} and {key} are not a certificate and its key in PEM form"
    client = f"  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: {rubbish}\n"
    assert message(cert, key, client) == f"client_ca_file: {rubbish} holds no certificate in PEM form"


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """Missing, a folder, not text, or far too large."""
    with pytest.raises(ConfigError, match=r"web\.yml: cannot read the web configuration: No such file or directory$"):
        webconfig.load(tmp_path / "web.yml")
    with pytest.raises(ConfigError, match=r": cannot read the web configuration: Is a directory$"):
        webconfig.load(tmp_path)
    (tmp_path / "binary.yml").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(ConfigError, match=r"^[^\n]*binary.yml: not valid YAML: [^\n]+$"):
        webconfig.load(tmp_path / "binary.yml")
    (tmp_path / "large.yml").write_text("#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match=r"large\.yml: larger than 1048576 bytes, not a web configuration$"):
        webconfig.load(tmp_path / "large.yml")


def test_users_without_the_package_bcrypt_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bcrypt is optional; the message is the command that installs it."""
    monkeypatch.setitem(sys.modules, "bcrypt", None)  # what an absent package looks like to an import
    path = tmp_path / "web.yml"
    path.write_text("basic_auth_users:\n  alice: $2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze\n")
    with pytest.raises(ConfigError) as caught:
        webconfig.load(path)
    expected = 'web.yml:1: basic_auth_users: needs the package bcrypt: pip install "stepscope[auth]"'
    assert str(caught.value).endswith(expected)
