"""Bands and other predicates under every layout, against the nested loop."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.api.column_checks import check_condition
from joinengine.driver.settings import Settings
from joinengine.kernels.bands import (
    GREATEST,
    mix_cells,
    most_cells,
    own_cells,
    probed_cells,
    within_distance,
)
from joinengine.kernels.hashing import key_hash, make_words
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS, Hash
from joinengine.model.conditions import Distance, band, condition, equi, theta
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.windows import INT_MAX, INT_MIN, within
from joinengine.routing.base_functions import BASES
from joinengine.state.wished import Relayout
from tests.harness import LEFT, RIGHT, LocalQuery, two_way
from tests.laws.cases import (
    CHOICES,
    EACH_ROUTER,
    HOT,
    enough,
    everything,
    feed,
    kills,
    relaxed,
    sizes,
)
from tests.reference.nested_loop import nested_loop

ANYWHERE = [name for name, choice in LAYOUTS.items() if choice.serves_theta]


def batches(seed, n=5, most=25, keys=30):
    """Both sides' hot values wander; values are spread so that bands reach some of them."""
    rng = random.Random(seed)
    return filled(seed, [[rng.choice([0, most // 2, most]) for _ in PAIR] for _ in range(n)], keys)


def filled(seed, counts, keys=30):
    """As many tuples as `counts` says by batch and side, each from the seed and its number."""
    return [
        tuple(_values(seed, batch, side, counts[batch][side], keys) for side in PAIR)
        for batch in range(len(counts))
    ]


def _values(seed, batch, side, count, keys):
    rng = random.Random(f"{seed} {batch} {side}")
    return [
        (
            batch // 2 + side if rng.random() < 0.4 else rng.randrange(-keys, keys),
            2 * (100 * batch + number) + side,
            0,
        )
        for number in range(count)
    ]


def pairs(fed, matches):
    return Counter({a + b: n for (a, b), n in nested_loop(*everything(fed), matches).items()})


def in_band(lower, upper):
    def matches(a, b):
        difference = b[0] - a[0]
        return (lower is None or lower <= difference) and (upper is None or difference <= upper)

    return matches


streams_of_values = st.builds(
    filled,
    st.integers(0, 10**6),
    st.lists(st.tuples(sizes(25), sizes(25)), min_size=1, max_size=5),
)
bounds = st.tuples(st.integers(-6, 6), st.sampled_from([0, 1, 2, 3, 9])).map(
    lambda ends: (ends[0], ends[0] + ends[1])
)


@pytest.mark.usefixtures("acting")
@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@example(
    fed=HOT, ends=(-1, 1), instances=3, lazy=False, resize=None, kills={(1, "joined")}, twice=True
)
@example(
    fed=HOT, ends=(-1, 1), instances=2, lazy=False, resize=None, kills={(1, "joined")}, twice=True
)
@given(
    fed=streams_of_values,
    ends=bounds,
    instances=st.sampled_from([1, 3, 7]),
    lazy=st.booleans(),
    resize=st.none() | st.integers(2, 9),
    kills=kills,
    twice=st.booleans(),
)
def test_bands_are_those_of_the_nested_loop(
    layout, fed, ends, instances, lazy, resize, kills, twice
):
    schedule = {} if resize is None else {2: [Relayout(None, enough(layout, resize))]}
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(
                None, enough(layout, instances), band("lk", "rk", lower=ends[0], upper=ends[1])
            ),
            layout,
            choice=CHOICES[layout],
            jobs=InlineJobs(twice=twice),
            settings=Settings(schedule=schedule, lazy=lazy),
        )
        feed(query, fed, kills)
        assert query.output() == pairs(fed, in_band(*ends))


@cache
def fed_and_expected():
    """The same for every layout."""
    fed = batches(3, n=8, most=60)
    return fed, pairs(fed, in_band(-2, 1))


@pytest.mark.parametrize("layout", EACH_ROUTER)
@pytest.mark.parametrize(("how", "rows"), [("inner", 0), ("full", 9), ("left_anti", 4)])
def test_no_pair_is_in_a_band_that_holds_no_whole_number(layout, how, rows, tmp_path):
    """Such a tuple probes no cell at all."""
    near = within("lt", "rt", lower="0 s", upper="1 s", delay="1 s")
    plan = two_way(near, 3, band("lk", "rk", lower=0.2, upper=0.8), how=how)
    query = LocalQuery(tmp_path, plan, layout, choice=CHOICES[layout])
    for batch in range(2):
        query.run_tuples(batch, [(1, batch, 0), (2, batch, 0)], [(1, 2, 0), (2, 3, 0)][batch:])
    query.run_tuples(2, [], [(5, 5, 0), (6, 6, 0)])
    query.finish(3)
    assert query.output().total() == rows


@pytest.mark.parametrize("layout", EACH_ROUTER)
@pytest.mark.parametrize("lazy", [False, True])
def test_bands_go_with_switches(layout, lazy, tmp_path):
    fed, expected = fed_and_expected()
    schedule = {2: [Relayout(CHOICES["mnrt"])], 4: [Relayout(CHOICES["dynamic"])]}
    schedule[6] = [Relayout(CHOICES["bi-k"], 9)]
    query = LocalQuery(
        tmp_path,
        two_way(None, 6, band("lk", "rk", lower=-2, upper=1)),
        layout,
        choice=CHOICES[layout],
        settings=Settings(schedule=schedule, lazy=lazy),
    )
    feed(query, fed)
    assert expected
    assert query.output() == expected


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_a_band_beside_an_equality_and_a_predicate(layout, tmp_path):
    fed = batches(5, n=4, most=60, keys=4)
    on = condition([equi("lk", "rk"), band("lv", "rv", lower=-30, upper=20)])
    query = LocalQuery(
        tmp_path,
        two_way(None, 5, on, where="left.lv % 3 <> right.rv % 3 or lk = 0"),
        layout,
        choice=CHOICES[layout],
    )
    feed(query, fed)

    def matches(a, b):
        near = a[0] == b[0] and -30 <= b[1] - a[1] <= 20
        return near and (a[1] % 3 != b[1] % 3 or a[0] == 0)

    expected = pairs(fed, matches)
    assert expected
    assert query.output() == expected


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_a_one_sided_band_beside_an_equality(layout, tmp_path):
    fed = batches(6, n=4, most=60, keys=4)
    on = condition([equi("lk", "rk"), band("lv", "rv", lower=5)])
    query = LocalQuery(tmp_path, two_way(None, 5, on), layout, choice=CHOICES[layout])
    feed(query, fed)
    expected = pairs(fed, lambda a, b: a[0] == b[0] and b[1] - a[1] >= 5)
    assert expected
    assert query.output() == expected


@pytest.mark.parametrize("layout", ANYWHERE)
@pytest.mark.parametrize(
    ("on", "matches"),
    [
        (theta("left.lk < right.rk and lv % 2 = 0"), lambda a, b: a[0] < b[0] and a[1] % 2 == 0),
        (theta("abs(lk - rk) >= 20"), lambda a, b: abs(a[0] - b[0]) >= 20),
        (band("lk", "rk", upper=-10), in_band(None, -10)),
    ],
    ids=["less", "far", "one-sided"],
)
def test_any_predicate_where_all_tuples_meet(layout, on, matches, tmp_path):
    fed = batches(7, n=5, most=40)
    schedule = {2: [Relayout(None, 9)], 3: [Relayout(CHOICES["shuffle"])]}
    query = LocalQuery(
        tmp_path,
        two_way(None, 5, on),
        layout,
        choice=CHOICES[layout],
        settings=Settings(schedule=schedule),
    )
    feed(query, fed)
    expected = pairs(fed, matches)
    assert expected
    assert query.output() == expected


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_cells_of_one_hash_are_told_apart(layout, tmp_path, monkeypatch):
    """All cells hash to the same: each probe then finds all of the state, and keeps its cell."""
    monkeypatch.setattr(
        "joinengine.exchange.keying.mix_cells", lambda hashes, cells: np.full_like(hashes, 7 << 24)
    )
    fed = batches(8, n=3, most=40)
    on = band("lk", "rk", lower=-3, upper=3)
    query = LocalQuery(tmp_path, two_way(None, 4, on), layout, choice=CHOICES[layout])
    feed(query, fed)
    assert query.output() == pairs(fed, in_band(-3, 3))
    assert query.output()


whole = st.integers(-50, 50) | st.sampled_from([INT_MIN, INT_MIN + 1, 0, INT_MAX - 1, INT_MAX])


@given(
    left=st.lists(whole, min_size=1, max_size=8),
    right=st.lists(whole, min_size=1, max_size=8),
    lower=st.integers(-40, 40) | st.sampled_from([INT_MIN + 1, -(1 << 62)]),
    span=st.integers(0, 30) | st.sampled_from([1 << 61, 1 << 63, 2 * INT_MAX]),
)
@example(left=[INT_MIN, 0], right=[-1, INT_MAX], lower=-(1 << 62), span=1 << 63)
def test_every_partner_lies_in_a_cell_that_is_probed(left, right, lower, span):
    distance = Distance("a", "b", lower, min(lower + span, INT_MAX))
    check_cells(distance, np.array(left), np.array(right))


@given(
    left=st.lists(st.floats(allow_nan=False), min_size=1, max_size=8),
    right=st.lists(st.floats(allow_nan=False) | st.floats(-5, 5), min_size=1, max_size=8),
    lower=st.floats(-10, 10) | st.sampled_from([1e17, -1e300, -1e308, -GREATEST]),
    span=st.floats(0, 10) | st.sampled_from([5e-324, 1e308, GREATEST, np.inf]),
    farther=st.sampled_from([1.0, 1e17, 1e300, GREATEST / 5]),
)
@example(left=[-9.8e-30], right=[2.0], lower=0.0, span=2.0, farther=1.0)
@example(left=[0.0, 100.0], right=[0.0, 10.0], lower=-GREATEST, span=GREATEST, farther=1.0)
@example(left=[0.0, 100.0], right=[0.0, 10.0], lower=-1e308, span=np.inf, farther=1.0)
@example(left=[0.95 * GREATEST], right=[-0.05 * GREATEST], lower=-GREATEST, span=0.0, farther=1.0)
@example(left=[-1e308], right=[-1.5e308], lower=-1e308, span=1e308, farther=1.0)
def test_every_floating_partner_too(left, right, lower, span, farther):
    distance = Distance("a", "b", lower, min(lower + span, GREATEST), floating=True)
    near = [x * farther for x in right if abs(x) <= 5] or [0.0]
    check_cells(distance, np.array(left + near), np.array(right + near))


@pytest.mark.parametrize(
    ("columns", "bounds", "message"),
    [
        (("lt", "rt"), {"lower": "-9999999999 days"}, "lower '-9999999999 days' is longer than"),
        (("lt", "rt"), {"upper": "200000000 days"}, "exceeds 64 bits of microseconds"),
        (("lk", "rk"), {"lower": -(1 << 63)}, "exceeds 64-bit integers"),
        (("lf", "rf"), {"upper": 10**400}, "exceeds the range of double .* leave that end open"),
    ],
)
def test_bounds_that_no_column_reaches_are_refused(columns, bounds, message):
    schemas = tuple(
        schema.append(pa.field(name, pa.float64()))
        for schema, name in ((LEFT, "lf"), (RIGHT, "rf"))
    )
    with pytest.raises(InvalidRequest, match=message):
        check_condition(band(*columns, **bounds), schemas)


def check_cells(distance, left, right):
    a, b = (grid.ravel() for grid in np.meshgrid(left, right))
    found = within_distance(distance, a, b)
    if not distance.floating:
        exact = [
            distance.lower <= int(y) - int(x) <= distance.upper for x, y in zip(a, b, strict=True)
        ]
        assert found.tolist() == exact
    for side, mine, theirs in ((Side.LEFT, a, b), (Side.RIGHT, b, a)):
        probed = probed_cells(distance, side, mine)
        assert len(probed) == most_cells(distance) <= 3
        homes = own_cells(distance, theirs)
        hits = sum((cells == homes) & (True if some is None else some) for cells, some in probed)
        assert (hits[found] == 1).all()
        assert (hits <= 1).all()


def test_no_cell_beyond_the_interval_is_probed():
    """Ten values a cell: 0 probes [0, 9], which is one cell, 5 probes [5, 14], which is two."""
    distance = Distance("a", "b", 0, 9)
    (first, all_), (second, some) = probed_cells(distance, Side.LEFT, np.array([0, 5]))
    assert (first.tolist(), all_) == ([0, 0], None)
    assert second.tolist() == [1, 1]
    assert some.tolist() == [False, True]


def test_cells_of_a_stripe_live_together(tmp_path):
    """A base function by ranges of the hash needs fewer copies of the tuples that probe."""
    rng = random.Random(5)
    sides = [
        [(rng.randrange(400_000), 10_000 * side + n, 0) for n in range(3000)] for side in range(2)
    ]
    found = {}
    for base in BASES:
        query = LocalQuery(
            tmp_path / base,
            two_way(None, 8, on=band("lk", "rk", lower=-20, upper=20)),
            "hash",
            choice=Hash(base=base),
        )
        query.run_tuples(0, *sides)
        record = query.records[0].joins[0]
        found[base] = (query.output(), record.work.probe_copies, record.state.held)
    assert found["modulo"][0] == found["ring"][0] == found["cells"][0] != Counter()
    copies = {base: copies for base, (_, copies, _) in found.items()}
    # Of two neighbouring cells one in 16 pairs lies in two stripes; under modulo most are apart.
    assert copies["cells"] < 0.2 * copies["modulo"]
    assert copies["ring"] < 0.3 * copies["modulo"]
    for _, _, held in found.values():
        assert max(held) < 2 * sum(held) / len(held)


@pytest.mark.parametrize("step", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("base", BASES)
def test_patterns_in_values_become_no_load(base, step):
    cells = np.arange(20_000, dtype=np.int64) * step - 70_000
    none = np.zeros(len(cells), np.uint64)
    hashes = key_hash(make_words(mix_cells(none, cells), none))
    assert len(np.unique(hashes)) == len(cells)
    homes = BASES[base](16).homes(hashes)
    assert np.bincount(homes, minlength=16).max() < 1.5 * len(cells) / 16
