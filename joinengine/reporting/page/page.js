// The page: what is shown now, how it is drawn, and what keys do.
//
// One way of data: events change the run or the view and call `schedule`; the next animation frame
// makes a scene of both and hands it to every view. So any number of batches between two frames
// costs one drawing, and a tab that nobody sees draws nothing.

const PLAY_MS = 400; // from batch to batch, when a report is played
const SPOKEN_MS = 10000; // between two sentences for a screen reader
const ADDRESS_MS = 300; // browsers refuse to have the address changed too often

class App {
  constructor(content) {
    this.content = content;
    this.isLive = content.mode === "live";
    this.runs = this.isLive ? [new Run(null, content.story)] : (content.reports ?? []).map((one) => new Run(one, one.story));
    this.view = address.read();
    this.fastest = 0;
    [this.playing, this.waiting, this.addressing, this.theme, this.spokenAt] = [null, false, null, 0, -Infinity];
    this.pick = this.pick.bind(this);
    this.build();
    this.listen();
    if (this.isLive) this.live = new Live(this);
    this.schedule();
  }

  get run() { return this.runs[this.view.run ?? this.fastest] ?? this.runs[this.fastest]; }

  build() {
    this.status = make("span", { class: "status", "data-field": "status" });
    this.title = make("h1", { tabindex: "-1" });
    this.banner = make("p", { class: "banner", role: "status", "data-field": "banner", hidden: "" });
    this.empty = make("p", { class: "card words", hidden: "" });
    this.time = new TimeBar(this);
    this.views = [new StateView(), new OperatorsView(this), new LoadView(this), new KeysView(),
      new PlansView(this), new TimesView(this), new FiguresView(this), new TopicsView()];
    this.always = [new WholeView(), new FootView(this.content)];
    this.spoken = make("p", { class: "unseen", "aria-live": "polite" });
    const [whole, foot] = this.always.map((view) => view.root);
    const header = make("header", {}, make("div", { class: "name" }, make("span", { class: "maker" }, "joinengine"), this.title, this.status), this.time.root);
    const main = make("main", {}, this.banner, this.empty, ...this.views.slice(0, 2).map((view) => view.root), whole, ...this.views.slice(2).map((view) => view.root));
    document.body.append(...this.comparison(), header, main, foot, this.spoken, tip.box);
    for (const chart of this.charts()) chart.resized = () => this.schedule();
  }

  /** Layouts side by side, above the page of the run that is opened; nothing for one report. */
  comparison() {
    if (this.runs.length < 2 || !window.joinengineCompare) return [];
    const root = make("div");
    const open = (i) => {
      this.show({ run: i, operator: null, batch: null, paused: null });
      this.title.scrollIntoView({ behavior: "smooth" });
      this.title.focus({ preventScroll: true });
    };
    this.fastest = window.joinengineCompare(root, this.content.reports, open, this.content);
    return [make("section", { class: "compare", "aria-label": "runs side by side" }, root)];
  }

  charts() {
    const [, , load, , plans, times, figures] = this.views;
    return [load.bars, load.lines, load.heat, plans.chart, times.chart, ...figures.charts.map(([chart]) => chart)];
  }

  listen() {
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.show(address.read()));
    document.addEventListener("visibilitychange", () => this.schedule());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.theme += 1; // canvases hold colours, and are painted anew
      this.schedule();
    });
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("button, input, select, summary, a")) return;
    const far = event.shiftKey ? 10 : 1;
    const last = this.shownEntries().length - 1;
    const act = {
      " ": () => this.togglePause(),
      ArrowLeft: () => this.pick(this.index - far),
      ArrowRight: () => this.pick(this.index + far),
      Home: () => this.pick(0),
      End: () => this.pick(last),
      Escape: () => tip.hide(),
    }[event.key];
    if (!act || last < 0) return;
    event.preventDefault();
    act();
  }

  // ---- which moment is shown

  /** The entries up to the pause: what comes later is kept, and drawn when the pause is over. */
  shownEntries() {
    const { entries } = this.run;
    if (this.view.paused === null || !entries.length) return entries;
    return entries.slice(0, indexOfBatch(entries, this.view.paused) + 1);
  }

  /** Whether nothing more will come: a report, or a query that has ended. */
  get isOver() { return !this.isLive || Boolean(this.run.ended); }

  /** The moment that is shown unless the reader asks for another. */
  restAt(entries) {
    const last = entries.length - 1;
    // The last batches of a run often have no rows: a report that began there would look empty.
    const full = this.isLive ? last : entries.findLastIndex((entry) => entry.input_rows > 0);
    return full < 0 ? last : full;
  }

  show(change) {
    Object.assign(this.view, change);
    this.schedule();
  }

  /** Show the moment with this index; a live page follows the newest one unless it is paused. */
  pick(index) {
    const entries = this.shownEntries();
    const at = Math.max(0, Math.min(entries.length - 1, index));
    const isRest = at === this.restAt(entries);
    this.show({ batch: isRest && this.view.paused === null ? null : entries[at]?.last ?? null });
  }

  goTo(batch) {
    this.pick(indexOfBatch(this.shownEntries(), batch));
  }

  /** The newest moment; of a report its end, even where nothing happens there. */
  backToNow() {
    this.show({ batch: null, paused: null });
    this.pick(this.shownEntries().length - 1);
  }

  /** Live: hold what is shown, or go on. What is over is played from the shown batch on. */
  togglePause() {
    if (this.isLive && this.view.paused !== null) this.backToNow();
    else if (this.isOver) this.play(this.playing === null);
    else this.show(this.drawn); // what the reader sees, and not what has come since
  }

  play(go) {
    clearInterval(this.playing);
    this.playing = null;
    if (go) {
      if (this.index >= this.restAt(this.shownEntries())) this.pick(0);
      this.playing = setInterval(() => {
        const next = this.index + 1;
        this.pick(next);
        if (next >= this.shownEntries().length - 1) this.play(false);
      }, PLAY_MS);
    }
    this.schedule();
  }

  // ---- drawing

  schedule() {
    if (this.waiting || document.hidden) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const scene = this.scene();
    this.heading(scene);
    for (const view of this.always) view.update(scene);
    const isThere = Boolean(scene.entry);
    this.time.root.hidden = !isThere;
    this.empty.hidden = isThere;
    this.empty.textContent = this.nothing();
    for (const view of this.views) view.root.hidden = !isThere;
    if (isThere) {
      this.time.update(scene);
      for (const view of this.views) view.update(scene);
      this.speak(scene);
    }
    this.addressing ??= setTimeout(() => {
      this.addressing = null;
      address.write(this.view);
    }, ADDRESS_MS);
  }

  /** Why there is no batch to show. */
  nothing() {
    if (!this.isLive && !this.run.told) return "This report has no figures of single batches, so there is nothing to draw.";
    return this.isOver ? "No batch was computed." : "Waiting for the first batch.";
  }

  scene() {
    const { run, view } = this;
    const entries = this.shownEntries();
    const newest = entries.at(-1)?.last ?? null;
    this.index = view.batch === null ? this.restAt(entries) : indexOfBatch(entries, view.batch);
    const operator = view.operator === null ? mainOperator(run) : Math.max(0, Math.min(run.operators.length - 1, view.operator));
    const entry = entries[this.index];
    const stamp = `${view.run}/${run.version}/${view.paused}`;
    this.drawn = { batch: entry?.last ?? null, paused: newest };
    const newer = newest === null ? 0 : run.entries.at(-1).last - newest;
    return { app: this, run, entries, entry, index: this.index, operator, join: entry?.joins?.[operator] ?? {},
      measure: view.measure, stamp, theme: this.theme, newer };
  }

  heading({ run, newer }) {
    const name = run.head.query ?? "a query";
    this.title.textContent = this.runs.length > 1 ? `${name} under ${run.report.layout}` : name;
    document.title = `${name} · joinengine`;
    const trouble = this.live?.trouble ?? null;
    const { ended } = run;
    const [text, css] = this.state(ended, trouble, newer);
    this.status.textContent = text;
    this.status.className = `status ${css}`;
    const told = ended && (this.isLive || ended.how === "failed") ? endWords(ended) : trouble;
    if (this.banner.textContent !== (told ?? "")) this.banner.textContent = told ?? "";
    this.banner.hidden = !told;
    this.banner.classList.toggle("bad", Boolean(trouble) || ended?.how === "failed");
  }

  state(ended, trouble, newer) {
    if (trouble) return ["no answer", "bad"];
    if (this.view.paused !== null && this.isLive) return [`paused${newer ? `, ${plural(newer, "newer batch", "newer batches")}` : ""}`, "held"];
    if (ended) return [ended.how, ended.how === "failed" ? "bad" : "over"];
    return this.isLive ? ["live", "good"] : ["report", "over"];
  }

  speak({ entry, join }) {
    if (performance.now() - this.spokenAt < SPOKEN_MS) return;
    this.spokenAt = performance.now();
    const facts = summary(join.received ?? []);
    this.spoken.textContent = `${batchName(entry)}: ${count(rowsPerSecond(entry))} rows per second, ${facts.greatest ? `load skew ${ratio(facts.skew)}, busiest instance ${facts.busiest}` : "nothing received"}`;
  }
}

/** How the query ended, as one sentence: what it begins with is not said a second time. */
function endWords({ how, at, words }) {
  const verb = { finished: "has finished", stopped: "was stopped", failed: "has failed", closed: "was closed" }[how] ?? "has ended";
  const rest = (words ?? "").replace(/^the query (has )?(failed|(was )?stopped|finished|ended)\b[:;,.]?\s*/i, "")
    .replace(/^the query /i, "it ");
  return `The ${how === "closed" ? "page" : "query"} ${verb} at ${clock(at)} UTC${rest ? `: ${rest}` : "."}`;
}

/** The data of the page; where it is large it is packed, and a browser unpacks it by itself. */
async function contentOfPage() {
  const data = document.getElementById("content");
  if (data.dataset.encoding !== "gzip") return JSON.parse(data.textContent);
  const packed = Uint8Array.from(atob(data.textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(unpacked).text());
}

contentOfPage().then((content) => new App(content));
