"""A gateway that leases context tokens from stepscope before it sends a request to vLLM (FastAPI, httpx, uvicorn).

    pip install -r requirements.txt
    ENGINE_URL=http://127.0.0.1:8000 LEASES_URL=http://127.0.0.1:10094 PORT=8080 python gateway.py
    SERVICE=vllm-headless.models.svc ENGINE_PORT=8000 LEASES_PORT=10094 python gateway.py     (pods behind it)

The three ends of a request: it completes or fails (the lease is released), its client goes away (the engine's request
is cancelled and the lease released), or this process dies (the lease runs out after LEASE_TTL_SECONDS).

Fail open: no answer within LEASE_TIMEOUT_SECONDS, 401, 403, 404, 405 or 5xx from the sidecar lets the request pass
without a lease. None of these can be brought about by a client; what can (400, 413) is its fault and answered 400.
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
RELEASE_AGAIN_SECONDS = 0.2  # a release that failed is tried once more; then the lease runs out by itself
MOST_BODY_BYTES = 8 * 2**20
MOST_NUMBER = 10**9  # of tokens or answers: far above any model's context
DEFAULT_MAX_TOKENS = 16  # what OpenAI's and vLLM's completions generate when nothing is said
CHAT = "/v1/chat/completions"
# A chat that says nothing may fill the model's whole context, which nobody could lease: it gets this limit.
DEFAULT_CHAT_TOKENS = int(os.environ.get("DEFAULT_CHAT_TOKENS", "4096"))
WRONG = (400, 413)  # what a client's words can make of a request for a lease
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


def whole(body: dict[str, Any], key: str, least: int) -> int | None:
    """A whole number under a key, None where it is absent or null. Raises ValueError."""
    value = body.get(key)
    if value is None:
        return None
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0  # not NaN, Infinity
    if not is_whole or not least <= value <= MOST_NUMBER:
        raise ValueError(f"{key} must be a whole number from {least} to {MOST_NUMBER}")
    return int(value)


def prompt_tokens(prompt: Any) -> int:
    """Three bytes a token is on the high side for most languages; with the model's tokenizer a gateway should count."""
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    return -(-len(json.dumps(prompt, ensure_ascii=False).encode("utf-8", "replace")) // 3)


def tokens_of(path: str, body: dict[str, Any]) -> int:
    """Prompt tokens + the most that may be generated. Raises ValueError for what the engine would not take either.

    Only what the engine goes by counts: completions know no max_completion_tokens, chats no prompt.
    """
    limits = [whole(body, "max_tokens", 0)]
    answers = max(whole(body, "n", 1) or 1, whole(body, "best_of", 1) or 1)
    if path == CHAT:
        limits.append(whole(body, "max_completion_tokens", 0))
        prompts = [[body.get(key) for key in ("messages", "tools", "documents") if body.get(key)]]
    else:
        prompt = body.get("prompt", "")
        is_batch = isinstance(prompt, list) and any(not isinstance(part, int) for part in prompt)
        prompts = prompt if is_batch else [prompt]
    most = max((limit for limit in limits if limit is not None), default=DEFAULT_MAX_TOKENS)
    # Each prompt of a batch is a request of its own; the answers to one prompt share it.
    return max(1, sum(prompt_tokens(prompt) for prompt in prompts)) + len(prompts) * answers * most


def headers() -> dict[str, str]:
    """The token is read for each call: it may be replaced."""
    file = os.environ.get("LEASE_TOKEN_FILE")
    return {"Authorization": f"Bearer {Path(file).read_text().strip()}"} if file else {}


async def acquire(client: httpx.AsyncClient, tokens: int, request_class: str | None) -> Lease | httpx.Response:
    """A lease; the first refusal where every engine is full; no lease where nobody leases (fail open)."""
    refused: httpx.Response | None = None
    unguarded: Target | None = None
    ask: dict[str, Any] = {"tokens": tokens, "ttl_seconds": TTL_SECONDS}
    for target in await targets():
        url = f"{target.leases}/v1/leases"
        try:
            # A class that the sidecar does not know must not switch admission off: then the default class counts.
            named = ask | ({"class": request_class} if request_class else {})
            answer = await client.post(url, json=named, headers=headers())
            if answer.status_code in WRONG and request_class:
                answer = await client.post(url, json=ask, headers=headers())
        except (httpx.HTTPError, OSError) as error:  # OSError: the token file
            LOG.error("lease: %r: requests pass without one", error)
            unguarded = unguarded or target
            continue
        if answer.status_code == 201:
            return Lease(target, answer.json()["id"])
        if answer.status_code in WRONG:
            return answer
        if answer.status_code == 429:
            refused = refused or answer
            continue
        # 401 and 403 too: a wrong token is the operator's error, and no reason to stop serving.
        LOG.error("lease: status %d: %s: requests pass without one", answer.status_code, answer.text.strip())
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
            with contextlib.suppress(httpx.HTTPError, OSError):  # the next one may work
                await client.patch(url, json={"ttl_seconds": TTL_SECONDS}, headers=headers())

    async def release() -> None:
        for pause in (RELEASE_AGAIN_SECONDS, 0.0):
            with contextlib.suppress(httpx.HTTPError, OSError):
                if (await client.delete(url, headers=headers())).status_code in (204, 404):
                    return
            await asyncio.sleep(pause)

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
    path = request.url.path
    try:
        body = json.loads(raw)
        if not isinstance(body, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError):
        return JSONResponse({"error": "the body is not a JSON request"}, 400)
    try:
        if path == CHAT and not (body.get("max_completion_tokens") or body.get("max_tokens")):
            raw = json.dumps(body := {**body, "max_tokens": DEFAULT_CHAT_TOKENS}).encode()
        tokens = tokens_of(path, body)
    except (ValueError, RecursionError) as error:
        return JSONResponse({"error": str(error)}, 400)
    leases: httpx.AsyncClient = request.app.state.leases
    try:
        lease = await acquire(leases, tokens, request.headers.get("x-request-class"))
    except OSError as error:
        return JSONResponse({"error": f"the engines' addresses: {error}"}, 503)
    if isinstance(lease, httpx.Response):
        status = 429 if lease.status_code == 429 else 400
        again = {name: lease.headers[name] for name in ("Retry-After",) if name in lease.headers}
        return JSONResponse(lease.json(), status, again)
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
