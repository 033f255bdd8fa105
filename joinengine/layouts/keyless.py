"""Matrix or biclique, for predicates without keys: whichever costs the busiest instance less.

Why: under a matrix each tuple is stored and sent along a line of about sqrt(N) cells; under
a biclique it is stored once and sent to all instances of the other side. A matrix sends less, and
uses a power of two of the instances; a biclique stores less, and uses all.

How: both are priced for the tuples and pairs of the last interval, each in its best shape. The
other kind is taken if it saves enough to repay moving the whole state. Within its kind, a layout
adapts its shape as `dynamic` and `bi` do.

Law: a function of the layout and of the history.
Source: Elseidy et al., PVLDB 2014; Lin et al., SIGMOD 2015. Ours: the choice by measured costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from joinengine.balancing.reasons import Balance, Cause, Cost, Reason
from joinengine.balancing.statistics import Interval
from joinengine.layouts import biclique, matrix
from joinengine.layouts.biclique import Bi, Biclique, sized
from joinengine.layouts.layout import Layout, LayoutChoice, Plan
from joinengine.layouts.matrix import Dynamic, Grid
from joinengine.model.keys import PAIR

#: The other kind must cost the busiest instance less by this factor.
CLEARLY = 1.25


class Traffic(NamedTuple):
    """The tuples and costs of an interval.

    `left` and `right`: tuples of each side. `routed`, `stored` and `probed`: seconds for a tuple at
    one instance. `pairs`: seconds for all pairs. `hosts`: how many tasks host the instances; 0:
    each has its own. If work is not weighed, all costs are in tuples.
    """

    left: float
    right: float
    routed: float
    stored: float
    probed: float
    pairs: float
    hosts: int


@dataclass(frozen=True, slots=True)
class Option:
    """A layout, and how long its busiest instance, or its busiest task, would work."""

    layout: Grid | Biclique
    seconds: float


def start(instances: int) -> Grid | Biclique:
    """The layout before the first batch: only pairs are taken to cost, half at each side."""
    return cheapest(instances, Traffic(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0), None).layout


def choice_of(layout: Layout) -> LayoutChoice:
    """The choice whose layouts are of the same kind."""
    return Dynamic() if isinstance(layout, Grid) else Bi()


def resized(layout: Layout, instances: int) -> Layout:
    """The layout resized by the rule of its kind; a biclique needs at least two instances."""
    choice = choice_of(layout)
    if instances < choice.least_instances(instances):
        return Dynamic().start(instances)
    return choice.resized(layout, instances)


def restore(state: dict[str, Any]) -> Layout:
    """A layout from the manifest."""
    return (Dynamic() if "cells" in state else Bi()).restore(state)


def plan(
    layout: Grid | Biclique, history: Sequence[Interval], wanted: int, life: float
) -> Plan | None:
    """The plan after the last interval; `life`: for how many intervals it is expected to hold.

    `wanted`: how many instances there are, of which a matrix may use only a part.
    """
    newest = history[-1]
    traffic = _traffic(layout, newest)
    now, best = _of(layout, traffic), cheapest(wanted, traffic, layout)
    if type(best.layout) is not type(layout):
        moved = _held(layout, newest)
        row = (traffic.routed + traffic.stored) / best.layout.instances
        if (now.seconds - best.seconds) * life > moved * row:
            words = _in_words(layout), _in_words(best.layout)
            # As for other planners, loads are in tuples of equal cost.
            each = traffic.routed + traffic.stored + traffic.probed
            before, after = (
                Balance(load, load) for load in (now.seconds / each, best.seconds / each)
            )
            reason = Reason(Cause.SHAPE, before, after, Cost(moved), shapes=words)
            return Plan(best.layout, reason, rehome=True)
    return choice_of(layout).plan(layout, history)


def cheapest(instances: int, traffic: Traffic, now: Layout | None) -> Option:
    """The cheaper kind in its best shape.

    `now`: the present layout, whose kind stays unless the other is clearly cheaper; None: a matrix.
    """
    grid = _best_grid(instances, traffic)
    if instances < 2:
        return grid
    sides = _best_biclique(instances, traffic)
    if isinstance(now, Biclique):
        return grid if grid.seconds * CLEARLY < sides.seconds else sides
    return sides if sides.seconds * CLEARLY < grid.seconds else grid


def _best_grid(instances: int, traffic: Traffic) -> Option:
    used = 1 << (instances.bit_length() - 1)
    cells = np.arange(used, dtype=np.uint16)
    shapes = [cells.reshape(1 << power, -1) for power in range(used.bit_length())]
    # The most square shape comes first and wins a tie, as when there are no tuples.
    shapes.sort(key=lambda grid: (abs(grid.shape[0] - grid.shape[1]), grid.shape[0]))
    return min((_of(Grid(grid), traffic) for grid in shapes), key=lambda option: option.seconds)


def _best_biclique(instances: int, traffic: Traffic) -> Option:
    half = instances // 2
    sizes = sorted(range(1, instances), key=lambda size: abs(size - half))
    left = min(sizes, key=lambda size: _of_sides(size, instances - size, traffic))
    return Option(sized(instances, left, 1), _of_sides(left, instances - left, traffic))


def _of(layout: Grid | Biclique, traffic: Traffic) -> Option:
    """The layout with its cost: its busiest instance, or the mean of tasks if that is more."""
    if isinstance(layout, Biclique):
        left, right = (len(layout.units(side)) for side in PAIR)
        return Option(layout, _of_sides(left, right, traffic))
    (rows, columns), n = layout.shape, layout.instances
    each = traffic.routed + traffic.stored + traffic.probed
    busiest = (traffic.left / rows + traffic.right / columns) * each + traffic.pairs / n
    return Option(layout, max(busiest, busiest * n / (traffic.hosts or n)))


def _of_sides(left: int, right: int, traffic: Traffic) -> float:
    """The cost of a biclique with `left` and `right` instances, as in `_of`."""
    sent, kept = traffic.routed + traffic.probed, traffic.routed + traffic.stored
    at_left = (traffic.left / left) * kept + traffic.right * sent
    at_right = (traffic.right / right) * kept + traffic.left * sent
    # The window decides which side's tuples find the pairs: half each, if it is wide.
    each_half = traffic.pairs / 2
    busiest = max(at_left + each_half / left, at_right + each_half / right)
    total = at_left * left + at_right * right + traffic.pairs
    return max(busiest, total / (traffic.hosts or left + right))


def _traffic(layout: Grid | Biclique, interval: Interval) -> Traffic:
    left, right = (float(interval.stored[side].sum()) / layout.copies(side) for side in PAIR)
    if interval.work is None:  # in tuples: those that are sent, and those that are stored
        return Traffic(left, right, 1.0, 1.0, 0.0, 0.0, 0)
    work = interval.work
    routed, stored, probed, candidate, result = work.costs.tolist()
    pairs = candidate * float(work.done[3].sum()) + result * float(work.done[4].sum())
    return Traffic(left, right, routed, stored, probed, pairs, work.hosts)


def _held(layout: Grid | Biclique, interval: Interval) -> float:
    """The number of tuples in the state, each counted once."""
    return sum(float(interval.state[side].sum()) / layout.copies(side) for side in PAIR)


def _in_words(layout: Grid | Biclique) -> str:
    if isinstance(layout, Grid):
        return matrix.in_words(layout.shape)
    return biclique.in_words(layout)
