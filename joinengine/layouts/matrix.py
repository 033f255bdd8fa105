"""The join-matrix: a grid of instances, where every left row meets every right column.

How: a left tuple belongs to a row, a right tuple to a column, by u alone; each is stored at all
instances of its line, and every pair meets in exactly one cell. No key, no skew; any predicate.
The grid's shape follows the sizes of the streams: rows * columns = instances, both powers of two,
with the least |left| / rows + |right| / columns, which is what each instance stores.

Law: load does not depend on keys. Cost: `columns` copies of a left tuple, `rows` of a right one.
Source: Elseidy et al., PVLDB 2014 (Dynamic), a rival in Fang et al., JOS 2017. Ours: the shape
changes only if it stores more than 1.25 times what the best shape would; the paper's rule (change
after a stream has doubled) keeps the same bound. Shapes change between batches, so the paper's
epochs are not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from joinengine.balancing.reasons import Balance, Cause, Cost, Reason
from joinengine.balancing.statistics import Interval
from joinengine.kernels.hashing import Words, u_of
from joinengine.layouts.layout import Layout, LayoutChoice, Plan, Router
from joinengine.layouts.layout_settings import TOLERANCE, setting
from joinengine.model.keys import U_BITS, Side
from joinengine.routing.routes import BOTH, MAX_INSTANCES, Deliveries, Instances, storing

Cells = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class GridRouter(Router):
    """Cells (rows, columns) of instances."""

    cells: Cells

    @property
    @override
    def instances(self) -> int:
        return self.cells.size

    @override
    def route(self, side: Side, words: Words) -> Deliveries:
        """To all cells of the tuple's line."""
        lines = self.cells if side is Side.LEFT else self.cells.T
        line = (u_of(words) * np.uint64(len(lines))) >> np.uint64(U_BITS)
        targets = lines[line]
        rows = np.repeat(np.arange(len(words)), lines.shape[1])
        return Deliveries(rows, targets.ravel(), np.full(len(rows), BOTH))

    @override
    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """Where tuples are stored; their present holders do not matter."""
        return storing(self.route(side, words))


@dataclass(frozen=True, slots=True)
class Grid(Layout):
    """The layout state: which instance is which cell."""

    cells: Cells

    @property
    @override
    def instances(self) -> int:
        return self.cells.size

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.cells.shape
        return rows, columns

    @override
    def router(self) -> GridRouter:
        return GridRouter(self.cells)

    @override
    def copies(self, side: Side) -> int:
        """A left tuple is in all columns of its row, a right one in all rows of its column."""
        return self.shape[side.other]

    @override
    def to_json(self) -> dict[str, Any]:
        return {"cells": self.cells.tolist()}


@dataclass(frozen=True)
class Dynamic(LayoutChoice):
    """A grid that adapts its shape; the largest power of two of instances is used."""

    tolerance: float = setting(
        1.25,
        "how many times the best shape's load the present may have",
        "ours; 1.25 is a bound of Elseidy 2014",
        within=TOLERANCE,
    )

    name: ClassVar[str] = "dynamic"
    source: ClassVar[str] = "Elseidy et al., PVLDB 2014"
    summary: ClassVar[str] = "join-matrix: copies along rows and columns, whatever the keys"
    serves_theta: ClassVar[bool] = True
    serves_aggregates: ClassVar[bool] = False
    keeps_keys_whole: ClassVar[bool] = False

    @override
    def start(self, instances: int) -> Grid:
        """As square as can be."""
        used = 1 << (instances.bit_length() - 1)
        rows = 1 << (used.bit_length() - 1) // 2
        return Grid(np.arange(used, dtype=np.uint16).reshape(rows, -1))

    @override
    def restore(self, state: dict[str, Any]) -> Grid:
        return Grid(np.array(state["cells"], np.uint16))

    @property
    @override
    def history_intervals(self) -> int:
        """The sizes of the streams after the last one are enough."""
        return 1

    @override
    def plan(self, layout: Layout, history: Sequence[Interval], wanted: int = 0) -> Plan | None:
        """Another shape, if the present one stores too much."""
        assert isinstance(layout, Grid)
        sizes = stream_sizes(layout, history[-1])
        best = best_shape(layout.instances, *sizes, now=layout.shape)
        now, then = (stored_each(shape, *sizes) for shape in (layout.shape, best))
        if now <= self.tolerance * then:
            return None
        # Tuples whose line gets longer stay and are copied; those of the other side only leave.
        longer = [max(after - before, 0) for before, after in zip(layout.shape, best, strict=True)]
        cost = Cost(copied=sizes[0] * longer[1] + sizes[1] * longer[0])
        shapes = in_words(layout.shape), in_words(best)
        reason = Reason(Cause.SHAPE, Balance(now, now), Balance(then, then), cost, shapes=shapes)
        return Plan(Grid(reshaped(layout.cells, best[0])), reason, rehome=True)

    @override
    def resized(self, layout: Layout, instances: int) -> Grid:
        """Split every cell into two or four while there is room; a smaller grid starts anew."""
        assert isinstance(layout, Grid)
        cells = layout.cells
        if instances < cells.size:
            return self.start(instances)
        while 2 * cells.size <= instances:
            axis = 0 if cells.shape[0] <= cells.shape[1] else 1
            cells = halved(cells, axis)
        return Grid(cells)

    @override
    def grow(self, layout: Layout, held: Sequence[int]) -> Grid:
        """Every instance is split into four: a matrix cannot split one of them alone."""
        assert isinstance(layout, Grid)
        if 4 * layout.instances > MAX_INSTANCES:
            return layout
        return Grid(halved(halved(layout.cells, 0), 1))


def stream_sizes(layout: Grid, interval: Interval) -> tuple[float, float]:
    """Tuples of each stream in the state, each counted once."""
    rows, columns = layout.shape
    left, right = interval.state.sum(axis=1)
    return float(left) / columns, float(right) / rows


def stored_each(shape: tuple[int, int], left: float, right: float) -> float:
    """What an instance stores: the input-load factor."""
    return left / shape[0] + right / shape[1]


def in_words(shape: tuple[int, int]) -> str:
    """The shape in words, for the reason of a plan."""
    return f"a grid of {shape[0]} x {shape[1]} instances"


def best_shape(instances: int, left: float, right: float, now: tuple[int, int]) -> tuple[int, int]:
    """The shape in powers of two with the least load; `now` if it is as good.

    >>> best_shape(16, 400.0, 100.0, (4, 4))
    (8, 2)
    """
    shapes = [now] + [(1 << i, instances >> i) for i in range(instances.bit_length())]
    return min(shapes, key=lambda shape: stored_each(shape, left, right))


def reshaped(cells: Cells, rows: int) -> Cells:
    """The same instances in another shape, such that tuples of one side need not move.

    Half as many rows: cell (i, j) becomes (i // 2, 2 j + i % 2), so an instance keeps its left
    tuples and half of its right ones. The other way round for more rows.
    """
    while cells.shape[0] > rows:
        cells = np.stack([cells[0::2], cells[1::2]], axis=2).reshape(cells.shape[0] // 2, -1)
    while cells.shape[0] < rows:
        cells = reshaped(cells.T, cells.shape[1] // 2).T
    return np.ascontiguousarray(cells)


def halved(cells: Cells, axis: int) -> Cells:
    """Split cells in two along `axis`; the instance keeps the first half, a new one the other."""
    new = (cells.size + np.arange(cells.size, dtype=np.uint16)).reshape(cells.shape)
    both = np.stack([cells, new.astype(np.uint16)], axis=axis + 1)
    shape = list(cells.shape)
    shape[axis] *= 2
    return both.reshape(shape)
