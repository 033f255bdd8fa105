// Load per instance, now and over time; the hot keys, and what is done with them.

class LoadView {
  constructor(app) {
    this.app = app;
    this.choice = make("div", { class: "switch", role: "group", "aria-label": "what is counted" },
      ...Object.entries(MEASURES).map(([name, { title, meaning }]) => make("button",
        { type: "button", title: meaning, "data-measure": name, click: () => app.show({ measure: name }) }, title)));
    this.words = make("p", { class: "words" });
    this.bars = new BarChart({ light: (instance) => this.light(instance) });
    this.lines = new LineChart("", { pick: app.pick, height: 220, legend: false });
    this.heat = new HeatMap({ pick: app.pick });
    const { box, body } = table("the ten busiest instances at the shown moment",
      [["instance", "number"], ["load", "number"], ["times the mean", "number"]], { class: "narrow" });
    [this.top, this.rows] = [box, body];
    this.few = make("div", { class: "pair" }, this.bars.root, this.lines.root);
    this.many = make("div", { class: "pair heat-pair", hidden: "" }, this.heat.root, this.top);
    this.root = card("load", "Load per instance", this.choice, this.words, this.few, this.many);
    this.lines.rows = (index) => this.tipRows(index);
    this.lines.words = (data) => this.lineWords(data);
  }

  update(scene) {
    const { entries, entry, operator, measure, index, stamp } = scene;
    [...this.choice.children].forEach((one) => one.setAttribute("aria-pressed", one.dataset.measure === measure));
    const kind = MEASURES[measure];
    const key = `${stamp}/${operator}/${measure}`;
    if (this.key !== key) {
      this.key = key;
      this.loads = entries.map((one) => loadsOf(one, operator, measure));
      this.instances = this.loads.reduce((most, one) => Math.max(most, one.length), 0);
      this.greatest = this.loads.reduce((most, one) => Math.max(most, summary(one).greatest), 0);
    }
    const many = this.instances >= HEAT_FROM;
    [this.few.hidden, this.many.hidden] = [many, !many];
    const shown = { n: entries.length, entries, index, stamp: `${key}/${scene.theme}`, measure: kind };
    this.sentence(this.loads[index], kind, entry);
    if (many) this.drawMany(shown);
    else this.drawFew(shown, entry);
  }

  sentence(loads, kind, entry) {
    const facts = summary(loads);
    if (!facts.greatest) {
      this.words.replaceChildren(`No instance ${{ received: "received", stored: "holds", busy: "worked for" }[kind.title]} any tuple in ${batchName(entry)}.`);
      return;
    }
    const per = entry.first === entry.last || kind === MEASURES.stored ? "" : ` in a batch (means over ${batchName(entry)})`;
    this.words.replaceChildren(
      make("span", {}, "The busiest, instance ", figure("busiest", facts.busiest, String(facts.busiest)), `, ${kind.title === "busy" ? "was busy for" : kind.title} `,
        figure("greatest", facts.greatest, kind.text(facts.greatest)), `, ${ratio(facts.skew)} times the mean of `,
        figure("mean", facts.mean, kind.text(facts.mean)), `${per}: ${skewWords(facts.skew)}.`));
  }

  drawFew(shown, entry) {
    const loads = this.loads[shown.index];
    this.bars.update({ loads, measure: shown.measure, entry });
    Object.assign(this.lines, { text: shown.measure.text, axis: shown.measure.axis });
    const mean = { name: "mean", css: "mean", values: this.loads.map((one) => (one.length ? summary(one).mean : null)) };
    const series = Array.from({ length: this.instances }, (_, i) =>
      ({ name: `instance ${i}`, css: "instance", values: this.loads.map((one) => one[i] ?? null) }));
    this.lines.update({ ...shown, series: [...series, mean], top: this.greatest });
    this.busiest(summary(loads).busiest);
  }

  /** The line of the busiest instance has the colour of its bar. */
  busiest(instance) {
    [...this.lines.plotBox.children].forEach((line) =>
      line.classList.toggle("busiest", line.dataset.series === `instance ${instance}`));
  }

  light(instance) {
    [...this.lines.plotBox.children].forEach((line) =>
      line.classList.toggle("lit", instance !== null && line.dataset.series === `instance ${instance}`));
  }

  drawMany(shown) {
    this.heat.update({ ...shown, loads: this.loads, instances: this.instances });
    const loads = this.loads[shown.index];
    const { mean } = summary(loads);
    const order = loads.map((load, instance) => [load, instance]).sort(([a], [b]) => b - a).slice(0, 10);
    this.rows.replaceChildren(...order.map(([load, instance]) =>
      make("tr", { "data-instance": instance, "data-value": load }, make("th", { scope: "row", class: "number" }, String(instance)),
        make("td", { class: "number" }, shown.measure.text(load)), make("td", { class: "number" }, mean ? ratio(load / mean) : UNKNOWN))));
  }

  tipRows(index) {
    const { text } = this.lines;
    const order = this.loads[index].map((load, i) => [load, i]).sort(([a], [b]) => b - a);
    const named = order.slice(0, 8).map(([load, i]) => ["instance", `instance ${i}`, text(load)]);
    const rest = order.length > 8 ? [["none", `and ${order.length - 8} more`, ""]] : [];
    return [...named, ...rest, ["mean", "mean", text(summary(this.loads[index]).mean)]];
  }

  lineWords({ n, index, entries }) {
    if (!n) return "load over time: no batches yet";
    const skews = extent(this.loads.map((one) => summary(one).skew));
    return `Load of ${plural(this.instances, "instance")} over ${batchName({ first: entries[0].first, last: entries.at(-1).last })}: `
      + (skews ? `load skew ${ratio(summary(this.loads[index]).skew)} at the shown moment, from ${ratio(skews.least)} to ${ratio(skews.greatest)}` : "nothing to do");
  }
}

function skewWords(skew) {
  if (skew < 1.1) return "the load is even";
  if (skew < 1.5) return "the load is a little uneven";
  if (skew < 2) return "the load is uneven";
  return "the batch waits for this instance";
}

/** The hot keys of the shown moment. */
class KeysView {
  constructor() {
    const columns = [["key", ""], ["share of the batch's rows", "share"], ["share of the state", "number"], ["rows", "number"], ["what is done", ""],
      ["instances", ""], ["since batch", "number"], ["tuples fewer than under hash (modelled)", "number narrow"]];
    const { box, body } = table("hot keys of the shown moment, the hottest first", columns);
    [this.box, this.body] = [box, body];
    this.none = make("p", { class: "words" });
    this.words = make("p", { class: "words" });
    this.root = card("keys", "Hot keys", null, this.words, this.none, this.box);
  }

  update({ run, operator, entry, join }) {
    const isKeyed = run.operators[operator]?.keyed !== false;
    const hot = isKeyed ? join.hot ?? [] : [];
    this.box.hidden = !hot.length;
    this.none.textContent = !isKeyed ? "The condition has no keys." : hot.length ? "" : "No key stands out in this batch.";
    this.words.replaceChildren(...(isKeyed ? this.sentence(entry, join) : []));
    this.body.replaceChildren(...hot.map((key) => this.row(key, entry)));
  }

  /** What the busiest instance received, and what it would have under hash; nothing of an idle batch. */
  sentence(entry, join) {
    const [now, hash] = [join.greatest, join.hash_greatest].map((sum) => perBatch(entry, sum));
    if (!now || !summary(join.received ?? []).total) return [];
    const where = entry.first === entry.last ? "in this batch" : `in a batch (means over ${batchName(entry)})`;
    const received = ["The busiest instance received ", figure("received_greatest", now, count(now)),
      ` ${plural(now, "tuple").split(" ").at(-1)} ${where}; `];
    if (hash === null) return [...received, "this layout does not count keys, so the load under hash is unknown."];
    const times = ratio(hash / now);
    // A layout that does no better than hash earns no comparison.
    const more = hash > now && times !== ratio(1) ? `, ${times} times as many` : "";
    return [...received, "under hash it would have been ", figure("hash_greatest", hash, count(hash)), ` (modelled)${more}.`];
  }

  row(key, entry) {
    const bar = make("span", { class: "share-bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", `${Math.min(100, 100 * (key.share ?? 0))}%`);
    const name = key.key ?? key.hash;
    return make("tr", { "data-key": key.key, "data-hash": key.hash, "data-share": key.share, "data-rows": key.rows, "data-done": key.done },
      make("th", { scope: "row", class: "key", title: `key hash ${key.hash}` }, make(key.key === null ? "code" : "bdi", {}, name)),
      make("td", { class: "share" }, bar, percent(key.share)),
      make("td", { class: "number" }, known(key.state_share) ? percent(key.state_share) : UNKNOWN),
      make("td", { class: "number" }, count(perBatch(entry, key.rows))),
      make("td", { class: key.done === "kept" ? "muted" : null }, make("span", { class: "clamp", title: key.words }, key.words ?? key.done)),
      make("td", {}, some(key.homes ?? [])),
      make("td", { class: "number" }, known(key.since) ? count(key.since) : "the start"),
      make("td", { class: "number" }, known(key.saved_rows) ? plural(perBatch(entry, key.saved_rows), "tuple") : UNKNOWN));
  }
}
