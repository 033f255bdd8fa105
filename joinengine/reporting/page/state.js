// The line of state at the top, the operators of the query, and the figures of a whole run.
//
// A view is an object with `root`, an element of the page, and `update(scene)`. A scene is what is
// shown now: {run, entries, index, entry, operator, join, measure, stamp, app}; page.js makes it.

/** One line of state: query, layout, instances, batch, rate, watermark, late rows, state. */
class StateView {
  constructor() {
    this.list = make("dl", { class: "state" });
    this.words = make("p", { class: "words about" });
    this.root = make("section", { class: "card", id: "state", "aria-label": "state of the query" }, this.list, this.words);
  }

  update(scene) {
    this.list.replaceChildren(...this.items(scene).map(([term, value, more, css]) =>
      make("div", { class: css }, make("dt", {}, term), make("dd", {}, value), make("dd", { class: "more" }, more))));
    const about = this.about(scene.run.operators[scene.operator] ?? {});
    if (this.words.textContent !== about) this.words.textContent = about;
  }

  /** What the shown operator does, and when a tuple leaves its state. */
  about({ on, within, inputs, leaves }) {
    const [left, right] = inputs ?? [];
    const named = right === undefined ? left : `left ${left}, right ${right}`;
    const joined = [named, on, within].filter(Boolean).join(" · ");
    return [joined, ...(leaves ?? [])].filter(Boolean).join("; ");
  }

  items({ run, entries, index, entry, join, operator }) {
    const late = total(entries, index, "late_rows");
    const { kind, how, timed } = run.operators[operator] ?? {};
    return [
      ["query", figure("query", run.head.query, run.head.query ?? "without a name"), kind === "join" && how && !how.endsWith("join") ? `${how} join` : how ?? ""],
      ["layout", figure("layout", join.layout, join.layout ?? UNKNOWN),
        join.versions > 1 ? `${join.versions} versions hold state` : `${join.routing_entries ? plural(join.routing_entries, "key") : "no key"} moved or divided`],
      ["instances", figure("instances", join.instances, count(join.instances)), this.skew(join)],
      ["batch", figure("batch", entry.last, count(entry.last)),
        make("span", {}, figure("input_rows", entry.input_rows, count(entry.input_rows)), entry.input_rows === 1 ? " row" : " rows")],
      ["rows/s", figure("rows_per_s", rowsPerSecond(entry), count(rowsPerSecond(entry))),
        `${duration(perBatch(entry, entry.elapsed_s))} a batch`],
      ...(known(join.candidates) ? [["candidates", figure("candidates", join.candidates, count(perBatch(entry, join.candidates))),
        `${count(perBatch(entry, join.output_rows))} results`]] : []),
      ["watermark", ...this.watermark(join, timed), "wide"],
      ["late rows", figure("late_rows", late, count(late)), `${count(entry.late_rows)} in this batch`],
      ["state rows", figure("state_rows", join.state_rows, count(join.state_rows)), this.forecast("forecast_rows", join, count, timed)],
      ["state size", figure("state_bytes", join.state_bytes, bytes(join.state_bytes)), this.forecast("forecast_bytes", join, bytes, timed)],
    ];
  }

  /** How far event time has come, and by how much that is behind the newest tuple. */
  watermark(join, timed) {
    const lag = lagOf(join);
    const told = (text, ...more) => [figure("watermark", join.watermark, text), make("span", {}, ...more)];
    const lags = ["lags ", figure("lag", lag, duration(lag))];
    // Without a window there is no watermark, and no forecast of the state.
    if (timed === false && !known(join.watermark) && !known(join.newest)) return told("no window", "needs none", figure("lag", lag, ""));
    if (join.ended) return told("all data has been read", "the streams have ended", figure("lag", lag, ""));
    if (known(join.watermark)) return told(instant(join.watermark / 1e6), ...lags);
    if (known(join.newest)) return told("none", ...lags);
    return told("none", "no event time yet", figure("lag", lag, ""));
  }

  skew(join) {
    const [busy, received] = [join.busy, join.received].map((loads) => summary(loads ?? []).skew);
    return make("span", {}, "skew: busy ", figure("busy_skew", busy, ratio(busy)), ", received ", figure("load_skew", received, ratio(received)));
  }

  forecast(field, join, text, timed) {
    const unknown = timed === false ? "no forecast (no window)" : "no forecast yet";
    return known(join[field])
      ? make("span", {}, "forecast ", figure(field, join[field], text(join[field])))
      : make("span", {}, figure(field, join[field], unknown));
  }
}

/** The operators of a query with several: which is shown, and a line for each of them. */
class OperatorsView {
  constructor(app) {
    this.app = app;
    this.tabs = make("div", { class: "tabs", role: "group", "aria-label": "operator" });
    const columns = [["operator", ""], ["condition", ""], ["instances", "number"], ["received", "number"],
      ["busy skew", "number"], ["load skew", "number"], ["busy skew over time", ""], ["state rows", "number"]];
    const { box, body } = table("operators of the query, at the shown moment", columns);
    [this.box, this.body] = [box, body];
    this.root = make("section", { class: "card", id: "operators", "aria-label": "operators" }, this.tabs, this.box);
  }

  update(scene) {
    const { run, operator } = scene;
    this.root.hidden = run.operators.length < 2;
    if (this.root.hidden) return;
    if (this.tabs.children.length !== run.operators.length) {
      this.tabs.replaceChildren(...run.operators.map((one, i) =>
        make("button", { type: "button", click: () => this.app.show({ operator: i }) }, `${one.kind} ${one.number}`)));
    }
    [...this.tabs.children].forEach((tab, i) => tab.setAttribute("aria-pressed", i === operator));
    if (this.drawn !== scene.stamp) {
      this.drawn = scene.stamp;
      this.skews = run.operators.map((_, i) => scene.entries.map((one) => summary(one.joins[i]?.busy ?? []).skew));
    }
    this.body.replaceChildren(...run.operators.map((one, i) => this.row(one, i, scene)));
  }

  row(one, i, { entry }) {
    const join = entry.joins[i] ?? {};
    const facts = summary(join.received ?? []);
    return make("tr", { "data-operator": one.number },
      make("th", { scope: "row" }, `${one.kind} ${one.number}`),
      make("td", {}, one.on ?? UNKNOWN),
      make("td", { class: "number" }, count(join.instances)),
      make("td", { class: "number" }, count(perBatch(entry, facts.total))),
      make("td", { class: "number" }, ratio(summary(join.busy ?? []).skew)),
      make("td", { class: "number" }, ratio(facts.skew)),
      make("td", {}, this.spark(this.skews[i])),
      make("td", { class: "number" }, count(join.state_rows)));
  }

  /** A line of 120 x 22 pixels; the floor is a skew of 1. */
  spark(values) {
    const { least, greatest } = extent(values) ?? { least: 1, greatest: 1 };
    const x = (i) => (values.length < 2 ? 60 : 1 + (118 * i) / (values.length - 1));
    const y = (value) => 20 - (18 * (value - 1)) / Math.max(0.2, greatest - 1);
    const path = values.map((value, i) => !known(value) ? "" : `${known(values[i - 1]) ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (!path) return UNKNOWN;
    return make("svg:svg", { role: "img", width: 120, height: 22, viewBox: "0 0 120 22",
      "aria-label": `busy skew from ${ratio(least)} to ${ratio(greatest)}` }, make("svg:path", { class: "line c0", d: path }));
  }
}

/** What waits in the topics that a query reads, as the shown batch began. */
class TopicsView {
  constructor() {
    const columns = [["source", ""], ["partition", "number"], ["messages", "number"], ["oldest, at most", "number"]];
    const { box, body } = table("partitions in which most waits", columns);
    this.words = make("p", { class: "words" });
    this.body = body;
    this.root = card("topics", "What waits in topics", null, this.words, box);
  }

  update({ entry }) {
    this.root.hidden = !known(entry.behind_rows);
    if (this.root.hidden) return;
    const rows = entry.behind_rows;
    this.words.replaceChildren(figure("behind_rows", rows, rows ? count(rows) : "nothing"), rows ? " messages wait" : " waits");
    this.body.parentElement.hidden = !rows;
    this.body.replaceChildren(...entry.behind.map((one) => make("tr", { "data-partition": one.partition },
      make("th", { scope: "row" }, one.source),
      make("td", { class: "number" }, String(one.partition)),
      make("td", { class: "number" }, count(one.rows)),
      make("td", { class: "number" }, known(one.seconds) ? duration(one.seconds) : UNKNOWN))));
  }
}

/** What a report says of its run as a whole. */
class WholeView {
  constructor() {
    this.body = make("div");
    this.root = card("whole", "The whole run", null, this.body);
  }

  update({ run, stamp }) {
    const report = run.report;
    this.root.hidden = !report;
    if (!report || this.drawn === stamp) return;
    this.drawn = stamp;
    const skew = (of) => report.load_skew?.[of]
      ? `${ratio(skewOf(report, "run", of))}; last half ${ratio(skewOf(report, "last_half", of))}` : null;
    const one = (field, text) => (known(report[field]) ? figure(`run_${field}`, report[field], text(report[field])) : null);
    this.body.replaceChildren(terms([
      ["rows in", one("input_rows", count)],
      ["results", one("output_rows", count)],
      ["time", one("elapsed_s", duration)],
      ["rows/s", one("rows_per_s", count)],
      ["slowest instance", one("slowest_instance_s", duration)],
      ["busy skew", skew("busy")],
      ["load skew", skew("received")],
      ["re-plans", one("replans", count)],
      ["rows moved", one("moved_rows", count)],
      ["Zipf", known(report.zipf) ? String(report.zipf) : null],
      ["emulated work", report.work_per_tuple_us ? `${count(report.work_per_tuple_us)} µs a tuple` : null],
      ["recovery", report.store ? `${report.recovery}; store: ${report.store}` : report.recovery ?? null],
      ["DuckDB agrees", { true: "yes", false: "no" }[report.valid] ?? "not compared"],
    ], { class: "whole" }));
  }
}

/** The foot: where the figures come from; without these they mean nothing. */
class FootView {
  constructor(content) {
    this.content = content;
    this.root = make("footer", {});
  }

  update({ run, stamp }) {
    if (this.drawn === stamp) return;
    this.drawn = stamp;
    const { report } = run;
    const made = report?.made_by ?? {};
    const versions = Object.entries(made.versions ?? {}).filter(([name]) => name !== "joinengine");
    this.root.replaceChildren(terms([
      ["command", made.command ? make("code", {}, made.command) : null],
      ["machine", made.machine],
      ["versions", [["Python", made.python], ...versions].filter(([, version]) => version)
        .filter(([name], i, all) => all.findIndex(([other]) => other.toLowerCase() === name.toLowerCase()) === i)
        .map(([name, version]) => `${name} ${version}`).join(", ")],
      ["commit", made.commit],
      ["seed", known(report?.seed) ? String(report.seed) : null],
      ["started", known(run.head.started) ? `${instant(run.head.started)} UTC` : null],
      ["format", report ? String(report.format ?? "older than 2") : null],
      ["joinengine", made.versions?.joinengine ?? this.content.version],
    ]));
  }
}
