"""Advises which layout to use for a user's stream, by the load under each layout.

A layout is judged by its busiest instance, since the slowest one decides how long a batch takes:
the tuples delivered to it, over the tuples that each instance would receive if all loads were level
and no tuple went to two instances. So a layout that levels loads by sending everything twice gains
nothing. Planners are judged after the first interval, before which none has seen a load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from joinengine.lab.simulation.key_files import HotKey
from joinengine.lab.simulation.planning import judged
from joinengine.layouts import choose

#: Up to this `busiest`, loads under `hash` count as level.
LEVEL = 1.10
#: A layout that is better than `hash` by less than this factor is not worth its moves.
AS_GOOD = 1.05


class Verdict(NamedTuple):
    """The loads of a stream under a layout; `busiest` as in the head of the module."""

    layout: str
    busiest: float
    deliveries: float
    moved_rows: float
    replans: int
    tuples: float

    @property
    def cost(self) -> float:
        """`busiest`, and a delivery for each tuple of the state that moves."""
        return self.busiest + self.moved_rows / self.tuples


def verdict(report: dict[str, Any]) -> Verdict:
    """The verdict on one report of a planner or a candidate layout."""
    rows = judged(report["intervals"])
    tuples = sum(row["rows"] for row in rows)
    busiest = sum(row["busiest"] for row in rows) / (tuples / report["instances"])
    deliveries = sum(row["deliveries"] for row in rows) / tuples
    moved = sum(row.get("moved_rows", 0.0) for row in report["intervals"])
    replans = report.get("replans", 0)
    return Verdict(report["planner"], busiest, deliveries, moved, replans, tuples)


def recommended(verdicts: Sequence[Verdict]) -> Verdict:
    """The layout to use: the cheapest; but `hash` or else `auto` if they cost hardly more.

    `hash` also if it is level. `auto` is the default of a run, where it weighs measured costs, too.
    """
    by_hash = next(verdict for verdict in verdicts if verdict.layout == "hash")
    best = min(verdicts, key=lambda verdict: verdict.cost)
    if by_hash.cost <= max(LEVEL, best.cost * AS_GOOD):
        return by_hash
    auto = (verdict for verdict in verdicts if verdict.layout == "auto")
    return next((verdict for verdict in auto if verdict.cost <= best.cost * AS_GOOD), best)


def advice(
    verdicts: Sequence[Verdict],
    hot: HotKey,
    tuples: int,
    instances: int,
    stopped: Sequence[str] = (),
) -> str:
    """The layout to use, and why; `hot`: the heaviest key of the `tuples` tuples.

    `stopped`: layouts that used up their budget and have no figures.
    """
    by_hash = next(verdict for verdict in verdicts if verdict.layout == "hash")
    busiest = f"the busiest of {instances} instances receives {by_hash.busiest:.2f} times its share"
    ended = f"{' and '.join(stopped)} used up the time limit (--budget)"
    if stopped and len(verdicts) == 1 and by_hash.busiest > LEVEL:
        return (
            f"No layout can be advised: under hash, {busiest}, but {ended}, and no other layout "
            f"was simulated. Give a larger --budget, or name faster layouts."
        )
    words = _taken(verdicts, by_hash, busiest, hot, tuples, instances)
    return f"{words} Not judged: {ended}." if stopped else words


def _taken(
    verdicts: Sequence[Verdict],
    by_hash: Verdict,
    busiest: str,
    hot: HotKey,
    tuples: int,
    instances: int,
) -> str:
    """The layout to take of those that were simulated, and why; `busiest`: under hash, in words."""
    chosen = recommended(verdicts)
    if chosen.layout == "hash":
        others = [verdict for verdict in verdicts if verdict.layout != "hash"]
        best = min(others, key=lambda verdict: verdict.busiest, default=None)
        if best is None:
            return f"Take hash. Under hash, {busiest}."
        return (
            f"Take hash. Under hash, {busiest}. No other layout does much better "
            f"(the best, {best.layout}: {best.busiest:.2f})."
        )
    part = hot.rows / tuples
    why = f"several heavy keys share one instance (the heaviest, key {hot.key}, has {part:.1%})"
    if part * instances > 1:
        why = f"key {hot.key} has {part:.1%} of the rows"
    whole = choose(chosen.layout).keeps_keys_whole
    how = "moves whole keys" if whole else "divides keys"
    does = [how, f"sends each row to {chosen.deliveries:.2f} instances on average"]
    if chosen.moved_rows:
        does.append(f"moves {chosen.moved_rows:,.0f} rows")
    name = chosen.layout
    words = (
        f"Take {name}. Under hash, {busiest}, because {why}. Under {name}, the busiest "
        f"receives {chosen.busiest:.2f} times its share. {name[:1].upper()}{name[1:]} "
        f"{', '.join(does[:-1])}{',' * (len(does) > 2)} and {does[-1]}."
    )
    saves = " A run divides a key only if this saves more time than it costs."
    return words + saves * (name == "auto")
