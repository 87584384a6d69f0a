"""`--max-seconds` is the end of everything `stepscope bench` does, and Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chat_server import Manner, chat_server
from load_commands import start
from runtime.hostile_server import Behaviour, HostileServer, answer, by_path, hanging
from stepscope.commands._bench_time import TimeOver, time_limit

START_SECONDS = 2.0  # of the interpreter and its imports, on a machine with other work
FORMS = 5  # requests until a chat server's own form is found and its tokens are counted
MODELS = answer('{"data": [{"id": "some-model"}]}', content_type="application/json")


@contextmanager
def asked(url: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    process = start("bench", f"--engine.url={url}", "--concurrency=1", *flags)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(url: str, seconds: int, *flags: str) -> tuple[int, str, str]:
    """(status, standard output, its last line of errors); the time was kept."""
    began = time.monotonic()
    with asked(url, f"--max-seconds={seconds}", *flags) as process:
        out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < seconds + START_SECONDS
    return process.returncode, out, err.splitlines()[-1]


@pytest.mark.parametrize(
    ("manner", "says"),
    [
        (Manner(gap_seconds=2.0), "timeout: the time was over when no token had come (4 asked for)"),
        (Manner(gap_seconds=0.01, never_stops=True), "tokens had come (4 asked for)"),
        (Manner(hang_after=0), "timeout: the time was over when no token had come"),
    ],
    ids=["slow", "endless", "hung"],
)
def test_the_time_bounds_the_first_request(manner: Manner, says: str) -> None:
    """Which finds out how the engine wants to be asked."""
    manner.takes_extras, manner.page = True, "up 1\n"
    with chat_server(manner) as url:
        status, _, error = ended(url, 1)
    assert status == 2
    assert error.startswith(f"stepscope: --engine.url: {url}: ")
    assert says in error


@pytest.mark.parametrize(
    "routes",
    [{"/v1/models": hanging(), "/metrics": answer()}, {"/v1/models": MODELS, "/metrics": hanging()}],
    ids=["models", "page"],
)
def test_the_time_bounds_what_is_read_before_the_load(routes: dict[str, Behaviour]) -> None:
    """An engine may take connections and say nothing."""
    with HostileServer(by_path(routes)) as server:
        status, _, error = ended(server.url, 1)
    assert status == 2
    assert error.startswith("stepscope: --max-seconds: 1 s were over before the first row: its page, /version and")


def test_the_time_bounds_a_row_and_what_comes_after_it() -> None:
    """A token every 3 s: neither the row nor the look at the gauges waits for it. Rows that had no time are named."""
    manner = Manner(takes_extras=True, page="up 1\n", slow_after_requests=FORMS, slow_seconds=3.0)
    with chat_server(manner) as url:
        status, out, error = ended(url, 3, "--input-tokens=64,128", "--output-tokens=50")
    assert status == 1
    assert "1x64: the time was over before all requests had been answered" in out
    assert error == "stepscope bench: 1x128: not begun: the time was over"
    assert "timeout" not in out


def test_ctrl_c_during_a_slow_first_request_ends_at_once() -> None:
    """Nothing is waited for that the engine would have to say."""
    manner = Manner(takes_extras=True, page="up 1\n", gap_seconds=2.0)
    with chat_server(manner) as url, asked(url) as process:
        until = time.monotonic() + 20.0
        while not manner.asked and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 1.0
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_time_limit_rings_once_and_leaves_nothing_behind() -> None:
    """Through code that deals with every failure; not after its end, and at once where there is no time."""
    before = signal.getsignal(signal.SIGALRM)

    def careful(seconds: float, limit_seconds: float) -> str:
        with time_limit(time.monotonic() + limit_seconds):
            try:
                time.sleep(seconds)
            except Exception:
                return "taken for a failure"
            return "done"

    with pytest.raises(TimeOver):
        careful(5.0, 0.05)
    with pytest.raises(TimeOver):
        careful(0.0, 0.0)
    assert careful(0.0, 0.05) == "done"
    time.sleep(0.1)
    assert signal.getsignal(signal.SIGALRM) is before
