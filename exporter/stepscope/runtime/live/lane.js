// The causes over time as one strip, aligned with the charts above and below it.
const LANE_HEIGHT = 26;
const CAUSE_WORDS = {
  none: "as fast as the load allows",
  prefill: "prompt chunks",
  context: "long context",
  load: "too much load",
  unexplained: "unexplained",
  preemption: "preemption",
  objective_unreachable: "promise unreachable",
};
const LETTER_WIDTH = 7; // of the strip's 12 px type, on the wide side

// Data-sheet parameters leave so wide a range that a drift beyond the limit may have no cause.
const isOpen = (row) => row.cause === "none" && row.drift_ratio > DRIFT_LIMIT;
const causeOf = (row) => (row && !isOpen(row) && row.cause) || null;

function laneWord(row) {
  if (!row) return "engine not read";
  return isOpen(row) ? "slower, calibrate to know why" : CAUSE_WORDS[row.cause] || inWords(row.state);
}

class Lane {
  constructor(host, title, onCursor) {
    this.points = [];
    this.onCursor = onCursor;
    this.svg = svgElement("svg", { role: "img", height: LANE_HEIGHT, "data-chart": "cause" });
    this.now = element("b");
    const caption = element("figcaption", {}, element("h2", {}, title), element("span", {}, "now: ", this.now));
    this.legend = element("ul", { class: "legend", "aria-hidden": "true" }); // the strip's own label says more
    host.append(element("figure", { class: "wide" }, caption, this.svg, this.legend));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  show(points, from, to) {
    this.points = points;
    this.from = from;
    this.to = to;
    this.draw();
  }

  setCursor() {}

  draw() {
    const width = this.svg.clientWidth;
    if (!width || this.from === undefined) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${LANE_HEIGHT}`);
    const x = (time) => MARGIN.left + ((time - this.from) / (this.to - this.from)) * (width - MARGIN.left - MARGIN.right);
    const parts = [];
    const segments = this.#segments();
    const written = new Set();
    for (const { start, end, row, word } of segments) {
      const [left, right] = [x(start), x(end)];
      const block = svgElement("rect", {
        class: `block c-${causeOf(row) || "unjudged"}`, x: left, y: 2, width: Math.max(1, right - left - 1), height: 22,
      });
      block.append(svgElement("title", {}, `${word}, ${clockTime(start)} to ${clockTime(end)}`));
      parts.push(block);
      if (right - left > word.length * LETTER_WIDTH + 8) {
        parts.push(svgElement("text", { class: "segment", x: left + 5, y: 17 }, word));
        written.add(word);
      }
    }
    this.svg.replaceChildren(...parts);
    this.#explain(segments.filter(({ word }) => !written.has(word)));
    setText(this.now, segments.length ? segments.at(-1).word : NOTHING);
    const told = segments.slice(-4).map(({ start, word }) => `${word} from ${clockTime(start)}`);
    this.svg.setAttribute("aria-label", `Causes over time: ${told.join(", then ") || "no data"}`);
  }

  // Where no block of a colour is wide enough for its word, the word stands below.
  #explain(segments) {
    const named = new Map(segments.map(({ word, row }) => [word, causeOf(row) || "unjudged"]));
    if (this.legend.dataset.shown === [...named.keys()].join()) return;
    this.legend.dataset.shown = [...named.keys()].join();
    this.legend.replaceChildren(...[...named].map(([word, colour]) =>
      element("li", {}, element("span", { class: `swatch c-${colour}` }), word)));
  }

  #segments() {
    const spacing = usualSpacing(this.points);
    const found = [];
    for (const { time, row } of this.points) {
      const word = laneWord(row);
      const last = found.at(-1);
      if (last && last.word === word && time - last.end < GAP_SPACINGS * spacing) last.end = time;
      else {
        if (last && time - last.end < GAP_SPACINGS * spacing) last.end = time;
        found.push({ start: time, end: Math.min(time + spacing, this.to), row, word });
      }
    }
    return found;
  }
}
