"""`stepscope sim` as a process."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from stepscope.commands import sim
from stepscope.errors import ConfigError

START = (
    "import argparse, sys; from stepscope.commands import sim; p = argparse.ArgumentParser(); "
    "sim.add_arguments(p); sys.exit(sim.run(p.parse_args()))"
)


def parse(*flags: str) -> argparse.Namespace:
    """Flags as the command line gives them."""
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_url_and_phase_serves_and_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    """Exit 0 within two seconds, nothing on standard error."""
    flags = ["--listen-address=127.0.0.1:0", "--fault=throttle=1.2", "--speculative=2:0.5"]
    process = subprocess.Popen(
        [sys.executable, "-c", START, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", first)
        assert url, first
        assert "40 chats" in process.stdout.readline()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url[0] + "/metrics", timeout=5) as response:
            assert b"vllm:spec_decode_num_drafts_total" in response.read()
        began = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
        assert time.monotonic() - began < 2.0
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait()


def test_it_ends_by_itself_after_max_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0."""
    assert sim.run(parse("--listen-address=127.0.0.1:0", "--scenario=none", "--max-seconds=0.3")) == 0
    assert "simulated vLLM on http://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--fault=throttle", "--fault must be NAME=VALUE"),
        ("--fault=trottle=2", "did you mean throttle?"),
        ("--speculative=many", "--speculative must be K:P"),
        ("--model=gpt", "unknown model 'gpt'"),
        ("--listen-address=nowhere", "listen address must be HOST:PORT"),
    ],
)
def test_a_wrong_flag_is_one_line(flag: str, message: str) -> None:
    """ConfigError, which the command line turns into exit 2; signal handlers and threads are put back."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigError) as error:
        sim.run(parse("--listen-address=127.0.0.1:0", flag))
    assert message in str(error.value)
    assert signal.getsignal(signal.SIGTERM) is before


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """And is readable text."""
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    for flag in (
        "--listen-address",
        "--scenario",
        "--physics",
        "--speculative",
        "--data-parallel",
        "--fault",
        "--seed",
    ):
        assert flag in text
