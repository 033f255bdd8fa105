"""How to divide a heavy key: in which mode and over how many homes, by what each way would cost.

Why: the cheapest way differs from key to key. If one side is small, its copies cost little; if both
are large and make few pairs, a grid sends each tuple to the fewest homes; if copies are dear,
storing each tuple once and probing all homes is cheapest.

How: for each heavy key, all modes are priced over all numbers of homes. The planner takes the way
with the least greatest load, as far as the other keys can level the rest; among ways close to it,
the one with the least work in all. A divided key keeps its mode until another is clearly better,
since a change moves its state.

Law: a function of loads and table. Cost: N log N numbers for each heavy key.
Source: the modes are those of fragment-replicate joins, the join-matrix (Elseidy et al., PVLDB
2014) and key splitting (Fang et al., JOS 2017). Ours: the choice per key by measured costs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from joinengine.balancing.hosting import at_instances, over_tasks
from joinengine.balancing.levelling import in_turn
from joinengine.balancing.loads import Loads, Parts, fixed_now
from joinengine.balancing.mnrt import plan_mnrt
from joinengine.balancing.shares import build_table
from joinengine.balancing.statistics import Bools, Floats, Interval, Ints
from joinengine.kernels.probing import rows_among
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement, Side
from joinengine.routing.table import RoutingTable

#: Ways within this part of the least maximum are equally good; among them the least work decides.
CLOSE = 0.02
#: A grid must do less work than other ways by this factor, since its cells have only even shares.
UNEVEN = 1.05
#: A divided key keeps its mode unless another one has less load, or less work, by this factor.
KEPT = 1.2
#: A divided key is not heavy any more if its load is below this part of what divides it.
COOLED = 0.5


class Ways(NamedTuple):
    """All ways to divide a key, (W,) each: a grid of `rows` x `columns`.

    A grid of one column is COPIED with the left side split, one of one row with the right side
    split, 1 x 1 is whole. `rows` 0: SPLIT over `columns` homes.
    """

    rows: Ints
    columns: Ints

    def alike(self, placement: Placement) -> Bools:
        """(W,) which ways have the mode of a placement; of the grids, only the one of its shape."""
        match placement.mode:
            case Mode.WHOLE:
                return np.zeros(len(self.rows), bool)
            case Mode.SPLIT:
                return np.asarray(self.rows == 0)
            case Mode.COPIED if placement.split_side is Side.LEFT:
                return np.asarray((self.columns == 1) & (self.rows > 1))
            case Mode.COPIED:
                return np.asarray((self.rows == 1) & (self.columns > 1))
            case Mode.GRID:
                shape = placement.rows, placement.columns
                return np.asarray((self.rows == shape[0]) & (self.columns == shape[1]))


class Shape(NamedTuple):
    """Rows and columns of one way, as in Ways."""

    rows: int
    columns: int

    @property
    def is_grid(self) -> bool:
        """Whether both sides are copied."""
        return self.rows > 1 and self.columns > 1

    @property
    def homes(self) -> int:
        """How many instances it takes."""
        return max(self.rows, 1) * self.columns


@lru_cache(maxsize=4)
def ways_over(instances: int) -> Ways:
    """All ways to divide a key over at most so many instances; lines first, grids last."""
    rows = np.arange(1, instances + 1)
    widest = instances // rows
    grid_rows = np.repeat(rows, widest)
    grid_columns = np.arange(len(grid_rows)) - np.repeat(np.cumsum(widest) - widest, widest) + 1
    line = (grid_rows == 1) | (grid_columns == 1)
    several = rows[1:]
    return Ways(
        np.concatenate([grid_rows[line], np.zeros(len(several), np.int64), grid_rows[~line]]),
        np.concatenate([grid_columns[line], several, grid_columns[~line]]),
    )


def costs_of(loads: Loads, key: int, ways: Ways) -> tuple[Floats, Floats]:
    """(W,) the load of a key at each of its homes, if shares are even, and at all together."""
    left, right = loads.parts.whole[:, key].tolist()
    pairs, carried = float(loads.parts.pairs[key]), float(loads.parts.carried[:, key].sum())
    rows, columns = np.maximum(ways.rows, 1), ways.columns
    homes = rows * columns
    copied = pairs + left * columns + right * rows
    split = left + right + pairs + (homes - 1) * carried
    total = np.where(ways.rows == 0, split, copied)
    return np.asarray(total / homes), np.asarray(total)


def choose_way(
    loads: Loads, key: int, others: float, limit: float, now: Placement | None
) -> tuple[Shape, float]:
    """How to divide a key, and the load of the key at all its homes then.

    `others`: all other load. `limit`: UL; lower loads are no better. `now`: the placement of the
    key, if it is divided.
    """
    ways = ways_over(loads.n_instances)
    each, total = costs_of(loads, key, ways)
    allowed = ways.columns == 1 if loads.left_only else np.ones(len(each), bool)
    top = np.maximum(np.maximum(each, (others + total) / loads.n_instances), limit)
    grid = (ways.rows > 1) & (ways.columns > 1)
    weighed = np.where(grid, total * UNEVEN, total)
    best = _best(top, weighed, allowed)
    same = allowed & ways.alike(now) if now is not None else np.zeros(len(top), bool)
    if same.any():
        stays = _best(top, weighed, same)
        if top[stays] <= KEPT * top[best] and weighed[stays] <= KEPT * weighed[best]:
            best = stays
    shape = Shape(int(ways.rows[best]), int(ways.columns[best]))
    return shape, float(total[best])


def _best(top: Floats, total: Floats, among: Bools) -> int:
    """Of the ways with the lowest maximum, the one with the least work; the first of equals."""
    low = among & (top <= top[among].min() * (1 + CLOSE))
    return int(np.argmin(np.where(low, total, np.inf)))


def divide(
    table: RoutingTable,
    loads: Loads,
    imbalance: float,
    stay: Collection[int] = (),
    *,
    by_task: bool = False,
) -> RoutingTable:
    """The table in which heavy keys are divided the cheapest way, and the others placed by MNRT.

    Keys of `stay` (key numbers) stay where they are. `by_task`: tasks are levelled, not instances.
    """
    places = loads.hosts if by_task else loads.n_instances
    limit = (1 + imbalance) * float(loads.per_instance().sum()) / places
    loads = _without(loads, _at_homes(table, loads, stay))
    shapes = _shapes(table, over_tasks(loads) if by_task else loads, limit)
    ready = _as_shaped(loads, shapes)
    grids = {key: shape for key, shape in shapes.items() if shape.is_grid}
    laid = _laid_out(table, ready, grids)
    cells = {
        key: dict.fromkeys(homes, _of_cell(ready, key, grids[key])) for key, homes in laid.items()
    }
    others = _without(ready, cells)
    if by_task:
        changed = at_instances(plan_mnrt(over_tasks(others), imbalance), others)
    else:
        changed = plan_mnrt(others, imbalance)
    changed = {key: new for key, new in changed.items() if key not in grids and key not in stay}
    for key in shapes.keys() - grids.keys() - changed.keys():
        present = table.placements.get(int(loads.hashes[key]))
        if present is not None and not _has_mode(present, ready, key):
            changed[key] = _shares(loads, key)
    placed = dict(build_table(table, ready, changed).placements)
    for key, homes in laid.items():
        placed[int(loads.hashes[key])] = _grid(homes, grids[key].columns)
    return RoutingTable(placed)


def resting(loads: Loads, history: Sequence[Interval], limit: float) -> tuple[list[int], list[int]]:
    """Divided keys that are no longer too heavy: those that stay divided, and those to gather.

    A key is gathered if its load is below half of what divides it, and if its part of the tuples
    was never above twice the newest: a key that is hot now and then is not worth its moves.
    """
    whole = loads.spread + loads.fixed
    divided = np.bincount(loads.keys, minlength=len(loads.hashes)) > 1
    light = np.flatnonzero(divided & (whole <= limit))
    if not len(light):
        return [], []
    hashes, parts = loads.hashes[light], list[Floats]()
    for interval in history:
        known, places = rows_among(interval.hashes, hashes)
        part = np.zeros(len(light))
        part[places] = interval.arrived[:, known].sum(axis=0) / max(interval.stored.sum(), 1.0)
        parts.append(part)
    hotter = np.max(parts, axis=0) > parts[-1] / COOLED
    stays = hotter | (whole[light] >= COOLED * limit)
    return light[stays].tolist(), light[~stays].tolist()


def _shapes(table: RoutingTable, loads: Loads, limit: float) -> dict[int, Shape]:
    """The ways of the keys that are heavy, by key number, heaviest first."""
    whole = loads.spread + loads.fixed
    heavy = np.flatnonzero(whole > limit)
    heavy = heavy[np.argsort(-whole[heavy], kind="stable")]
    everything, shapes = float(whole.sum() + loads.rest.sum()), dict[int, Shape]()
    for key in heavy.tolist():
        now = table.placements.get(int(loads.hashes[key]))
        others = everything - float(whole[key])
        shapes[key], total = choose_way(loads, key, others, limit, now)
        everything = others + total
    return shapes


def _shares(loads: Loads, key: int) -> dict[int, float]:
    """The homes of a key, and its shares there."""
    ours = loads.keys == key
    homes = loads.instances[ours].tolist(), loads.shares[ours].tolist()
    return dict(zip(*homes, strict=True))


def _at_homes(
    table: RoutingTable, loads: Loads, keys: Collection[int]
) -> dict[int, dict[int, float]]:
    """Key -> its present homes -> its load there."""
    at_homes, fixed = dict[int, dict[int, float]](), fixed_now(loads, table)
    for key in keys:
        spread = float(loads.spread[key] + loads.fixed[key] - fixed[key])
        shares = _shares(loads, key).items()
        at_homes[key] = {home: float(fixed[key]) + share * spread for home, share in shares}
    return at_homes


def _as_shaped(loads: Loads, shapes: Mapping[int, Shape]) -> Loads:
    """The loads if keys have these shapes, and all other keys the cheaper of two modes."""
    left, right = loads.parts.whole
    carried = loads.parts.carried.sum(axis=0)
    copied = np.minimum(left, right) <= carried
    split_sides = (right > left).astype(np.int64)
    if loads.left_only:
        copied, split_sides = np.ones_like(copied), np.zeros_like(split_sides)
    for key, shape in shapes.items():
        if shape.homes > 1 and not shape.is_grid:
            copied[key] = shape.rows > 0
            if copied[key]:
                split_sides[key] = Side.LEFT if shape.rows > 1 else Side.RIGHT
    columns = np.arange(len(loads.hashes))
    small = loads.parts.whole[1 - split_sides, columns]
    fixed = np.where(copied, small, carried)
    total = left + right + loads.parts.pairs
    # The copies held are known only for the sides that `loads` would copy.
    same = loads.copied & copied & (loads.split_sides == split_sides)
    part = np.divide(small, left + right, out=np.zeros(len(small)), where=left + right > 0)
    guessed = np.where(copied, loads.held * part, 0.0)
    return replace(
        loads,
        spread=total - fixed,
        fixed=fixed,
        copied=copied,
        split_sides=split_sides,
        held_fixed=np.where(same, loads.held_fixed, guessed),
    )


def _has_mode(placement: Placement, loads: Loads, key: int) -> bool:
    """Whether a placement has the mode in which `loads` would divide the key; a whole one has."""
    if placement.mode is Mode.WHOLE:
        return True
    if not loads.copied[key]:
        return placement.mode is Mode.SPLIT
    return placement.mode is Mode.COPIED and placement.split_side == loads.split_sides[key]


def _laid_out(
    table: RoutingTable, loads: Loads, grids: Mapping[int, Shape]
) -> dict[int, tuple[int, ...]]:
    """The homes of the keys that become grids: their present ones, or the emptiest instances."""
    level = _without(loads, {key: {} for key in grids}).as_planned()
    homes_of = dict[int, tuple[int, ...]]()
    for key, shape in grids.items():
        now = table.placements.get(int(loads.hashes[key]))
        if now is not None and now.mode is Mode.GRID and (now.rows, now.columns) == shape:
            homes = now.homes
        else:
            order = np.argsort(level, kind="stable")
            homes = tuple(in_turn(level, order, loads.tasks)[: shape.homes].tolist())
        level[list(homes)] += _of_cell(loads, key, shape)
        homes_of[key] = homes
    return homes_of


def _of_cell(loads: Loads, key: int, shape: Shape) -> float:
    left, right = loads.parts.whole[:, key].tolist()
    return float(loads.parts.pairs[key] / shape.homes + left / shape.rows + right / shape.columns)


def _without(loads: Loads, laid: Mapping[int, Mapping[int, float]]) -> Loads:
    """The loads in which some keys cannot be moved; `laid`: key -> instance -> its load there."""
    rest, spread, fixed = loads.rest.copy(), loads.spread.copy(), loads.fixed.copy()
    for homes in laid.values():
        rest[[*homes]] += [*homes.values()]
    gone = np.array([*laid], np.int64)
    spread[gone], fixed[gone] = 0.0, 0.0
    stay = ~np.isin(loads.keys, gone)
    whole, carried, pairs = (part.copy() for part in loads.parts)
    whole[:, gone], carried[:, gone], pairs[gone] = 0.0, 0.0, 0.0
    return replace(
        loads,
        spread=spread,
        fixed=fixed,
        keys=np.concatenate([loads.keys[stay], gone]),
        instances=np.concatenate([loads.instances[stay], loads.homes[gone]]),
        shares=np.concatenate([loads.shares[stay], np.ones(len(gone))]),
        rest=rest,
        parts=Parts(whole, carried, pairs),
        level=np.zeros(0),
    )


def _grid(homes: tuple[int, ...], columns: int) -> Placement:
    edges = [U_ONE * place // len(homes) for place in range(len(homes) + 1)]
    cells = zip(homes, edges, edges[1:], strict=False)
    return Placement(Mode.GRID, tuple(Fragment(*cell) for cell in cells), columns=columns)


def gather(table: RoutingTable, loads: Loads, limit: float, cold: Sequence[int]) -> RoutingTable:
    """The table in which divided keys that have cooled are whole, at homes that have room."""
    level, placed = loads.per_instance(), dict(table.placements)
    whole, at_homes = loads.spread + loads.fixed, _at_homes(table, loads, cold)
    for key in sorted(cold, key=lambda row: float(whole[row])):
        hash_, homes = int(loads.hashes[key]), at_homes[key]
        home = int(loads.homes[key])
        if home not in homes or level[home] - homes[home] + whole[key] > limit:
            home = min(homes, key=lambda instance: float(level[instance]) - homes[instance])
        if level[home] - homes[home] + whole[key] > limit:
            continue
        level[[*homes]] -= [*homes.values()]
        level[home] += whole[key]
        placed[hash_] = Placement.whole(home)
        if home == loads.homes[key]:
            del placed[hash_]
    return RoutingTable(placed)
