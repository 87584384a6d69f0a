// Numbers and times for reading. What is not known is a dash, never a zero.
const NOTHING = "–";
const DRIFT_LIMIT = 0.15; // of the verdict and of the alert rules
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const significant = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

function count(value) {
  return known(value) ? whole.format(value) : NOTHING;
}

function milliseconds(value) {
  if (!known(value)) return NOTHING;
  return value >= 1 ? `${value.toFixed(2)} s` : `${(value * 1e3).toFixed(1)} ms`;
}

function signedPercent(value) {
  if (!known(value)) return NOTHING;
  const text = `${Math.abs(value * 100).toFixed(1)}%`;
  return `${value < 0 ? "−" : "+"}${text}`;
}

// A time for an axis: 20 ms, 1.5 s.
function shortTime(value) {
  return value >= 1 ? `${significant.format(value)} s` : `${significant.format(value * 1e3)} ms`;
}

// A token count for an axis: 250k, 1.2M.
function shortCount(value) {
  if (value >= 1e6) return `${significant.format(value / 1e6)}M`;
  return value >= 1e3 ? `${significant.format(value / 1e3)}k` : significant.format(value);
}

// Bytes and rates in powers of 1000, as everywhere in stepscope.
function scaled(value, unit) {
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [factor, prefix] = steps.find(([size]) => value >= size) || [1, ""];
  return `${significant.format(value / factor)} ${prefix}${unit}`;
}

function clockTime(unixSeconds, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (withSeconds) options.second = "2-digit";
  return new Date(unixSeconds * 1e3).toLocaleTimeString("en", options);
}

function age(seconds) {
  return seconds < 120 ? `${Math.max(0, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
}

const inWords = (name) => name.replaceAll("_", " ");

// Building blocks of the document. Text is set as text, so nothing that an engine says can become markup.
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svgElement(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const place = (id) => document.getElementById(id);

// Leaves the document alone where nothing changed: a screen reader then has nothing to repeat.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
