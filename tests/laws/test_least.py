"""Plans end at the least maximum: beside all plans of small cases, and a bound of large ones."""

from __future__ import annotations

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine.balancing.exchanging import least_whole
from joinengine.balancing.levelling import level_out
from joinengine.balancing.loads import Loads
from joinengine.balancing.mnrt import plan_mnrt
from joinengine.balancing.qmmp import plan_qmmp
from joinengine.balancing.statistics import Interval, Work
from joinengine.balancing.workspace import Workspace
from joinengine.layouts import LAYOUTS
from joinengine.layouts.key_based import KeyBased, Planned
from joinengine.model.keys import Mode
from tests.laws.cases import tries

#: How far above the least maximum a plan may end.
NEAR = 1.05
#: The same above the bound, which is below the least maximum itself.
NEAR_BOUND = 1.15
SPLITTING = {"mnrt": plan_mnrt, "qmmp": plan_qmmp}
#: Planners of whole keys; ftlb is beside them, since a key may not lie with its backups.
WHOLE = ("readj", "llfd", "mintable", "minmig", "mixed", "mixed-bf")
PLANNED = sorted(name for name, choice in LAYOUTS.items() if issubclass(choice, Planned))


def loads_of(spread, fixed, homes, rest):
    """Loads of keys that are whole at `homes`."""
    k = len(spread)
    return Loads(
        hashes=np.arange(k, dtype=np.uint64),
        homes=homes,
        spread=spread,
        fixed=fixed,
        held=spread + fixed,
        held_fixed=fixed,
        copied=fixed > 0,
        split_sides=np.zeros(k, np.int64),
        keys=np.arange(k),
        instances=homes.copy(),
        shares=np.ones(k),
        rest=rest,
    )


def after(loads, changed):
    """(N,) loads once the keys of `changed` are placed anew."""
    work = Workspace(loads)
    for key, shares in changed.items():
        for home, share in list(work.shares(key).items()):
            work.take(key, home, share)
        for home, share in shares.items():
            work.put(key, home, share)
    return work.level


def subsets(n):
    return [*chain.from_iterable(combinations(range(n), size) for size in range(1, n + 1))]


def least_maximum(loads):
    """Of all choices of homes, if each home pays the fixed part and the rest divides at will.

    A set of instances must bear what has homes nowhere else, so its mean is a bound; the greatest
    of these bounds can be reached.
    """
    n, least = loads.n_instances, np.inf
    every = subsets(n)
    for homes in product(every, repeat=len(loads.spread)):
        worst = 0.0
        for some in every:
            borne = loads.rest[list(some)].sum()
            for spread, fixed, ours in zip(loads.spread, loads.fixed, homes, strict=True):
                borne += spread * (set(ours) <= set(some)) + fixed * len({*ours} & {*some})
            worst = max(worst, borne / len(some))
        least = min(least, worst)
    return least


@st.composite
def small(draw, *, most_keys, divided):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, k = draw(st.integers(2, 3)), draw(st.integers(1, most_keys))
    spread = np.round(rng.pareto(0.8, k) * 20 + 1)
    fixed = np.round(spread * rng.random(k) * draw(st.sampled_from([0.0, 0.3, 1.0])))
    rest = np.round(rng.random(n) * draw(st.sampled_from([0, 40])))
    homes = rng.integers(0, n, k)
    return loads_of(spread, fixed if divided else np.zeros(k), homes, rest)


@pytest.mark.parametrize("planner", SPLITTING)
@settings(tries(60), derandomize=True)
@given(loads=small(most_keys=4, divided=True), imbalance=st.sampled_from([0.0, 0.05]))
def test_divided_keys_end_near_the_least_of_all_plans(planner, loads, imbalance):
    plan = SPLITTING[planner](loads, imbalance)
    level = after(loads, plan)
    limit = (1 + imbalance) * loads.per_instance().mean()
    assert level.max() <= max(limit, NEAR * least_maximum(loads)) * (1 + 1e-6)
    assert level.max() <= loads.per_instance().max() * (1 + 1e-9)


@pytest.mark.parametrize("layout", WHOLE)
@settings(tries(60), derandomize=True)
@given(loads=small(most_keys=7, divided=False))
def test_whole_keys_end_at_the_least_of_all_plans(layout, loads):
    choice, n = LAYOUTS[layout](imbalance=0.0), loads.n_instances
    level = after(loads, choice.changes(loads))
    tried = product(range(n), repeat=len(loads.spread))
    levels = [loads.rest + np.bincount(one, loads.spread, minlength=n) for one in tried]
    assert level.max() <= NEAR * min(one.max() for one in levels)


def bound(loads):
    """What no plan is below: each key needs homes enough, and each home pays for it."""
    lower, upper = 0.0, float(loads.spread.sum() + loads.fixed.sum() + loads.rest.sum())
    for _ in range(60):
        middle = (lower + upper) / 2
        fits = (loads.fixed < middle).all() and loads.rest.max() <= middle
        if fits:
            homes = np.maximum(1, np.ceil(loads.spread / (middle - loads.fixed) - 1e-9))
            total = (loads.spread + homes * loads.fixed).sum() + loads.rest.sum()
            fits = homes.max() <= loads.n_instances and total <= loads.n_instances * middle
        lower, upper = (lower, middle) if fits else (middle, upper)
    return upper


@pytest.mark.parametrize("planner", SPLITTING)
@settings(tries(25), derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    instances=st.sampled_from([4, 16, 64]),
    exponent=st.sampled_from([0.8, 1.2, 2.0]),
    copied=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_divided_keys_end_near_the_bound(planner, seed, instances, exponent, copied):
    rng = np.random.default_rng(seed)
    spread = 1e4 * np.arange(1, 1001) ** -exponent
    fixed = spread * copied * rng.random(len(spread))
    homes = rng.integers(0, instances, len(spread))
    loads = loads_of(spread, fixed, homes, np.zeros(instances))
    level = after(loads, SPLITTING[planner](loads, 0.05))
    limit = 1.05 * loads.per_instance().mean()
    assert level.max() <= max(limit, NEAR_BOUND * bound(loads)) * (1 + 1e-6)


@settings(tries(60), derandomize=True)
@given(seed=st.integers(0, 10**6), instances=st.integers(1, 20), keys=st.integers(1, 60))
def test_levelling_and_exchanging_never_raise_the_maximum(seed, instances, keys):
    rng = np.random.default_rng(seed)
    spread, fixed = rng.pareto(0.7, keys), rng.pareto(1.5, keys) * rng.integers(0, 2)
    homes, rest = rng.integers(0, instances, keys), rng.random(instances)
    loads = loads_of(spread, fixed, homes, rest)
    before = loads.per_instance()
    work = Workspace(loads)
    level_out(work, 0.0)
    shares = [sum(work.shares(key).values()) for key in range(keys)]
    assert np.allclose(shares, 1.0)
    assert np.allclose(after(loads, work.changed), work.level)
    assert work.level.max() <= before.max() * (1 + 1e-9)
    found = least_whole(spread + fixed, homes, rest, 0.0)
    level = rest + np.bincount(found, spread + fixed, minlength=instances)
    assert level.max() <= before.max() * (1 + 1e-9)


COSTS = np.array([1e-7, 2e-7, 1e-7, 2e-9, 2e-8])


def counted(rng, keys, instances):
    """An interval of keys whose work lies at one home each, heavy ones among them."""
    hashes = np.unique(rng.integers(0, 1 << 40, keys).astype(np.uint64))
    arrived = np.round(rng.pareto(0.8, (2, len(hashes))) * 50)
    candidates = np.vstack([arrived[0] * arrived[1], np.zeros(len(hashes))])
    results = np.round(candidates * rng.random())
    homes = (hashes % instances).astype(np.int64)
    done = np.array(
        [
            np.bincount(homes, one, minlength=instances)
            for one in (*[arrived.sum(axis=0)] * 3, candidates[0], results[0])
        ]
    )
    others = np.zeros((5, instances))
    work = Work(arrived, candidates, results, done, others, COSTS, hosts=0)
    stored = np.array([np.bincount(homes, side, minlength=instances) for side in arrived])
    return Interval(
        hashes, arrived, arrived * 2, np.zeros(instances), stored, 2 * stored, work=work
    )


@pytest.mark.parametrize("layout", PLANNED)
@tries(25)
@given(seed=st.integers(0, 10**6), instances=st.integers(2, 9), work=st.booleans())
def test_no_plan_ends_above_what_it_began_with(layout, seed, instances, work):
    """Plan after plan, as keys turn hot and cold."""
    rng, choice = np.random.default_rng(seed), LAYOUTS[layout]()
    state = choice.start(instances)
    assert isinstance(state, KeyBased)
    for _ in range(4):
        interval = counted(rng, int(rng.integers(1, 60)), state.instances)
        interval = interval if work else interval._replace(work=None)
        before = choice.gather(state.base, state.table, [interval]).per_instance()
        plan = choice.plan(state, [interval])
        if plan is not None:
            state = plan.layout
            level = choice.gather(state.base, state.table, [interval]).per_instance()
            assert level.max() <= before.max() * (1 + 1e-6)


def test_a_key_is_divided_by_both_sides_where_copies_leave_no_way():
    """The larger side is twice the smaller, and copying that alone fills every home."""
    rng, choice = np.random.default_rng(1), LAYOUTS["mnrt"]()
    interval = counted(rng, 30, 8)
    arrived = np.full((2, len(interval.hashes)), 20.0)
    arrived[:, 0] = 6000.0, 2600.0
    interval = interval._replace(arrived=arrived, held=arrived, work=None)
    state = choice.start(8)
    plan = choice.plan(state, [interval])
    placement = plan.layout.table.placements[int(interval.hashes[0])]
    assert (placement.mode, len(placement.homes)) == (Mode.SPLIT, 8)
    level = choice.gather(plan.layout.base, plan.layout.table, [interval]).per_instance()
    assert level.max() <= 1.06 * level.mean()
