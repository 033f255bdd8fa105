// Charts over time: the frame (axes, cursor, picking a moment, the tip) and what is drawn in it.
//
// SVG is made from the figures through the document's functions. A chart draws anew only when its
// figures or its width have changed; when the shown moment moves, only the cursor moves.

const MARGIN = { left: 52, right: 10, top: 10, bottom: 20 };

/** The one box that shows figures beside the pointer, or beside a chart that has the focus. */
const tip = {
  box: make("div", { class: "tip", hidden: "", "aria-hidden": "true" }),

  /** `rows`: [css class of the sign, name, value]; (x, y) in the window. */
  show(x, y, title, rows) {
    this.box.replaceChildren(make("strong", {}, title), ...rows.map(([css, name, value]) =>
      make("div", {}, make("i", { class: `sign ${css}` }), make("span", {}, name), make("b", {}, value))));
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = x + 14 + width > window.innerWidth ? Math.max(4, x - 14 - width) : x + 14;
    const top = Math.max(4, Math.min(y + 14, window.innerHeight - height - 4));
    this.box.style.left = `${left}px`;
    this.box.style.top = `${top}px`;
  },

  hide() {
    this.box.hidden = true;
  },
};

/** About `wanted` round numbers from 0 to `greatest`, `least` apart at least: there are no half tuples. */
function roundTicks(greatest, wanted = 4, least = 0) {
  if (!(greatest > 0)) return [0];
  const rough = greatest / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, [1, 2, 2.5, 5, 10].find((one) => one * power >= rough * 0.999) * power);
  const n = Math.floor(greatest / step + 1e-9);
  return Array.from({ length: n + 1 }, (_, i) => i * step);
}

/** The ticks of an axis of numbers: [value, label]. */
function countTicks(greatest, wanted) {
  return roundTicks(greatest, wanted, 1).map((value) => [value, short(value)]);
}

// [unit, its seconds, from how many of them on it is used]: 90 s, but 1.5 s; not 0.25 min.
const UNITS = [["d", 86400, 2], ["h", 3600, 2], ["min", 60, 2], ["s", 1, 1], ["ms", 1e-3, 1], ["µs", 1e-6, 0.001]];

/** The ticks of an axis of seconds: [value, label], all in the unit in which the numbers are short. */
function durationTicks(greatest, wanted) {
  const [unit, size] = UNITS.find(([, one, from]) => greatest >= one * from) ?? UNITS[3];
  const label = (n) => (n < 1e4 ? String(Number(n.toFixed(3))) : short(n));
  return roundTicks(greatest / size, wanted).map((n) => [n * size, `${label(n)} ${unit}`]);
}

/** Indexes of at most about `wanted` of `n` entries, a round number apart. */
function timeTicks(n, wanted) {
  const rough = Math.max(1, n / wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.ceil([1, 2, 5, 10].find((one) => one * power >= rough * 0.999) * power);
  return Array.from({ length: Math.ceil(n / step) }, (_, i) => i * step);
}

/** A frame over time. Subclasses draw in it (`plot`) and say what they show (`words`, `rows`). */
class TimeChart {
  /** `pick(index)` is called when the reader chooses a moment. */
  constructor(title, { height = 150, pick, css = "" }) {
    this.height = height;
    this.width = 0;
    this.drawn = null;
    this.plotBox = make("svg:g");
    this.frameBox = make("svg:g", { class: "frame" });
    this.cursor = make("svg:rect", { class: "cursor", y: MARGIN.top });
    this.hover = make("svg:line", { class: "hover", visibility: "hidden" });
    this.svg = make("svg:svg", { role: "img", tabindex: "0", height, class: "chart" },
      this.frameBox, this.cursor, this.plotBox, this.hover);
    this.legend = make("div", { class: "legend" });
    this.root = make("figure", { class: css }, title ? make("figcaption", {}, title) : null, this.legend, this.svg);
    this.title = title;
    this.listen(pick);
    new ResizeObserver(() => this.resized?.()).observe(this.root);
  }

  listen(pick) {
    const follow = (event) => this.point(this.indexAt(event), event.clientX, event.clientY, event);
    this.svg.addEventListener("pointermove", follow);
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("focus", () => {
      if (this.svg.matches(":focus-visible")) this.showAtCursor();
    });
    this.svg.addEventListener("click", (event) => {
      if (this.data?.n) pick(this.indexAt(event));
      follow(event);
    });
  }

  /** Draw `data` ({n, entries, index, stamp, ..}); nothing but the cursor if `stamp` is as before. */
  update(data) {
    const width = Math.floor(this.svg.getBoundingClientRect().width);
    const key = `${data.stamp}/${width}`;
    this.data = data;
    if (this.drawn !== key && width > 0) {
      this.drawn = key;
      this.width = width;
      this.height = this.heightFor(data);
      this.svg.setAttribute("height", this.height);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
      this.prepare(data);
      this.plotBox.replaceChildren(...this.plot(data));
      this.frameBox.replaceChildren(...this.frame(data));
    }
    this.moveCursor(data);
    this.svg.setAttribute("aria-label", this.words(data));
    if (document.activeElement === this.svg && !tip.box.hidden) this.showAtCursor();
  }

  heightFor() { return this.height; }
  get inner() { return { width: this.width - MARGIN.left - MARGIN.right, height: this.height - MARGIN.top - MARGIN.bottom }; }
  get slot() { return this.inner.width / Math.max(1, this.data.n); }
  x(index) { return MARGIN.left + (index + 0.5) * this.slot; }
  y(value) { return MARGIN.top + this.inner.height * (1 - value / (this.top || 1)); }

  prepare() {}

  frame({ entries, n }) {
    const [left, right] = [MARGIN.left, this.width - MARGIN.right];
    const floor = this.height - MARGIN.bottom;
    const rows = this.ticks().map(([y, text]) => make("svg:g", {},
      make("svg:line", { x1: left, x2: right, y1: y, y2: y }),
      make("svg:text", { x: left - 6, y: y + 4, "text-anchor": "end" }, text)));
    const wanted = Math.max(2, Math.floor(this.inner.width / 90));
    const columns = timeTicks(n, wanted).map((i) =>
      make("svg:text", { x: this.x(i), y: floor + 15, "text-anchor": "middle" }, count(entries[i].first)));
    return [...rows, ...columns];
  }

  ticks() {
    return this.axis(this.top, this.height > 170 ? 4 : 3).map(([value, label]) => [this.y(value), label]);
  }

  moveCursor({ n, index }) {
    const wide = Math.max(2, Math.min(this.slot, 40));
    this.cursor.setAttribute("visibility", n ? "visible" : "hidden");
    if (!n || !this.width) return;
    this.cursor.setAttribute("x", this.x(index) - wide / 2);
    this.cursor.setAttribute("width", wide);
    this.cursor.setAttribute("height", this.inner.height);
  }

  indexAt(event) {
    const box = this.svg.getBoundingClientRect();
    const index = Math.floor((event.clientX - box.left - MARGIN.left) / this.slot);
    return Math.max(0, Math.min((this.data?.n ?? 1) - 1, index));
  }

  point(index, x, y, event) {
    if (!this.data?.n) return;
    const entry = this.data.entries[index];
    const at = this.x(index);
    for (const [key, value] of [["x1", at], ["x2", at], ["y1", MARGIN.top], ["y2", this.height - MARGIN.bottom]]) this.hover.setAttribute(key, value);
    this.hover.setAttribute("visibility", "visible");
    tip.show(x, y, `${batchName(entry)} · ${clock(entry.at)} UTC`, this.rows(index, this.data, event));
  }

  showAtCursor() {
    const box = this.svg.getBoundingClientRect();
    if (this.data?.n) this.point(this.data.index, box.left + this.x(this.data.index), box.top + MARGIN.top);
  }

  leave() {
    this.hover.setAttribute("visibility", "hidden");
    tip.hide();
  }
}

/** Lines over time; `data.series`: [{name, values, css, dash}], values may hold null. */
class LineChart extends TimeChart {
  constructor(title, { text = count, axis = countTicks, legend = true, ...rest }) {
    super(title, rest);
    [this.text, this.axis, this.named] = [text, axis, legend];
  }

  prepare({ series, top }) {
    const found = series.map((one) => extent(one.values)?.greatest ?? 0);
    this.top = (top ?? Math.max(0, ...found)) * 1.04 || 1;
    if (this.named) this.legend.replaceChildren(...legendOf(series));
  }

  plot({ series }) {
    return series.flatMap((one) => [
      make("svg:path", { class: `line ${one.css}`, d: this.line(one.values), "data-series": one.name }),
      // A single batch is no line: without dots the first seconds would be an empty frame.
      one.values.length < 3 ? make("svg:path", { class: `dots ${one.css}`, d: this.dots(one.values) }) : null,
    ].filter(Boolean));
  }

  line(values) {
    let path = "";
    let pen = "M";
    values.forEach((value, i) => {
      if (known(value)) path += `${pen}${this.x(i).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = known(value) ? "L" : "M";
    });
    return path;
  }

  dots(values) {
    const there = values.map((value, i) => [i, value]).filter(([, value]) => known(value));
    return there.map(([i, value]) => `M${this.x(i).toFixed(1)} ${this.y(value).toFixed(1)}h0`).join("");
  }

  rows(index, { series }) {
    return series.map((one) => [one.css, one.name, this.text(one.values[index])]);
  }

  words({ series, index, n }) {
    if (!n) return `${this.title}: no batches yet`;
    const parts = series.slice(0, 8).map((one) => {
      const range = extent(one.values);
      return range ? `${one.name} ${this.text(one.values[index])}, from ${this.text(range.least)} to ${this.text(range.greatest)}`
        : `${one.name} not known`;
    });
    return `${this.title}: ${parts.join("; ")}`;
  }
}

/**
 * Parts of a whole over time, one upon the other; `data.series` from the bottom up.
 *
 * The first batch of a run takes seconds, while the JVM starts: a few such batches may go beyond the
 * top, with a sign, so that the others can be seen.
 */
class StackChart extends LineChart {
  prepare({ series, n }) {
    this.sums = Array.from({ length: n }, (_, i) => series.reduce((sum, one) => sum + (one.values[i] ?? 0), 0));
    const greatest = extent(this.sums)?.greatest ?? 0;
    const usual = n < 5 ? greatest : 2 * [...this.sums].sort((a, b) => a - b)[Math.floor(0.9 * (n - 1))];
    this.isCut = usual > 0 && usual < greatest;
    this.top = (this.isCut ? usual : greatest) * 1.04 || 1;
    const note = this.isCut ? [make("span", {}, `▲ continues above the chart (maximum ${this.text(greatest)})`)] : [];
    this.legend.replaceChildren(...legendOf(series), ...note);
  }

  y(value) { return super.y(Math.min(value, this.top)); }

  plot({ series, n }) {
    const floors = new Float64Array(n);
    const gap = this.slot > 5 ? Math.min(3, this.slot * 0.2) : 0;
    const wide = (this.slot - gap).toFixed(2);
    const above = this.sums.map((sum, i) => (sum <= this.top ? null
      : make("svg:text", { class: "above", x: this.x(i), y: MARGIN.top + 10, "text-anchor": "middle" }, "▲"))).filter(Boolean);
    return series.map((one) => {
      let path = "";
      for (let i = 0; i < n; i += 1) {
        const value = one.values[i] ?? 0;
        if (value > 0) {
          const [low, high] = [this.y(floors[i]), this.y(floors[i] + value)];
          path += `M${(this.x(i) - wide / 2).toFixed(1)} ${low.toFixed(1)}h${wide}V${high.toFixed(1)}h-${wide}z`;
        }
        floors[i] += value;
      }
      return make("svg:path", { class: `area ${one.css}`, d: path });
    }).concat(above);
  }

  rows(index, data) {
    const whole = data.series.reduce((sum, one) => sum + (one.values[index] ?? 0), 0);
    return [...super.rows(index, data).reverse(), ["none", "together", this.text(whole)]];
  }
}

/** The signs of the series that have a value; one that could be no other needs no sign. */
function legendOf(series) {
  if (series.length < 2) return [];
  return series.filter((one) => extent(one.values)).map((one) => make("span", {}, make("i", { class: `sign ${one.css}` }), one.name));
}
