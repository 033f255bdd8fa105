"""The tables of `joinengine simulate`, with their legends, and its text on a user's stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from joinengine.lab.comparison.tables import figures_table
from joinengine.lab.simulation.advice import Verdict, advice, verdict
from joinengine.lab.simulation.key_files import StreamFile
from joinengine.lab.simulation.planning import Other, Served, Sizes
from joinengine.layouts import LAYOUTS

#: The means of a report -> a cell of the table.
Show = Callable[[dict[str, float]], str]
#: How many keys of a user's stream are listed.
LISTED = 10

PLANNED = (
    "before, after: greatest load / mean - 1, before and after the plan of an interval. migrated: "
    "part of the state that\nmoves. table: keys in the routing table. split: keys at several "
    "instances. probes: rows that go to a further instance\nonly to be compared. plan ms: time of "
    "the planner"
)
COSTS = (
    "keys moved, rows moved: mean of a re-plan. kB: size of the tasks' key reports, in three "
    "formats"
)
CHOSEN = (
    "I(m): greatest load minus mean load after all m rows. I(m)/m: the same, per row. mean I(t)/t: "
    "its mean over the stream.\ncounters: pairs of a key and an instance with state. replication: "
    "mean number of instances of a key. rows/s: at saturation,\nmodelled (--work-per-tuple)"
)
#: Under the table of layouts, by the other side of the join.
LEGEND = (
    "busiest: rows that the busiest instance receives, divided by its share under an even load "
    "(1.00 is best).\ndeliveries: mean number of instances that a row goes to. moved: stored rows "
    "that change instance.\nThe first interval is left out, because planners have seen no load yet."
)
NOT_SIMULATED = (
    "dynamic, bi and bi-k are not simulated, because they do not plan by the loads of keys."
)
OTHERS = {
    Other.EVEN: "Assumes that the other stream has as many rows, spread evenly over the keys "
    "(--other same: over the same hot keys).",
    Other.SAME: "Assumes that the other stream has as many rows of each key, so that rows of a "
    "divided key go to more instances.",
}


def tell_stream(
    stream: StreamFile,
    reports: Sequence[dict[str, Any]],
    stopped: Sequence[str],
    sizes: Sizes,
    say: Callable[[Any], None],
) -> dict[str, Any]:
    """Print which keys are hot, the loads under each layout, and which layout to use.

    `stopped`: planners that used up their budget. Returns the same as entries of the report.
    """
    hot, tuples, instances = stream.hottest(LISTED), stream.tuples, sizes.instances
    without, what = stream.without_key, "key" if stream.time is None else "key or a time"
    lacking = f", {without:,} of them without a {what}, which no layout stores" if without else ""
    say(
        f"{stream.path}: {tuples + without:,} rows{lacking}; {stream.distinct:,} keys in "
        f"{', '.join(stream.columns)}, {stream.length} intervals\n"
    )
    keys = _table("hottest keys", ["key", "rows", "share", "times an instance's share"])
    for key in hot:
        part = key.rows / tuples
        keys.add_row(key.key, f"{key.rows:,}", f"{part:.2%}", f"{part * instances:.2f}")
    say(keys)
    verdicts = [verdict(report) for report in reports if _is_layout(report["planner"])]
    say(_verdicts(verdicts, instances))
    assumed = [OTHERS[sizes.other]] if sizes.operator is Served.JOIN else []
    words = [LEGEND, *assumed, *_sampled(reports), NOT_SIMULATED]
    say("\n".join(words))
    unjudged = [name for name in stopped if _is_layout(name)]
    sentence = advice(verdicts, hot[0], tuples, instances, unjudged)
    say(f"\n{sentence}")
    return {
        "hot_keys": [{"key": key.key, "rows": key.rows, "share": key.rows / tuples} for key in hot],
        "layouts": [judged._asdict() for judged in verdicts],
        "advice": sentence,
    }


def _sampled(reports: Sequence[dict[str, Any]]) -> list[str]:
    """The sentence on the rows that candidate layouts placed, unless they placed all."""
    some = [report for report in reports if report.get("placed", 0) < report.get("stream_rows", 0)]
    if not some:
        return []
    names, first = ", ".join(report["planner"] for report in some), some[0]
    return [
        f"{names}: judged on {first['placed']:,} of {first['stream_rows']:,.0f} rows, drawn evenly "
        f"from all intervals (--messages)."
    ]


def _is_layout(planner: str) -> bool:
    """Whether a planner is a layout of the engine, not only a candidate layout of a paper."""
    return planner.partition(":")[0] in LAYOUTS


def _verdicts(verdicts: Sequence[Verdict], instances: int) -> Table:
    """One line for each layout, the best first."""
    columns = ["layout", "busiest", "deliveries", "moved", "re-plans"]
    table = _table(f"load under each layout, on {instances} instances", columns)
    for judged in sorted(verdicts, key=lambda judged: judged.busiest):
        moved = f"{judged.moved_rows:,.0f}"
        cells = [f"{judged.busiest:.2f}", f"{judged.deliveries:.2f}", moved, str(judged.replans)]
        table.add_row(judged.layout, *cells)
    return table


def tables(reports: Sequence[dict[str, Any]]) -> list[tuple[Table, str]]:
    """Tables of the planners and of the candidate layouts, if there are any; each with a legend."""
    titled = list[tuple[Table, str]]()
    planners = [report for report in reports if "messages" not in report]
    if planners:
        columns: dict[str, Show] = {
            "before": lambda mean: f"{mean['imbalance_before']:.3f}",
            "after": lambda mean: f"{mean['imbalance_after']:.3f}",
            "migrated": lambda mean: f"{mean['migration_cost']:.4f}",
            "table": lambda mean: f"{mean['table_size']:,.0f}",
            "split": lambda mean: f"{mean['split_keys']:.1f}",
            "probes": lambda mean: f"{mean['probe_copies']:,.0f}",
            "plan ms": lambda mean: f"{1e3 * mean['plan_s']:.1f}",
        }
        table = _table(
            "imbalance before and after, state migrated: means over the intervals",
            ["planner", *columns, "re-plans"],
        )
        for report in planners:
            cells = [show(report["mean"]) for show in columns.values()]
            table.add_row(report["planner"], *cells, str(report["replans"]))
        titled += [(table, PLANNED), (_costs(planners), COSTS)]
    choosers = [report for report in reports if "messages" in report]
    if choosers:
        table = _table(
            "candidate layouts",
            ["method", "I(m)", "I(m)/m", "mean I(t)/t", "counters", "replication", "rows/s"],
        )
        for report in choosers:
            table.add_row(
                report["planner"],
                f"{report['final_imbalance']:,.1f}",
                f"{report['relative_imbalance']:.2e}",
                f"{report['mean_relative_imbalance']:.2e}",
                f"{report['counters']:,}",
                f"{report['replication']:.2f}",
                f"{report['modelled_rows_per_s']:,.0f}" if report["modelled_rows_per_s"] else "-",
            )
        titled.append((table, "\n".join([CHOSEN, *_sampled(choosers)])))
    return titled


def _costs(planners: Sequence[dict[str, Any]]) -> Table:
    """The table of what re-plans move, and of the bytes that tasks report."""
    kinds = ("raw", "compact", "two_stage")
    columns = ["planner", "keys moved", "rows moved", *(f"{kind} kB" for kind in kinds)]
    rated = planners[0]["modelled_rows_per_s"] is not None
    table = _table(
        "moved by a re-plan; size of the reports of an interval: raw (by key), compact (by "
        "record), two_stage (loads first)" + ("; rows/s at saturation, modelled" if rated else ""),
        [*columns, *(["rows/s"] if rated else [])],
    )
    for report in planners:
        moved = report["per_replan"]
        table.add_row(
            report["planner"],
            f"{moved['moved_keys'] or 0:,.0f}",
            f"{moved['moved_rows'] or 0:,.0f}",
            *(f"{report['statistics_bytes'][kind] / 1e3:,.1f}" for kind in kinds),
            *([f"{report['modelled_rows_per_s']:,.0f}"] if rated else []),
        )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    return figures_table(columns, title, words=columns[:1])
