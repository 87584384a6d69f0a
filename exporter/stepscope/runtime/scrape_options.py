"""Where the engine is and what a scrape may cost: the settings every request to it obeys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from urllib3.util import parse_url

from stepscope.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}  # RFC 9110 sections 4.2.1 and 4.2.2


@dataclass(frozen=True, slots=True)
class ScrapeOptions:
    """Where the engine is and how long and how much a scrape may take. Raises ConfigError.

    url: base address (http://127.0.0.1:8000: the page is at /metrics) or, with any other path, the page itself.
    deadline_seconds: for the whole fetch, name lookup, redirects and retry included.
    """

    url: str
    deadline_seconds: float
    connect_timeout_seconds: float = 1.0
    max_bytes: int = 32 * 2**20  # the whole page as sent and as unpacked
    bearer_token_file: Path | None = None
    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    insecure_skip_verify: bool = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
            parse_url(self.url)  # the stricter reader that the requests go through
        except ValueError as error:
            # What stands before an @ may be a password, and the error may quote it.
            said = "it holds an @ and cannot be read" if "@" in self.url else str(error)
            raise ConfigError(f"engine URL is not an address: {said}") from None
        if parts.username is not None or parts.password is not None:
            raise ConfigError("engine URL carries a user name or password: put a token in a file instead")
        if parts.scheme not in DEFAULT_PORTS or not host or port == 0:
            raise ConfigError(f"engine URL {self.url!r} is not of the form http://HOST:PORT or https://HOST:PORT")
        for name in ("deadline_seconds", "connect_timeout_seconds", "max_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"scrape {name} must be above 0, not {getattr(self, name)}")
        if self.client_key_file is not None and self.client_cert_file is None:
            raise ConfigError(f"TLS client key {self.client_key_file} is given without its certificate")

    @property
    def metrics_url(self) -> str:
        """The address of the whole page."""
        parts = urlsplit(self.url)
        return parts._replace(path=parts.path if parts.path not in ("", "/") else "/metrics", fragment="").geturl()

    def api_url(self, path: str) -> str:
        """The address of another endpoint of the engine (`path` begins with a slash): beside the page if it ends so."""
        parts = urlsplit(self.metrics_url)
        prefix, slash, last = parts.path.rstrip("/").rpartition("/")
        return parts._replace(path=(prefix if slash and last == "metrics" else "") + path, query="").geturl()
