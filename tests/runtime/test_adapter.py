"""The short path to the socket reads every answer as http.client's long one does."""

from __future__ import annotations

import http.client
import socket

import pytest

from stepscope.runtime.adapter import _Answer

HEADS = {
    "plain": "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n",
    "without reason": "HTTP/1.1 200\r\ncontent-length:5\r\n\r\n",
    "spaces and latin-1": "HTTP/1.1 200 OK\r\nX: \t \xe9 b \t\r\nContent-Length:\t5 \r\n\r\n",
    "the same field twice": "HTTP/1.1 200 OK\r\nX: 1\r\nX: 2\r\nContent-Length: 5\r\n\r\n",
    "no length": "HTTP/1.1 200 OK\r\nX: 1\r\n\r\n",
    "no fields": "HTTP/1.1 200 OK\r\n\r\n",
    "two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 3\r\n\r\n",
    "negative length": "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "length in words": "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
    "length with a superscript": "HTTP/1.1 200 OK\r\nContent-Length: 5\xb2\r\n\r\n",
    "endless length": "HTTP/1.1 200 OK\r\nContent-Length: " + "5" * 5000 + "\r\n\r\n",
    "closing": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n",
    "chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunked and a length": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    "folded": "HTTP/1.1 200 OK\r\nX: 1\r\n and more\r\nContent-Length: 5\r\n\r\n",
    "space before the colon": "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n",
    "bare line feeds": "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
    "HTTP/1.0": "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
    "another status": "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n",
    "no content": "HTTP/1.1 204 No Content\r\n\r\n",
    "continue first": "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "not HTTP": "SSH-2.0-OpenSSH\r\n\r\n",
    "too many fields": "HTTP/1.1 200 OK\r\n" + "X: 1\r\n" * 150 + "Content-Length: 5\r\n\r\n",
    "nothing": "",
}


def answered(kind: type[http.client.HTTPResponse], head: str, cut: int | None) -> tuple[object, ...]:
    """What a reader makes of a head and the body `12345`, sent whole or in two pieces."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        data = (head.encode("latin-1") + b"12345") if head else b""
        theirs.sendall(data[:cut])
        answer = kind(ours, method="GET")
        try:
            if data and cut is not None:
                answer.fp.peek()  # so that the first piece alone is in the buffer
                theirs.sendall(data[cut:])
            theirs.shutdown(socket.SHUT_WR)
            answer.begin()
            body = b"" if answer.chunked else answer.read(5)
            return (
                answer.status,
                answer.reason,
                answer.version,
                answer.headers.items(),
                answer.chunked,
                answer.will_close,
                body,
                answer.length,
                answer.isclosed(),
            )
        except http.client.HTTPException as error:
            return (type(error), str(error))
        finally:
            answer.close()


@pytest.mark.parametrize("cut", [None, 20])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_an_answer_is_read_as_by_the_standard_library(head: str, cut: int | None) -> None:
    """Status, fields, framing and body, or the same error; also when the head comes in two pieces."""
    assert answered(_Answer, head, cut) == answered(http.client.HTTPResponse, head, cut)


def test_a_plain_answer_takes_the_short_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would only look right."""

    def long_path(*_: object) -> None:
        raise AssertionError("http.client's own way was taken")

    monkeypatch.setattr(http.client, "parse_headers", long_path)
    assert answered(_Answer, HEADS["plain"], None)[:3] == (200, "OK", 11)
