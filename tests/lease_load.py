"""Load on a sidecar's leases: many keep-alive clients that acquire, use, cancel, crash, and a ledger that watches them.

    python tests/lease_load.py [--clients 1000] [--pairs 50000] [--rate 500] [--seconds 60]

starts a simulated engine and a real sidecar in processes of their own, then prints the figures of docs/admission.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from lease_stand import get, resident_bytes, sampling_delays, stand

BUDGET_TOKENS = 350_000  # a quarter of what a thousand clients ask for, and less than the simulated engine's memory
TTL_SECONDS = 5.0  # where the budget is pressed and at full speed
PACED_TTL_SECONDS = 60.0  # where each of a thousand clients waits seconds for its turn
EDGE = 0.95  # of the budget must have been in use at once, or "never above it" was not tested


@dataclass
class Ledger:
    """What the clients know. `live`: tokens of leases that surely live, so never more than the sidecar has given."""

    live: float = 0.0
    highest: float = 0.0
    highest_said: float = 0.0  # of what the sidecar itself says is leased
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


@dataclass(frozen=True, slots=True)
class Manners:
    """How long a request works, and how long a refused one stays away, at most; seconds. Both uniform from 0."""

    work_seconds: float
    pause_seconds: float


# Requests wait for the sidecar longer than they work: its own speed. The ledger is far below the budget then, because
# most leases are on their way back, and those it does not count.
HASTY = Manners(0.05, 0.2)
# Requests work longer than they wait, so nearly all that is leased is at work: the ledger sees the edge of the budget.
PRESSING = Manners(1.0, 1.0)


async def play(
    client: LeaseClient,
    ledger: Ledger,
    rng: random.Random,
    until: float,
    most_pairs: int,
    ttl: float,
    manners: Manners,
) -> None:
    """Lease, work, give back, over and over; sometimes shrink, cancel at once, or crash without giving back."""
    loop = asyncio.get_running_loop()
    while ledger.pairs < most_pairs and loop.time() < until:
        tokens = rng.randint(100, 3000)
        status, document = await client.ask("POST", "/v1/leases", {"tokens": tokens, "ttl_seconds": ttl})
        if status == 429:
            ledger.refused += 1
            await asyncio.sleep(rng.uniform(0.0, manners.pause_seconds))
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
            await asyncio.sleep(rng.uniform(0.0, manners.work_seconds))
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


async def watch(client: LeaseClient, ledger: Ledger) -> None:
    """Ask the sidecar again and again how much it has leased."""
    while True:
        _, document = await client.ask("GET", "/v1/budget")
        ledger.highest_said = max(ledger.highest_said, document["leased_tokens"])
        if document["leased_tokens"] > document["budget_tokens"]:
            ledger.errors.append(f"leased {document['leased_tokens']} of {document['budget_tokens']}")
        await asyncio.sleep(0.1)


async def load(
    port: int,
    clients: int,
    pairs: int,
    rate: float | None,
    seconds: float,
    manners: Manners,
    *,
    ttl: float = TTL_SECONDS,
    seed: int = 1,
) -> Ledger:
    """Play `clients` at once until so many pairs are done or the time is over."""
    ledger, gate = Ledger(), Gate(rate)
    players = [LeaseClient(port, ledger, gate) for _ in range(clients)]
    for start in range(0, clients, 50):  # all connections stand before the first request is timed
        await asyncio.gather(*(player.ask("GET", "/v1/budget") for player in players[start : start + 50]))
    ledger.seconds.clear()
    until = asyncio.get_running_loop().time() + seconds
    watcher = LeaseClient(port, Ledger(), Gate(None))  # its requests are not among those that are timed
    watching = asyncio.create_task(watch(watcher, ledger))
    await asyncio.gather(
        *(play(player, ledger, random.Random(seed + i), until, pairs, ttl, manners) for i, player in enumerate(players))
    )
    watching.cancel()
    for player in (*players, watcher):
        player.drop()
    return ledger


def main() -> int:
    """Print the figures; 1 where a target is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the paced part")
    args = parser.parse_args()
    interval = 2.0
    unlimited = "--admission.max-requests-per-second=1e6"
    with stand(interval, budget_tokens=BUDGET_TOKENS) as (port, process):
        idle = resident_bytes(process)
        paced = asyncio.run(load(port, args.clients, 10**9, args.rate, args.seconds, HASTY, ttl=PACED_TTL_SECONDS))
        delays = sampling_delays(port, interval)
        print(f"paced: {len(paced.seconds)} requests at {len(paced.seconds) / args.seconds:.0f}/s by {args.clients} "
              f"clients; median {paced.percentile(0.5) * 1e3:.2f} ms, p99 {paced.percentile(0.99) * 1e3:.2f} ms, "
              f"longest {max(paced.seconds) * 1e3:.1f} ms; errors {paced.errors[:3]}")  # fmt: skip
        print(f"sampling: {len(delays)} samples, latest {max(delays) * 1e3:.1f} ms late")
        print(f"memory: {idle / 2**20:.1f} MiB before, {resident_bytes(process) / 2**20:.1f} MiB with the clients")
    left, most = [], []
    for name, manners, pairs in (("pressing", PRESSING, args.pairs), ("full speed", HASTY, args.pairs // 5)):
        with stand(interval, unlimited, budget_tokens=BUDGET_TOKENS) as (port, process):
            began = time.monotonic()
            run = asyncio.run(load(port, args.clients, pairs, None, 600.0, manners))
            took = time.monotonic() - began
            time.sleep(TTL_SECONDS + 0.2)
            left.append(get(port, "/v1/budget")["leased_tokens"])
            most.append(run)
            print(
                f"{name}: {run.pairs} pairs in {took:.0f} s, {len(run.seconds) / took:.0f} requests/s; of them "
                f"{run.cancelled} cancelled at once, {run.killed} killed; {run.refused} refused and tried again"
            )
            print(
                f"most leased {run.highest:.0f} by the clients' count, {run.highest_said:.0f} by the sidecar's, of "
                f"{BUDGET_TOKENS} tokens; {left[-1]:g} left after the TTL; errors {run.errors[:3]}; "
                f"memory {resident_bytes(process) / 2**20:.1f} MiB"
            )
    met = (
        paced.percentile(0.99) < 0.005 and max(delays) < 0.05 and not any(left) and not paced.errors
        and all(run.highest <= BUDGET_TOKENS and not run.errors for run in most)
        and most[0].highest >= EDGE * BUDGET_TOKENS
    )  # fmt: skip
    print("targets met" if met else "TARGETS MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
