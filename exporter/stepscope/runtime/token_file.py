"""The bearer token of --admission.bearer-token-file, kept in a file that may be replaced while the sidecar runs."""

from __future__ import annotations

import hmac
import os
import re
import threading
from pathlib import Path

from stepscope.errors import ConfigError
from stepscope.settings import ADMISSION_BEARER_TOKEN_FILE

_MOST_BYTES = 4096  # tokens of service accounts are about 1 kB
_TOKEN = re.compile(rb"[\x21-\x7e]{8,}")  # shorter ones are guessed


class TokenFile:
    """Compares shown tokens with the one in the file, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be read or holds no token."""
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._token = b""
        self._refresh()

    def accepts(self, authorization: str | None) -> bool:
        """Whether an Authorization header shows the token. False too while a new file cannot be read."""
        scheme, _, shown = (authorization or "").partition(" ")
        try:
            token = self._refresh()
        except ConfigError:
            return False
        right = hmac.compare_digest(shown.strip().encode("utf-8", "replace"), token)
        return right and scheme.lower() == "bearer"

    def _refresh(self) -> bytes:
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            with self._lock:
                if stamp != self._stamp:
                    with self._path.open("rb") as file:
                        token = file.read(_MOST_BYTES + 1).strip()
                    if not _TOKEN.fullmatch(token) or len(token) > _MOST_BYTES:
                        raise self._wrong(f"not one word of 8 to {_MOST_BYTES} printable ASCII characters")
                    self._stamp, self._token = stamp, token
                return self._token
        except OSError as error:
            raise self._wrong(error.strerror or str(error)) from None

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(f"--{ADMISSION_BEARER_TOKEN_FILE.name}={self._path}: {why}")
