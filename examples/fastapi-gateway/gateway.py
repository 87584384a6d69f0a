"""A gateway that leases context tokens from stepscope before it sends a request to vLLM (FastAPI, httpx, uvicorn).

    pip install -r requirements.txt
    ENGINE_URL=http://127.0.0.1:8000 LEASES_URL=http://127.0.0.1:10094 PORT=8080 python gateway.py
    SERVICE=vllm-headless.models.svc ENGINE_PORT=8000 LEASES_PORT=10094 python gateway.py     (pods behind it)

The three ends of a request: it completes or fails (the lease is released), its client goes away (the engine's request
is cancelled and the lease released), or this process dies (the lease runs out after LEASE_TTL_SECONDS).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

TTL_SECONDS = float(os.environ.get("LEASE_TTL_SECONDS", "60"))
LEASE_TIMEOUT_SECONDS = 1.0  # a sidecar answers in milliseconds; a hung one must not hold requests up
MOST_BODY_BYTES = 8 * 2**20
DEFAULT_MAX_TOKENS = 16  # what OpenAI's and vLLM's completions generate when nothing is said
CHAT = "/v1/chat/completions"
# A chat that says nothing may fill the model's whole context, which nobody could lease: it gets this limit.
DEFAULT_CHAT_TOKENS = int(os.environ.get("DEFAULT_CHAT_TOKENS", "4096"))
LOG = logging.getLogger("gateway")


@dataclass(frozen=True)
class Target:
    """An engine and the sidecar of the same pod: a lease belongs to one engine."""

    engine: str
    leases: str


@dataclass(frozen=True)
class Lease:
    """Where the request goes. lease_id None: nobody leases there, the request goes all the same."""

    target: Target
    lease_id: str | None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One pool of connections to the engines, one to the sidecars."""
    async with (
        httpx.AsyncClient(timeout=None, trust_env=False) as engine,
        httpx.AsyncClient(timeout=LEASE_TIMEOUT_SECONDS, trust_env=False) as leases,
    ):
        app.state.engine, app.state.leases = engine, leases
        yield


app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)


async def targets() -> list[Target]:
    """The one that is configured, or every pod behind a headless Service, in random order."""
    service = os.environ.get("SERVICE")
    if not service:
        return [Target(os.environ["ENGINE_URL"], os.environ["LEASES_URL"])]
    found = await asyncio.get_running_loop().getaddrinfo(service, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    addresses = sorted({str(entry[4][0]) for entry in found})
    random.shuffle(addresses)
    engine, leases = os.environ.get("ENGINE_PORT", "8000"), os.environ.get("LEASES_PORT", "10094")
    return [Target(f"http://{address}:{engine}", f"http://{address}:{leases}") for address in addresses]


def tokens_of(body: dict[str, Any]) -> int:
    """Prompt tokens + the most that may be generated.

    Three bytes a token is on the high side for most languages; a gateway that has the model's tokenizer should count.
    """
    prompt = body.get("prompt", body.get("messages", ""))
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        count = len(prompt)
    else:
        count = -(-len(json.dumps(prompt).encode()) // 3)
    most = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_MAX_TOKENS
    return max(1, count) + int(body.get("n") or 1) * int(most)  # n answers share one prompt


def headers() -> dict[str, str]:
    """The token is read for each call: it may be replaced."""
    file = os.environ.get("LEASE_TOKEN_FILE")
    return {"Authorization": f"Bearer {Path(file).read_text().strip()}"} if file else {}


async def acquire(client: httpx.AsyncClient, tokens: int, request_class: str | None) -> Lease | httpx.Response:
    """A lease; the first refusal where every engine is full; no lease where nobody leases (fail open)."""
    refused: httpx.Response | None = None
    unguarded: Target | None = None
    ask: dict[str, Any] = {"tokens": tokens, "ttl_seconds": TTL_SECONDS}
    if request_class:
        ask["class"] = request_class
    for target in await targets():
        try:
            answer = await client.post(f"{target.leases}/v1/leases", json=ask, headers=headers())
        except httpx.HTTPError as error:
            LOG.warning("lease: %r", error)
            unguarded = unguarded or target
            continue
        if answer.status_code == 201:
            return Lease(target, answer.json()["id"])
        if answer.status_code == 429:
            refused = refused or answer
            continue
        LOG.warning("lease: status %d: %s", answer.status_code, answer.text)
        unguarded = unguarded or target
    if refused is not None or unguarded is None:
        return refused or httpx.Response(429, json={"error": "no engine"})
    return Lease(unguarded, None)


@asynccontextmanager
async def held(client: httpx.AsyncClient, lease: Lease) -> AsyncIterator[None]:
    """Renew the lease while the block runs, release it however the block ends."""
    if lease.lease_id is None:
        yield
        return
    url = f"{lease.target.leases}/v1/leases/{lease.lease_id}"

    async def renew() -> None:
        while True:
            await asyncio.sleep(TTL_SECONDS / 3)
            with contextlib.suppress(httpx.HTTPError):  # the next one may work
                await client.patch(url, json={"ttl_seconds": TTL_SECONDS}, headers=headers())

    async def release() -> None:
        with contextlib.suppress(httpx.HTTPError):  # it runs out by itself
            await client.delete(url, headers=headers())

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        # Shielded: a client that goes away cancels this task, and the lease has to go back all the same.
        await asyncio.shield(asyncio.create_task(release()))


@app.post("/v1/completions")
@app.post(CHAT)
async def complete(request: Request) -> Response:
    """Lease, send, stream back, release."""
    raw = await request.body()
    if len(raw) > MOST_BODY_BYTES:
        return JSONResponse({"error": "the body is too large"}, 413)
    try:
        body = json.loads(raw)
        if request.url.path == CHAT and not (body.get("max_completion_tokens") or body.get("max_tokens")):
            raw = json.dumps(body := {**body, "max_tokens": DEFAULT_CHAT_TOKENS}).encode()
        tokens = tokens_of(body)
    except (ValueError, TypeError, AttributeError):
        return JSONResponse({"error": "the body is not a JSON request"}, 400)
    leases: httpx.AsyncClient = request.app.state.leases
    lease = await acquire(leases, tokens, request.headers.get("x-request-class"))
    if isinstance(lease, httpx.Response):
        return JSONResponse(lease.json(), 429, {"Retry-After": lease.headers.get("Retry-After", "1")})
    return await _send(request, raw, lease)


async def _send(request: Request, raw: bytes, lease: Lease) -> Response:
    """The engine's answer as a stream; leaving the stack cancels the engine's request and releases the lease."""
    engine: httpx.AsyncClient = request.app.state.engine
    passed = {"Content-Type": "application/json"}
    if "authorization" in request.headers:
        passed["Authorization"] = request.headers["authorization"]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(held(request.app.state.leases, lease))
        url = f"{lease.target.engine}{request.url.path}"
        try:
            answering = asyncio.create_task(
                stack.enter_async_context(engine.stream("POST", url, content=raw, headers=passed))
            )
            answer = await _unless_gone(request, answering)
        except httpx.HTTPError as error:
            return JSONResponse({"error": f"engine: {error!r}"}, 502)
        if answer is None:
            return Response(status_code=499)  # nobody reads it
        open_until_read = stack.pop_all()

    async def chunks() -> AsyncIterator[bytes]:
        async with open_until_read:
            async for chunk in answer.aiter_bytes():
                yield chunk

    return StreamingResponse(chunks(), answer.status_code, media_type=answer.headers.get("Content-Type"))


async def _unless_gone(request: Request, answering: asyncio.Task[httpx.Response]) -> httpx.Response | None:
    """What the engine answers; None when the client goes away first (an answer that is not streamed takes its time)."""
    while not answering.done():
        await asyncio.wait({answering}, timeout=0.1)
        if not answering.done() and await request.is_disconnected():
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await answering
            return None
    return answering.result()


def main() -> None:
    """Serve on PORT."""
    host, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8080"))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    sys.stdout.write(f"gateway on {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])


if __name__ == "__main__":
    main()
