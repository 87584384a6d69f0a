"""Small parts of a JSON API: reading a body with care, answering, and a limit on the rate of requests."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from stepscope.runtime.http1 import Response

JSON_TYPE = "application/json; charset=utf-8"
API_PREFIX = "/v1/"  # what programs ask: there every error is a JSON document
_LARGEST_NUMBER = 1e15  # far above any count of tokens or seconds, and still exact in a double


class Rate:
    """A bucket of requests: `per_second` flow in, a second's worth fits."""

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._most = max(per_second, 1.0)
        self._clock = clock
        self._lock = threading.Lock()
        self._left = self._most
        self._at = clock()

    def take(self) -> bool:
        """Whether one more request is within the rate."""
        with self._lock:
            now = self._clock()
            self._left = min(self._most, self._left + (now - self._at) * self._per_second)
            self._at = now
            if self._left < 1.0:
                return False
            self._left -= 1.0
            return True


def read_object(body: bytes, known: set[str]) -> dict[str, Any]:
    """The JSON object of a body. Raises ValueError with one line."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("the body is not a JSON object")
    for key in document:
        if key not in known:
            raise ValueError(f"unknown key {key[:40]!r} (known: {', '.join(sorted(known))})")
    return document


def number_of(document: dict[str, Any], key: str) -> float | None:
    """A number under a key, at most 1e15; None where it is not there. Raises ValueError."""
    value = document.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"{key} must be a number")
    if value > _LARGEST_NUMBER:
        raise ValueError(f"{key} must be at most {_LARGEST_NUMBER:.0e}".replace("+", ""))
    return float(max(value, -_LARGEST_NUMBER))


def answer_json(
    status: int,
    document: dict[str, Any],
    *,
    retry: float | None = None,
    location: str = "",
    headers: tuple[tuple[str, str], ...] = (),
) -> Response:
    """A document. retry: seconds for Retry-After, rounded up; location: of what was made."""
    headers += (("Cache-Control", "no-store"),)
    if retry is not None:
        headers += (("Retry-After", str(math.ceil(retry))),)
    if location:
        headers += (("Location", location),)
    return Response(status, json.dumps(document).encode() + b"\n", JSON_TYPE, headers)


def api_error(target: str, response: Response) -> Response:
    """The response to a request for `target`: a one-line error becomes JSON where programs ask."""
    is_line = response.status >= HTTPStatus.BAD_REQUEST and response.content_type.startswith("text/plain")
    if not is_line or not target.startswith(API_PREFIX):
        return response
    document = {"error": response.body.decode().rstrip("\n")}
    return answer_json(response.status, document, headers=response.headers)


def fault(status: int, text: str) -> Response:
    """One line about what was wrong."""
    return answer_json(status, {"error": text})
