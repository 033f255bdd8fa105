"""What Elseidy et al., PVLDB 2014, and Lin et al., SIGMOD 2015, state of their layouts.

They are the join-matrix and the join-biclique, with which paper 002 compares its own.

Copies are counted for streams of 4,000 and 1,000 tuples: those that the new layout names and the
old one did not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding, spread_of
from joinengine.balancing.statistics import Interval
from joinengine.kernels.hashing import Words, make_words
from joinengine.layouts import Bi, BiK, Dynamic
from joinengine.layouts.layout import Layout
from joinengine.layouts.matrix import Grid, best_shape, reshaped, stored_each, stream_sizes
from joinengine.model.keys import U_ONE, Side

LEFT, RIGHT = 4000, 1000


def make(_: Callable[[str], None]) -> Made:
    """Their statements on decisions."""
    return Made([], [halving(), growing(), messages(), input_load()])


def words(n: int, seed: int) -> Words:
    """(n,) words of different keys."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 1 << 40, n).astype(np.uint64)
    return make_words(hashes, rng.integers(0, U_ONE, n).astype(np.uint64))


def places(layout: Layout, side: Side, some: Words) -> set[tuple[int, int]]:
    """(tuple, instance) of all copies."""
    homes = layout.router().homes(side, some, np.zeros(len(some), np.uint16))
    return set(zip(homes.rows.tolist(), homes.instances.tolist(), strict=True))


def copied(before: Grid, after: Grid) -> int:
    """The copies that go to instances that did not have the tuple."""
    streams = ((Side.LEFT, words(LEFT, 1)), (Side.RIGHT, words(RIGHT, 2)))
    return sum(len(places(after, s, w) - places(before, s, w)) for s, w in streams)


def halving() -> Finding:
    """Half as many rows, twice as many columns."""
    found, stated = list[int](), list[int]()
    for rows, columns in ((4, 4), (8, 2), (2, 8)):
        grid = Grid(np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns))
        found.append(copied(grid, Grid(reshaped(grid.cells, rows // 2))))
        stated.append(columns * LEFT)
    return Finding(
        "join-matrix, locality",
        f"(n, m) to (n/2, 2m) moves m|R| copies: {stated} from 4x4, 8x2, 2x8",
        f"{found}",
        all(abs(a - b) <= 0.02 * b for a, b in zip(found, stated, strict=True)),
    )


def growing() -> Finding:
    """Every cell into four."""
    found, stated = list[int](), list[float]()
    for rows, columns in ((1, 1), (2, 2), (4, 2)):
        grid = Grid(np.arange(rows * columns, dtype=np.uint16).reshape(rows, columns))
        found.append(copied(grid, Dynamic().grow(grid, [0] * grid.instances)))
        stated.append(1.5 * (columns * LEFT + rows * RIGHT))
    return Finding(
        "join-matrix, elasticity",
        f"growth moves 1.5 (m|R| + n|S|) copies: {spread_of(stated, ',.0f')} from 1x1, 2x2, 4x2",
        spread_of([float(n) for n in found], ",.0f"),
        all(abs(a - b) <= 0.05 * b for a, b in zip(found, stated, strict=True)),
        "Fang et al. (2017) split the overloaded node into four. But a tuple is stored along its "
        "whole row: if one cell were split and its neighbours were not, the row would be two rows "
        "in that cell and one in the others, and pairs would meet twice or never. So all cells "
        "split",
    )


def messages() -> Finding:
    """Deliveries of a left and of a right tuple."""
    layouts = {
        "Dynamic 4x4": (Dynamic().start(16), (4, 4)),
        "Bi 8 + 8": (Bi().start(16), (1 + 8, 1 + 8)),
        "Bi-4, 8 + 8": (BiK(4).start(16), (1 + 2, 1 + 2)),
        "Bi-8, 8 + 8": (BiK(8).start(16), (1 + 1, 1 + 1)),
    }
    found = {
        name: tuple(
            len(layout.router().route(side, words(n, 3)).rows) / n
            for side, n in ((Side.LEFT, LEFT), (Side.RIGHT, RIGHT))
        )
        for name, (layout, _) in layouts.items()
    }
    return Finding(
        "messages per tuple",
        "matrix: m left, n right; biclique: 1 + b left, 1 + a right; k subgroups: 1 + b/k, 1 + a/k",
        "; ".join(f"{name}: {left:g}, {right:g}" for name, (left, right) in found.items()),
        all(found[name] == stated for name, (_, stated) in layouts.items()),
    )


def input_load() -> Finding:
    """The grid in use against the best one, after each decision, while two streams grow."""
    rng = np.random.default_rng(4)
    worst, changes = 1.0, 0
    for _ in range(50):
        layout = Dynamic().start(16)
        sizes = rng.integers(100, 1000, 2).astype(float)
        for _ in range(60):
            plan = Dynamic().plan(layout, [_held(layout, sizes)])
            if plan is not None:
                assert isinstance(plan.layout, Grid)
                layout, changes = plan.layout, changes + 1
            assert np.allclose(stream_sizes(layout, _held(layout, sizes)), sizes)
            best = best_shape(16, *sizes, now=layout.shape)
            worst = max(worst, stored_each(layout.shape, *sizes) / stored_each(best, *sizes))
            sizes *= rng.uniform(1, [1.6, 1.1] if rng.random() < 0.5 else [1.1, 1.6])
    return Finding(
        "join-matrix, input-load factor",
        "within 1.25 of the best grid of powers of two at decision points",
        f"at most {worst:.3f} over 50 x 60 decisions with {changes} changes",
        worst <= 1.25,
    )


def _held(layout: Grid, sizes: np.ndarray) -> Interval:
    rows, columns = layout.shape
    held = np.vstack([np.full(16, sizes[0] / rows), np.full(16, sizes[1] / columns)])
    none = np.zeros((2, 0))
    return Interval(np.empty(0, np.uint64), none, none, np.zeros(16), held, held)


FIGURE = Figure(
    "002-matrices",
    "Join-matrix (Elseidy et al., PVLDB 2014) and join-biclique (Lin et al., SIGMOD 2015)",
    "Decisions alone; copies are counted for streams of 4,000 and 1,000 tuples",
    0.5,
    make,
)
