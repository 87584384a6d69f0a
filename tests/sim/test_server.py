"""The server on real sockets, in real time."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sim_helpers import OPENER, get, post, small, value
from stepscope.errors import ConfigError
from stepscope.sim.cohort import Request
from stepscope.sim.scenario import SCENARIOS
from stepscope.sim.server import SimServer, parse_address


@pytest.fixture
def server() -> Iterator[SimServer]:
    """Idle, without jitter, with steps of about 20 ms."""
    config = small()
    server = SimServer(replace(config, physics=replace(config.physics, launch_seconds=0.0125)))
    server.start()
    yield server
    server.stop()


def stream(server: SimServer, body: dict[str, object]) -> Iterator[tuple[float, str]]:
    """(arrival time, data) of each event of a streamed completion."""
    data = json.dumps({"stream": True, "ignore_eos": True, **body}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", data, {"Content-Type": "application/json"})
    with OPENER.open(request, timeout=20) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        for line in response:
            if line.startswith(b"data: "):
                yield time.monotonic(), line[6:].decode().strip()


def wait_for(condition: object, seconds: float = 5.0) -> None:
    """Poll until the condition holds; fail after `seconds`."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except urllib.error.URLError:
            pass  # the port refuses for now
        assert time.monotonic() < end, "condition not reached in time"
        time.sleep(0.02)


def test_a_streaming_client_gets_its_tokens_one_by_one_a_step_apart(server: SimServer) -> None:
    """The mean gap a client sees is the mean ITL that the page publishes."""
    events = list(stream(server, {"prompt": list(range(50)), "max_tokens": 40}))
    assert events[-1][1] == "[DONE]"
    chunks = [json.loads(data) for _, data in events[:-1]]
    assert len(chunks) == 40
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 39 + ["length"]
    seen = (events[39][0] - events[0][0]) / 39
    page = get(server.url + "/metrics")
    count = value(page, "vllm:inter_token_latency_seconds_count")
    mean = value(page, "vllm:inter_token_latency_seconds_sum") / count
    assert count == 39
    assert 0.015 < mean < 0.03
    assert seen == pytest.approx(mean, rel=0.15)
    wait_for(lambda: value(get(server.url + "/metrics"), "http_requests_total", handler="/v1/completions") == 1)


def test_usage_comes_last_when_asked_for(server: SimServer) -> None:
    """With stream_options.include_usage."""
    body = {"prompt": "x" * 100, "max_tokens": 3, "stream_options": {"include_usage": True}}
    events = [data for _, data in stream(server, body)]
    assert json.loads(events[-2])["usage"] == {"prompt_tokens": 25, "total_tokens": 28, "completion_tokens": 3}
    assert json.loads(events[-2])["choices"] == []


def test_an_answer_without_streaming_carries_text_and_usage(server: SimServer) -> None:
    """The prompt may be text; max_tokens defaults to 16."""
    answer = post(server.url + "/v1/completions", {"model": "Qwen/Qwen3-8B", "prompt": "hello there"})
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 19, "completion_tokens": 16}
    assert answer["object"] == "text_completion"


def test_a_client_that_leaves_frees_its_blocks(server: SimServer) -> None:
    """Whether it was streaming or still waiting for an answer."""

    def used() -> int:
        engines = server.truth()["engines"]
        assert isinstance(engines, list)
        return int(engines[0]["used_blocks"])

    events = stream(server, {"prompt": list(range(100)), "max_tokens": 5000})
    next(events)
    assert used() > 0
    events.close()  # type: ignore[attr-defined]  # a generator: closes the connection
    wait_for(lambda: used() == 0)
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": [1] * 100, "max_tokens": 5000}))
    wait_for(lambda: used() > 0)
    connection.close()
    wait_for(lambda: used() == 0)
    page = get(server.url + "/metrics")
    assert value(page, "vllm:request_success_total", finished_reason="length") == 0


def test_a_request_too_long_is_refused_while_a_scenario_plays_and_while_the_engine_is_away() -> None:
    """The client is told; the scenario goes on."""
    server = SimServer(small(), scenario=SCENARIOS["steady"])
    server.start()
    try:
        for stream_it in (True, False):
            with pytest.raises(urllib.error.HTTPError) as error:
                post(server.url + "/v1/completions", {"prompt": "x", "max_tokens": 10**7, "stream": stream_it})
            assert error.value.code == 400
        server.set_faults(restart=0.2)
        with pytest.raises(ValueError, match="exceed"):
            server.submit(Request(10, 10**7))
        wait_for(lambda: value(get(server.url + "/metrics"), "vllm:num_requests_running") == 40, 10.0)
    finally:
        server.stop()


def test_the_facts_a_sidecar_asks_for(server: SimServer) -> None:
    """Version, health, and the model with its root and length."""
    assert json.loads(get(server.url + "/version")) == {"version": "0.32.0"}
    assert get(server.url + "/health") == ""
    model = json.loads(get(server.url + "/v1/models"))["data"][0]
    assert (model["id"], model["root"], model["max_model_len"]) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", 131072)


def test_metrics_answer_directly_and_filter_behind_the_slash_only(server: SimServer) -> None:
    """No redirect; `/metrics?name[]=` gives the whole page, `/metrics/?name[]=` the part, compressed if wished."""
    query = "?name[]=vllm:kv_cache_usage_perc&name[]=vllm:inter_token_latency_seconds"
    whole = get(server.url + "/metrics" + query)
    part = get(server.url + "/metrics/" + query)
    assert len(whole) > 40_000
    assert [line for line in part.splitlines() if line[0] != "#"] == [
        'vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.0'
    ]
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    for path in ("/metrics", "/metrics/"):
        connection.request("GET", path, headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip"})
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        body = response.read()
    assert response.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body).startswith(b"# HELP python_gc")
    connection.close()


@pytest.mark.parametrize(
    ("path", "body", "code", "text"),
    [
        ("/v1/completions", {"prompt": []}, 400, "prompt is empty"),
        ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt must be"),
        ("/v1/completions", {"prompt": [True]}, 400, "prompt must be"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens must be"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 10**9}, 400, "exceed the engine's"),
        ("/v1/completions", {"prompt": "x", "model": "other"}, 404, "The model `other` does not exist."),
        ("/v1/completions", ["not", "an", "object"], 400, "not a JSON object"),
        ("/sim/faults", {"trottle": 1}, 400, "did you mean throttle?"),
        ("/nowhere", {}, 404, "Not Found"),
    ],
)
def test_a_bad_request_is_answered_in_words(server: SimServer, path: str, body: object, code: int, text: str) -> None:
    """Never a cut connection or a traceback, and the server goes on."""
    with pytest.raises(urllib.error.HTTPError) as error:
        post(server.url + path, body)
    assert error.value.code == code
    assert text in json.loads(error.value.read())["error"]["message"]
    assert get(server.url + "/health") == ""


def test_broken_bodies_are_refused(server: SimServer) -> None:
    """No length, a bad length, no JSON."""
    host, port = server.url.removeprefix("http://").split(":")
    for head, expected in (
        (b"", b"411"),
        (b"Content-Length: -5\r\n", b"413"),
        (b"Content-Length: 99999999999\r\n", b"413"),
        (b"Content-Length: 3\r\n", b"400"),
    ):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n{{{")
            assert raw.recv(100).startswith(b"HTTP/1.1 " + expected)


def test_faults_can_be_switched_over_http(server: SimServer) -> None:
    """The answer is what is in force now."""
    assert post(server.url + "/sim/faults", {"throttle": 1.4})["throttle"] == 1.4
    assert json.loads(get(server.url + "/sim/faults"))["throttle"] == 1.4
    post(server.url + "/sim/faults", {"sleep": 1})
    assert value(get(server.url + "/metrics"), "vllm:engine_sleep_state", sleep_state="awake") == 0


def test_a_restart_refuses_connections_and_comes_back_with_fresh_counters(server: SimServer) -> None:
    """On the same port; streams under way are cut; the start time changes."""
    first = get(server.url + "/metrics")
    cut: list[str] = []

    def client() -> None:
        try:
            cut.extend(data for _, data in stream(server, {"prompt": [1] * 10, "max_tokens": 5000}))
        except (OSError, http.client.HTTPException):
            cut.append("cut")

    thread = threading.Thread(target=client)
    thread.start()
    wait_for(lambda: len(cut) > 3)
    began = time.monotonic()
    assert post(server.url + "/sim/faults", {"restart": 0.6})["throttle"] == 1.0
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(server.url + "/metrics")
    thread.join(5)
    assert not thread.is_alive()
    assert "[DONE]" not in cut

    wait_for(lambda: get(server.url + "/health") == "")
    assert time.monotonic() - began >= 0.6
    page = get(server.url + "/metrics")
    assert value(page, "vllm:generation_tokens_total") == 0
    assert value(page, "process_start_time_seconds") > value(first, "process_start_time_seconds")


def test_a_scenario_plays_in_real_time_with_little_processor_time() -> None:
    """42 sequences at 70 steps a second, scraped every tenth of a second."""
    server = SimServer(small(), scenario=SCENARIOS["demo"])
    server.start()
    try:
        cpu, wall = time.process_time(), time.monotonic()
        before = get(server.url + "/metrics")
        for _ in range(20):
            time.sleep(0.1)
            page = get(server.url + "/metrics/?name[]=vllm:generation_tokens_total")
        used, passed = time.process_time() - cpu, time.monotonic() - wall
        name = "vllm:generation_tokens_total"
        assert (value(page, name) - value(before, name)) / passed == pytest.approx(40 / 0.0139, rel=0.1)
        assert server.phase == "40 chats"
        assert used / passed < 0.25
    finally:
        server.stop()


def test_stop_ends_all_threads_and_frees_the_port() -> None:
    """Even with a client that streams and a connection that says nothing; a second stop is harmless."""
    before = threading.active_count()
    server = SimServer(small())
    server.start()
    host, port = server.url.removeprefix("http://").split(":")
    events = stream(server, {"prompt": [1], "max_tokens": 5000})
    next(events)
    with socket.create_connection((host, int(port))):
        began = time.monotonic()
        server.stop()
        server.stop()
        assert time.monotonic() - began < 2.0
        wait_for(lambda: threading.active_count() == before)
    again = SimServer(small(), listen=f"{host}:{port}")
    again.start()
    again.stop()


def test_an_address_that_is_taken_or_malformed_is_one_clear_line(server: SimServer) -> None:
    """ConfigError says what and where."""
    with pytest.raises(ConfigError, match=r"sim: cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
        SimServer(small(), listen=server.url.removeprefix("http://")).start()
    for text in ("8000", "host:port", "a:99999", "::1:8000"):
        with pytest.raises(ConfigError, match="listen address must be HOST:PORT"):
            parse_address(text)
    assert parse_address("[::1]:80") == ("::1", 80)
    assert parse_address(":80") == ("0.0.0.0", 80)
