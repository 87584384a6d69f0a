"""A chunked request body (RFC 9112, 7.1), taken out of what has arrived so far. No socket in here.

As strict as the rest of the server: sizes are plain hexadecimal digits, lines end in CRLF, everything has a bound.
"""

from __future__ import annotations

import re

from stepscope.runtime.http1 import MAX_BODY_BYTES, MAX_LINE_BYTES, RequestError

# A chunk of one byte takes five more for its framing, the worst that an honest client sends; then come the trailers.
_MOST_WIRE_BYTES = 6 * MAX_BODY_BYTES + MAX_LINE_BYTES
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[^\x00-\x08\x0a-\x1f\x7f]*)?")  # extensions are ignored


class ChunkedBody:
    """Collects the chunks of one body. Trailer fields are read and dropped."""

    def __init__(self) -> None:
        self.body = bytearray()
        self._left = 0  # bytes that the current chunk still lacks
        self._in_trailer = False
        self._closes_chunk = False  # the CRLF behind a chunk's bytes comes next
        self._taken = 0

    def take(self, buffer: bytearray) -> bool:
        """Move what belongs to the body out of `buffer`. True: complete, the rest is the next request.

        Raises RequestError: 400 for bad framing, 413 for a body above the bound.
        """
        while True:
            if self._left:
                part = bytes(buffer[: self._left])
                self._consume(buffer, len(part))
                self.body += part
                self._left -= len(part)
                if self._left:
                    return False
                self._closes_chunk = True
            line = self._line(buffer)
            if line is None:
                return False
            if self._closes_chunk:
                if line:
                    raise RequestError(400, "a chunk is longer than its size says")
                self._closes_chunk = False
            elif self._in_trailer:
                if not line:
                    return True
            else:
                self._start_chunk(line)

    def _start_chunk(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise RequestError(400, "the size of a chunk is malformed")
        self._left = int(match[1], 16)
        self._in_trailer = self._left == 0
        if len(self.body) + self._left > MAX_BODY_BYTES:
            raise RequestError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")

    def _line(self, buffer: bytearray) -> bytes | None:
        """The next line without its end; None when it is not all there."""
        end = buffer.find(b"\n", 0, MAX_LINE_BYTES + 1)
        if end < 0:
            if len(buffer) > MAX_LINE_BYTES:
                raise RequestError(400, f"a line of the chunked body is longer than {MAX_LINE_BYTES} bytes")
            return None
        line = bytes(buffer[:end])
        if not line.endswith(b"\r"):
            raise RequestError(400, "a line of the chunked body does not end in CRLF")
        self._consume(buffer, end + 1)
        return line[:-1]

    def _consume(self, buffer: bytearray, count: int) -> None:
        del buffer[:count]
        self._taken += count
        if self._taken > _MOST_WIRE_BYTES:
            raise RequestError(413, "the chunked body is mostly framing")
