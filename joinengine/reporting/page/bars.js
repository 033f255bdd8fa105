// The load of instances: bars at the shown moment, and a heat map where there are too many for bars.

/** A bar for each instance, the mean as a dashed line; arrow keys up and down go from bar to bar. */
class BarChart {
  /** `light(instance or null)` is told which bar the reader points at. */
  constructor({ height = 220, light }) {
    [this.height, this.light, this.at] = [height, light, 0];
    this.svg = make("svg:svg", { role: "img", tabindex: "0", height, class: "chart bars" });
    this.root = make("figure", {}, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(this.instanceAt(event), event.clientX, event.clientY));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("focus", () => this.svg.matches(":focus-visible") && this.step(0));
    this.svg.addEventListener("keydown", (event) => {
      const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (by) {
        event.preventDefault();
        this.step(by);
      }
    });
    new ResizeObserver(() => this.resized?.()).observe(this.root);
  }

  /** `loads`: of each instance, in a batch of `entry`. */
  update({ loads, measure, entry }) {
    const width = Math.floor(this.svg.getBoundingClientRect().width);
    if (!width) return;
    Object.assign(this, { loads, measure, entry, width, facts: summary(loads) });
    // An even load stands half-way up: the mean moves little from batch to batch, and what sticks out shows.
    this.top = 1.04 * Math.max(this.facts.greatest, 2 * this.facts.mean);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    const floor = this.height - MARGIN.bottom;
    const grid = measure.axis(this.top, 4).map(([value, label]) => make("svg:g", { class: "frame" },
      make("svg:line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: this.y(value), y2: this.y(value) }),
      make("svg:text", { x: MARGIN.left - 6, y: this.y(value) + 4, "text-anchor": "end" }, label)));
    const every = Math.ceil(loads.length / Math.max(1, (width - 62) / 24));
    const bars = loads.map((load, i) => this.bar(load, i));
    const names = loads.map((_, i) => (i % every ? null : make("svg:text",
      { class: "name", x: this.x(i) + this.slot / 2, y: floor + 15, "text-anchor": "middle" }, String(i)))).filter(Boolean);
    const mean = this.y(this.facts.mean);
    this.svg.replaceChildren(...grid, ...bars, ...names,
      make("svg:line", { class: "line mean", x1: MARGIN.left, x2: width - MARGIN.right, y1: mean, y2: mean }));
    this.svg.setAttribute("aria-label", this.words());
  }

  get slot() { return (this.width - MARGIN.left - MARGIN.right) / Math.max(1, this.loads.length); }
  x(i) { return MARGIN.left + i * this.slot; }
  y(value) { return MARGIN.top + (this.height - MARGIN.top - MARGIN.bottom) * (1 - value / (this.top || 1)); }

  bar(load, i) {
    const gap = Math.min(6, this.slot * 0.22);
    const high = this.height - MARGIN.bottom - this.y(load);
    const busiest = i === this.facts.busiest && this.facts.skew > 1;
    return make("svg:rect", { class: busiest ? "bar busiest" : "bar", "data-instance": i, "data-value": load,
      x: (this.x(i) + gap / 2).toFixed(1), width: Math.max(1, this.slot - gap).toFixed(1),
      y: this.y(load).toFixed(1), height: Math.max(0, high).toFixed(1) });
  }

  words() {
    const each = this.loads.map((load, i) => `${i}: ${this.measure.text(load)}`).join(", ");
    return `${this.measure.title} per instance, ${batchName(this.entry)}; mean ${this.measure.text(this.facts.mean)}; ${each}`;
  }

  instanceAt(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left - MARGIN.left;
    return Math.max(0, Math.min(this.loads.length - 1, Math.floor(x / this.slot)));
  }

  step(by) {
    if (!this.loads?.length) return;
    this.at = (this.at + by + this.loads.length) % this.loads.length;
    const box = this.svg.getBoundingClientRect();
    this.point(this.at, box.left + this.x(this.at), box.top + this.y(this.loads[this.at]));
  }

  point(i, x, y) {
    if (!this.loads?.length) return;
    this.at = i;
    this.light(i);
    const load = this.loads[i];
    const over = this.facts.mean ? ratio(load / this.facts.mean) : UNKNOWN;
    tip.show(x, y, `instance ${i} · ${batchName(this.entry)}`,
      [["none", this.measure.title, this.measure.text(load)], ["none", "times the mean", over]]);
  }

  leave() {
    this.light(null);
    tip.hide();
  }
}

// Where the colours of a heat map stand: times the mean. Above the last all look alike.
const HEAT_STOPS = [0, 1, 2, 4];

/** The colours --h0 to --h3 of the theme as a table of 256 colours, for loads 0 to 4 times the mean. */
function heatColours() {
  const css = getComputedStyle(document.documentElement);
  const stops = HEAT_STOPS.map((_, i) => css.getPropertyValue(`--h${i}`).trim())
    .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const value = (i / 255) * HEAT_STOPS.at(-1);
    const after = Math.max(1, HEAT_STOPS.findIndex((stop) => stop >= value));
    const [from, to] = [HEAT_STOPS[after - 1], HEAT_STOPS[after]];
    const share = (value - from) / (to - from);
    return stops[after - 1].map((one, part) => Math.round(one + (stops[after][part] - one) * share));
  });
}

/** Instances (down) by time (across), coloured by the load over the mean of its batch. */
class HeatMap extends TimeChart {
  constructor(options) {
    super("", { ...options, height: 320 });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.box = make("div", { class: "heat" }, this.canvas, this.svg);
    this.root.append(this.box);
    this.legend.classList.add("heat-legend");
  }

  heightFor({ instances }) {
    return MARGIN.top + MARGIN.bottom + Math.max(200, Math.min(400, instances * 2));
  }

  prepare({ loads, instances, n }) {
    [this.top, this.instances] = [instances, instances];
    const colours = heatColours();
    this.legend.replaceChildren(...this.scale());
    const ratios = loads.map((one) => summary(one).mean);
    this.paint(loads, ratios, n, colours);
  }

  /** One pixel of the picture is one cell, or the busiest of the cells where there are more cells. */
  paint(loads, means, n, colours) {
    const { width, height } = this.inner;
    const [wide, high] = [Math.min(n, Math.max(1, Math.floor(width))), Math.min(this.instances, height)];
    const cells = new Float64Array(wide * high).fill(-1);
    loads.forEach((one, i) => {
      const column = Math.floor((i * wide) / n);
      one.forEach((load, instance) => {
        const at = Math.floor((instance * high) / this.instances) * wide + column;
        cells[at] = Math.max(cells[at], means[i] > 0 ? load / means[i] : 0);
      });
    });
    const image = new ImageData(wide, high);
    cells.forEach((value, at) => {
      if (value < 0) return; // no such instance then: the card shows through
      const [red, green, blue] = colours[Math.min(255, Math.round((value / HEAT_STOPS.at(-1)) * 255))];
      image.data.set([red, green, blue, 255], at * 4);
    });
    this.canvas.width = wide;
    this.canvas.height = high;
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    for (const [key, value] of [["left", MARGIN.left], ["top", MARGIN.top], ["width", width], ["height", height]]) this.canvas.style[key] = `${value}px`;
  }

  scale() {
    const ramp = make("canvas", { width: "256", height: "1", class: "ramp", "aria-hidden": "true" });
    const image = new ImageData(256, 1);
    heatColours().forEach((colour, i) => image.data.set([...colour, 255], i * 4));
    ramp.getContext("2d").putImageData(image, 0, 0);
    const stops = HEAT_STOPS.map((stop, i) => make("span", { class: `stop${i}` }, stop === 1 ? "mean" : String(stop)));
    stops.at(-1).append(" times and more");
    return [make("span", {}, "load over the mean:"), make("div", { class: "scale" }, ramp, ...stops)];
  }

  plot() { return []; }

  ticks() {
    return roundTicks(this.instances, 5).map((value) => [MARGIN.top + (value / this.instances) * this.inner.height, count(value)]);
  }

  rows(index, { loads, measure }, event) {
    const facts = summary(loads[index]);
    const busiest = ["none", `busiest: instance ${facts.busiest}`, measure.text(facts.greatest)];
    if (!event) return [busiest, ["none", "mean", measure.text(facts.mean)]];
    const y = event.clientY - this.svg.getBoundingClientRect().top - MARGIN.top;
    const instance = Math.max(0, Math.min(this.instances - 1, Math.floor((y / this.inner.height) * this.instances)));
    const load = loads[index][instance];
    return [["none", `instance ${instance}`, measure.text(load)],
      ["none", "times the mean", facts.mean && known(load) ? ratio(load / facts.mean) : UNKNOWN], busiest];
  }

  words({ loads, index, measure, n, entries }) {
    if (!n) return "load per instance: no batches yet";
    const facts = summary(loads[index]);
    return `Heat map of ${count(this.instances)} instances over ${plural(n, "moment")}; ${batchName(entries[index])}: `
      + `busiest instance ${facts.busiest} with ${measure.text(facts.greatest)} ${measure.title}, mean ${measure.text(facts.mean)}, load skew ${ratio(facts.skew)}`;
  }
}
