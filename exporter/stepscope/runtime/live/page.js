// Asks the sidecar for news, keeps fifteen minutes of them, and shows them. Survives both ends going away.
const HISTORY_SECONDS = 900;
const LEAST_RANGE_SECONDS = 60; // of the time axis, so that the first minutes are not drawn as noise
const POLL_SECONDS = { least: 1, usual: 5, most: 15 };
const ANSWER_SECONDS = 8; // after that a request counts as lost

const page = {
  snapshot: null, points: [], engine: null, chosenByHand: false,
  serverSeconds: 0, answeredAt: 0, lost: null, // the sidecar's clock at its last answer, and ours
};

const part = (name) => (row) => (row.components_seconds ? row.components_seconds[name] : null);
const field = (name) => (row) => row[name];

const charts = [];
const setCursor = (time) => charts.forEach((chart) => chart.setCursor(time));

function buildCharts() {
  const host = place("charts");
  const time = { value: milliseconds, axis: shortTime };
  const versus = (row) => `measured ${milliseconds(row.itl_mean_seconds)}, predicted ${milliseconds(row.predicted_itl_seconds)}, promised ${milliseconds(row.target_itl_seconds)}`;
  charts.push(new Chart(host, {
    id: "itl", title: "Time per token: measured against predicted", wide: true, height: 200, ...time, say: versus,
    series: [
      { id: "bucket", label: "median between", kind: "band", value: field("itl_median_lower_bound_seconds"),
        high: (row) => row.itl_median_upper_bound_seconds ?? (known(row.itl_median_lower_bound_seconds) ? Infinity : null) },
      { id: "limit", label: "promised", kind: "limit", value: field("target_itl_seconds") },
      { id: "predicted", label: "predicted", kind: "line", value: field("predicted_itl_seconds") },
      { id: "measured", label: "measured", kind: "line", value: field("itl_mean_seconds") },
    ],
  }, setCursor));
  charts.push(new Lane(host, "Why", setCursor));
  charts.push(new Chart(host, {
    id: "parts", title: "What the time is made of", height: 200, ...time,
    say: (row) => `${["overhead", "weights", "kv_cache", "sequences", "prefill"].map((name) => `${inWords(name)} ${milliseconds(part(name)(row))}`).join(", ")}, measured ${milliseconds(row.itl_mean_seconds)}`,
    series: [
      ...[["overhead", "overhead"], ["weights", "weights"], ["kv_cache", "KV cache"], ["sequences", "sequences"], ["prefill", "prompts"]]
        .map(([id, label]) => ({ id, label, kind: "area", value: part(id) })),
      { id: "measured", label: "measured", kind: "line", value: field("itl_mean_seconds") },
    ],
  }, setCursor));
  charts.push(new Chart(host, {
    id: "tokens", title: "Context tokens in flight against what fits", height: 200, value: count, axis: shortCount,
    say: (row) => `${count(row.tokens_in_flight)} in flight, ${count(row.speed_budget_tokens)} fit at the promised speed, ${count(row.memory_budget_tokens)} in memory`,
    series: [
      { id: "limit", label: "fit at the promised speed", kind: "limit", value: field("speed_budget_tokens") },
      { id: "memory", label: "fit in memory", kind: "limit", value: field("memory_budget_tokens") },
      { id: "tokens", label: "in flight", kind: "line", value: field("tokens_in_flight") },
    ],
  }, setCursor));
}

async function ask(path) {
  const control = new AbortController();
  const timer = setTimeout(() => control.abort(), ANSWER_SECONDS * 1e3);
  try {
    const response = await fetch(path, { signal: control.signal, cache: "no-store" });
    if (response.status === 401) throw new Error("a user and password are needed: reload this page");
    if (!response.ok) throw new Error(`it answered with status ${response.status}`);
    return await response.json();
  } catch (error) {
    // The browser's own words for "refused" differ and help nobody.
    if (error.name === "AbortError" || error instanceof TypeError) throw new Error("no answer");
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

async function refresh() {
  const snapshot = await ask("api/v1/snapshot");
  if (page.snapshot && page.snapshot.version !== snapshot.version) location.reload();
  const names = snapshot.engines.map((view) => view.engine);
  if (!names.includes(page.engine) || !page.chosenByHand) choose(worst(snapshot.engines), false);
  const since = page.points.length ? page.points.at(-1).time : 0;
  const engine = page.engine === null ? "" : `&engine=${encodeURIComponent(page.engine)}`;
  const history = await ask(`api/v1/history?since=${since}${engine}`);
  for (const { time_unix_seconds: time, engines } of history.points) page.points.push({ time, row: engines[0] || null });
  page.serverSeconds = history.now_unix_seconds;
  page.points = page.points.filter(({ time }) => time > page.serverSeconds - HISTORY_SECONDS);
  page.snapshot = snapshot;
  page.answeredAt = performance.now();
}

const BADNESS = { bad: 3, warning: 2, unknown: 1, good: 0 };

// Of several engines the one that is worst off: it is why somebody opened this page. The present one wins a tie.
function worst(views) {
  let found = null;
  for (const view of views) {
    const better = found === null || BADNESS[view.verdict.level] > BADNESS[found.verdict.level];
    const tie = found !== null && BADNESS[view.verdict.level] === BADNESS[found.verdict.level];
    if (better || (tie && view.engine === page.engine)) found = view;
  }
  return found && found.engine;
}

function choose(engine, byHand) {
  if (engine !== page.engine) page.points = [];
  page.engine = engine;
  page.chosenByHand = byHand;
}

const oldVerdict = ({ headline, why }) => ({
  level: "unknown", headline: "Not known now", why: `When stepscope last answered: ${headline}.`, advice: why,
});

function render() {
  const { snapshot } = page;
  const silence = page.answeredAt ? (performance.now() - page.answeredAt) / 1e3 : 0;
  const lost = page.lost === null ? [] : [{
    level: "bad", text: `stepscope does not answer: ${page.lost}.`,
    advice: "What is below is old. Is the port-forward still running? This page keeps asking.",
  }];
  showNotices(lost.concat(snapshot ? snapshot.notices : []));
  document.body.classList.toggle("old", page.lost !== null || Boolean(snapshot && !snapshot.engine_up));
  if (!snapshot) return;
  const view = snapshot.engines.find((one) => one.engine === page.engine);
  setText(place("subject"), view ? `${view.model_name || "model"} · engine ${view.engine}` : "");
  setText(place("freshness"), view ? `sampled ${age(view.age_seconds + silence)} ago` : "");
  showEngines(snapshot.engines, page.engine, (engine) => { choose(engine, true); poll(); });
  if (view) {
    showVerdict(view, page.lost === null ? view.verdict : oldVerdict(view.verdict));
    showFigures(view, snapshot.assumed.law);
  }
  if (page.lost !== null) document.title = "no answer · stepscope";
  const to = page.serverSeconds + silence;
  const first = page.points.length ? page.points[0].time : to;
  const from = to - Math.min(HISTORY_SECONDS, Math.max(LEAST_RANGE_SECONDS, to - first));
  charts.forEach((chart) => chart.show(page.points, from, to));
  showSamples(page.points);
  showBasis(snapshot, view);
}

let timer = null;
let running = false;

async function poll() {
  clearTimeout(timer);
  if (running) return;
  running = true;
  try {
    await refresh();
    page.lost = null;
  } catch (error) {
    page.lost = error.message;
  }
  running = false;
  render();
  const spacing = page.points.length > 2 ? usualSpacing(page.points) : POLL_SECONDS.least * 2;
  const seconds = page.lost === null ? Math.min(POLL_SECONDS.most, Math.max(POLL_SECONDS.least, spacing)) : POLL_SECONDS.usual;
  // A page that nobody looks at costs the sidecar nothing.
  if (!document.hidden) timer = setTimeout(poll, seconds * 1e3);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
place("samples").addEventListener("toggle", () => showSamples(page.points));
buildCharts();
poll();
