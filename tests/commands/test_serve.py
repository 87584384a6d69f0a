"""The sidecar as a process beside a real server: every failure of the contract, from the outside."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from runtime.hostile_server import Behaviour, HostileServer, answer, by_path, hanging, raw, trickling
from serve_process import COMMAND, FACTS, Serve, environment
from vllm_pages import cache_config, minimal, page

GOOD = page(minimal(), cache_config(kv_cache_size_tokens="100000"))


@pytest.fixture
def engine() -> Iterator[HostileServer]:
    with HostileServer(answer(GOOD)) as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[HostileServer, Serve]]:
    """One sidecar for the tests that only exchange what its engine does."""
    with HostileServer(answer(GOOD)) as server, Serve(server.url, *FACTS, "--engine.timeout=150ms") as serve:
        yield server, serve


FAULTS: list[tuple[str, Behaviour]] = [
    ("timeout", hanging()),
    ("timeout", trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", GOOD.encode(), 0.02)),
    ("connection", raw(b"")),
    ("http_status", answer("loading", status="503 Service Unavailable")),
    ("not_metrics", answer("<!doctype html><html></html>\n", content_type="text/html")),
    ("not_metrics", answer('{"detail": "no"}\n', content_type="application/json")),
    ("not_metrics", answer("")),
    ("not_metrics", answer(GOOD[:-4])),
    ("no_engine_metrics", answer("python_info 1.0\n")),
]
FAULT_NAMES = ["hangs", "trickles", "closes", "503", "HTML", "JSON", "empty", "cut", "log stats off"]


@pytest.mark.parametrize(("outcome", "fault"), FAULTS, ids=FAULT_NAMES)
def test_a_failing_engine_is_down_for_a_reason_and_comes_back(
    shared: tuple[HostileServer, Serve], outcome: str, fault: Behaviour
) -> None:
    """The reason is counted, the last good values stand, and the next good page ends it."""
    server, serve = shared
    server.behave = answer(GOOD)
    serve.wait_for(lambda: serve.value("engine_up") == 1.0)
    counted = serve.outcome(outcome)
    server.behave = fault
    serve.wait_for(lambda: serve.value("engine_up") == 0.0 and serve.outcome(outcome) > counted)
    assert serve.value('tokens_in_flight{engine="0",model_name="m"}') == 25_000.0
    assert serve.value("engine_ever_up") == 1.0
    server.behave = answer(GOOD)
    serve.wait_for(lambda: serve.value("engine_up") == 1.0)


def test_our_own_page_answers_at_once_while_the_engine_hangs(shared: tuple[HostileServer, Serve]) -> None:
    """Under 100 ms; the fastest of several, as the machine may be busy with other things."""
    server, serve = shared
    server.behave = hanging()
    before = serve.outcome("timeout")
    serve.wait_for(lambda: serve.outcome("timeout") > before)
    times = []
    for _ in range(10):
        began = time.monotonic()
        assert serve.get().status == 200
        times.append(time.monotonic() - began)
    server.behave = answer(GOOD)
    assert min(times) < 0.1
    assert sorted(times)[5] < 0.1


def test_both_content_types_and_gzip_are_served(shared: tuple[HostileServer, Serve]) -> None:
    """As Prometheus asks for them."""
    _, serve = shared
    serve.wait_for(lambda: serve.value("engine_up") == 1.0)
    plain = serve.get()
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    strict = serve.get(Accept="application/openmetrics-text; version=1.0.0")
    assert strict.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    names = {f.name for f in parse_openmetrics(strict.body.decode())}  # type: ignore[no-untyped-call]  # no types
    assert "stepscope_tokens_in_flight" in names
    packed = serve.get(Accept_Encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert b"stepscope_tokens_in_flight" in gzip.decompress(packed.body)


def test_looking_changes_nothing(shared: tuple[HostileServer, Serve]) -> None:
    """Two scrapers, or a person with curl: the engine is asked no more often for it."""
    server, serve = shared
    for path in ("/", "/-/healthy", "/-/ready", "/config", "/api/v1/snapshot", "/api/v1/history"):
        assert serve.get(path).status == 200, path
    assert serve.get("/nothing").status == 404
    assert serve.get("/-/reload").status == 405
    asked = len(server.asked)
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        serve.get()
    assert len(server.asked) - asked < 10


def test_an_engine_that_is_not_there_yet_never_was(engine: HostileServer) -> None:
    """Refused, then there: no readiness of ours depends on it."""
    port, url = engine.port, engine.url
    engine.stop()
    with Serve(url, *FACTS) as serve:
        serve.wait_for(lambda: serve.outcome("connection") > 0)
        assert (serve.value("engine_up"), serve.value("engine_ever_up")) == (0.0, 0.0)
        assert serve.get("/-/ready").status == serve.get("/-/healthy").status == 200
        with HostileServer(answer(GOOD), port=port):
            serve.wait_for(lambda: serve.value("engine_up") == 1.0)
        assert serve.value("engine_ever_up") == 1.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_during_a_hung_scrape_ends_within_two_seconds(engine: HostileServer, number: int) -> None:
    """With status 0 and no traceback."""
    engine.behave = hanging()
    with Serve(engine.url, "--sample.interval=30s", "--sample.window=30s", "--engine.timeout=20s") as serve:
        serve.wait_for(lambda: len(engine.asked) > 0)
        status, seconds = serve.terminate(number)
        assert status == 0
        assert seconds < 2.0
        serve.kill()
        assert not any("Traceback" in line for line in serve.log)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--engine.ulr=http://a:1", "unknown flag --engine.ulr, did you mean --engine.url?"),
        ("--sample.interval=5", '--sample.interval: "5" is not a duration (examples: 5s, 500ms, 1m)'),
        ("--hardware.gpu=H1000", "GPU 'H1000' is not in the table; "),
        ("--calibration.file=/nowhere/c.yaml", "calibration file /nowhere/c.yaml: No such file or directory"),
        ("--model.config=/nowhere", "model /nowhere: no configuration found "),
        ("--web.listen-address=tcp://10.0.0.1:80", "--web.listen-address: "),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(flag: str, says: str) -> None:
    """What is wrong and where; never a traceback."""
    done = subprocess.run([*COMMAND, flag], capture_output=True, text=True, timeout=30, env=environment())
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("stepscope: " + says)


def test_a_port_in_use_is_one_line_and_status_2(engine: HostileServer) -> None:
    """The engine's own, for one."""
    command = [*COMMAND, f"--web.listen-address=127.0.0.1:{engine.port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment())
    assert done.returncode == 2
    assert str(engine.port) in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_settings_can_be_checked_alone(tmp_path: Path) -> None:
    """Status 0 or 2, nothing is opened; files that settings name are read too."""
    good = subprocess.run([*COMMAND, "--config.check"], capture_output=True, text=True, timeout=30, env=environment())
    assert (good.returncode, good.stdout) == (0, "the configuration is valid\n")
    web = tmp_path / "web.yml"
    web.write_text("tls_sever_config: {}\n")
    for wrong in ("--hardware.gpu=H1000", f"--web.config.file={web}"):
        command = [*COMMAND, "--config.check", wrong]
        bad = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment())
        assert (bad.returncode, bad.stdout, len(bad.stderr.splitlines())) == (2, "", 1)


def test_an_injected_sidecar_serves_degraded(engine: HostileServer) -> None:
    """Wrong settings and facts are said in the log and on the pages; what is right is used."""
    flags = ["--config.on-error=degrade", "--sample.warmup=5s", "--hardware.gpu=H1000"]
    with Serve(engine.url, *flags) as serve:
        serve.wait_for(lambda: serve.value("engine_up") == 1.0)
        assert serve.value("config_ok") == 0.0
        errors = json.loads(serve.get("/api/v1/snapshot").body)["config_errors"]
        assert any("unknown flag --sample.warmup" in line for line in errors)
        assert any("H1000" in line for line in errors)
        assert any("running degraded" in line and "--sample.warmup" in line for line in serve.log)
        assert serve.terminate()[0] == 0


def test_one_unusable_fact_leaves_the_others_their_say(engine: HostileServer, tmp_path: Path) -> None:
    """A GPU that nobody knows and a file that is not there are left out; model, objective and numbers stand."""
    flags = [*FACTS, "--config.on-error=degrade", "--objective.tokens-per-second=50", "--hardware.gpu=H1000"]
    flags.append(f"--web.config.file={tmp_path / 'gone.yaml'}")
    with Serve(engine.url, *flags) as serve:
        serve.wait_for(lambda: serve.value('target_itl_seconds{engine="0",model_name="m"}') == 0.02)
        errors = json.loads(serve.get("/api/v1/snapshot").body)["config_errors"]
        assert [line.partition(":")[0] for line in errors] == ["--hardware.gpu", "--web.config.file"]
        assert serve.value("config_ok") == 0.0


def test_a_reload_takes_a_new_file_and_refuses_a_wrong_one(engine: HostileServer, tmp_path: Path) -> None:
    """By signal and by POST; a wrong one changes nothing but config_ok."""
    file = tmp_path / "stepscope.yaml"
    file.write_text("objective: {tokens-per-second: 50}\n")
    target = 'target_itl_seconds{engine="0",model_name="m"}'
    with Serve(engine.url, *FACTS, f"--config.file={file}") as serve:
        serve.wait_for(lambda: serve.value(target) == 0.02)
        file.write_text("objective: {tokens-per-second: 25}\n")
        serve.process.send_signal(signal.SIGHUP)
        serve.wait_for(lambda: serve.value(target) == 0.04)
        file.write_text("objective: {tokens-per-second: fast}\n")
        refused = serve.get("/-/reload", method="POST")
        assert refused.status == 500
        assert b"tokens-per-second" in refused.body
        assert (serve.value("config_ok"), serve.value(target)) == (0.0, 0.04)
        file.write_text("objective: {tokens-per-second: 10}\n")
        assert serve.get("/-/reload", method="POST").status == 200
        serve.wait_for(lambda: serve.value(target) == 0.1 and serve.value("config_ok") == 1.0)
        assert serve.get("/-/reload", method="POST", Origin="http://evil.example").status == 403


def test_secrets_never_leave(engine: HostileServer, tmp_path: Path) -> None:
    """The token is sent to the engine, and shown neither on a page nor in the log."""
    token = tmp_path / "token"
    token.write_text("s3cr3t-t0ken\n")
    with Serve(engine.url, *FACTS, f"--engine.bearer-token-file={token}", "--log.level=debug") as serve:
        serve.wait_for(lambda: serve.value("engine_up") == 1.0)
        assert any(asked.headers.get("authorization") == "Bearer s3cr3t-t0ken" for asked in engine.asked)
        for path in ("/", "/config", "/metrics", "/api/v1/snapshot"):
            assert b"s3cr3t" not in serve.get(path).body, path
        serve.terminate()
        serve.kill()
        assert not any("s3cr3t" in line for line in serve.log)


def test_the_engine_s_environment_does_not_touch_us(engine: HostileServer, tmp_path: Path) -> None:
    """In a pod it may be shared: a proxy for everything, a multi-process directory, service addresses."""
    closed = "http://127.0.0.1:9"
    shared_directory = tmp_path / "multiproc"
    shared_directory.mkdir()
    env = environment(
        HTTP_PROXY=closed,
        http_proxy=closed,
        ALL_PROXY=closed,
        PROMETHEUS_MULTIPROC_DIR=str(shared_directory),
        STEPSCOPE_PORT="tcp://10.0.0.1:10094",
        STEPSCOPE_SERVICE_HOST="10.0.0.1",
    )
    with Serve(engine.url, *FACTS, env=env) as serve:
        serve.wait_for(lambda: serve.value("engine_up") == 1.0)
        assert serve.terminate()[0] == 0
    assert list(shared_directory.iterdir()) == []


def test_a_restart_of_the_engine_is_seen(engine: HostileServer) -> None:
    """Counters at zero behind the same port: counted once, nothing negative."""
    restarts = 'engine_restarts_total{engine="0",model_name="m"}'
    with Serve(engine.url, *FACTS) as serve:
        serve.wait_for(lambda: serve.value(restarts) == 0.0)
        engine.behave = answer(GOOD.replace(" 9", " 1").replace("0.45", "0.05").replace("1.7e+09", "1.8e+09"))
        serve.wait_for(lambda: serve.value(restarts) == 1.0)
        assert all(float(line.split()[-1]) >= 0 for line in serve.page().splitlines() if "_total{" in line)


def test_hostile_labels_of_an_engine_come_back_as_they_were(engine: HostileServer) -> None:
    """Through scan, core, page and JSON."""
    nasty = r"a\"b{c}\\d\nvllm:num_requests_running 99"
    engine.behave = by_path({"/metrics": answer(page(minimal(model_name=nasty)))})
    with Serve(engine.url, *FACTS) as serve:
        serve.wait_for(lambda: serve.value("engine_up") == 1.0)
        (view,) = json.loads(serve.get("/api/v1/snapshot").body)["engines"]
        assert view["model_name"] == 'a"b{c}\\d\nvllm:num_requests_running 99'
        assert "\nvllm:" not in serve.page()
