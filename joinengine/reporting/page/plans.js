// The plans: marks on the time axis, and a list in words, the newest first.

const PLANS_AT_ONCE = 50;
// [kind, sign, meaning]: the signs differ in form too, so that colour is never the only difference.
const PLAN_KINDS = [
  ["re-plan", "▲", "re-plan: a planner changed the layout for balance"],
  ["change", "◆", "change that was requested, or needed for capacity"],
  ["instances", "■", "instances joined or left"],
];

class PlanChart extends TimeChart {
  heightFor() { return MARGIN.top + MARGIN.bottom + 22 * PLAN_KINDS.length; }

  prepare({ plans, entries }) {
    this.byEntry = new Map();
    for (const plan of plans) {
      const at = indexOfBatch(entries, plan.batch);
      this.byEntry.set(at, [...(this.byEntry.get(at) ?? []), plan]);
    }
  }

  lane(kind) { return MARGIN.top + 22 * PLAN_KINDS.findIndex(([name]) => name === kind) + 11; }
  ticks() { return PLAN_KINDS.map(([kind, sign]) => [this.lane(kind), sign]); }

  plot() {
    return [...this.byEntry].flatMap(([at, plans]) => PLAN_KINDS.flatMap(([kind, sign]) => {
      const ours = plans.filter((plan) => kindOf(plan) === kind);
      if (!ours.length) return [];
      const text = kind === "instances" && this.slot * this.byEntry.size > 12 ? `${sign}${growth(ours.at(-1))}` : sign;
      return [make("svg:text", { class: `mark ${kind}`, x: this.x(at), y: this.lane(kind) + 5, "text-anchor": "middle" }, text)];
    }));
  }

  rows(index) {
    const plans = this.byEntry.get(index) ?? [];
    const told = plans.slice(0, 4).map((plan) => ["none", plan.cause ?? kindOf(plan), ""]);
    return told.length ? told : [["none", "no plan", ""]];
  }

  words({ plans, index }) {
    const here = this.byEntry?.get(index) ?? [];
    return `Plans over time: ${PLAN_KINDS.map(([kind]) => `${plans.filter((plan) => kindOf(plan) === kind).length} ${kind}`).join(", ")}; `
      + `at the shown moment: ${here.map((plan) => plan.words).join("; ") || "none"}`;
  }
}

class PlansView {
  constructor(app) {
    this.app = app;
    this.limit = PLANS_AT_ONCE;
    this.chart = new PlanChart("", { pick: app.pick });
    this.chart.legend.append(...PLAN_KINDS.map(([kind, sign, meaning]) =>
      make("span", {}, make("span", { class: `mark ${kind}`, "aria-hidden": "true" }, sign), ` ${meaning}`)));
    this.words = make("p", { class: "words" });
    this.list = make("ol", { class: "plans", reversed: "" });
    this.more = make("button", { type: "button", click: () => this.showMore() }, "more");
    this.left = make("p", { class: "words" });
    this.root = card("plans", "Plans and instances", null, this.chart.root, this.words, this.list, this.more, this.left);
  }

  showMore() {
    this.limit += PLANS_AT_ONCE;
    this.key = null;
    this.app.schedule();
  }

  update(scene) {
    const { run, operator, entries, entry, index, stamp } = scene;
    const last = entries.at(-1).last;
    const plans = run.plans.filter((plan) => plan.join === operator && plan.batch <= last + 1);
    this.chart.update({ n: entries.length, entries, index, plans, stamp: `${stamp}/${operator}` });
    const key = `${stamp}/${operator}/${this.limit}`;
    if (this.key !== key) this.fill(plans, run.leftOut);
    this.key = key;
    const isHere = (item) => Number(item.dataset.batch) >= entry.first && Number(item.dataset.batch) <= entry.last;
    for (const item of this.list.children) item.classList.toggle("here", isHere(item));
    if (this.shown !== entry.first) this.reveal([...this.list.children].find(isHere));
    this.shown = entry.first;
  }

  /** Bring the plan of the shown moment into sight, inside of the list only: the page stays where it is. */
  reveal(item) {
    if (!item) return;
    const [above, below] = [item.offsetTop - this.list.scrollTop, item.offsetTop + item.offsetHeight - this.list.scrollTop];
    if (above < 0 || below > this.list.clientHeight) this.list.scrollTop = item.offsetTop;
  }

  fill(plans, leftOut) {
    const shown = plans.slice(-this.limit).reverse();
    this.list.setAttribute("start", plans.length);
    this.list.replaceChildren(...shown.map((plan) => this.item(plan)));
    this.more.hidden = shown.length === plans.length;
    this.more.textContent = `${Math.min(PLANS_AT_ONCE, plans.length - shown.length)} more of ${count(plans.length - shown.length)}`;
    this.words.textContent = plans.length ? "" : "The layout has not changed.";
    this.left.textContent = leftOut ? `${plural(leftOut, "earlier plan")} of this query left out: only the newest are kept.` : "";
  }

  item(plan) {
    const kind = kindOf(plan);
    const [, sign] = PLAN_KINDS.find(([name]) => name === kind);
    const go = make("button", { type: "button", class: "link", click: () => this.app.goTo(plan.batch) }, `after batch ${count(plan.batch)}`);
    return make("li", { "data-batch": plan.batch, "data-cause": plan.cause, "data-kind": kind },
      make("div", { class: "when" }, make("span", { class: `mark ${kind}`, "aria-hidden": "true" }, sign), " ", go, ` ${clock(plan.at)} UTC`),
      make("div", {}, make("strong", {}, plan.cause ?? kind), growth(plan) ? ` (${growth(plan)} ${/^\D1$/.test(growth(plan)) ? "instance" : "instances"})` : "", ": ", plan.words ?? ""),
      make("div", { class: "more" }, this.effect(plan)), this.keys(plan));
  }

  /** The load skew, where the words of the plan do not have it. */
  effect(plan) {
    if (!known(plan.skew_before) || plan.words?.includes("load skew")) return "";
    return `load skew ${ratio(plan.skew_before)} → ${known(plan.skew_after) ? ratio(plan.skew_after) : "not known yet"}`;
  }

  keys(plan) {
    const keys = plan.keys ?? [];
    if (keys.length + (plan.more_keys ?? 0) < 2) return null;
    const named = keys.map((key) => make("li", {}, key.words.startsWith("key ") ? key.words : `${key.key ?? key.hash}: ${key.words}`));
    const rest = plan.more_keys ? [make("li", {}, `and ${plural(plan.more_keys, "key")} more`)] : [];
    return make("details", {}, make("summary", {}, plural(keys.length + (plan.more_keys ?? 0), "key")), make("ul", {}, ...named, ...rest));
  }
}
