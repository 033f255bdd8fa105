// The bar of time: which moment is shown, pausing, and going back.

class TimeBar {
  constructor(app) {
    this.app = app;
    this.pause = make("button", { type: "button", click: () => app.togglePause() });
    this.back = make("button", { type: "button", click: () => app.backToNow() });
    this.slider = make("input", { type: "range", min: "0", "aria-label": "shown moment", "data-field": "moment",
      input: () => app.pick(Number(this.slider.value)) });
    this.marks = make("svg:svg", { class: "slider-marks", height: 6, "aria-hidden": "true" });
    this.label = make("output", { class: "moment" });
    const track = make("div", { class: "track" }, this.marks, this.slider);
    this.root = make("div", { class: "time-bar", role: "group", "aria-label": "time" }, this.pause, track, this.label, this.back);
    new ResizeObserver(() => app.schedule()).observe(track);
  }

  update(scene) {
    const { entries, index, entry, app, newer } = scene;
    const n = entries.length;
    const isAtEnd = index === n - 1 && app.view.paused === null && (app.isOver || app.view.batch === null);
    this.slider.max = n - 1;
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", `${batchName(entry)}, ${clock(entry.at)} UTC`);
    this.label.textContent = `${batchName(entry)} of ${count(entries.at(-1).last)} · ${clock(entry.at)} UTC`;
    this.pause.textContent = app.playing || (!app.isOver && app.view.paused === null) ? "❚❚ pause" : "▶ play";
    this.pause.title = "space key";
    this.back.disabled = isAtEnd;
    this.back.textContent = `${app.isOver ? "to the end" : "back to now"}${newer ? ` (${count(newer)} newer)` : ""}`;
    this.drawMarks(scene);
  }

  drawMarks({ entries, run, operator, stamp }) {
    const width = Math.floor(this.marks.getBoundingClientRect().width);
    const key = `${stamp}/${operator}/${width}`;
    if (this.key === key) return;
    this.key = key;
    // The thumb is 16 pixels wide, and its middle goes from 8 to width - 8.
    const x = (at) => 8 + ((width - 16) * at) / Math.max(1, entries.length - 1);
    const ours = run.plans.filter((plan) => plan.join === operator && plan.batch <= entries.at(-1).last);
    const found = new Set(ours.map((plan) => indexOfBatch(entries, plan.batch)));
    this.marks.setAttribute("viewBox", `0 0 ${width} 6`);
    this.marks.replaceChildren(make("svg:path", { d: [...found].map((at) => `M${x(at).toFixed(1)} 0v6`).join("") }));
  }
}

/** The address holds what is shown, so that a link keeps it: #run=1&join=0&batch=12&measure=busy&paused=20. */
const address = {
  seen: null,

  read() {
    this.seen = location.hash;
    const given = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (/^\d+$/.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
    return { run: number("run"), operator: number("join"), batch: number("batch"), paused: number("paused"),
      measure: given.get("measure") in MEASURES ? given.get("measure") : FIRST_MEASURE };
  },

  /** Not if the reader has just changed the address: then `hashchange` is on its way. */
  write({ run, operator, batch, paused, measure }) {
    const wanted = new URLSearchParams();
    if (run !== null) wanted.set("run", run);
    if (operator !== null) wanted.set("join", operator);
    if (batch !== null) wanted.set("batch", batch);
    if (measure !== FIRST_MEASURE) wanted.set("measure", measure);
    if (paused !== null) wanted.set("paused", paused);
    const hash = wanted.size ? `#${wanted}` : "";
    // Replaced, not pushed: a walk through a hundred batches is no hundred steps of the back button.
    if (hash === location.hash || this.seen !== location.hash) return;
    history.replaceState(null, "", hash || location.pathname + location.search);
    this.seen = location.hash;
  },
};
