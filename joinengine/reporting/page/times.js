// Where the time of a batch goes, and the small charts of rates, state and rows set aside.

class TimesView {
  constructor(app) {
    this.chart = new StackChart("", { pick: app.pick, height: 200, text: duration, axis: durationTicks });
    const steps = table("the driver's steps in the shown batch", [["step", ""], ["time", "number"], ["share", "number"], ["what it is", ""]]);
    const work = table("work of the tasks in the shown batch, added up over all tasks", [["part", ""], ["time", "number"], ["share", "number"], ["what it is", ""]]);
    [this.steps, this.work] = [steps.body, work.body];
    this.workBox = work.box;
    this.root = card("times", "Where a batch's time goes", null, this.chart.root,
      make("div", { class: "pair tables" }, steps.box, work.box));
  }

  update({ entries, entry, index, stamp }) {
    const series = STEPS.map(([name], i) => ({ name, css: `c${i}`, values: entries.map((one) => perBatch(one, one.steps?.[name] ?? 0)) }));
    this.chart.title = "Seconds of a batch by step";
    this.chart.update({ n: entries.length, entries, index, stamp, series });
    const times = entry.steps ?? {};
    this.fill(this.steps, entry, STEPS.map(([name, meaning], i) => [name, times[name], meaning, `c${i}`]));
    const parts = Object.entries(entry.work ?? {}).sort(([, a], [, b]) => b - a)
      .map(([name, seconds]) => [name, seconds, Object.hasOwn(WORK, name) ? WORK[name] : ""]);
    this.workBox.hidden = !parts.length;
    this.fill(this.work, entry, parts);
  }

  fill(body, entry, rows) {
    const whole = rows.reduce((sum, [, seconds]) => sum + (seconds ?? 0), 0);
    body.replaceChildren(...rows.map(([name, seconds, meaning, css]) => make("tr", { "data-step": name, "data-value": seconds },
      make("th", { scope: "row" }, css ? make("i", { class: `sign ${css}` }) : null, name),
      make("td", { class: "number" }, duration(perBatch(entry, seconds))),
      make("td", { class: "number" }, percent(whole ? (seconds ?? 0) / whole : null)),
      make("td", { class: "muted" }, meaning))));
  }
}

// [title, options of the chart, series of a scene: [name, css, figure of an entry]]
const SMALL_CHARTS = [
  ["Rows per second", {}, () => [["rows/s", "c0", rowsPerSecond]]],
  ["Results of a batch", {}, () => [["results", "c0", (entry) => perBatch(entry, entry.output_rows)]]],
  ["State rows, and the forecast of their maximum", {}, (join) => [
    ["state rows", "c0", (entry) => join(entry).state_rows],
    ["forecast", "c1 dashed", (entry) => join(entry).forecast_rows]]],
  ["Lag of the watermark behind the newest event time", { text: duration, axis: durationTicks }, (join) => [
    ["lag", "c0", (entry) => lagOf(join(entry))]]],
  ["Latency of results", { text: duration, axis: durationTicks }, () => [
    ["50 % written", "c0", (entry) => entry.latency_p50],
    ["99 % written", "c1 dashed", (entry) => entry.latency_p99]]],
  ["Rows: late, without a key, ahead of the clock, pending", {}, (join) => [
    ["late", "c1", (entry) => perBatch(entry, entry.late_rows)],
    ["without key", "c3 dashed", (entry) => perBatch(entry, entry.null_rows)],
    ["ahead", "c0 dashed", (entry) => perBatch(entry, entry.ahead_rows ?? 0)],
    ["pending", "c2 dotted", (entry) => join(entry).pending_rows]]],
];

class FiguresView {
  constructor(app) {
    this.charts = SMALL_CHARTS.map(([title, options, series]) =>
      [new LineChart(title, { ...options, pick: app.pick, height: 130, css: "small" }), series]);
    this.notes = make("p", { class: "words" });
    this.root = card("figures", "Rates, state, and rows left out", null,
      make("div", { class: "grid" }, ...this.charts.map(([chart]) => chart.root)), this.notes);
  }

  update({ entries, index, operator, stamp }) {
    const join = (entry) => entry.joins?.[operator] ?? {};
    for (const [chart, series] of this.charts) {
      const lines = series(join).map(([name, css, of]) => ({ name, css, values: entries.map((entry) => of(entry) ?? null) }));
      // Without a window there is no lag, without results no latency: an empty frame says nothing.
      chart.root.hidden = !lines.some((line) => extent(line.values));
      chart.update({ n: entries.length, entries, index, stamp: `${stamp}/${operator}`, series: lines });
    }
    const skipped = total(entries, index, "skipped_files");
    this.notes.textContent = skipped ? `${skipped} skipped so far: bad files or messages.` : "";
  }
}
