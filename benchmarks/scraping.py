"""CPU of whole processes that scrape one engine once a second: the sidecar, Prometheus itself, a naive exporter."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from latency import serve
from measure import Child, cpu_seconds, free_port, get, resident_mib, say, wait_until_serving
from report import Check, Table

from stepscope.engines import vllm
from stepscope.runtime.scrape import Scraper
from stepscope.runtime.scrape_options import ScrapeOptions

_SETTLE_SECONDS = 10
_BLOCK_SECONDS = 10  # the spread is that of blocks of so many scrapes
_TARGET_MS = 3.7  # a Prometheus 2.42 server scraping the same page, on a 2-core machine
_CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 900ms}
scrape_configs:
- job_name: engine
  static_configs: [{targets: [%s]}]
"""


@dataclass(slots=True)
class _Scraping:
    """One process under watch. `scrapes()`: how many it has done so far, by its own count."""

    name: str
    pid: int
    scrapes: Callable[[], int]
    idle_pid: int | None = None  # a twin that scrapes nothing: its CPU is not the scrapes'
    readings: list[float] = field(default_factory=list)  # CPU seconds so far, at the block borders
    counts: list[int] = field(default_factory=list)  # scrapes so far, at both ends

    def read(self) -> None:
        """Note the CPU time."""
        idle = cpu_seconds(self.idle_pid) if self.idle_pid is not None else 0.0
        self.readings.append(cpu_seconds(self.pid) - idle)

    @property
    def scraped(self) -> int:
        """Scrapes between both ends."""
        return self.counts[-1] - self.counts[0]

    @property
    def per_scrape_ms(self) -> float:
        """Mean over the whole time."""
        return (self.readings[-1] - self.readings[0]) / self.scraped * 1e3

    @property
    def blocks_ms(self) -> list[float]:
        """Mean of each block, ascending; a block holds one scrape per second."""
        pairs = zip(self.readings, self.readings[1:], strict=False)
        return sorted((after - before) / _BLOCK_SECONDS * 1e3 for before, after in pairs)


def _good_scrapes(port: int) -> int:
    return int(json.loads(get(port, "/api/v1/snapshot"))["engine_scrapes"]["ok"])


def _prometheus_scrapes(port: int) -> int:
    query = quote('count_over_time(up{job="engine"}[1h])')
    result = json.loads(get(port, f"/api/v1/query?query={query}"))["data"]["result"]
    return int(result[0]["value"][1])


def _prometheus(program: str, folder: Path, target: str) -> tuple[Child, int]:
    folder.mkdir()
    (folder / "prometheus.yml").write_text(_CONFIG % target)
    port = free_port()
    child = Child(
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    return child, port


def _page_sizes(engine_port: int) -> tuple[int, int]:
    """(bytes of the whole page, of the filtered one). Raises RuntimeError where the filter does not work."""
    scraper = Scraper(ScrapeOptions(url=f"http://127.0.0.1:{engine_port}", deadline_seconds=5.0))
    whole = scraper.fetch()
    reading = vllm.read(whole.text, 0.0)
    filtered = scraper.fetch(reading.names if reading is not None else None)
    scraper.close()
    if not filtered.filtered:
        raise RuntimeError("the engine does not honour the filter")
    return whole.content_bytes, filtered.content_bytes


def measure(seconds: int) -> Table:
    """All scrape the same simulated engine at the same time."""
    say(f"scraping: {seconds + _SETTLE_SECONDS} s")
    program = shutil.which("prometheus")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine_port = free_port()
        engine = f"127.0.0.1:{engine_port}"
        stack.enter_context(Child.python("-m", "stepscope", "sim", f"--listen-address={engine}"))
        wait_until_serving(engine_port, "/health")
        whole_bytes, filtered_bytes = _page_sizes(engine_port)
        watched = []
        for name, flag in (
            (f"`stepscope serve`, whole page ({whole_bytes / 1e3:.0f} kB)", "--engine.filter=off"),
            (f"`stepscope serve`, filtered page ({filtered_bytes / 1e3:.1f} kB), the default", "--engine.filter=auto"),
        ):
            port = free_port()
            child = stack.enter_context(serve(engine_port, port, flag))
            wait_until_serving(port, "/-/ready")
            watched.append(_Scraping(name, child.pid, lambda port=port: _good_scrapes(port)))  # type: ignore[misc]
        naive = stack.enter_context(Child.python("benchmarks/naive_exporter.py", f"http://{engine}"))
        watched.append(_Scraping("naive Python exporter, whole page", naive.pid, _line_counter(naive)))
        if program is None:
            say("prometheus is not installed: its row is left out")
        else:
            busy, port = _prometheus(program, folder / "busy", f'"{engine}"')
            stack.enter_context(busy)
            idle, idle_port = _prometheus(program, folder / "idle", "")
            stack.enter_context(idle)
            wait_until_serving(port, "/-/ready")
            wait_until_serving(idle_port, "/-/ready")
            name = f"Prometheus {_version(port)}, whole page, less what an idle one uses"
            watched.append(_Scraping(name, busy.pid, lambda: _prometheus_scrapes(port), idle_pid=idle.pid))
        time.sleep(_SETTLE_SECONDS)
        _watch(watched, seconds)
        memory = {scraping.name: resident_mib(scraping.pid) for scraping in watched}
    return _table(watched, memory, seconds)


def _line_counter(child: Child) -> Callable[[], int]:
    count = 0

    def last_line() -> int:
        """Lines arrive once a second: the one that is waited for is at most a second old."""
        nonlocal count
        before = time.monotonic()
        while True:
            count = int(child.line())
            if time.monotonic() - before > 0.05:  # this one was waited for, so none is left
                return count
            before = time.monotonic()

    return last_line


def _watch(watched: list[_Scraping], seconds: int) -> None:
    """Counts are asked outside the time that is measured: answering costs CPU too."""
    for scraping in watched:
        scraping.counts.append(scraping.scrapes())
    time.sleep(0.5)
    for scraping in watched:
        scraping.read()
    began = time.monotonic()
    for block in range(1, seconds // _BLOCK_SECONDS + 1):
        time.sleep(max(0.0, began + block * _BLOCK_SECONDS - time.monotonic()))
        for scraping in watched:
            scraping.read()
    for scraping in watched:
        scraping.counts.append(scraping.scrapes())


def _version(port: int) -> str:
    version: str = json.loads(get(port, "/api/v1/status/buildinfo"))["data"]["version"]
    return version.partition("+")[0]


def _table(watched: list[_Scraping], memory: dict[str, float], seconds: int) -> Table:
    prometheus = next((s for s in watched if s.idle_pid is not None), None)
    rows, checks = [], []
    for scraping in watched:
        blocks, mean = scraping.blocks_ms, scraping.per_scrape_ms
        ratio = f"{mean / prometheus.per_scrape_ms:.2f}" if prometheus is not None else "-"
        spread = f"{blocks[0]:.2f} - {blocks[-1]:.2f}"
        rows.append(
            (scraping.name, f"{scraping.scraped}", f"{mean:.2f}", spread, ratio, f"{memory[scraping.name]:.0f}")
        )
        if "serve" in scraping.name:
            kind = scraping.name.partition(", ")[2].partition(" (")[0]
            checks.append(Check(f"CPU of the whole process per scrape, {kind}", mean, _TARGET_MS, "ms"))
            if prometheus is not None:
                share = mean / prometheus.per_scrape_ms
                checks.append(Check(f"the same against Prometheus in this run, {kind}", share, 1.0, "of its CPU"))
    return Table(
        "Whole processes at a 1 s interval",
        "All scraped the same simulated engine (a process of its own, 40 chats and more) at the same time for "
        f"{seconds} s, after {_SETTLE_SECONDS} s to settle. CPU of the whole process, user and system, from the "
        "kernel's process clock, divided by the scrapes that the process itself counted. Nobody scraped stepscope "
        "meanwhile. The stepscope rows include fetching, reading, predicting, comparing and the schedule; the "
        "Prometheus row includes storing every series of the page. "
        f"Range: means of {_BLOCK_SECONDS} s blocks. Resident memory at the end.",
        ("process", "scrapes", "ms CPU per scrape", "range of blocks", "against Prometheus", "resident MiB"),
        tuple(rows),
        tuple(checks),
    )
