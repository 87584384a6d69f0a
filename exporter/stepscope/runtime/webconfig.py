"""The web configuration file (`--web.config.file`), in the format of the Prometheus exporter toolkit.

Its reference: the toolkit's docs/web-configuration.md. A key this server cannot honour is an error, because what it
would drop is protection; every error is one line with file, line and key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.errors import ConfigError
from stepscope.runtime.webtls import CIPHERS, TlsConfig, TlsVersion, build_context

if TYPE_CHECKING:
    import yaml

_MAX_FILE_BYTES = 1024 * 1024  # the size limit of a Kubernetes Secret
# A cost of 10 takes about 70 ms (toolkit documentation) and each step doubles it: 16 takes about 4.5 s, half of
# Prometheus's default scrape timeout of 10 s.
_MAX_BCRYPT_COST = 16
# $2y$COST$, then 16 bytes of salt (22 characters, of which the last holds two bits) and 23 bytes of digest.
_BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")

_CLIENT_AUTH: dict[str, Literal["none", "if_given", "required"]] = {
    "NoClientCert": "none",
    "VerifyClientCertIfGiven": "if_given",
    "RequireAndVerifyClientCert": "required",
}
_VERSIONS: dict[str, TlsVersion] = {"TLS12": "TLS12", "TLS13": "TLS13"}
# TLS 1.3 suites are always on, in Go as in OpenSSL; the toolkit takes their names all the same.
_TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
# header -> allowed values, None for any; the toolkit's list.
_HEADERS: dict[str, tuple[str, ...] | None] = {
    "Content-Security-Policy": None,
    "Strict-Transport-Security": None,
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": None,
}
_TOP_KEYS = ("tls_server_config", "http_server_config", "basic_auth_users")
_TLS_KEYS = (
    "cert_file",
    "key_file",
    "client_auth_type",
    "client_ca_file",
    "min_version",
    "max_version",
    "cipher_suites",
)
_HTTP_KEYS = ("http2", "headers")
# Keys of the toolkit that mean nothing here: named, so that nobody looks for a spelling mistake.
_UNSUPPORTED = {
    "rate_limit": "connections are limited anyway",
    "tls_server_config.cert": "use cert_file",
    "tls_server_config.key": "use key_file",
    "tls_server_config.client_ca": "use client_ca_file",
    "tls_server_config.client_allowed_sans": "use a CA of its own for the clients",
    "tls_server_config.prefer_server_cipher_suites": "the server's preference always counts",
    "tls_server_config.curve_preferences": "OpenSSL's preference counts",
}


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How to serve. The default is plain HTTP for everybody.

    headers: added to every response. users: name -> bcrypt hash; empty means no authentication.
    """

    tls: TlsConfig | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def load(path: str | Path) -> WebConfig:
    """Read and check a web configuration file, certificates included. Relative files are relative to it.

    Raises ConfigError: one line with the file, where possible the line, and the key.
    """
    path = Path(path)
    root = _Node(path, "", _compose(path))
    entries = root.mapping(_TOP_KEYS)
    tls = _tls(entries["tls_server_config"]) if "tls_server_config" in entries else None
    headers = _headers(entries["http_server_config"]) if "http_server_config" in entries else ()
    users = _users(entries["basic_auth_users"]) if "basic_auth_users" in entries else {}
    return WebConfig(tls, headers, users)


class _Node:
    """A YAML node with its place, so that every complaint says where."""

    def __init__(self, path: Path, key: str, node: yaml.Node | None, line: int = 1) -> None:
        self.path = path
        self.key = key
        self._node = node
        self._line = line

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"{self.path}:{self._line}: {self.key + ': ' if self.key else ''}{message}")

    @property
    def _kind(self) -> str:
        """The YAML type: map, seq, str, bool, null, int ..."""
        return "null" if self._node is None else str(self._node.tag).rpartition(":")[2]

    def mapping(self, keys: Iterable[str] | None = None) -> dict[str, _Node]:
        """The entries of a mapping (empty for null), each a known key (None: any) and given once."""
        if self._kind == "null":
            return {}
        if self._kind != "map" or self._node is None:
            raise self.error("must be a mapping of keys to values")
        entries: dict[str, _Node] = {}
        for key_node, value_node in self._node.value:
            name = str(key_node.value) if isinstance(key_node.value, str) else "?"
            full = f"{self.key}.{name}" if self.key else name
            child = _Node(self.path, full, value_node, key_node.start_mark.line + 1)
            if full in _UNSUPPORTED:
                raise child.error(f"not supported here ({_UNSUPPORTED[full]})")
            if keys is not None and name not in keys:
                place = _Node(self.path, "", None, key_node.start_mark.line + 1)
                raise place.error(f"unknown key {full}{_nearest(name, keys)}")
            if name in entries:
                raise child.error("given twice")
            entries[name] = child
        return entries

    @property
    def blank(self) -> bool:
        """Whether nothing is given: null or an empty text."""
        return self._node is None or self._node.value in ("", []) or self._kind == "null"

    def text(self) -> str:
        """A scalar that is not null, as written."""
        if self._node is None or self._kind in ("null", "map", "seq"):
            raise self.error("must be a text")
        return str(self._node.value)

    def items(self) -> list[_Node]:
        """The entries of a list (empty for null)."""
        if self._kind == "null" or self._node is None:
            return []
        if self._kind != "seq":
            raise self.error("must be a list")
        return [_Node(self.path, self.key, item, item.start_mark.line + 1) for item in self._node.value]

    def boolean(self) -> bool:
        if self._kind != "bool":
            raise self.error("must be true or false")
        return self.text().lower() in ("true", "yes", "on")

    def choice(self, options: Iterable[str]) -> str:
        """A text that is one of `options`."""
        value = self.text()
        if value not in options:
            raise self.error(f'"{value}" is not supported; use {" or ".join(options)}')
        return value

    def file(self) -> Path:
        """A path, relative to the configuration file."""
        if not self.text():
            raise self.error("must be the name of a file")
        return self.path.parent / self.text()


def _compose(path: Path) -> yaml.Node | None:
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the web configuration: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {_MAX_FILE_BYTES} bytes, not a web configuration")
    try:
        return yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {_problem(error)}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None


def _problem(error: yaml.MarkedYAMLError) -> str:
    return ", ".join(part for part in (error.context, error.problem) if part)


def _tls(node: _Node) -> TlsConfig | None:
    entries = node.mapping(_TLS_KEYS)
    if not entries:
        return None
    for key in ("cert_file", "key_file"):
        if key not in entries:
            raise node.error(f"{key} is missing")
    client_auth = _CLIENT_AUTH[_choice(entries, "client_auth_type", _CLIENT_AUTH, "NoClientCert")]
    ca = entries.get("client_ca_file")
    if ca is not None and client_auth == "none":
        raise ca.error("needs client_auth_type VerifyClientCertIfGiven or RequireAndVerifyClientCert")
    if ca is None and client_auth != "none":
        raise entries["client_auth_type"].error("needs client_ca_file")
    config = TlsConfig(
        cert_file=entries["cert_file"].file(),
        key_file=entries["key_file"].file(),
        client_auth=client_auth,
        client_ca_file=None if ca is None else ca.file(),
        min_version=_VERSIONS[_choice(entries, "min_version", _VERSIONS, "TLS12")],
        max_version=_VERSIONS[_choice(entries, "max_version", _VERSIONS, "TLS13")],
        ciphers=_ciphers(entries["cipher_suites"]) if "cipher_suites" in entries else (),
    )
    if config.min_version > config.max_version:
        raise entries["min_version"].error("is above max_version")
    try:
        build_context(config)
    except ConfigError as error:
        raise ConfigError(f"{node.path}: {error}") from None
    return config


def _choice(entries: Mapping[str, _Node], key: str, options: Iterable[str], default: str) -> str:
    return entries[key].choice(options) if key in entries else default


def _ciphers(node: _Node) -> tuple[str, ...]:
    names = []
    for item in node.items():
        name = item.text()
        if name in CIPHERS:
            names.append(CIPHERS[name])
        elif name not in _TLS13_CIPHERS:
            raise item.error(f'"{name}" is not a supported cipher suite{_nearest(name, CIPHERS)}')
    return tuple(names)


def _headers(node: _Node) -> tuple[tuple[str, str], ...]:
    entries = node.mapping(_HTTP_KEYS)
    if "http2" in entries:
        entries["http2"].boolean()  # only an offer to the client: HTTP/1.1 is what gets negotiated
    if "headers" not in entries:
        return ()
    headers = []
    for name, value_node in entries["headers"].mapping(_HEADERS).items():
        if value_node.blank:
            continue  # "unset if blank", says the toolkit
        allowed = _HEADERS[name]
        value = value_node.text() if allowed is None else value_node.choice(allowed)
        if not value.isascii() or not value.isprintable():
            raise value_node.error("must be printable ASCII on one line")
        headers.append((name, value))
    return tuple(headers)


def _users(node: _Node) -> dict[str, bytes]:
    users: dict[str, bytes] = {}
    for name, hash_node in node.mapping().items():
        text = hash_node.text()
        match = _BCRYPT.fullmatch(text)
        if match is None:
            raise hash_node.error('not a bcrypt hash; make one with: htpasswd -nBC 10 "" | tr -d ":\\n"')
        if not 4 <= int(match[1]) <= _MAX_BCRYPT_COST:
            raise hash_node.error(f"bcrypt cost {int(match[1])} is not within 4 and {_MAX_BCRYPT_COST}")
        if ":" in name:
            raise hash_node.error("a user name cannot contain a colon")
        users[name] = text.encode()
    if users:
        try:
            import bcrypt  # noqa: F401 (an optional extra: said now, not at the first request)
        except ImportError:
            raise node.error('needs the package bcrypt: pip install "stepscope[auth]"') from None
    return users


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
