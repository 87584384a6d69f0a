"""Chunked request bodies: what Node's http writes unless it is told a length."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.http1 import MAX_BODY_BYTES, RequestError
from stepscope.runtime.web_chunks import ChunkedBody
from web_helpers import Client, serving

HEAD = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"


@pytest.fixture
def client() -> Iterator[Client]:
    """A connection to a server with the real limits."""
    with serving() as server, Client(server.port) as connected:
        yield connected


def test_a_chunked_body_reaches_the_route_whole_and_the_connection_goes_on(client: Client) -> None:
    """Extensions and trailers are taken and ignored; the next request starts right behind."""
    for _ in range(2):
        client.send(HEAD + b"\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nX-Trailer: 1\r\n\r\n")
        assert client.reply().body == b"abcdefg[]"
    client.send(HEAD + b"\r\n3\r\na")
    client.send(b"bc\r")
    client.send(b"\n0\r\n\r\n" + HEAD + b"\r\n0\r\n\r\n")
    assert [client.reply().body for _ in range(2)] == [b"abc[]", b"[]"]
    client.send(HEAD + b"Expect: 100-continue\r\n\r\n")
    assert client.reply().status == 100
    assert client.send(b"1\r\nx\r\n0\r\n\r\n").reply().body == b"x[]"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400),
        (HEAD.replace(b"1.1", b"1.0") + b"\r\n0\r\n\r\n", 400),
        (HEAD + b"\r\n-1\r\n", 400),
        (HEAD + b"\r\n0x3\r\nabc\r\n", 400),
        (HEAD + b"\r\n3\nabc\r\n0\r\n\r\n", 400),
        (HEAD + b"\r\n3\r\nabcd\r\n0\r\n\r\n", 400),
        (HEAD + b"\r\n\r\n", 400),
        (HEAD + b"\r\n1" + b";x" * 5000 + b"\r\n", 400),
        (HEAD + b"\r\n10001\r\n", 413),
        (HEAD + b"\r\nffffffff\r\n", 413),
        (HEAD + b"\r\nfffffffff\r\n", 400),
        (HEAD + b"\r\n" + b"ffff\r\n" + b"x" * 65535 + b"\r\n2\r\nxx\r\n0\r\n\r\n", 413),
        (HEAD + b"\r\n" + (b"1;" + b"x" * 4000 + b"\r\nx\r\n") * 110 + b"0\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    ],
)
def test_what_is_malformed_or_too_large_gets_one_line_and_the_end(client: Client, data: bytes, status: int) -> None:
    """The rest of the bytes is never taken for another request."""
    reply = client.send(data).reply()
    assert (reply.status, reply.headers["connection"]) == (status, "close")
    assert client.closed_within(1.5)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.lists(st.integers(1, 30), min_size=1), st.binary())
def test_any_cut_into_chunks_and_packets_gives_the_same_body(
    chunks: list[bytes], packets: list[int], rest: bytes
) -> None:
    """And leaves exactly what follows."""
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    body, buffer, done, at, turn = ChunkedBody(), bytearray(), False, 0, 0
    while not done:
        step = packets[turn % len(packets)]
        buffer += wire[at : at + step]
        at, turn = at + step, turn + 1
        done = body.take(buffer)
        assert done == (at >= len(wire))
    assert bytes(body.body) == b"".join(chunks)
    whole = bytearray(wire + rest)
    assert ChunkedBody().take(whole)
    assert bytes(whole) == rest


def test_the_largest_body_in_the_smallest_chunks_is_taken() -> None:
    """Six bytes on the wire for each one; more is not a body but a way to keep the server busy."""
    body = ChunkedBody()
    assert not body.take(bytearray(b"1\r\nx\r\n" * MAX_BODY_BYTES))
    assert body.take(bytearray(b"0\r\nX-Trailer: 1\r\n\r\n"))
    assert len(body.body) == MAX_BODY_BYTES
    endless = ChunkedBody()
    with pytest.raises(RequestError, match="mostly framing"):
        endless.take(bytearray(b"0\r\n" + b"X: y\r\n" * 100_000))
