"""Load on a sidecar's leases: many keep-alive clients that acquire, use, cancel, crash, and a ledger that watches them.

    python tests/lease_load.py [--clients 1000] [--pairs 50000] [--rate 500] [--seconds 60]

starts a simulated engine and a real sidecar in processes of their own, then prints the figures of docs/admission.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUDGET_TOKENS = 200_000
TTL_SECONDS = 5.0  # at full speed
PACED_TTL_SECONDS = 60.0  # where each of a thousand clients waits seconds for its turn
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback ignores proxy variables


@dataclass
class Ledger:
    """What the clients know. `live`: tokens of leases that surely live, so never more than the sidecar has given."""

    live: float = 0.0
    highest: float = 0.0
    pairs: int = 0
    refused: int = 0
    killed: int = 0
    cancelled: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of each request, from sending to the answer

    def take(self, tokens: float) -> None:
        """A lease was given."""
        self.live += tokens
        self.highest = max(self.highest, self.live)

    def percentile(self, share: float) -> float:
        """Of the request times, seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Gate:
    """Lets requests pass at a fixed rate, in order; None: at once."""

    def __init__(self, per_second: float | None) -> None:
        self._gap = 1.0 / per_second if per_second else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        """Until the next request may be sent."""
        if not self._gap:
            return
        now = asyncio.get_running_loop().time()
        at = self._next = max(self._next + self._gap, now)
        if at > now:
            await asyncio.sleep(at - now)


class LeaseClient:
    """One keep-alive connection. A real HTTP/1.1 client, as small as possible: the load must not be the bottleneck."""

    def __init__(self, port: int, ledger: Ledger, gate: Gate) -> None:
        self._port, self._ledger, self._gate = port, ledger, gate
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """(status, document) of one request."""
        await self._gate.wait()
        data = b"" if body is None else json.dumps(body).encode()
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        began = time.perf_counter()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"(?i)content-length: (\d+)", answer)
        content = await self._reader.readexactly(int(length.group(1))) if length else b""
        self._ledger.seconds.append(time.perf_counter() - began)
        return int(answer.split(" ", 2)[1]), json.loads(content) if content else {}

    def drop(self) -> None:
        """Cut the connection, as a crash does."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None


async def play(
    client: LeaseClient, ledger: Ledger, rng: random.Random, until: float, most_pairs: int, ttl: float
) -> None:
    """Lease, work, give back, over and over; sometimes shrink, cancel at once, or crash without giving back."""
    loop = asyncio.get_running_loop()
    while ledger.pairs < most_pairs and loop.time() < until:
        tokens = rng.randint(100, 3000)
        status, document = await client.ask("POST", "/v1/leases", {"tokens": tokens, "ttl_seconds": ttl})
        if status == 429:
            ledger.refused += 1
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            continue
        if status != 201:
            ledger.errors.append(f"acquire: {status} {document}")
            continue
        asked_at = loop.time()
        ledger.take(tokens)
        path, fate = f"/v1/leases/{document['id']}", rng.random()
        if fate < 0.02:  # killed: nobody gives the lease back
            ledger.killed += 1
            ledger.pairs += 1
            client.drop()
            loop.call_later(max(0.0, ttl - 0.5 - (loop.time() - asked_at)), _forget, ledger, tokens)
            continue
        if fate < 0.3:  # cancelled at once
            ledger.cancelled += 1
        else:
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            if fate > 0.9:
                ledger.live -= tokens - tokens // 2
                status, _ = await client.ask("PATCH", path, {"tokens": tokens // 2})
                tokens //= 2
                if status != 200 and loop.time() - asked_at < ttl:
                    ledger.errors.append(f"renew: {status}")
        ledger.live -= tokens
        status, _ = await client.ask("DELETE", path)
        ledger.pairs += 1
        if status != 204 and loop.time() - asked_at < ttl:  # later it had run out, on a machine that was too busy
            ledger.errors.append(f"release: {status}")


def _forget(ledger: Ledger, tokens: float) -> None:
    ledger.live -= tokens


async def load(
    port: int, clients: int, pairs: int, rate: float | None, seconds: float, *, ttl: float = TTL_SECONDS, seed: int = 1
) -> Ledger:
    """Play `clients` at once until so many pairs are done or the time is over."""
    ledger, gate = Ledger(), Gate(rate)
    players = [LeaseClient(port, ledger, gate) for _ in range(clients)]
    for start in range(0, clients, 50):  # all connections stand before the first request is timed
        await asyncio.gather(*(player.ask("GET", "/v1/budget") for player in players[start : start + 50]))
    ledger.seconds.clear()
    until = asyncio.get_running_loop().time() + seconds
    await asyncio.gather(
        *(play(player, ledger, random.Random(seed + i), until, pairs, ttl) for i, player in enumerate(players))
    )
    for player in players:
        player.drop()
    return ledger


def get(port: int, path: str) -> Any:
    """A JSON page of the sidecar."""
    with _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.loads(answer.read())


def sampling_delays(port: int, interval_seconds: float) -> list[float]:
    """How late each sample came against the most punctual one, from the sidecar's own history; seconds."""
    times = [point["time_unix_seconds"] for point in get(port, "/api/v1/history")["points"]]
    offsets = [at - times[0] - round((at - times[0]) / interval_seconds) * interval_seconds for at in times]
    return [offset - min(offsets) for offset in offsets]


@contextlib.contextmanager
def stand(interval_seconds: float, *flags: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """(port, process) of a sidecar with admission beside an idle simulated engine; both end with the block."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE_")}
    command = [sys.executable, "-m", "stepscope"]
    engine = _start([*command, "sim", "--listen-address=127.0.0.1:0", "--scenario=none"], environ)
    try:
        url = _first(engine, r"simulated vLLM on (\S+)")
        sidecar = _start(
            [*command, "serve", f"--engine.url={url}", "--web.listen-address=127.0.0.1:0", "--admission.enabled",
             f"--sample.interval={interval_seconds:g}s", f"--admission.budget-tokens={BUDGET_TOKENS}", *flags],
            environ,
        )  # fmt: skip
        try:
            yield int(_first(sidecar, r"serving on 127\.0\.0\.1:(\d+)")), sidecar
        finally:
            _end(sidecar)
    finally:
        _end(engine)


def _start(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _first(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if match := re.search(pattern, line):
            return match.group(1)
    raise RuntimeError(f"the process ended early: {''.join(seen)}")


def resident_bytes(process: subprocess.Popen[str]) -> int:
    """Memory of a process that lies in RAM."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Print the figures; 1 where a target is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the paced part")
    args = parser.parse_args()
    interval = 2.0
    with stand(interval) as (port, process):
        idle = resident_bytes(process)
        paced = asyncio.run(load(port, args.clients, 10**9, args.rate, args.seconds, ttl=PACED_TTL_SECONDS))
        delays = sampling_delays(port, interval)
        print(f"paced: {len(paced.seconds)} requests at {len(paced.seconds) / args.seconds:.0f}/s by {args.clients} "
              f"clients; median {paced.percentile(0.5) * 1e3:.2f} ms, p99 {paced.percentile(0.99) * 1e3:.2f} ms, "
              f"longest {max(paced.seconds) * 1e3:.1f} ms; errors {paced.errors[:3]}")  # fmt: skip
        print(f"sampling: {len(delays)} samples, latest {max(delays) * 1e3:.1f} ms late")
        print(f"memory: {idle / 2**20:.1f} MiB before, {resident_bytes(process) / 2**20:.1f} MiB with the clients")
    with stand(interval, "--admission.max-requests-per-second=1e6") as (port, process):
        began = time.monotonic()
        full = asyncio.run(load(port, args.clients, args.pairs, None, 600.0))
        took = time.monotonic() - began
        time.sleep(TTL_SECONDS + 0.2)
        left = get(port, "/v1/budget")["leased_tokens"]
        print(
            f"full speed: {full.pairs} pairs in {took:.0f} s, {len(full.seconds) / took:.0f} requests/s; of them "
            f"{full.cancelled} cancelled at once, {full.killed} killed; {full.refused} refused and tried again"
        )
        print(f"most leased {full.highest:.0f} of {BUDGET_TOKENS} tokens, {left:g} left after the TTL; errors "
              f"{full.errors[:3]}")  # fmt: skip
        print(f"memory: {resident_bytes(process) / 2**20:.1f} MiB")
    met = (
        paced.percentile(0.99) < 0.005 and max(delays) < 0.05 and full.highest <= BUDGET_TOKENS and left == 0.0
        and not paced.errors and not full.errors
    )  # fmt: skip
    print("targets met" if met else "TARGETS MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
