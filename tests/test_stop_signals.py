"""Signals are waited for without losing one, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve_process import COMMAND, environment

WAITS = """
import os, signal, time
from stepscope.stop_signals import Signals

signals = Signals(signal.SIGTERM, signal.SIGHUP)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
    os.kill(os.getpid(), number)  # handled before the wait begins, which is how one is lost
print(sorted(signals.wait()) == [signal.SIGHUP, signal.SIGTERM])
print("waiting", flush=True)
print(sorted(signals.wait()) == [signal.SIGTERM])
signals.close()
os.kill(os.getpid(), signal.SIGTERM)
print("still here")
"""
STARTS_SLOWLY = """
import sys, time
sys.argv = ["stepscope", "serve", "--web.listen-address=127.0.0.1:0"]

class Slow:  # stands for a pod's CPU limit, under which the imports take seconds
    def find_spec(self, name, path=None, target=None):
        if name == "stepscope.commands.serve":
            print("starting", flush=True)
            time.sleep(20)

sys.meta_path.insert(0, Slow())
from stepscope.cli import main
sys.exit(main())
"""


def unshared() -> list[str]:
    """The command that makes a process the first of its container; skips where the kernel does not allow it."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no PID namespace can be made here: {error}")
    return command


def test_a_signal_before_the_wait_ends_the_wait() -> None:
    """The handler has run by then; an event would have been waited for without end. Closed, signals do nothing."""
    child = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == ["True\n", "waiting\n"]
        child.send_signal(signal.SIGTERM)
        output, errors = child.communicate(timeout=10)
    finally:
        child.kill()
    assert (output, errors, child.returncode) == ("True\nstill here\n", "", 0)


@pytest.mark.parametrize("first_of_its_container", [False, True])
def test_a_stop_while_the_sidecar_starts_ends_it_at_once(first_of_its_container: bool) -> None:
    """Status 0 within two seconds, however long the start takes; the first process of a container is no exception."""
    before = unshared() if first_of_its_container else []
    command = [*before, sys.executable, "-c", STARTS_SLOWLY]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "starting\n"
        sidecar = child.pid
        if first_of_its_container:
            sidecar = int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])
        began = time.monotonic()
        os.kill(sidecar, signal.SIGTERM)
        assert child.wait(10) == 0
        assert time.monotonic() - began < 2.0
    finally:
        child.kill()
        child.wait(10)
        if child.stdout is not None:
            child.stdout.close()


def test_a_stop_as_soon_as_the_sidecar_serves_is_never_lost() -> None:
    """The signal comes while the main thread is on its way into its wait."""
    for _ in range(3):
        command = [*COMMAND, "--web.listen-address=127.0.0.1:0", "--engine.url=http://127.0.0.1:9"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
        try:
            assert child.stderr is not None
            assert any("serving on" in line for line in child.stderr)
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=10)
        finally:
            child.kill()
        assert child.returncode == 0
