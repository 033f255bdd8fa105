// Layouts side by side: the runs of `compare` and `make bench` ranked by time, their load over the
// instances, and all figures in a table that sorts.
//
// joinengineCompare(root, reports, openRun, {verdict, hues}): fills `root` from the reports of docs/metrics.md, of
// which any field may be missing; returns which is the fastest. openRun(i) shows the page of reports[i]. `verdict`:
// sentences; `hues`: layout -> number of its colour, as in all pictures; either may be missing. Whatever comes from a
// run goes into the document as text, never as markup.
(() => {
  "use strict";

  const MOST_POINTS = 160; // of a line: a panel is hardly wider in pixels
  const COLOURS = 6; // --c0 to --c5
  const WIDE = 260, HIGH = 96; // of a panel, in units of its view box

  const TEXTS = ["query", "layout", "valid"]; // columns of words
  // [field, title, value of a run, text of a value, first direction, meaning]; null: not known.
  const COLUMNS = [
    ["layout", "layout", (run) => run.layout, String, 1, ""],
    ["query", "query", (run) => run.query, String, 1, ""],
    ["zipf", "Zipf", (run) => run.zipf, String, 1, "exponent of the skew of the keys"],
    ["rank", "rank", (run) => run.rank, count, 1, "rank by time among the runs of this query and skew"],
    ["slowest_instance_s", "slowest s", (run) => run.slowest, seconds, 1,
      "how long batches waited for their slowest instance: tuples times emulated work"],
    ["busiest", "busiest s", (run) => run.busiest, seconds, 1,
      "seconds that the busiest instance of each batch worked, added up"],
    ["busy", "busy skew", (run) => run.busy, ratio, 1,
      "seconds that the busiest instance worked, over the mean, in the last half of the run"],
    ["elapsed_s", "run s", (run) => run.elapsed, seconds, 1, "the whole run, by the clock"],
    ["rows_per_s", "rows/s", (run) => run.report.rows_per_s, count, -1, "by the clock"],
    ["first", "skew", (run) => run.first, ratio, 1,
      "tuples that the busiest instance received, over the mean, in the first batch"],
    ["later", "later skew", (run) => run.later, ratio, 1, "the same in the last half of the run"],
    ["stored", "stored", (run) => sum(run.report.stored_per_instance), count, 1,
      "tuples held at the end, copies included"],
    ["sent", "sent", (run) => sum(run.report.received_per_instance), count, 1,
      "tuples delivered to instances, to store or to probe"],
    ["moved_rows", "moved", (run) => run.report.moved_rows, count, 1,
      "tuples of the state that changed their home"],
    ["replans", "re-plans", (run) => run.report.replans, count, 1,
      "how often a planner changed the layout"],
    ["late_rows", "late", (run) => run.report.late_rows, count, 1, "tuples behind the watermark"],
    ["valid", "valid", (run) => run.valid, String, 1, "whether DuckDB has the same results"],
  ];

  // ---- words and numbers

  function given(x) { return known(x) ? x : null; }
  function sum(list) { return Array.isArray(list) ? list.reduce((total, n) => total + n, 0) : null; }
  function most(list) { return list.reduce((top, n) => Math.max(top, n), 0); }
  function seconds(s) {
    const digits = s < 10 ? 2 : 1;
    return s.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  // ---- what is shown of a report

  /** [{first, last, loads}] of a story: tuples that each instance received, a batch on average. */
  function fromStory(batches) {
    const totals = [];
    for (const batch of batches) {
      (batch.joins ?? []).forEach((join, n) => { totals[n] = (totals[n] ?? 0) + (sum(join.received) ?? 0); });
    }
    const busiest = totals.indexOf(most(totals));
    return batches.map(({ first, last, joins }) => {
      const received = joins?.[busiest]?.received ?? [];
      return { first, last, loads: received.map((n) => n / (last - first + 1)) };
    });
  }

  function fromFigures(joins) {
    const total = (join) => sum(join.received_per_instance) ?? 0;
    const busiest = joins.reduce((top, join) => (top && total(top) > total(join) ? top : join), null);
    return (busiest?.received_by_batch ?? []).map((loads, n) => ({ first: n, last: n, loads }));
  }

  /** Neighbours averaged until a panel has room for all of them. */
  function thinned(rows) {
    const step = Math.ceil(rows.length / MOST_POINTS);
    if (step < 2) return rows;
    const fewer = [];
    for (let at = 0; at < rows.length; at += step) {
      const part = rows.slice(at, at + step);
      const loads = Array.from({ length: most(part.map((row) => row.loads.length)) }, (_, i) => {
        const there = part.filter((row) => i < row.loads.length);
        return sum(there.map((row) => row.loads[i])) / there.length;
      });
      fewer.push({ first: part[0].first, last: part.at(-1).last, loads });
    }
    return fewer;
  }

  function runOf(report, index) {
    // A story knows which instances were there; the figures have every batch, also of a long run.
    const some = (rows) => rows.filter((row) => sum(row.loads) > 0);
    const told = some(fromStory(report.story?.batches ?? [])), exact = some(fromFigures(report.joins ?? []));
    const rows = told.length ? told : exact;
    const start = (exact.length ? exact : told)[0];
    return {
      report, index,
      loads: thinned(rows),
      query: report.query ?? "query",
      layout: report.layout ?? "layout not known",
      zipf: given(report.zipf),
      slowest: report.work_per_tuple_us === 0 ? null : given(report.slowest_instance_s),
      busiest: report.work_per_tuple_us === 0 ? given(report.busiest_s) : null,
      busy: report.work_per_tuple_us === 0 ? given(skewOf(report, "last_half", "busy")) : null,
      elapsed: given(report.elapsed_s),
      first: start ? summary(start.loads).skew : null,
      later: given(skewOf(report, "last_half")),
      valid: report.valid === true ? "yes" : report.valid === false ? "NO" : "not checked",
    };
  }

  /** What was compared, and what all runs have in common. */
  function heading(runs, layouts) {
    const all = (value) => [...new Set(runs.map(value))].filter((one) => one !== null && one !== undefined);
    const works = all((run) => run.report.work_per_tuple_us || null);
    const common = (values, text) => (values.length === 1 ? text(values[0]) : null);
    const facts = [
      common(all((run) => run.report.instances), (n) => plural(n, "instance")),
      common(works, (us) => `${count(us)} µs of emulated work a tuple`),
      common(all((run) => run.report.seed), (seed) => `seed ${seed}`),
    ];
    const names = layouts.length > 3 ? plural(layouts.length, "layout") : layouts.join(", ").replace(/, ([^,]*)$/, " and $1");
    return make("div", { class: "cmp-head" },
      make("h1", {}, `${all((run) => run.query).join(", ")}: the same join under ${names}`),
      make("p", { class: "cmp-note" }, facts.filter(Boolean).join(" · ")));
  }

  // ---- ranking

  function ranking(groups, tools) {
    const emulated = groups.every((group) => group.emulated);
    const { instances, cores } = groups[0].runs[0].report;
    const measure = emulated ? "Seconds that batches waited for their slowest instance"
      : !groups.every((group) => group.takeTurns) ? "Seconds"
        : `${plural(instances, "instance")} took turns on ${plural(cores, "core")}, so the clock cannot show how even their `
          + "work is. Seconds that the busiest instance of each batch worked, added up";
    return make("section", { "aria-labelledby": "cmp-ranking" },
      make("h2", { id: "cmp-ranking" }, "Ranking by time"),
      make("p", { class: "cmp-note" },
        `${measure}: shorter is better. Beside each bar: rows/s of the run.`),
      make("div", { class: "cmp-panels" }, ...groups.map((group) => rankingOf(group, tools))));
  }

  function rankingOf(group, tools) {
    const top = most(group.runs.map((run) => run.time ?? 0)) || 1;
    const bars = group.runs.map((run) => {
      const bar = make("span", { class: "cmp-bar" });
      bar.style.width = `${(100 * (run.time ?? 0)) / top}%`;
      bar.style.background = tools.colour(run.layout);
      const mark = make("span", { class: "cmp-base" });
      mark.style.left = `${(100 * (group.base.time ?? 0)) / top}%`;
      const rate = given(run.report.rows_per_s);
      return make("li", { "data-layout": run.layout, "data-value": run.time },
        tools.opener(run),
        make("span", { class: "cmp-track", "aria-hidden": "true" }, bar, mark),
        make("span", { class: "cmp-time" }, duration(run.time)),
        make("span", { class: "cmp-rate" }, `${count(rate)}/s`));
    });
    const note = group.emulated ? "slowest instance" : group.takeTurns ? "busiest instance" : "whole run, by the clock";
    return make("div", { class: "cmp-rank", "data-group": group.name },
      make("h3", {}, group.name, make("small", {}, ` ${note}; dashed: ${group.base.layout}`)),
      make("ol", {}, ...bars));
  }

  // ---- load over the instances

  function loads(groups, tools) {
    // The greatest skew tells layouts apart best.
    const zipf = (group) => group.base.zipf ?? 0;
    const first = groups.reduce((top, group) => (zipf(group) > zipf(top) ? group : top));
    const panels = make("div", { class: "cmp-panels cmp-loads" });
    const show = (group) => {
      const top = most(group.runs.flatMap((run) => run.loads.map((row) => most(row.loads)))) || 1;
      panels.replaceChildren(...group.runs.map((run) => panel(run, top, tools)));
      paintHeat(panels);
    };
    const choice = make("select", { id: "cmp-choice", change: () => show(groups[choice.selectedIndex]) },
      ...groups.map((group) => make("option", {}, group.name)));
    choice.selectedIndex = groups.indexOf(first);
    show(first);
    const widths = groups.flatMap((group) => group.runs).map(widthOf);
    const forms = [
      widths.some((n) => n < HEAT_FROM) ? "All panels have the same scale. Each line is an instance; the dashed line is the mean." : null,
      widths.some((n) => n >= HEAT_FROM) ? `From ${HEAT_FROM} instances on a row per instance, coloured by its load `
        + `over the mean, to ${HEAT_STOPS.at(-1)} times the mean.` : null,
    ].filter(Boolean);
    // A canvas does not follow the colours of its style sheet by itself.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paintHeat(panels));
    return make("section", { "aria-labelledby": "cmp-loads" },
      make("h2", { id: "cmp-loads" }, "Load over the instances"),
      groups.length < 2 ? null : make("p", {}, make("label", { for: "cmp-choice" }, "Runs of "), choice),
      make("p", { class: "cmp-note" }, `Tuples that each instance received, batch by batch. ${forms.join(" ")}`),
      panels);
  }

  /** How many instances a run had at most. */
  function widthOf(run) { return most(run.loads.map((row) => row.loads.length)); }

  function panel(run, top, tools) {
    const later = run.later === null ? "" : `, ${ratio(run.later)} later`;
    const skews = run.first === null ? "no tuples" : `skew ${ratio(run.first)} at first${later}`;
    const read = make("p", { class: "cmp-read" }, skews);
    const figure = make("figure", { "data-layout": run.layout }, make("figcaption", {}, tools.opener(run)));
    if (run.loads.length) {
      const width = widthOf(run);
      const label = `Tuples received by ${width} instances under ${run.layout}: ${skews}; `
        + `at most ${count(most(run.loads.map((row) => most(row.loads))))} in a batch`;
      const cursor = make("svg:line", { class: "cmp-cursor", y1: 0, y2: HIGH, visibility: "hidden" });
      const chart = make("svg:svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none" }, cursor);
      const frame = make("div", { class: "cmp-chart", role: "img", "aria-label": label, tabindex: 0 });
      if (width < HEAT_FROM) {
        drawLines(chart, run, width, top, tools.colour(run.layout));
        frame.append(make("span", { class: "cmp-top", "aria-hidden": "true" }, count(top)));
      }
      else frame.append(make("canvas", { width: run.loads.length, height: width }));
      frame.append(chart);
      frame.querySelectorAll("canvas").forEach((canvas) => { canvas.rows = run.loads; });
      readable(frame, cursor, read, skews, run.loads);
      figure.append(frame, axis(run.loads));
    }
    figure.append(read);
    return figure;
  }

  function axis(rows) {
    const [from, to] = [rows[0].first, rows.at(-1).last].map(count);
    return make("p", { class: "cmp-axis", "aria-hidden": "true" },
      make("span", {}, `batch ${from}`), from === to ? null : make("span", {}, to));
  }

  function across(n, length) { return length < 2 ? WIDE / 2 : (n * WIDE) / (length - 1); }

  function drawLines(chart, { loads: rows }, width, top, colour) {
    const up = (load) => (HIGH - 1 - (load * (HIGH - 3)) / top).toFixed(1);
    for (const share of [0, 0.5, 1]) {
      const y = up(top * share);
      chart.prepend(make("svg:line", { class: "cmp-grid", x1: 0, x2: WIDE, y1: y, y2: y }));
    }
    const line = (value) => {
      let path = "", pen = "M";
      rows.forEach((row, n) => {
        const load = value(row.loads);
        // An instance that is not there breaks its line; one batch alone is a dash.
        if (load !== undefined) path += `${pen}${across(n, rows.length).toFixed(1)} ${up(load)}`;
        pen = load === undefined ? "M" : "L";
      });
      return rows.length === 1 ? `${path}h-40h80` : path;
    };
    for (let i = 0; i < width; i++) {
      const path = make("svg:path", { class: "cmp-line", d: line((then) => then[i]), "data-instance": i });
      path.style.stroke = colour;
      chart.append(path);
    }
    chart.append(make("svg:path", { class: "cmp-mean", d: line((then) => summary(then).mean) }));
  }

  function paintHeat(panels) {
    const colours = heatColours();
    for (const canvas of panels.querySelectorAll("canvas")) {
      const picture = new ImageData(canvas.width, canvas.height);
      canvas.rows.forEach(({ loads: row }, x) => {
        const { mean } = summary(row);
        row.forEach((load, y) => {
          const place = Math.min(1, load / mean / HEAT_STOPS.at(-1)) * (colours.length - 1);
          picture.data.set([...colours[Math.round(place)], 255], 4 * (y * canvas.width + x));
        });
      });
      canvas.getContext("2d").putImageData(picture, 0, 0);
    }
  }

  /** Figures of the batch under the pointer, or under a cursor that the arrow keys move. */
  function readable(frame, cursor, read, atRest, rows) {
    let at = null;
    const show = (n) => {
      at = n === null ? null : Math.max(0, Math.min(rows.length - 1, n));
      cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
      read.textContent = atRest;
      if (at === null) return;
      const { greatest, busiest, mean, skew } = summary(rows[at].loads);
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, across(at, rows.length));
      read.textContent = `${batchName(rows[at])}: most ${count(greatest)} (instance ${busiest}), `
        + `mean ${count(mean)}, skew ${ratio(skew)}`;
    };
    frame.addEventListener("pointermove", (event) => {
      const box = frame.getBoundingClientRect();
      show(Math.round(((event.clientX - box.left) / box.width) * (rows.length - 1)));
    });
    frame.addEventListener("pointerleave", () => show(null));
    frame.addEventListener("blur", () => show(null));
    frame.addEventListener("focus", () => {
      if (at === null && frame.matches(":focus-visible")) show(rows.length - 1);
    });
    frame.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (steps === undefined) return;
      event.preventDefault();
      event.stopPropagation(); // the page below moves through time with the same keys
      show((at ?? rows.length) + steps);
    });
  }

  // ---- the table

  function table(groups, tools) {
    const ours = groups.flatMap((group) => group.runs);
    const queries = new Set(ours.map((run) => run.query));
    const empty = (value) => ours.every((run) => value(run) === null);
    const shown = COLUMNS.filter(([field, , value]) => (field === "query" ? queries.size > 1 : true)
      && !(["zipf", "slowest_instance_s", "busiest", "busy"].includes(field) && empty(value)));
    const body = make("tbody", {}, ...ours.map((run) => rowOf(run, shown, tools)));
    const heads = shown.map((column, n) => headOf(column, n, body));
    const meanings = shown.filter(([, , , , , meaning]) => meaning);
    return make("section", { "aria-labelledby": "cmp-figures" },
      make("h2", { id: "cmp-figures" }, "Figures"),
      make("p", { class: "cmp-note" }, "Click a title to sort, or a layout to open its run."),
      make("div", { class: "cmp-scroll", tabindex: 0, role: "region", "aria-labelledby": "cmp-figures" },
        make("table", { class: "cmp-table" },
          make("caption", {}, "A row per run"),
          make("thead", {}, make("tr", {}, ...heads)), body)),
      make("details", {}, make("summary", {}, "What the columns mean"),
        make("dl", {}, ...meanings.flatMap(
          ([, title, , , , meaning]) => [make("dt", {}, title), make("dd", {}, meaning)]))));
  }

  function rowOf(run, shown, tools) {
    const cells = shown.map(([field, , value, text]) => {
      const exact = value(run) ?? null;
      const told = exact === null ? UNKNOWN : text(exact);
      const attributes = { "data-field": field, "data-value": exact };
      if (field === "layout") return make("th", { scope: "row", ...attributes }, tools.opener(run));
      return make("td", { ...attributes, class: TEXTS.includes(field) ? null : "cmp-number" }, told);
    });
    return make("tr", { "data-run": run.index, "data-layout": run.layout, "data-valid": run.valid }, ...cells);
  }

  function headOf([field, title, , , direction, meaning], column, body) {
    const press = () => {
      const now = { ascending: -1, descending: 1 }[head.getAttribute("aria-sort")] ?? direction;
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", now > 0 ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => order(a.cells[column], b.cells[column], now)));
    };
    const attributes = { title: meaning || null, class: TEXTS.includes(field) ? null : "cmp-number" };
    const head = make("th", { scope: "col", "data-field": field, ...attributes },
      make("button", { type: "button", click: press }, title));
    return head;
  }

  /** Figures that are not known come last, whichever way is sorted. */
  function order(one, other, direction) {
    const [a, b] = [one, other].map((cell) => cell.dataset.value);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const difference = Number(a) - Number(b);
    return direction * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
  }

  // ---- all of it

  window.joinengineCompare = (root, reports, openRun, { verdict = [], hues = {} } = {}) => {
    const runs = reports.map(runOf), groups = groupsOf(runs);
    const layouts = [...new Set(runs.map((run) => run.layout))];
    const tools = {
      // A hue says which layout it is only while there are enough of them; the name always does.
      colour: (layout) => (layouts.length > COLOURS ? "var(--accent)" : `var(--c${hues[layout] ?? layouts.indexOf(layout)})`),
      opener: (run) => {
        const attributes = { type: "button", class: "cmp-open", title: `open the run under ${run.layout}` };
        return make("button", { ...attributes, click: () => openRun(run.index) }, run.layout);
      },
    };
    // The same layout stands in several places: pointing at one of them shows the others.
    const mark = (event) => {
      const layout = event.target.closest?.("[data-layout]")?.dataset.layout;
      for (const one of root.querySelectorAll("[data-layout]")) {
        one.classList.toggle("cmp-same", one.dataset.layout === layout);
      }
    };
    for (const kind of ["pointerover", "pointerleave", "focusin"]) root.addEventListener(kind, mark);
    const sentences = verdict.map((text) => make("li", {}, text));
    root.classList.add("cmp");
    root.replaceChildren(
      heading(runs, layouts),
      ...(verdict.length ? [make("ul", { class: "cmp-verdict" }, ...sentences)] : []), ranking(groups, tools), loads(groups, tools), table(groups, tools));
    return groups[0].runs[0].index;
  };
})();
