"""An engine in a process of its own that makes tokens at a fixed pace, or faster than any client can read them.

    python tests/flood_server.py GAP_SECONDS [--counts]

prints its URL and serves until it is stopped. With a gap of 0 every stream gets tokens as fast as its connection takes
them. --counts: it has a metrics page that counts the gaps as vLLM does, on its own clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_EVENT = b"data: " + json.dumps({"choices": [{"index": 0, "text": " x"}]}).encode() + b"\n\n"
_MODELS = json.dumps({"data": [{"id": "some-model", "max_model_len": 100_000}]}).encode()
_AT_ONCE = 16  # events of a write where there is no gap


class Flood:
    """What it has made. gap_seconds: between two tokens of a stream."""

    def __init__(self, gap_seconds: float, *, counts: bool) -> None:
        self.gap_seconds = gap_seconds
        self.counts = counts
        self.running = 0
        self.steps = 0
        self.gaps = 0
        self.gap_total_seconds = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length.group(1))) if length else b""
            if head.startswith("POST"):
                asked = json.loads(body)
                await self._stream(writer, len(asked["prompt"]), asked["max_tokens"])
            elif head.startswith("GET /v1/models"):
                writer.write(_answer("200 OK", "application/json", _MODELS))
            elif head.startswith("GET /metrics") and self.counts:
                writer.write(_answer("200 OK", "text/plain; version=0.0.4", self._page()))
            else:
                writer.write(_answer("404 Not Found", "application/json", b"{}"))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, prompt_tokens: int, tokens: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self.running += 1
        try:
            if self.gap_seconds:
                await self._paced(writer, tokens)
            else:
                for sent in range(0, tokens, _AT_ONCE):
                    writer.write(_EVENT * min(_AT_ONCE, tokens - sent))
                    await writer.drain()
        finally:
            self.running -= 1
        usage = {"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}}
        writer.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")

    async def _paced(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        loop = asyncio.get_running_loop()
        began = last = loop.time()
        for number in range(tokens):
            await asyncio.sleep(began + number * self.gap_seconds - loop.time())
            writer.write(_EVENT)
            now = loop.time()
            if number:
                self.gaps += 1
                self.gap_total_seconds += now - last
            last = now

    def _page(self) -> bytes:
        labels = 'engine="0",model_name="some-model"'
        itl = "vllm:inter_token_latency_seconds"
        steps = "vllm:iteration_tokens_total"
        per_stream = self.gaps // max(1, self.running)
        return (
            f'# TYPE {itl} histogram\n{itl}_bucket{{{labels},le="+Inf"}} {self.gaps}\n'
            f"{itl}_sum{{{labels}}} {self.gap_total_seconds}\n{itl}_count{{{labels}}} {self.gaps}\n"
            f'# TYPE {steps} histogram\n{steps}_bucket{{{labels},le="+Inf"}} {per_stream}\n'
            f"{steps}_sum{{{labels}}} {self.gaps}\n{steps}_count{{{labels}}} {per_stream}\n"
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{labels}}} {self.running}\n"
            f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{{labels}}} 0\n"
            f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {_STARTED}\n"
        ).encode()


_STARTED = time.time()


def _answer(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@contextmanager
def flood_server(gap_seconds: float, *, counts: bool = False) -> Iterator[str]:
    """Its base URL while it runs."""
    command = [sys.executable, __file__, f"{gap_seconds:g}", *(["--counts"] if counts else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


async def _main(gap_seconds: float, *, counts: bool) -> None:
    flood = Flood(gap_seconds, counts=counts)
    server = await asyncio.start_server(flood.serve, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("gap_seconds", type=float)
    parser.add_argument("--counts", action="store_true")
    args = parser.parse_args()
    asyncio.run(_main(args.gap_seconds, counts=args.counts))
