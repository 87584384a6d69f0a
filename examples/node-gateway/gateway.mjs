// A gateway that leases context tokens from stepscope before it sends a request to vLLM. No packages; Node 18 or newer.
//
//   ENGINE_URL=http://127.0.0.1:8000 LEASES_URL=http://127.0.0.1:10094 PORT=8080 node gateway.mjs
//   SERVICE=vllm-headless.models.svc ENGINE_PORT=8000 LEASES_PORT=10094 node gateway.mjs     (pods behind it)
//
// The three ends of a request: it completes or fails (the lease is released), its client goes away (the engine's
// request is cancelled and the lease released), or this process dies (the lease runs out after LEASE_TTL_SECONDS).

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { lookup } from "node:dns/promises";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

const PORT = Number(process.env.PORT ?? 8080);
const TTL_SECONDS = Number(process.env.LEASE_TTL_SECONDS ?? 60);
const TOKEN_FILE = process.env.LEASE_TOKEN_FILE; // read for each lease: the token may be replaced
const MOST_BODY_BYTES = 8 * 1024 * 1024;
const LEASE_TIMEOUT_MS = 1000; // a sidecar answers in milliseconds; a hung one must not hold requests up
const CHAT = "/v1/chat/completions";
const PATHS = new Set(["/v1/completions", CHAT]);
const DEFAULT_MAX_TOKENS = 16; // what OpenAI's and vLLM's completions generate when nothing is said
// A chat that says nothing may fill the model's whole context, which nobody could lease: it gets this limit.
const DEFAULT_CHAT_TOKENS = Number(process.env.DEFAULT_CHAT_TOKENS ?? 4096);

// A lease belongs to one engine: each target is an engine with the sidecar of the same pod.
async function targets() {
  if (!process.env.SERVICE) return [{ engine: process.env.ENGINE_URL, leases: process.env.LEASES_URL }];
  const found = await lookup(process.env.SERVICE, { all: true, family: 4 }); // a headless Service: one address per pod
  return found.sort(() => Math.random() - 0.5).map(({ address }) => ({
    engine: `http://${address}:${process.env.ENGINE_PORT ?? 8000}`,
    leases: `http://${address}:${process.env.LEASES_PORT ?? 10094}`,
  }));
}

// Prompt tokens + the most that may be generated. Three bytes a token is on the high side for most languages; a
// gateway that has the model's tokenizer should count instead.
function tokensOf(body) {
  const prompt = Array.isArray(body.prompt) && body.prompt.every(Number.isInteger)
    ? body.prompt.length
    : Math.ceil(Buffer.byteLength(JSON.stringify(body.prompt ?? body.messages ?? "")) / 3);
  const most = Number(body.max_completion_tokens ?? body.max_tokens ?? DEFAULT_MAX_TOKENS);
  return Math.max(1, prompt) + Number(body.n ?? 1) * most; // n answers share one prompt
}

async function lease(url, method, path, body) {
  const headers = { "Content-Type": "application/json" };
  if (TOKEN_FILE) headers.Authorization = `Bearer ${readFileSync(TOKEN_FILE, "utf8").trim()}`;
  const signal = AbortSignal.timeout(LEASE_TIMEOUT_MS);
  const answer = await fetch(url + path, { method, headers, signal, body: body && JSON.stringify(body) });
  const text = await answer.text();
  return { status: answer.status, retryAfter: answer.headers.get("Retry-After"), body: text ? JSON.parse(text) : {} };
}

// {target, id} of a lease; {target} without id where nobody leases (fail open: admission is an aid, not a dependency);
// {refused} where every engine is full.
async function acquire(ask, requestClass) {
  let refused;
  let unguarded;
  for (const target of await targets()) {
    try {
      const answer = await lease(target.leases, "POST", "/v1/leases",
        { tokens: ask, ttl_seconds: TTL_SECONDS, ...(requestClass && { class: requestClass }) });
      if (answer.status === 201) return { target, id: answer.body.id };
      if (answer.status === 429) { refused ??= answer; continue; }
      console.error(`lease: status ${answer.status}: ${answer.body.error}`);
    } catch (error) {
      console.error(`lease: ${error.message}`);
    }
    unguarded ??= target;
  }
  return refused ? { refused } : { target: unguarded };
}

async function handle(request, response) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > MOST_BODY_BYTES) return send(response, 413, { error: "the body is too large" });
    chunks.push(chunk);
  }
  let raw = Buffer.concat(chunks);
  let body;
  try { body = JSON.parse(raw); } catch { body = undefined; }
  if (body === null || typeof body !== "object" || Array.isArray(body)) {
    return send(response, 400, { error: "the body is not a JSON request" });
  }
  if (request.url === CHAT && body.max_completion_tokens == null && body.max_tokens == null) {
    body.max_tokens = DEFAULT_CHAT_TOKENS;
    raw = JSON.stringify(body);
  }
  const { target, id, refused } = await acquire(tokensOf(body), request.headers["x-request-class"]);
  if (refused) return send(response, 429, refused.body, { "Retry-After": refused.retryAfter ?? "1" });

  const gone = new AbortController();
  response.on("close", () => gone.abort()); // the client left, or all is sent
  const renew = id && setInterval(() => {
    lease(target.leases, "PATCH", `/v1/leases/${id}`, { ttl_seconds: TTL_SECONDS }).catch(() => {}); // the next one may work
  }, TTL_SECONDS * 1000 / 3);
  try {
    if (response.destroyed) return;
    const headers = { "Content-Type": "application/json" };
    if (request.headers.authorization) headers.Authorization = request.headers.authorization;
    const answer = await fetch(target.engine + request.url, { method: "POST", headers, body: raw, signal: gone.signal });
    response.writeHead(answer.status, { "Content-Type": answer.headers.get("Content-Type") ?? "text/plain" });
    if (answer.body) await pipeline(Readable.fromWeb(answer.body), response);
    else response.end();
  } catch (error) {
    if (!gone.signal.aborted && !response.headersSent) send(response, 502, { error: `engine: ${error.message}` });
    else response.destroy();
  } finally {
    clearInterval(renew);
    if (id) await lease(target.leases, "DELETE", `/v1/leases/${id}`).catch(() => {}); // it runs out by itself
  }
}

function send(response, status, body, headers = {}) {
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}

const server = createServer((request, response) => {
  if (request.method !== "POST" || !PATHS.has(request.url)) return send(response, 404, { error: "no such page" });
  handle(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
server.listen(PORT, process.env.HOST ?? "127.0.0.1", () => console.log(`gateway on ${server.address().port}`));
process.on("SIGTERM", () => server.close(() => process.exit(0))); // running requests end, then their leases are released
