// A gateway that leases context tokens from stepscope before it sends a request to vLLM. No packages; Node 18 or newer.
//
//   ENGINE_URL=http://127.0.0.1:8000 LEASES_URL=http://127.0.0.1:10094 PORT=8080 node gateway.mjs
//   SERVICE=vllm-headless.models.svc ENGINE_PORT=8000 LEASES_PORT=10094 node gateway.mjs     (pods behind it)
//
// The three ends of a request: it completes or fails (the lease is released), its client goes away (the engine's
// request is cancelled and the lease released), or this process dies (the lease runs out after LEASE_TTL_SECONDS).
//
// Fail open: no answer within LEASE_TIMEOUT_MS, 401, 403, 404, 405 or 5xx from the sidecar lets the request pass without
// a lease. None of these can be brought about by a client; what can (400, 413) is the client's fault and answered 400.

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
const RELEASE_AGAIN_MS = 200; // a release that failed is tried once more; then the lease runs out by itself
const WRONG = new Set([400, 413]); // what a client's words can make of a request for a lease
const MOST_NUMBER = 1e9; // of tokens or answers: far above any model's context
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

// A whole number under a key, undefined where it is absent or null.
function whole(body, key, least) {
  const value = body[key] ?? undefined;
  if (value !== undefined && !(Number.isInteger(value) && value >= least && value <= MOST_NUMBER)) {
    throw new Error(`${key} must be a whole number from ${least} to ${MOST_NUMBER}`);
  }
  return value;
}

// Three bytes a token is on the high side for most languages; with the model's tokenizer a gateway should count.
function promptTokens(prompt) {
  if (Array.isArray(prompt) && prompt.every(Number.isInteger)) return prompt.length;
  return Math.ceil(Buffer.byteLength(JSON.stringify(prompt)) / 3);
}

// Prompt tokens + the most that may be generated. Only what the engine goes by counts: completions know no
// max_completion_tokens, chats no prompt.
function tokensOf(path, body) {
  const limits = [whole(body, "max_tokens", 0)];
  const answers = Math.max(whole(body, "n", 1) ?? 1, whole(body, "best_of", 1) ?? 1);
  let prompts;
  if (path === CHAT) {
    limits.push(whole(body, "max_completion_tokens", 0));
    prompts = [[body.messages, body.tools, body.documents].filter(Boolean)];
  } else {
    const prompt = body.prompt ?? "";
    prompts = Array.isArray(prompt) && !prompt.every(Number.isInteger) ? prompt : [prompt];
  }
  const given = limits.filter((limit) => limit !== undefined);
  const most = given.length ? Math.max(...given) : DEFAULT_MAX_TOKENS;
  const count = prompts.reduce((sum, prompt) => sum + promptTokens(prompt), 0);
  return Math.max(1, count) + prompts.length * answers * most; // the answers to one prompt share it
}

async function lease(url, method, path, body) {
  const headers = { "Content-Type": "application/json" };
  if (TOKEN_FILE) headers.Authorization = `Bearer ${readFileSync(TOKEN_FILE, "utf8").trim()}`;
  const signal = AbortSignal.timeout(LEASE_TIMEOUT_MS);
  const answer = await fetch(url + path, { method, headers, signal, body: body && JSON.stringify(body) });
  const text = await answer.text();
  let document = {};
  try { if (text) document = JSON.parse(text); } catch { document = { error: text.trim() }; } // no sidecar's answer
  return { status: answer.status, retryAfter: answer.headers.get("Retry-After"), body: document };
}

// {target, id} of a lease; {target} without id where nobody leases (fail open: admission is an aid, not a dependency);
// {refused} where every engine is full, {wrong} where the request is.
async function acquire(tokens, requestClass) {
  let refused;
  let unguarded;
  for (const target of await targets()) {
    try {
      const ask = (more) => lease(target.leases, "POST", "/v1/leases", { tokens, ttl_seconds: TTL_SECONDS, ...more });
      let answer = await ask(requestClass && { class: requestClass });
      // A class that the sidecar does not know must not switch admission off: then the default class counts.
      if (WRONG.has(answer.status) && requestClass) answer = await ask();
      if (answer.status === 201) return { target, id: answer.body.id };
      if (WRONG.has(answer.status)) return { wrong: answer };
      if (answer.status === 429) { refused ??= answer; continue; }
      // 401 and 403 too: a wrong token is the operator's error, and no reason to stop serving.
      console.error(`lease: status ${answer.status}: ${answer.body.error}: requests pass without one`);
    } catch (error) {
      console.error(`lease: ${error.message}: requests pass without one`);
    }
    unguarded ??= target;
  }
  return refused ? { refused } : { target: unguarded };
}

async function release(target, id) {
  for (const pause of [RELEASE_AGAIN_MS, 0]) {
    const answer = await lease(target.leases, "DELETE", `/v1/leases/${id}`).catch(() => ({}));
    if (answer.status === 204 || answer.status === 404) return;
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
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
  if (request.url === CHAT && !body.max_completion_tokens && !body.max_tokens) {
    body.max_tokens = DEFAULT_CHAT_TOKENS;
    raw = JSON.stringify(body);
  }
  let tokens;
  try { tokens = tokensOf(request.url, body); } catch (error) { // also what is nested too deep to be written again
    return send(response, 400, { error: error.message });
  }
  let found;
  try { found = await acquire(tokens, request.headers["x-request-class"]); } catch (error) {
    return send(response, 503, { error: `the engines' addresses: ${error.message}` });
  }
  const { target, id, refused, wrong } = found;
  if (wrong) return send(response, 400, wrong.body);
  if (refused) return send(response, 429, refused.body, refused.retryAfter ? { "Retry-After": refused.retryAfter } : {});

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
    if (id) await release(target, id);
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
