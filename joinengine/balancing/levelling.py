"""Plans at the least maximum: the last step of planners if their limit cannot be met.

Why: a key may be so heavy, or its copies at each home so dear, that no plan comes below the limit.
If a planner then gives up, the batch waits for one instance. The target is therefore the least
maximum that can be reached, given what keys cost at each home.

How: a key at the busiest instance is taken off all its homes and *filled in* again like water: over
the fewest homes that stay below the limit, or over as many as lower the maximum; each home pays the
key's fixed part. Each step does so with the key that lowers the maximum most, until no key does. If
that is not enough, the heaviest keys are placed anew, below the least maximum at which all find
homes. Finally, a few steps try several keys at once.

Law: the greatest load never rises. On small cases it is within 5 % of the least that is possible.
Cost: a sort of the instances for each key that is tried: at most TRIED keys a step, and REBUILT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from joinengine.balancing.loads import Loads
from joinengine.balancing.statistics import Floats, Ints
from joinengine.balancing.workspace import DUST, Workspace

#: Keys of the busiest instance that are tried in a step, heaviest first.
TRIED = 12
#: A step must lower the greatest load by this part.
LEAST_GAIN = 1e-3
#: A plan is done once it is within this part of the lower bound of all plans.
NEAR = 0.02
#: To spread homes over more tasks, the maximum may rise by this factor.
SPREAD_OUT = 1.01
#: If no single key lowers the maximum, how many keys are tried together with how many others.
PARTNERS = 8
#: How many of the heaviest keys are placed anew together, and in how many tries to end lower.
REBUILT, BISECTIONS = 256, 8
#: Steps in which several keys are placed anew at once.
THOROUGH_STEPS = 12


#: Keys to be filled in one after another, and whether each must be whole.
_Try = tuple[tuple[int, bool], ...]
#: Key -> instance -> share, of keys that are placed anew.
_Step = dict[int, dict[int, float]]


#: Some keys of the busiest instance -> the tries with them.
_Way = Callable[[Workspace, Sequence[int]], Iterator[_Try]]


class Filled(NamedTuple):
    """Where a key would lie: the greatest load of its homes then, and instance -> share."""

    peak: float
    shares: dict[int, float]


def filled(
    level: Floats, spread: float, fixed: float, limit: float, tasks: Ints, *, whole: bool = False
) -> Filled:
    """The best homes for a key, if loads without it are (N,) `level`; `whole`: the best home.

    The fewest homes that stay within `limit`; if no homes do, those with the least maximum. If it
    costs almost nothing, they are spread over `tasks` (N,), so that no task works for several homes
    one after another.
    """
    order = np.argsort(level, kind="stable")
    if whole:
        return _poured(level, order[:1], spread, fixed)
    tops = _tops(level[order], spread) + fixed
    within = np.flatnonzero(tops <= limit)
    homes = order[: int(within[0]) + 1 if len(within) else len(tops)]
    poured = _poured(level, homes, spread, fixed)
    turn = in_turn(level, order, tasks)[: len(homes)]
    if np.array_equal(turn, homes):  # most tasks have few instances, and most keys few homes
        return poured
    apart = _poured(level, turn, spread, fixed)
    return apart if apart.peak <= max(limit, poured.peak * SPREAD_OUT) else poured


def _tops(ascending: Floats, spread: float) -> Floats:
    """(D,) the level of the first one, two, .. instances once `spread` is poured over them.

    The row ends before the first instance that is fuller than this level.
    """
    tops = (np.cumsum(ascending) + spread) / np.arange(1, len(ascending) + 1)
    return tops[: int(np.flatnonzero(tops >= ascending)[-1]) + 1]


def _poured(level: Floats, homes: Ints, spread: float, fixed: float) -> Filled:
    """A key over some of these homes; those that are too full take nothing."""
    homes = homes[np.argsort(level[homes], kind="stable")]
    tops = _tops(level[homes], spread)
    homes, top = homes[: len(tops)], float(tops[-1])
    parts = (top - level[homes]) / spread if spread > 0 else np.zeros(len(homes))
    if not parts.any():  # a key that raises no level, perhaps by rounding, goes to the first home
        parts[0] = 1.0
    parts = parts / parts.sum()
    shares = {int(i): float(p) for i, p in zip(homes, parts, strict=True) if p > DUST}
    return Filled(top + fixed, shares)


def in_turn(level: Floats, order: Ints, tasks: Ints) -> Ints:
    """Instances, emptiest first as in `order`, but each task's first before any task's second."""
    by_task = order[np.argsort(tasks[order], kind="stable")]
    turn = np.arange(len(order)) - np.searchsorted(tasks[by_task], tasks[by_task])
    dealt: Ints = by_task[np.lexsort((level[by_task], turn))]
    return dealt


def level_out(work: Workspace, limit: float) -> None:
    """Place keys of the busiest instances anew until loads are low enough or no step helps.

    Low enough is `limit`, or within NEAR of the lower bound of all plans.
    """
    if work.level.max() <= limit * (1 + DUST):
        return
    bound = least_possible(work.loads)
    goal, enough = max(limit, bound), max(limit * (1 + DUST), bound * (1 + NEAR))
    for _ in range(2 * work.loads.n_instances + 16):
        if not _stepped(work, enough, goal, [_singly]):
            break
    if work.level.max() > enough:
        _rebuild(work, goal)
    for _ in range(THOROUGH_STEPS):
        if not _stepped(work, enough, goal, [_singly, _pairs, _afresh]):
            return


def _stepped(work: Workspace, enough: float, goal: float, ways: Sequence[_Way]) -> bool:
    """Place keys of the busiest instance anew in the first way that helps; whether one did.

    No step is needed if that instance has `enough` or less.
    """
    top = int(np.argmax(work.level))
    if work.level[top] <= enough:
        return False
    keys, shares = work.on(top)
    weights = shares * work.loads.spread[keys] + work.loads.fixed[keys]
    tried = keys[_heaviest(weights, TRIED)].tolist()
    for way in ways:
        step = _best(work, goal, way(work, tried))
        if step is not None:
            _replace(work, step)
            return True
    return False


def _replace(work: Workspace, step: _Step) -> None:
    for key in step:
        replaced(work, key, {})
    for key, shares in step.items():
        replaced(work, key, shares)


def _rebuild(work: Workspace, goal: float) -> None:
    """Place the heaviest keys of all anew, below the least maximum at which they all find homes.

    A key that finds room where it is stays there.
    """
    loads, level = work.loads, work.level.copy()
    heavy = _heaviest(loads.spread + loads.fixed, REBUILT)
    # Keys with dear homes and heavy keys leave the least choice: either kind may come first.
    ratio = loads.fixed[heavy] / np.maximum(loads.spread[heavy], DUST)
    orders = heavy.tolist(), heavy[np.argsort(-ratio, kind="stable")].tolist()
    for key in orders[0]:
        _pour(level, work.shares(key), loads.spread[key], loads.fixed[key], -1)
    lower, upper, best = goal, float(work.level.max()) * (1 - LEAST_GAIN), None
    for middle in (lower, *([None] * BISECTIONS)):
        top = (lower + upper) / 2 if middle is None else middle
        tries = (_rebuilt(work, level.copy(), order, top) for order in orders)
        step = next((try_made for try_made in tries if try_made is not None), None)
        if step is None:
            lower = top
        else:
            best, upper = step, top
        if upper <= lower * (1 + LEAST_GAIN):
            break
    if best is not None:
        now = {key: work.shares(key) for key in best}
        _replace(work, {key: shares for key, shares in best.items() if shares != now[key]})


def _rebuilt(work: Workspace, level: Floats, heavy: Sequence[int], top: float) -> _Step | None:
    """The homes of `heavy` keys beside others that load instances by `level`, all below `top`."""
    loads, step = work.loads, _Step()
    for key in heavy:
        spread, fixed = float(loads.spread[key]), float(loads.fixed[key])
        shares, placed = dict(work.shares(key)), filled(level, spread, fixed, top, loads.tasks)
        high = any(level[home] + part * spread + fixed > top for home, part in shares.items())
        if high or len(shares) > len(placed.shares):
            if placed.peak > top * (1 + DUST):
                return None
            shares = placed.shares
        _pour(level, shares, spread, fixed, 1)
        step[key] = shares
    return step


def least_possible(loads: Loads) -> float:
    """A lower bound of all plans: each key has as many homes as it needs, and pays for each."""
    total, n = loads.spread + loads.fixed, loads.n_instances
    load = float(loads.rest.sum() + total.sum())
    heavy = total > load / n  # all others can be whole
    spread, fixed = loads.spread[heavy], loads.fixed[heavy]
    lower = max(load / n, float(loads.rest.max()), float((fixed + spread / n).max(initial=0.0)))
    upper = load
    while upper - lower > LEAST_GAIN * upper:
        middle = (lower + upper) / 2
        homes = np.ceil(spread / np.maximum(middle - fixed, DUST) - DUST).clip(1)
        if load + float(((homes - 1) * fixed).sum()) <= n * middle:
            upper = middle
        else:
            lower = middle
    return lower


def _singly(_: Workspace, tried: Sequence[int]) -> Iterator[_Try]:
    return (((key, whole),) for key in tried for whole in (False, True))


def _pairs(work: Workspace, tried: Sequence[int]) -> Iterator[_Try]:
    """Each of some keys with each of the heaviest keys of all, in both orders."""
    loads = work.loads
    others = _heaviest(loads.spread + loads.fixed, PARTNERS).tolist()
    for key, other in product(tried[:PARTNERS], others):
        if key != other:
            for first, second in product((False, True), repeat=2):
                yield (key, first), (other, second)
                yield (other, second), (key, first)


def _afresh(work: Workspace, _: Sequence[int]) -> Iterator[_Try]:
    """The heaviest keys of all at once.

    The keys with the dearest homes stay whole and are placed first; the others fill the rest. The
    tries differ in how many keys stay whole.
    """
    loads = work.loads
    heavy = _heaviest(loads.spread + loads.fixed, TRIED)
    ratio = loads.fixed[heavy] / np.maximum(loads.spread[heavy], DUST)
    by_ratio = heavy[np.argsort(-ratio, kind="stable")].tolist()
    for whole in range(len(heavy) + 1):
        solid = {*by_ratio[:whole]}
        first = [(key, True) for key in heavy.tolist() if key in solid]
        yield (*first, *((key, False) for key in heavy.tolist() if key not in solid))


def _best(work: Workspace, goal: float, tries: Iterable[_Try]) -> _Step | None:
    """Of some tries to fill in keys anew, the one with the least maximum.

    The maximum is over the instances that the step touches; None: no try lowers the greatest load.
    Each key gets as few homes as stay below `goal`, or below the present maximum, since each home
    pays the fixed part.
    """
    loads, tasks = work.loads, work.loads.tasks
    peak, best = float(work.level.max()) * (1 - LEAST_GAIN), None
    for keys, limit in ((keys, limit) for keys in tries for limit in (goal, peak)):
        if limit != goal and all(whole for _, whole in keys):
            continue  # where whole keys go does not depend on a limit
        level, step = work.level.copy(), _Step()
        touched = [home for key, _ in keys for home in work.shares(key)]
        for key, _ in keys:
            _pour(level, work.shares(key), loads.spread[key], loads.fixed[key], -1)
        for key, whole in keys:
            spread, fixed = float(loads.spread[key]), float(loads.fixed[key])
            shares = filled(level, spread, fixed, limit, tasks, whole=whole).shares
            _pour(level, shares, spread, fixed, 1)
            touched += shares
            step[key] = shares
        then = float(level[touched].max())
        if then < peak:
            peak, best = then, step
    return best


def _pour(
    level: Floats, shares: Mapping[int, float], spread: float, fixed: float, sign: int
) -> None:
    for home, share in shares.items():
        level[home] += sign * (share * spread + fixed)


def replaced(work: Workspace, key: int, shares: dict[int, float]) -> None:
    """Put a key at other homes."""
    for home, share in list(work.shares(key).items()):
        work.take(key, home, share)
    for home, share in shares.items():
        work.put(key, home, share)


def _heaviest(weights: Floats, most: int) -> Ints:
    """The places of the heaviest, heaviest first."""
    some = np.arange(len(weights))
    if len(weights) > most:
        some = np.argpartition(-weights, most)[:most]
    heaviest: Ints = some[np.argsort(-weights[some], kind="stable")]
    return heaviest


def divisible(loads: Loads, limit: float) -> Loads:
    """The loads with other modes for keys that would otherwise keep a load above `limit`.

    Under COPIED, a key costs each home its copied side; under SPLIT, each home receives all tuples
    and stores its part. If copies leave no way below the limit, a key gets the mode with the lower
    maximum.
    """
    total = loads.spread + loads.fixed
    heavy = np.flatnonzero((total > limit) & loads.copied)
    if loads.left_only or not len(heavy) or not loads.parts.whole.size:
        return loads
    everything = float(loads.per_instance().sum())
    spread, fixed, copied = loads.spread.copy(), loads.fixed.copy(), loads.copied.copy()
    held_fixed = loads.held_fixed.copy()
    for key in heavy.tolist():
        rest = everything - float(total[key])
        carried = float(loads.parts.carried[:, key].sum())
        now = _reachable(rest, float(spread[key]), float(fixed[key]), loads.n_instances)
        then = _reachable(rest, float(total[key]) - carried, carried, loads.n_instances)
        if now > limit and then < now * (1 - LEAST_GAIN):
            spread[key], fixed[key] = total[key] - carried, carried
            copied[key], held_fixed[key] = False, 0.0
    return replace(loads, spread=spread, fixed=fixed, copied=copied, held_fixed=held_fixed)


def _reachable(rest: float, spread: float, fixed: float, instances: int) -> float:
    """The least maximum if all other load `rest` could be placed at will."""
    homes = np.arange(1, instances + 1)
    alone = spread / homes + fixed
    return float(np.maximum(alone, (rest + spread + homes * fixed) / instances).min())
