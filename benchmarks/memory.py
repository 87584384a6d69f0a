"""Resident memory of the sidecar while it takes ten thousand samples and is scraped and looked at."""

from __future__ import annotations

import json

from measure import Child, get, resident_mib, say
from report import Check, Table

_FIRST = 1_000  # samples: caches, the history of 15 minutes and the trailing hour are as good as full by then
_LOOK_EVERY = 100  # samples between two visits by scrapers and people
_PATHS = ("/metrics", "/api/v1/snapshot", "/api/v1/history", "/", "/config")
_PROMETHEUS = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"}


def measure(samples: int) -> Table:
    """Runs the soak process against the stand-in engine."""
    say(f"memory: {samples} samples")
    with Child.python("benchmarks/stand_in.py") as engine:
        url = f"http://127.0.0.1:{engine.line()}"
        with Child.python("benchmarks/soak.py", url, str(samples)) as sidecar:
            port = int(sidecar.line())
            at_start = resident_mib(sidecar.pid)
            by_samples: dict[int, float] = {}
            while samples not in by_samples:
                line = sidecar.line()
                taken, _, mib = line.partition(" ")
                by_samples[int(taken)] = float(mib)
                for path in _PATHS:
                    get(port, path)
                get(port, "/metrics", _PROMETHEUS)
            snapshot = json.loads(get(port, "/api/v1/snapshot"))
            scrapes = snapshot["engine_scrapes"]
            if scrapes["ok"] != samples:
                raise RuntimeError(f"of {samples} samples only {scrapes['ok']} were good: {snapshot['last_error']}")
            last = by_samples[samples]
    growth = last - by_samples[_FIRST]
    peak = max(by_samples.values())
    rows = [("started, nothing scraped", f"{at_start:.1f}")]
    rows += [
        (f"after {at:,} samples", f"{by_samples[at]:.1f}") for at in sorted({_FIRST, samples // 200 * 100, samples})
    ]
    rows.append(("highest at any time", f"{peak:.1f}"))
    return Table(
        f"Resident memory over {samples:,} samples",
        "The parts of `stepscope serve` with real HTTP to a simulated engine (chats, long agents, prompt bursts, "
        "nobody, in turns), on a clock on which each sample is one second later, so that the history and the trailing "
        f"hour fill as in real life. Every {_LOOK_EVERY} samples `/metrics` (text, and OpenMetrics with gzip), `/`, "
        "`/config` and both `/api/v1` documents are fetched. MiB, from `smaps_rollup`.",
        ("moment", "resident MiB"),
        tuple(rows),
        (
            Check(f"resident memory after {samples:,} samples", last, 48.0, "MiB"),
            Check(f"growth over the last {samples - _FIRST:,} samples", growth, 1.0, "MiB"),
        ),
    )
