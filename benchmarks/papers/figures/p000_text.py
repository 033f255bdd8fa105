"""Statements of Fang et al., 2016, that have no figure of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.papers.figure import Figure, Made
from benchmarks.papers.finding import Finding, homes_after, levels, spread_of, whole_keys
from benchmarks.papers.intervals import Setup
from joinengine.balancing import mixed
from joinengine.balancing.compact import discretise
from joinengine.balancing.loads import Loads
from joinengine.balancing.statistics import skew

THETA = 0.08
LIMITS, WINDOWS, INTERVALS = (100, 300, 1000, 3000), (1, 5), 30


def make(show: Callable[[str], None]) -> Made:
    found = [toy(), rounding_example(), theorem_1(), theorem_2()]
    show("examples and theorems")
    return Made((), [*found, *same_state(), end_of_whole_keys()])


def toy() -> Finding:
    cost = np.array([7.0, 4, 5, 2, 1, 1])
    homes = np.array([0, 0, 0, 1, 1, 1])
    base = homes.copy()
    base[[1, 2]] = 1  # k2 and k3 are in the table
    loads = whole_keys(cost, base, homes, cost, 2)
    sizes, ends = list[int](), list[list[float]]()
    for plan in (mixed.plan_llfd, mixed.plan_mintable):
        after = homes_after(loads, plan(loads, 0.0))
        sizes.append(int((after != base).sum()))
        ends.append(levels(loads, after).tolist())
    return Finding(
        "figure 4",
        "balanced at 10 and 10, with 4 entries if the table is kept, with 2 if it is cleaned",
        f"{ends[0]} and {ends[1]}, with {sizes[0]} and {sizes[1]} entries",
        (sizes, ends) == ([4, 2], [[10, 10], [10, 10]]),
    )


def rounding_example() -> Finding:
    found = discretise(np.array([8, 7, 6, 5, 3, 3, 2, 1, 1, 1.0]), np.zeros(10, int), 2)
    return Finding(
        "figure 6",
        "R = 4 and values up to 8: representatives 8, 4, 2, 1, total deviation 0",
        f"{sorted(set(found.tolist()), reverse=True)}, deviation {37 - found.sum()}",
        (set(found.tolist()), found.sum()) == ({8, 4, 2, 1}, 37),
    )


def theorem_1(trials: int = 40) -> Finding:
    """Keys cut from a perfect partition, all of them at one task, placed by LLFD."""
    rng = np.random.default_rng(5)
    over, under = 0.0, 0.0
    for _ in range(trials):
        n = int(rng.integers(2, 12))
        cuts = [np.sort(rng.uniform(0, 1, rng.integers(2, 8))) for _ in range(n)]
        cost = rng.permutation(np.concatenate([np.diff(c, prepend=0, append=1) for c in cuts]))
        zeros = np.zeros(len(cost), np.int64)
        loads = whole_keys(cost, zeros, zeros, cost, n)
        ends = levels(loads, homes_after(loads, mixed.plan_llfd(loads, 0.0))) - 1
        bound = (1 - 1 / n) / 3
        over, under = max(over, ends.max() / bound), max(under, -ends.min() / bound)
    return Finding(
        "theorem 1",
        "if a perfect assignment exists, LLFD leaves no task further from the mean than "
        "(1 - 1/N) / 3 of it",
        f"{trials} loads cut from a perfect assignment: at most {over:.2f} of that bound above the "
        f"mean, {under:.2f} of it below",
        max(over, under) <= 1,
        "the proof bounds the most loaded task only" if under > 1 else "",
    )


def theorem_2(trials: int = 200) -> Finding:
    """Mixed beside LLFD from the same state, under several tolerances."""
    worse, most = 0, 0.0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(3, 16))
        cost = 1e5 * np.arange(1, 1001) ** -0.85
        base, homes = rng.integers(0, n, 1000), rng.integers(0, n, 1000)
        held = cost * rng.uniform(0.5, 5, 1000)
        theta = float(rng.choice([0.0, 0.02, 0.08, 0.2]))
        loads = whole_keys(cost, base, homes, held, n)
        ends = [
            skew(levels(loads, homes_after(loads, changes)))
            for changes in (mixed.plan_mixed(loads, theta), mixed.plan_llfd(loads, theta))
        ]
        more = ends[0] - ends[1]
        worse += more > 1e-9
        most = max(most, more)
    return Finding(
        "theorems 2, 4",
        "loads under Mixed are no less balanced than under LLFD; rule: in each of "
        f"{trials} random states, with theta from 0 to 0.2",
        f"less balanced in {worse} of {trials}, by at most {most:.3f} of the mean",
        worse == 0,
        "keys leave a task in another order under Mixed, so both end elsewhere: within 0.002 of "
        "the mean at theta = 0, and anywhere within theta above 0. The proof compares bounds",
    )


def same_state() -> Iterator[Finding]:
    """MinMig, Mixed and MinTable from the state of Mixed."""
    kept, low, high = True, True, True
    told = list[str]()
    for window in WINDOWS:
        for limit in LIMITS:
            setup = Setup(theta=THETA, window=window, table_limit=limit)
            entries, moved = _from_state_of_mixed(setup)
            fits = entries[:, 2] <= limit
            kept &= bool((entries[fits, 1] <= limit).all())
            least, own, most = moved.mean(axis=0)
            low, high = low and bool(least * 0.999 <= own), high and bool(own <= most * 1.001)
            told.append(f"{100 * least:.2f} <= {100 * own:.2f} <= {100 * most:.2f}")
    cases = f"A_max = {', '.join(map(str, LIMITS))}"
    yield Finding(
        "section 3.3",
        "if MinTable's table is within A_max, so is Mixed's",
        f"in all of {len(WINDOWS) * len(LIMITS)} x {INTERVALS} plans, {cases}",
        kept,
    )
    yield Finding(
        "section 3.3",
        "Mixed migrates no less than MinMig, and no more than MinTable; rule: mean over 30 "
        "intervals from the state of Mixed, with a tolerance of 0.1 %",
        f"{'; '.join(told)} %, {cases}, for w = 1 and then 5",
        low and high,
    )


def _from_state_of_mixed(setup: Setup) -> tuple[np.ndarray, np.ndarray]:
    """(intervals, 3) entries, and state moved, of MinMig, Mixed and MinTable."""
    entries, parts, recent = list[list[float]](), list[list[float]](), list[np.ndarray]()
    homes = None
    for number, (cost, base) in enumerate(setup.stream(1)):
        if number == INTERVALS + setup.window:
            break
        recent = [*recent, cost][-setup.window :]
        held = np.sum(recent, axis=0)
        before = base if homes is None else homes
        loads = whole_keys(cost, base, before, held, setup.instances)
        after = [homes_after(loads, changes) for changes in _plans(loads, setup)]
        entries.append([float((one != base).sum()) for one in after])
        parts.append([float(held[one != before].sum() / held.sum()) for one in after])
        homes = after[1]
    return np.array(entries[setup.window :]), np.array(parts[setup.window :])


def _plans(loads: Loads, setup: Setup) -> Iterator[dict[int, dict[int, float]]]:
    yield mixed.plan_minmig(loads, setup.theta)
    yield mixed.plan_mixed(loads, setup.theta, table_limit=setup.table_limit)
    yield mixed.plan_mintable(loads, setup.theta)


def end_of_whole_keys() -> Finding:
    """The exponents from which one key is heavier than a task may be."""
    ends = {5: 1.21, 15: 0.92, 40: 0.75}
    holds, found = True, list[str]()
    for instances, end in ends.items():
        over = list[float]()
        for z in (end - 0.03, end + 0.03):
            cost = 1e6 * np.arange(1, 10_001) ** -z
            base = np.random.default_rng(7).integers(0, instances, 10_000)
            loads = whole_keys(cost, base, base, cost, instances)
            over.append(skew(levels(loads, homes_after(loads, mixed.plan_mixed(loads, THETA)))) - 1)
        holds &= over[0] <= THETA + 1e-9 < over[1]
        found.append(f"N = {instances}: {over[0]:.3f} below and {over[1]:.3f} above {end}")
    return Finding(
        "section 2 (recomputed)",
        "whole keys balance up to z* = 1.21, 0.92, 0.75 for N = 5, 15, 40",
        f"{'; '.join(found)}; {spread_of(list(ends.values()))} are where one key of 10,000 has "
        f"1.08 of a task's share",
        holds,
    )


FIGURE = Figure(
    "000-text",
    "Examples, theorems and statements without a figure",
    "Examples as in the paper. Section 3.3: 10,000 keys, Zipf 0.85, f = 1, 15 tasks, theta = 0.08, "
    "consistent hashing",
    0.5,
    make,
)
