"""Which layout serves a stream of the user's: what each would make of it, and one sentence.

A layout is judged by its busiest instance, since the slowest one decides how long a batch takes:
the tuples delivered to it over those that each instance would receive if all loads were level and
no tuple went to two instances. So a layout that levels loads by sending everything twice gains
nothing. Planners are judged after the first interval, in which none of them has seen a load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from joinengine.lab.simulation.key_files import HotKey
from joinengine.layouts import choose

#: Up to here loads under `hash` are called level.
LEVEL = 1.10
#: A layout that is better than `hash` by less than this factor is not worth its moves.
AS_GOOD = 1.05


class Verdict(NamedTuple):
    """What a layout makes of a stream; `busiest` as in the head of the module."""

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
    if "intervals" in report:
        rows = report["intervals"][1:] or report["intervals"]
        tuples = sum(row["rows"] for row in rows)
        instances = report["instances"]
        busiest = sum(row["busiest"] for row in rows) / (tuples / instances)
        deliveries = sum(row["deliveries"] for row in rows) / tuples
        moved = sum(row["moved_rows"] for row in report["intervals"])
        return Verdict(report["planner"], busiest, deliveries, moved, report["replans"], tuples)
    received, tuples = report["received_per_instance"], report["messages"]
    fair = tuples / report["instances"]
    return Verdict(report["planner"], max(received) / fair, sum(received) / tuples, 0.0, 0, tuples)


def recommended(verdicts: Sequence[Verdict]) -> Verdict:
    """The layout to take: the cheapest, or `hash` if that is level or hardly dearer."""
    by_hash = next(one for one in verdicts if one.layout == "hash")
    best = min(verdicts, key=lambda one: one.cost)
    return by_hash if by_hash.cost <= max(LEVEL, best.cost * AS_GOOD) else best


def advice(verdicts: Sequence[Verdict], hot: HotKey, tuples: int, instances: int) -> str:
    """One sentence: the layout to take, and why; `hot` is the heaviest of the keys of `tuples`."""
    chosen = recommended(verdicts)
    by_hash = next(one for one in verdicts if one.layout == "hash")
    busiest = f"the busiest of {instances} instances receives {by_hash.busiest:.2f} times its share"
    if chosen.layout == "hash":
        others = [one for one in verdicts if one.layout != "hash"]
        best = min(others, key=lambda one: one.busiest, default=None)
        if best is None:
            return f"Take hash: {busiest}."
        return (
            f"Take hash: {busiest}, and no layout does much better "
            f"(the best, {best.layout}: {best.busiest:.2f})."
        )
    part = hot.rows / tuples
    share = part * instances
    why = f"heavy keys meet at one instance (the heaviest, {hot.key}, has {part:.1%} of the tuples)"
    if share > 1:
        why = (
            f"key {hot.key} alone has {part:.1%} of the tuples, {share:.1f} times what an instance "
            f"should receive"
        )
    whole = choose(chosen.layout).keeps_keys_whole
    how = "moves whole keys" if whole else "divides keys"
    moved = f", and {chosen.moved_rows:,.0f} tuples moved" if chosen.moved_rows else ""
    return (
        f"Take {chosen.layout}: under hash {busiest}, since {why}; {chosen.layout} {how}, and the "
        f"busiest receives {chosen.busiest:.2f} times its share, at {chosen.deliveries:.2f} "
        f"deliveries a tuple{moved}."
    )
