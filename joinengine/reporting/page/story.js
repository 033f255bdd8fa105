// The story of a run: what the page knows, and the questions that its views ask.
//
// The story is the JSON value that joinengine/reporting/story.py describes. Here is no drawing and
// no document. Where an entry stands for several batches, sums are shown as means per batch: else
// the newest entry, which may hold fewer batches, would look like a drop of the load.

// The first one is what a batch waits for, and what is shown unless the reader asks for another.
const MEASURES = {
  busy: { title: "busy", unit: "seconds", text: duration, axis: durationTicks,
    meaning: "working time of the instance in this batch" },
  received: { title: "received", unit: "tuples", text: count, axis: countTicks,
    meaning: "tuples that the instance received in this batch, to store or to probe" },
  stored: { title: "stored", unit: "tuples", text: count, axis: countTicks,
    meaning: "copies of tuples that the instance holds after this batch" },
};
const FIRST_MEASURE = Object.keys(MEASURES)[0];
const STEPS = [
  ["route", "reading, filtering and routing the rows"],
  ["join", "the jobs of all operators: moves, probing, storing, results"],
  ["plan", "planning the layouts of the next batch"],
  ["commit", "writing the manifest and the counts"],
  ["sink", "making the results visible"],
  ["other", "Spark's own planning, logs and jobs"],
];
// The parts of the tasks' work; an operator of one's own may have others.
const WORK = {
  read: "receiving rows from Spark",
  route: "hashing the keys, and choosing the instances of each tuple",
  exchange: "writing tuples for the tasks of other instances, and reading them there",
  open: "opening the stored runs of the instances",
  move: "reading stored tuples that have moved here",
  sort: "sorting the arrived tuples by the hash of their keys",
  probe: "finding candidate pairs among the stored tuples",
  match: "testing the condition on candidate pairs",
  store: "writing the arrived tuples into the state",
  result: "making the results of pairs, and writing them",
  merge: "merging small stored runs into larger ones",
  count: "counting the tuples of keys, for plans and hot keys",
  watch: "noting which tuples have found a partner, for outer, semi and anti joins",
  emulated: "waiting for as long as the emulated work takes",
};
// From so many instances on, lines and bars cannot be told apart.
const HEAT_FROM = 65;

class Run {
  constructor(report, story) {
    this.report = report;
    this.version = 0; // grows whenever figures come in; views draw anew when it has
    this.replace(story);
  }

  /** Take `story` for all that was known before. */
  replace(story) {
    const whole = story ?? {};
    this.head = { query: whole.query ?? this.report?.query ?? null, started: whole.started ?? null };
    this.told = Boolean(story);
    this.operators = whole.operators ?? [];
    this.entries = whole.batches ?? [];
    this.plans = whole.plans ?? [];
    this.leftOut = whole.plans_left_out ?? 0;
    this.ended = whole.ended ?? null;
    this.version += 1;
  }

  /** Take in the newest batch: a new entry, or the last one with one batch more in it. */
  append(newest) {
    const entry = newest.batch;
    // Spark tells only later how long a batch took in all.
    const { corrected } = newest;
    if (corrected) {
      const at = this.entries.findLastIndex((one) => one.first === corrected.first);
      if (at >= 0) this.entries[at] = corrected;
    }
    const last = this.entries.at(-1);
    if (entry && last && last.first === entry.first) this.entries[this.entries.length - 1] = entry;
    else if (entry) this.entries.push(entry);
    for (const plan of newest.plans ?? []) this.takePlan(plan);
    this.leftOut = newest.plans_left_out ?? this.leftOut;
    this.version += 1;
  }

  /** A plan comes a second time when the batch after it has told what it achieved. */
  takePlan(plan) {
    const same = (one) => one.batch === plan.batch && one.join === plan.join;
    const at = this.plans.findLastIndex(same);
    if (at < 0) this.plans.push(plan);
    else this.plans[at] = plan;
  }

  end(ended) {
    this.ended = ended;
    this.version += 1;
  }
}

/** Index of the last of `entries` that begins at or before `batch`; 0 if there is none. */
function indexOfBatch(entries, batch) {
  let [lower, upper] = [0, entries.length];
  while (lower < upper) {
    const middle = (lower + upper) >> 1;
    if (entries[middle].first <= batch) lower = middle + 1;
    else upper = middle;
  }
  return Math.max(0, lower - 1);
}

function batchesOf(entry) {
  return Math.max(1, entry.last - entry.first + 1);
}

/** A figure that is added up over the batches of an entry, as the mean of a batch. */
function perBatch(entry, sum) {
  return known(sum) ? sum / batchesOf(entry) : null;
}

function rowsPerSecond(entry) {
  return entry.elapsed_s > 0 ? entry.input_rows / entry.elapsed_s : null;
}

/**
 * Seconds of event time by which the watermark is behind the newest tuple.
 *
 * A side that is ahead of the other, or that is known to bring nothing earlier, may let the watermark
 * pass the newest tuple: then nothing lags.
 */
function lagOf(join) {
  if (join?.ended || !known(join?.newest) || !known(join.watermark)) return null;
  return Math.max(0, (join.newest - join.watermark) / 1e6);
}

/** What each instance of an operator received, stored or worked in a batch of the entry. */
function loadsOf(entry, operator, measure) {
  const values = entry.joins?.[operator]?.[measure] ?? [];
  const n = measure === "stored" ? 1 : batchesOf(entry);
  return n === 1 ? values : values.map((value) => value / n);
}

/** Greatest, mean and load skew of loads; skew 1: all alike; null: nothing to do. */
function summary(loads) {
  let [total, greatest, busiest] = [0, 0, 0];
  loads.forEach((load, instance) => {
    total += load;
    if (load > greatest) [greatest, busiest] = [load, instance];
  });
  const mean = loads.length ? total / loads.length : 0;
  return { total, mean, greatest, busiest, skew: mean > 0 ? greatest / mean : null };
}

/** The runs of one query at one skew, fastest first; sets their ranks. */
function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    const name = run.zipf === null ? run.query : `${run.query}, Zipf ${run.zipf}`;
    if (!groups.has(name)) groups.set(name, { name, base: run, runs: [] });
    groups.get(name).runs.push(run);
  }
  for (const group of groups.values()) {
    group.emulated = group.runs.every((run) => run.slowest !== null);
    // Instances that take turns on a core: by the clock all layouts are alike, however balanced.
    group.takeTurns = !group.emulated
      && group.runs.every((run) => run.busiest !== null && run.report.instances > run.report.cores);
    const time = (run) => (group.emulated ? run.slowest : group.takeTurns ? run.busiest : run.elapsed);
    for (const run of group.runs) run.time = time(run);
    group.runs.sort((a, b) => (a.time ?? Infinity) - (b.time ?? Infinity) || a.index - b.index);
    group.runs.forEach((run, place) => { run.rank = run.time === null ? null : place + 1; });
  }
  return [...groups.values()];
}

/** A skew of a report, of what was `received` or of seconds `busy`; null: not known, or nothing was received. */
function skewOf(report, part, of = "received") {
  const received = report.received_per_instance;
  const isIdle = Array.isArray(received) && !received.some((load) => load > 0);
  return isIdle ? null : report.load_skew?.[of]?.[part] ?? null;
}

/** The first operator that received half as much as the busiest: of a chain, where the work is. */
function mainOperator(run) {
  const sums = run.operators.map((_, i) => run.entries.reduce((sum, one) => sum + summary(one.joins?.[i]?.received ?? []).total, 0));
  const greatest = extent(sums)?.greatest ?? 0;
  return Math.max(0, sums.findIndex((sum) => sum >= greatest / 2));
}

/** The sum of a field over the entries up to `index`. */
function total(entries, index, field) {
  let sum = 0;
  for (let i = 0; i <= index; i += 1) sum += entries[i][field] ?? 0;
  return sum;
}

/** Least and greatest of the known values, in one walk: Math.max(...) fails on long lists. */
function extent(values) {
  let [least, greatest] = [Infinity, -Infinity];
  for (const value of values) {
    if (!known(value)) continue;
    if (value < least) least = value;
    if (value > greatest) greatest = value;
  }
  return least <= greatest ? { least, greatest } : null;
}

/** What a plan is on the time line: "re-plan", "instances" (their number changed), or "change". */
function kindOf(plan) {
  if (plan.instances && plan.instances[0] !== plan.instances[1]) return "instances";
  return plan.replan ? "re-plan" : "change";
}

/** "+2" or "−2": instances that joined or left with a plan. */
function growth(plan) {
  if (kindOf(plan) !== "instances") return "";
  const more = plan.instances[1] - plan.instances[0];
  return more > 0 ? `+${more}` : `−${-more}`;
}
