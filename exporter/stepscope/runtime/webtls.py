"""TLS contexts from certificate files, made anew when the files change."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.errors import ConfigError

if TYPE_CHECKING:
    import ssl

TlsVersion = Literal["TLS12", "TLS13"]

# Names as Go and so the exporter toolkit spell them (crypto/tls CipherSuites) -> OpenSSL's, TLS 1.2.
CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The `tls_server_config` of a web configuration file, paths resolved.

    client_auth: "none", "if_given" (a certificate that is sent must verify) or "required"; the last two need
    `client_ca_file`. ciphers: OpenSSL names for TLS 1.2, empty for OpenSSL's default; TLS 1.3 has no choice.
    """

    cert_file: Path
    key_file: Path
    client_auth: Literal["none", "if_given", "required"] = "none"
    client_ca_file: Path | None = None
    min_version: TlsVersion = "TLS12"
    max_version: TlsVersion = "TLS13"
    ciphers: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[tuple[str, Path], ...]:
        """(key of the configuration, path) of every file that is read."""
        files = (("cert_file", self.cert_file), ("key_file", self.key_file))
        return files if self.client_ca_file is None else (*files, ("client_ca_file", self.client_ca_file))


def build_context(config: TlsConfig) -> ssl.SSLContext:
    """A server context. Raises ConfigError that names the key of the configuration and the file."""
    import ssl

    for key, path in config.files:
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"tls_server_config.{key}: cannot read {path}: {error.strerror}") from None
    versions = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = versions[config.min_version]
    context.maximum_version = versions[config.max_version]
    context.set_alpn_protocols(["http/1.1"])
    if config.ciphers:
        context.set_ciphers(":".join(config.ciphers))
    asked: list[bool] = []

    def no_password() -> str:
        # Without this OpenSSL would ask on the terminal and wait for ever.
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=no_password)
    except ssl.SSLError as error:
        if asked:
            why = f"{config.key_file} is encrypted; an unencrypted key is needed"
        elif error.reason == "KEY_VALUES_MISMATCH":
            why = f"{config.key_file} is not the key of {config.cert_file}"
        else:
            why = f"{config.cert_file} and {config.key_file} are not a certificate and its key in PEM form"
        raise ConfigError(f"tls_server_config.key_file: {why}") from None
    if config.client_ca_file is not None:
        try:
            context.load_verify_locations(config.client_ca_file)
        except ssl.SSLError:
            message = f"tls_server_config.client_ca_file: {config.client_ca_file} holds no certificate in PEM form"
            raise ConfigError(message) from None
        context.verify_mode = ssl.CERT_REQUIRED if config.client_auth == "required" else ssl.CERT_OPTIONAL
    return context


class TlsContexts:
    """The context for the next connection. Certificates rotate by replacing the files; a bad new one is not used."""

    def __init__(self, config: TlsConfig, log: logging.Logger) -> None:
        """Raises ConfigError when the files cannot be used now."""
        self._config = config
        self._log = log
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._context = build_context(config)

    def current(self) -> ssl.SSLContext:
        """A context of the files as they are; of their last good state while they are not usable."""
        stamp = self._stamp()
        with self._lock:
            if stamp != self._seen:
                # Remembered even when bad: tried again, and logged again, only after the next change.
                self._seen = stamp
                try:
                    self._context = build_context(self._config)
                    self._log.info("TLS certificate files changed and were read again")
                except ConfigError as error:
                    self._log.error("TLS goes on with the certificate read before: %s", error)
            return self._context

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for _, path in self._config.files)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
