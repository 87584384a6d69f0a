"""A streamed request is timed token by token, its end is told apart, and it can be ended at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chat_server import Manner, chat_server
from sim_helpers import get, small, value
from stepscope.runtime.load_client import Dialect, Limits, LoadClient
from stepscope.runtime.scrape_options import ScrapeOptions
from stepscope.sim.server import SimServer

MODEL = "Qwen/Qwen3-8B"
CHAT = Dialect("/v1/chat/completions", token_ids=False, extras=False)


@pytest.fixture(scope="module")
def sim() -> Iterator[SimServer]:
    """A vLLM-shaped engine without jitter: 7.6 ms a step for one short stream."""
    server = SimServer(small())
    server.start()
    yield server
    server.stop()


def client_of(url: str, **more: object) -> LoadClient:
    return LoadClient(ScrapeOptions(url, 4.0), MODEL, **more)  # type: ignore[arg-type]  # the test names the fields


def test_tokens_are_timed_as_they_come(sim: SimServer) -> None:
    """One arrival a token, as far apart as the engine's steps."""
    stream = client_of(sim.url).stream(300, 40)
    stream.run()
    trace = stream.trace(0.0)
    assert (stream.outcome, stream.reason, trace.prompt_tokens, trace.output_tokens) == ("ok", "", 300, 40)
    assert len(trace.arrivals) == 40
    assert trace.tpot_seconds == pytest.approx(7.6e-3, rel=0.25)
    assert trace.ttft_seconds is not None
    assert 0.0 < trace.ttft_seconds < 1.0


def test_no_two_prompts_are_alike(sim: SimServer) -> None:
    """Token ids of ordinary text, drawn anew for each request; a seed repeats them."""
    client = client_of(sim.url)
    assert client.body(50, 1) != client.body(50, 1)
    assert client_of(sim.url, seed=1).body(50, 1) == client_of(sim.url, seed=1).body(50, 1)


def test_an_abort_ends_the_request_at_once_on_both_sides(sim: SimServer) -> None:
    """Within half a second here; the engine frees its blocks."""
    stream = client_of(sim.url).stream(200, 50_000)
    thread = threading.Thread(target=stream.run)
    thread.start()
    until = time.monotonic() + 5.0
    while not stream.decoding and time.monotonic() < until:
        time.sleep(0.01)
    began = time.monotonic()
    stream.abort()
    thread.join(5.0)
    assert time.monotonic() - began < 0.5
    assert (stream.outcome, stream.reason) == ("aborted", "")
    until = time.monotonic() + 5.0
    while value(get(sim.url + "/metrics"), "vllm:num_requests_running") and time.monotonic() < until:
        client_of(sim.url).stream(8, 2).run()  # the gauges move with the next step
    assert value(get(sim.url + "/metrics"), "vllm:kv_cache_usage_perc") == 0.0


def test_a_request_aborted_before_it_began_is_never_sent(sim: SimServer) -> None:
    """As when Ctrl-C comes while threads are being started."""
    stream = client_of(sim.url).stream(200, 5)
    stream.abort()
    stream.run()
    assert (stream.outcome, stream.arrivals) == ("aborted", [])


def test_a_request_beyond_the_engine_is_rejected(sim: SimServer) -> None:
    """With the engine's own words."""
    stream = client_of(sim.url).stream(100, 10**6)
    stream.run()
    assert stream.outcome == "rejected"
    assert "exceed" in stream.reason


@pytest.mark.parametrize(
    ("manner", "outcome", "says"),
    [
        (Manner(status=429, error='{"error": "Model is overloaded"}'), "rejected", "HTTP 429: Model is overloaded"),
        (Manner(status=503, error="upstream"), "rejected", "HTTP 503: upstream"),
        (Manner(status=401, error='{"error": "Unauthorized"}'), "denied", "HTTP 401: Unauthorized"),
        (Manner(status=500, error='{"error": {"message": "CUDA out of memory. Tried"}}'), "out_of_memory", "CUDA out"),
        (Manner(status=500, error=""), "failed", "HTTP 500: no reason given"),
        (Manner(error_event_after=3, error="torch.OutOfMemoryError: x"), "out_of_memory", "OutOfMemoryError"),
        (Manner(error_event_after=3, error="worker died"), "failed", "worker died"),
        (Manner(cut_after=3), "cut", "ended before"),
        (Manner(hang_after=3), "timeout", "no token within"),
    ],
)
def test_each_way_to_fail_has_its_own_word(manner: Manner, outcome: str, says: str) -> None:
    """Never an exception; the tokens that came are kept."""
    with chat_server(manner) as url:
        client = client_of(url, limits=Limits(silent_seconds=0.4))
        client.dialect = CHAT
        stream = client.stream(20, 10)
        stream.run()
    assert stream.outcome == outcome
    assert says in stream.reason
    assert len(stream.arrivals) == (3 if manner.status == 200 else 0)


def test_nobody_at_the_address_is_a_connection_failure() -> None:
    """With the system's own words."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    stream = client_of(f"http://127.0.0.1:{port}").stream(10, 1)
    stream.run()
    assert (stream.outcome, stream.reason) == ("connection", "Connection refused")


def test_the_end_of_all_time_ends_a_request() -> None:
    """Whatever the time allowed between two tokens."""
    with chat_server(Manner(gap_seconds=0.05)) as url:
        client = client_of(url, limits=Limits(until_seconds=time.monotonic() + 0.4))
        client.dialect = CHAT
        began = time.monotonic()
        stream = client.stream(20, 1000)
        stream.run()
    assert stream.outcome == "timeout"
    assert time.monotonic() - began < 2.0
    come = round(stream.arrivals[-1][1])
    assert stream.reason == f"the time was over when {come} tokens had come (1,000 asked for)"


def test_the_end_of_all_time_before_a_token_is_not_called_silence() -> None:
    """A prompt may take longer than there was time."""
    with chat_server(Manner(gap_seconds=5.0)) as url:
        client = client_of(url, limits=Limits(until_seconds=time.monotonic() + 0.3))
        client.dialect = CHAT
        stream = client.stream(20, 10)
        stream.run()
    assert (stream.outcome, stream.reason) == ("timeout", "the time was over when no token had come (10 asked for)")


def test_tokens_without_text_are_counted_by_the_servers_own_sum() -> None:
    """A server that packs several tokens into an event says so in its usage."""
    manner = Manner()
    with chat_server(manner) as url:
        client = client_of(url)
        client.dialect = CHAT
        stream = client.stream(20, 10)
        stream.run()
    assert (stream.outcome, stream.arrivals[-1][1]) == ("ok", 10.0)
    assert manner.asked[0]["stream_options"] == {"include_usage": True}


def test_the_key_is_sent_and_a_bad_one_is_named(tmp_path: Path) -> None:
    """Read from its file at each request."""
    key = tmp_path / "key"
    key.write_text("sk-secret\n")
    manner = Manner()
    with chat_server(manner) as url:
        client = client_of(url, key_file=key)
        client.dialect = CHAT
        client.stream(20, 2).run()
        key.write_text("two words")
        bad = client.stream(20, 2)
        bad.run()
    assert manner.headers[0]["Authorization"] == "Bearer sk-secret"
    assert bad.outcome == "connection"
    assert str(key) in bad.reason
    assert "two words" not in bad.reason


def test_a_server_that_takes_no_connection_is_not_called_slow() -> None:
    """Its backlog is full: nothing was sent, so no token can be late."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # one is taken, the next ones wait for ever
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        time.sleep(0.1)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        client = LoadClient(ScrapeOptions(url, 4.0, connect_timeout_seconds=0.3), MODEL)
        stream = client.stream(100, 10)
        stream.run()
    assert (stream.outcome, stream.reason) == ("connection", "no connection within the time allowed")


def test_a_body_refused_on_its_way_says_the_server_s_own_reason() -> None:
    """A proxy with a limit answers and hangs up before it has everything."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(
                    b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 14\r\nConnection: close\r\n\r\nbody too large"
                )
                connection.shutdown(socket.SHUT_WR)
                time.sleep(0.2)  # what is still on its way is not read

        thread = threading.Thread(target=refuse)
        thread.start()
        stream = client_of(f"http://127.0.0.1:{server.getsockname()[1]}").stream(3_000_000, 10)
        stream.run()
        thread.join()
    assert stream.outcome == "rejected"
    assert "body too large" in stream.reason
