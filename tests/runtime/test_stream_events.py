"""The body of a streamed completion, however it is cut into pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.stream_events import EventReader, StreamError, failure


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def running(count: int) -> bytes:
    """An event as vLLM sends it with continuous usage."""
    usage = {"prompt_tokens": 7, "total_tokens": 7 + count, "completion_tokens": count}
    return event({"choices": [{"index": 0, "text": "", "finish_reason": None}], "usage": usage})


LAST = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}) + b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, 900), max_size=20))
def test_where_the_pieces_end_does_not_matter(cuts: list[int]) -> None:
    """A piece may end inside an event; two steps may share one."""
    whole = b"".join(running(count) for count in (1, 2, 4, 5)) + LAST
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    reader = EventReader()
    for start, end in pairwise(places):
        reader.feed(whole[start:end])
    assert (reader.tokens, reader.usage_tokens, reader.prompt_tokens, reader.done) == (5, 5, 7, True)
    assert reader.counts_itself


def test_only_events_with_text_count() -> None:
    """The first event of a chat holds a role and no text; comments keep a connection alive."""
    reader = EventReader()
    counts = []
    for piece in (
        event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
        event({"choices": [{"delta": {"content": "a"}}]}),
        event({"choices": [{"delta": {"reasoning_content": "b"}}]}),
        b": keep-alive\n\n",
    ):
        reader.feed(piece)
        counts.append(reader.tokens)
    assert counts == [0, 1, 2, 2]


@pytest.mark.parametrize("body", [b"data: [1, 2]\n", b"data: {\n", b"data: " + b"[" * 100_000 + b"\n", b"x" * 2**21])
def test_what_is_no_event_is_refused(body: bytes) -> None:
    """In bounded time and memory."""
    with pytest.raises((ValueError, RecursionError)):
        EventReader().feed(body)


@pytest.mark.parametrize(
    ("status", "text", "outcome"),
    [
        (400, '{"error": {"message": "This model\'s maximum context length is 4096 tokens"}}', "rejected"),
        (400, '{"error": {"message": "unknown field"}}', "failed"),
        (413, "", "rejected"),
        (422, '{"error": "`inputs` must have less than 4095 tokens, exceeds", "error_type": "validation"}', "rejected"),
        (424, '{"error": "Request failed during generation: CUDA out of memory"}', "out_of_memory"),
        (403, '{"detail": "no"}', "denied"),
        (502, "<html>bad gateway</html>", "failed"),
    ],
)
def test_an_error_answer_says_what_kind_it_is(status: int, text: str, outcome: str) -> None:
    """By status and by the words of the engines."""
    found = failure(status, text)
    assert isinstance(found, StreamError)
    assert found.outcome == outcome
    assert len(str(found)) < 250
