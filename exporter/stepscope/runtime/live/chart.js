// A chart of the last minutes: legend with values, plot, and a cursor for pointer and arrow keys.
// spec: {id, title, wide, height, value(number) -> text, axis(number) -> text, series, say(row) -> text}
// series: {id, label, kind: area | line | limit | band, value(row), high(row) for bands}; areas stack in order.
const MARGIN = { left: 52, right: 8, top: 6, bottom: 18 };
const LABEL_WIDTH = 52; // of a time with seconds

class Chart {
  constructor(host, spec, onCursor) {
    this.spec = spec;
    this.onCursor = onCursor;
    this.points = [];
    this.cursor = null;
    this.time = element("time");
    this.legend = element("ul", { class: "legend" });
    this.svg = svgElement("svg", { role: "img", tabindex: "0", height: spec.height, "data-chart": spec.id });
    host.append(
      element(
        "figure",
        spec.wide ? { class: "wide" } : {},
        element("figcaption", {}, element("h2", {}, spec.title), this.time),
        this.legend,
        this.svg,
      ),
    );
    this.values = spec.series.map((series) => this.#legendItem(series));
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => onCursor(null));
    this.svg.addEventListener("blur", () => { onCursor(null); setText(place("spoken"), ""); });
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  show(points, from, to) {
    this.points = points;
    this.from = from;
    this.to = to;
    this.draw();
  }

  setCursor(time) {
    this.cursor = time;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width || this.from === undefined) return;
    const { height, series } = this.spec;
    const gap = GAP_SPACINGS * usualSpacing(this.points);
    const highest = this.#top();
    const top = highest || 1;
    const plotHeight = height - MARGIN.top - MARGIN.bottom;
    const scale = {
      x: (time) => MARGIN.left + ((time - this.from) / (this.to - this.from)) * (width - MARGIN.left - MARGIN.right),
      y: (value) => MARGIN.top + plotHeight * (1 - Math.min(value, top) / top),
    };
    this.scale = scale;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [...this.#grid(width, highest)];
    const below = [];
    for (const one of series) {
      const classes = `c-${one.id}`;
      let path;
      if (one.kind === "area") {
        const under = [...below];
        const low = (row) => under.reduce((sum, other) => sum + other.value(row), 0);
        path = bandPath(this.points, low, (row) => low(row) + one.value(row), scale, gap);
        below.push(one);
        parts.push(svgElement("path", { class: `area ${classes}`, d: path }));
      } else if (one.kind === "band") {
        path = bandPath(this.points, one.value, one.high, scale, gap);
        parts.push(svgElement("path", { class: `band ${classes}`, d: path }));
      } else {
        path = linePath(this.points, one.value, scale, gap);
        const dashed = one.kind === "limit" ? " thin dashed" : "";
        parts.push(svgElement("path", { class: `line${dashed} ${classes}`, d: path }));
      }
    }
    const at = this.cursor === null ? null : nearest(this.points, this.cursor);
    if (at) {
      const x = scale.x(at.time);
      parts.push(svgElement("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom }));
    }
    this.svg.replaceChildren(...parts);
    this.#read(at || this.points.at(-1), at !== null);
  }

  // The highest value to show. The median's bucket may end at infinity, so bands do not count.
  #top() {
    let top = 0;
    const areas = this.spec.series.filter((one) => one.kind === "area");
    for (const { row } of this.points) {
      if (!row) continue;
      const stacked = areas.reduce((sum, one) => sum + (one.value(row) || 0), 0);
      top = Math.max(top, stacked);
      for (const one of this.spec.series) {
        if (one.kind !== "band" && known(one.value(row))) top = Math.max(top, one.value(row));
      }
    }
    return top * 1.08;
  }

  *#grid(width, top) {
    const { height, axis } = this.spec;
    // Nothing to show yet: numbers on the axis would be made up.
    for (const value of top ? niceTicks(top, 4) : []) {
      const y = this.scale.y(value);
      yield svgElement("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y });
      yield svgElement("text", { x: MARGIN.left - 6, y: y + 4, "text-anchor": "end" }, axis(value));
    }
    const { ticks, withSeconds } = timeTicks(this.from, this.to, width < 500 ? 3 : 7);
    for (const time of ticks) {
      const x = this.scale.x(time);
      yield svgElement("line", { class: "grid", x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom });
      // At the edges a centred label would be cut.
      if (x < MARGIN.left + LABEL_WIDTH / 2 || x > width - LABEL_WIDTH / 2) continue;
      yield svgElement("text", { x, y: height - 4, "text-anchor": "middle" }, clockTime(time, withSeconds));
    }
  }

  #legendItem(series) {
    const shape = { line: " line", limit: " dashed" }[series.kind] || "";
    const value = element("b");
    this.legend.append(
      element("li", {}, element("span", { class: `swatch${shape} c-${series.id}` }), `${series.label} `, value),
    );
    return value;
  }

  #read(point, isCursor) {
    const row = point ? point.row : null;
    setText(this.time, isCursor ? `at ${clockTime(point.time)}` : "");
    this.spec.series.forEach((series, i) => {
      let text = row ? this.spec.value(series.value(row)) : NOTHING;
      if (series.kind === "band" && row && known(series.value(row))) {
        const high = series.high(row);
        text = `${text} to ${Number.isFinite(high) ? this.spec.value(high) : "∞"}`;
      }
      setText(this.values[i], text);
    });
    // A name that changes under the focus would be read out with every sample.
    if (document.activeElement === this.svg) return;
    this.svg.setAttribute("aria-label", `${this.spec.title}, ${this.#said(point)}. Arrow keys move through time`);
  }

  #said(point) {
    if (!point) return "no sample yet";
    return `${clockTime(point.time)}: ${point.row ? this.spec.say(point.row) : "no data"}`;
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    this.onCursor(this.from + share * (this.to - this.from));
  }

  #key(event) {
    const at = this.cursor === null ? this.points.at(-1) : nearest(this.points, this.cursor);
    const i = this.points.indexOf(at);
    const last = this.points.length - 1;
    const to = { ArrowLeft: Math.max(0, i - 1), ArrowRight: Math.min(last, i + 1), Home: 0, End: last }[event.key];
    if (event.key === "Escape") {
      this.onCursor(null);
      setText(place("spoken"), "");
    }
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.onCursor(this.points[to].time);
    setText(place("spoken"), this.#said(this.points[to]));
  }
}
