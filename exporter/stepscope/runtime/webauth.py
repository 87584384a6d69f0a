"""HTTP basic authentication against bcrypt hashes, the way the Prometheus exporter toolkit does it."""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping

_CACHED_LOGINS = 64  # far more than the scrapers and people of one sidecar
_CHECKS_AT_ONCE = 4  # one runs, the others queue: a bcrypt check is tens of milliseconds of a whole core
_BCRYPT_BYTES = 72  # bcrypt uses no more of a password; longer ones are cut, as by htpasswd and the exporter toolkit


class Outcome(enum.Enum):
    """What came of a check. BUSY: not checked, too many checks are under way."""

    RIGHT = "right"
    WRONG = "wrong"
    BUSY = "busy"


class BasicAuth:
    """Checks Authorization headers. Thread-safe. Needs the package bcrypt, and at least one user.

    Right logins are remembered as keyed hashes (the key lives and dies with this object), so that a scrape does not
    cost a bcrypt check, and wrong ones cost at most one core. An unknown user costs the check of a known one.
    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = dict(users)
        self._hashes = [self._users[user] for user in sorted(self._users)]
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self._one_check = threading.Lock()
        self._queue = threading.BoundedSemaphore(_CHECKS_AT_ONCE)

    def check(self, authorization: str | None) -> Outcome:
        """Whether the value of an Authorization header names a user with the right password."""
        login = _decode(authorization)
        if login is None:
            return Outcome.WRONG
        user, password = login
        name = user.encode()
        # The length keeps ("ab", "c") apart from ("a", "bc").
        digest = self._digest(len(name).to_bytes(4, "big") + name + password)
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
                return Outcome.RIGHT
        if not self._queue.acquire(blocking=False):
            return Outcome.BUSY
        try:
            right = self._matches(user, password)
        finally:
            self._queue.release()
        if not right:
            return Outcome.WRONG
        with self._lock:
            self._known[digest] = None
            while len(self._known) > _CACHED_LOGINS:
                self._known.popitem(last=False)
        return Outcome.RIGHT

    def _matches(self, user: str, password: bytes) -> bool:
        import bcrypt  # an optional extra, and only needed here

        known = user in self._users
        # Users may have hashes of different cost; an unknown name always looks like the same one of them.
        stand_in = self._hashes[self._digest(user.encode())[0] % len(self._hashes)]
        with self._one_check:
            try:
                equal = bcrypt.checkpw(password[:_BCRYPT_BYTES], self._users.get(user, stand_in))
            except ValueError:
                return False  # a NUL byte, which no hash was made of
        return equal and known

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()


def _decode(authorization: str | None) -> tuple[str, bytes] | None:
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None
