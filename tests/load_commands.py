"""A simulated engine and the program beside it, for the tests of the commands that put load on an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sim_helpers import small
from stepscope.sim.physics import Physics
from stepscope.sim.presets import GPUS, MODELS
from stepscope.sim.server import SimServer

WEIGHT_BYTES, KV_BYTES_PER_TOKEN = 6e9, 147_456.0
MODEL = (  # what the commands are told
    f"--model.weight-bytes={WEIGHT_BYTES:g}",
    f"--model.kv-bytes-per-token={KV_BYTES_PER_TOKEN:g}",
)


PHYSICS = replace(
    Physics.plain(GPUS["H100-SXM"], MODELS["qwen3-8b"]),
    weight_bytes=WEIGHT_BYTES,
    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    bandwidth_share=0.6,
    launch_seconds=0.0,
    jitter=0.0,
)
BANDWIDTH = PHYSICS.bandwidth_share * PHYSICS.peak_bandwidth_bytes_per_second


@contextmanager
def quick_engine(**changes: object) -> Iterator[SimServer]:
    """Steps of about 3 ms that follow the plain law exactly: 6e9 bytes of weights at 60 % of an H100's bandwidth."""
    server = SimServer(small(physics=PHYSICS, **changes))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def environment() -> dict[str, str]:
    """Without variables that stepscope would read."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE_")}


def start(*arguments: str) -> subprocess.Popen[str]:
    """The program in its own process, as an operator starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "stepscope", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def stepscope(*arguments: str, seconds: float = 60.0) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of a whole run."""
    process = start(*arguments)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err
