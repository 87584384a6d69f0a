// The parts of the page that are text: notices, verdict, figures, engines, samples, what the prediction rests on.
const SPREAD_SAMPLES = 20; // rows of the table of samples

function showNotices(notices) {
  const lines = notices.map(({ level, text, advice }) => {
    const line = element("p", { class: `notice ${level}` }, text.endsWith(".") ? text : `${text}.`, " ");
    line.append(element("span", {}, advice));
    return line;
  });
  const host = place("notices");
  const text = lines.map((line) => line.textContent).join("\n");
  if (host.dataset.shown !== text) {
    host.dataset.shown = text;
    host.replaceChildren(...lines);
  }
}

function showVerdict(view, { level, headline, why, advice }) {
  const [word, ...rest] = headline.split(":");
  place("verdict").className = level;
  place("headline").replaceChildren(element("strong", {}, word), rest.length ? `:${rest.join(":")}` : "");
  setText(place("why"), why);
  setText(place("advice"), advice);
  // The figures move with every sample; only a new verdict is worth interrupting a listener.
  const announced = `${view.state} ${view.cause} ${level}`;
  if (place("announce").dataset.said !== announced) {
    place("announce").dataset.said = announced;
    setText(place("announce"), `${word}. ${why} ${advice}`);
  }
  document.title = `${word}${known(view.itl_mean_seconds) ? ` ${milliseconds(view.itl_mean_seconds)}` : ""} · stepscope`;
}

// With an uncalibrated law a drift beyond the limit may prove nothing yet: its spread may be wider.
function driftNote(view, law) {
  if (!known(view.drift_ratio)) return `not judged: ${inWords(view.state)}`;
  if (Math.abs(view.drift_ratio) <= DRIFT_LIMIT) return "normal within ±15%";
  const open = law && law.source === "datasheet" && view.cause !== "unexplained";
  if (open && view.drift_ratio > 0) return "within what a prediction without calibration may be off";
  return view.drift_ratio > 0 ? "beyond 15%: not explained by the load" : `beyond −15%: calibrate${open ? "" : " again"}`;
}

function showFigures(view, law) {
  const emitted = view.tokens_per_step || 1;
  const speed = known(view.itl_mean_seconds) ? `${count(emitted / view.itl_mean_seconds)} tokens/s for each user` : "nobody is decoding";
  const step = view.predicted;
  const split = step ? `${milliseconds(view.predicted_step_seconds)} decode step + ${milliseconds(step.prefill_seconds)} prompts` : "see below what is missing";
  const promise = known(view.target_itl_seconds) ? `${count(emitted / view.target_itl_seconds)} tokens/s; decode step held to ${milliseconds(view.target_step_seconds)}` : "give --objective.tokens-per-second";
  const budgets = [view.speed_budget_tokens, view.memory_budget_tokens].filter(known);
  const headroom = view.token_headroom_tokens;
  const room = !budgets.length ? "what fits is not known"
    : Math.min(...budgets) <= 0 ? "none fit at the promised speed"
    : `of ${count(Math.min(...budgets))} that fit: ${count(Math.abs(headroom))} ${headroom < 0 ? "too many" : "free"}`;
  const sequences = known(view.decode_batch_size) ? view.decode_batch_size.toFixed(1) : NOTHING;
  const waiting = `${count(view.requests_prefilling)} in prefill, ${count(view.requests_waiting)} waiting`;
  figures([
    ["itl_mean_seconds", "Measured time per token", milliseconds(view.itl_mean_seconds), speed],
    ["predicted_itl_seconds", "Predicted time per token", milliseconds(view.predicted_itl_seconds), split],
    ["drift_ratio", "Drift from the prediction", signedPercent(view.drift_ratio), driftNote(view, law)],
    ["target_itl_seconds", "Promised time per token", milliseconds(view.target_itl_seconds), promise],
    ["tokens_in_flight", "Context tokens in flight", count(view.tokens_in_flight), room],
    ["decode_batch_size", "Sequences per step", sequences, waiting],
  ]);
}

function figures(rows) {
  const host = place("figures");
  if (!host.children.length) {
    host.append(...rows.map(([id, label]) =>
      element("div", {}, element("dt", {}, label), element("dd", { "data-field": id }), element("dd", { "data-note": id }))));
  }
  rows.forEach(([, , value, note], i) => {
    setText(host.children[i].children[1], value);
    setText(host.children[i].children[2], note);
  });
}

// Several engines behind one page (data parallel): a row each, the shown one is pressed.
function showEngines(views, chosen, choose) {
  const host = place("engines");
  host.hidden = views.length < 2;
  if (host.hidden) return;
  const focused = document.activeElement && document.activeElement.dataset.engine;
  const rows = views.map((view) => {
    const pressed = String(view.engine === chosen);
    const button = element("button", { type: "button", "data-engine": view.engine, "aria-pressed": pressed }, `engine ${view.engine}`);
    button.addEventListener("click", () => choose(view.engine));
    return tableRow("td", [button, view.verdict.headline.split(":")[0], milliseconds(view.itl_mean_seconds),
      milliseconds(view.predicted_itl_seconds), count(view.tokens_in_flight), count(view.token_headroom_tokens), inWords(view.cause || view.state)]);
  });
  const head = tableRow("th", ["Engine", "Verdict", "Measured", "Predicted", "In flight", "Headroom", "Cause"]);
  host.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  if (focused) host.querySelector(`[data-engine="${CSS.escape(focused)}"]`)?.focus();
}

function tableRow(cell, values) {
  return element("tr", {}, ...values.map((value) => {
    const isWord = typeof value !== "string" || /^[a-z]/i.test(value);
    return element(cell, isWord ? { class: "word" } : {}, value);
  }));
}

function showSamples(points) {
  if (!place("samples").open) return;
  const rows = points.slice(-SPREAD_SAMPLES).reverse().map(({ time, row }) =>
    tableRow("td", [clockTime(time), milliseconds(row?.itl_mean_seconds), milliseconds(row?.predicted_itl_seconds),
      signedPercent(row?.drift_ratio), count(row?.tokens_in_flight), row ? inWords(row.state) : "engine not read", inWords(row?.cause || NOTHING)]));
  const head = tableRow("th", ["Time", "Measured", "Predicted", "Drift", "Tokens in flight", "State", "Cause"]);
  place("samples").lastElementChild.replaceChildren(
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The last samples" },
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
}

function showBasis(snapshot, view) {
  const { law, model, hardware, assumptions } = snapshot.assumed;
  const facts = [];
  if (model.model) facts.push(["Model", `${model.model}, ${model.kind} (from: ${model.source})`]);
  if (model.model) {
    const perToken = model.kv_bytes_per_token ? `${count(Number(model.kv_bytes_per_token))} bytes of KV per token` : "KV by block";
    facts.push(["Reads", `${scaled(Number(model.step_weight_bytes), "B")} of weights in a step, ${perToken}`]);
  }
  if (hardware.gpu || hardware.count) facts.push(["Hardware", `${hardware.count} × ${hardware.gpu || "GPU"} (from: ${hardware.source})`]);
  if (law) facts.push(["Step law", lawInWords(law)]);
  if (view && known(view.capacity_tokens)) facts.push(["KV capacity", `${count(view.capacity_tokens)} tokens (from: ${view.capacity_source})`]);
  if (snapshot.engine_version) facts.push(["Engine", `vLLM ${snapshot.engine_version}`]);
  const list = element("dl", {}, ...facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
  const guesses = assumptions.length ? [bullets(assumptions)] : [];
  const shown = facts.length || assumptions.length ? [element("h2", {}, "Assumed, and from where"), list, ...guesses] : [];
  replaceIfNew(place("assumed"), shown);
  const lines = snapshot.missing.concat(snapshot.notes);
  replaceIfNew(place("missing"), lines.length ? [element("h2", {}, "Missing"), bullets(lines)] : []);
  setText(place("version"), `stepscope ${snapshot.version}`);
}

const LAW_SOURCES = { file: "calibrated", learned: "learned on this engine", datasheet: "not calibrated" };

function lawInWords(law) {
  const weights = law.effective_bandwidth_bytes_per_second;
  const kv = law.kv_bandwidth_bytes_per_second;
  const terms = [];
  // A law that was learned without a model counts in tokens: bytes would be made up.
  if (law.kv_bytes_per_token === 1) terms.push(known(weights) ? `${scaled(weights, "tokens/s")} of KV` : "KV costs nothing");
  else if (known(kv) && kv !== weights) terms.push(`weights at ${known(weights) ? scaled(weights, "B/s") : "no cost"}`, `KV at ${scaled(kv, "B/s")}`);
  else if (known(weights)) terms.push(`${scaled(weights, "B/s")} effective bandwidth`);
  terms.push(`${milliseconds(law.step_overhead_seconds)} overhead`);
  const identity = law.identity && law.identity !== "flags" ? ` (${law.identity})` : "";
  return `${LAW_SOURCES[law.source] || law.source}${identity}: ${terms.join(", ")}`;
}

const bullets = (lines) => element("ul", {}, ...lines.map((line) => element("li", {}, line)));

// Keeps a selection of text alive across refreshes.
function replaceIfNew(host, children) {
  const text = children.map((child) => child.textContent).join("\n");
  if (host.dataset.shown === text) return;
  host.dataset.shown = text;
  host.replaceChildren(...children);
}
