// Numbers, times and units in words, and elements of the document made from plain text.
//
// All files of this folder run in one scope, in the order that page.py lists. What comes from a
// run goes into the document as text only, never as markup.

const UNKNOWN = "–";
// One notation for every reader, so that two people who compare their screens see the same.
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const TENTH = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const TWO = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const BYTES = ["bytes", "KB", "MB", "GB", "TB", "PB"];
const SVG = "http://www.w3.org/2000/svg";

/** Whether x is a number that can be drawn; a report may lack any figure. */
function known(x) {
  return typeof x === "number" && Number.isFinite(x);
}

/** A number of things; small means keep a digit, so that a mean above nothing is not shown as 0. */
function count(n) {
  if (!known(n)) return UNKNOWN;
  return Number.isInteger(n) || Math.abs(n) >= 10 ? WHOLE.format(n) : TENTH.format(n);
}

function ratio(x) {
  return known(x) ? TWO.format(x) : UNKNOWN;
}

function percent(x) {
  if (!known(x)) return UNKNOWN;
  return `${(100 * x).toFixed(x < 0.0995 && x > 0 ? 1 : 0)} %`;
}

/** For axes, where 12,345,678 would be wider than the chart. */
function short(n) {
  return known(n) ? SHORT.format(n) : UNKNOWN;
}

/** Powers of 1,000, as disks are sold and Spark's own page shows. */
function bytes(n) {
  if (!known(n)) return UNKNOWN;
  const power = n < 1000 ? 0 : Math.min(Math.floor(Math.log10(n) / 3), BYTES.length - 1);
  const value = n / 1000 ** power;
  return `${power && value < 99.95 ? value.toFixed(1) : WHOLE.format(value)} ${BYTES[power]}`;
}

/** Seconds in the two greatest units that say something. */
function duration(s) {
  if (!known(s)) return UNKNOWN;
  if (s < 0) return `−${duration(-s)}`;
  if (s === 0) return "0 s";
  if (s < 0.001) return `${Math.max(1, Math.round(s * 1e6))} µs`;
  if (s < 0.9995) return `${(s * 1000).toFixed(s < 0.00995 ? 1 : 0)} ms`;
  if (s < 59.95) return `${s.toFixed(s < 9.995 ? 2 : 1)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const rounded = Math.round(s);
  const at = units.findIndex(([size]) => rounded >= size);
  const [[size, unit], [next, part]] = [units[at], units[at + 1]];
  const rest = Math.floor((rounded % size) / next);
  return `${count(Math.floor(rounded / size))} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
}

/** Seconds since the epoch -> "2026-11-22 07:30:00"; always UTC, and said so where it is shown. */
function instant(s) {
  if (!known(s)) return UNKNOWN;
  const date = new Date(s * 1000);
  // Event time may lie outside of what a Date can hold: then the plain number is the truth.
  return Number.isNaN(date.getTime()) ? `${s} s` : date.toISOString().slice(0, 19).replace("T", " ");
}

function clock(s) {
  return known(s) ? instant(s).slice(-8) : UNKNOWN;
}

/** "batch 12", or "batches 12 to 15" where an entry stands for several. */
function batchName(entry) {
  return entry.first === entry.last ? `batch ${count(entry.first)}`
    : `batches ${count(entry.first)} to ${count(entry.last)}`;
}

function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${count(n) === "1" ? one : many}`;
}

/** The first few of a list; a table cell with 1,000 instances would hide the table. */
function some(list, most = 12) {
  const named = list.slice(0, most).join(", ");
  return list.length > most ? `${named} and ${count(list.length - most)} more` : named;
}

/** An element. `given`: attributes (null: left out) and, where the value is a function, listeners. */
function make(name, given = {}, ...content) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...content.filter((part) => part !== null && part !== undefined));
  return made;
}

/** A figure that a program can read too: the text is rounded, `data-value` is not. */
function figure(field, value, text, given = {}) {
  const exact = value === null || value === undefined ? "" : String(value);
  return make("span", { ...given, "data-field": field, "data-value": exact }, text);
}

/** A card of the page: a heading, an optional control beside it, and what `content` has. */
function card(id, title, control, ...content) {
  const head = make("div", { class: "card-head" }, make("h2", { id: `${id}-title` }, title), control);
  return make("section", { class: "card", id, "aria-labelledby": `${id}-title` }, head, ...content);
}

/** A table with a caption; `columns`: [title, class]. Its body is filled by the caller. */
function table(caption, columns, given = {}) {
  const heads = columns.map(([title, css]) => make("th", { scope: "col", class: css }, title));
  const body = make("tbody");
  const whole = make("table", given, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...heads)), body);
  // The box scrolls sideways, and so it must be reachable by keyboard.
  const box = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole);
  return { box, body };
}

/** A list of terms and values: [[term, content], ..]; pairs without content are left out. */
function terms(pairs, given = {}) {
  const there = pairs.filter(([, content]) => content !== null && content !== undefined && content !== "");
  return make("dl", given, ...there.map(([term, content]) => make("div", {}, make("dt", {}, term), make("dd", {}, content))));
}
