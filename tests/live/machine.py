"""What an operator would look up about the machine: without a bandwidth nothing is predicted (state no_model).

Only the states need this. Nothing is calibrated: the numbers describe the machine, not the engine.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from pathlib import Path

FLAGS_VARIABLE = "STEPSCOPE_LIVE_FLAGS"
_COPY_BYTES = 64 * 2**20  # beyond the caches of any processor that this is likely to run on
_COPIES = 5
_FMA_UNITS = 2  # fused multiply-adds a core starts in a cycle; Intel and AMD optimisation manuals, server cores
_FLOAT_LANES = (("avx512f", 16), ("avx2", 8), ("sse2", 4))  # 32-bit floats in a vector register: its bits / 32


def hardware_flags() -> list[str]:
    """STEPSCOPE_LIVE_FLAGS if set (an engine elsewhere, on a GPU), else what this machine's memory and cores can do."""
    given = os.environ.get(FLAGS_VARIABLE)
    if given is not None:
        return shlex.split(given)
    flags = [f"--hardware.peak-bandwidth-bytes-per-second={copy_bandwidth_bytes_per_second():.0f}"]
    flops = peak_flops()
    return [*flags, f"--hardware.peak-flops={flops:.0f}"] if flops is not None else flags


def copy_bandwidth_bytes_per_second() -> float:
    """Bytes read and written per second by the fastest of a few large copies."""
    source, target = bytearray(_COPY_BYTES), bytearray(_COPY_BYTES)
    best = float("inf")
    for _ in range(_COPIES):
        began = time.perf_counter()
        memoryview(target)[:] = source
        best = min(best, time.perf_counter() - began)
    return 2.0 * _COPY_BYTES / best


def peak_flops() -> float | None:
    """Cores x clock x vector lanes x multiply-adds x 2, in 32 bits; None where the system does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    clock = re.search(r"^cpu MHz\s*: ([\d.]+)", text, re.MULTILINE)
    words = set(text.split())
    lanes = next((lanes for name, lanes in _FLOAT_LANES if name in words), None)
    if clock is None or lanes is None:
        return None
    return (os.cpu_count() or 1) * float(clock[1]) * 1e6 * lanes * _FMA_UNITS * 2.0
