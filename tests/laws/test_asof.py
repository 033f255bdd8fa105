"""As-of joins, and joins with the latest: each left tuple once, with one right tuple at most.

The oracle looks at all pairs of the whole stream (`nearest_pairs`).
"""

from __future__ import annotations

import tempfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import StreamJoin, asof, equi, latest
from joinengine.balancing.costs import Load
from joinengine.driver.records import BatchRecord, OperatorRecord, Refused, SideRecord, StateRecord
from joinengine.driver.settings import Settings
from joinengine.kernels import hashing, nearest
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Mode, Side
from joinengine.reporting.alerts import Alerts
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from joinengine.state.wished import Relayout
from tests.harness import LEFT, RIGHT, LocalQuery
from tests.laws.cases import CHOICES, each_router, feed, kills, memories, relaxed, ways

#: Layouts under which each left tuple meets all right tuples of its key.
SERVING = [
    name
    for name, one in LAYOUTS.items()
    if (one.keeps_keys_whole or one.can_divide_left) and CHOICES[name].copying is None
]
DIRECTIONS = ("backward", "forward", "nearest")
TOLERANCES = (None, "0 us", "40 us", "300 us")


def stream(name, schema):
    return Stream(None, {"kind": "recorded", "path": name}, Reading(schema))


def joined(layout, how="left", instances=3, **on):
    sides = stream("left", LEFT), stream("right", RIGHT)
    nearest_of = asof("lt", "rt", by=equi("lk", "rk"), **{"delay": "500 us"} | on)
    return StreamJoin(*sides, on=nearest_of, how=how, layout=layout, instances=instances)


def local(folder, plan, layout, **settings):
    return LocalQuery(folder, plan.query(), layout, choices=[plan._choice], **settings)


def nearest_pairs(left, right, how, direction, tolerance, strict):
    """The results of the whole stream by nested loop; of equal times the later in `right`."""
    most = None if tolerance is None else int(tolerance.split()[0])
    found = Counter()
    for row in left:
        best = None
        for number, other in enumerate(right):
            if None in (row[0], row[2], *other[::2]) or row[0] != other[0]:
                continue
            apart = row[2] - other[2]
            if (strict and not apart) or (most is not None and abs(apart) > most):
                continue
            if (direction == "backward" and apart < 0) or (direction == "forward" and apart > 0):
                continue
            rank = (abs(apart), apart < 0, -number)
            best = min(filter(None, (best, (rank, other))), key=lambda one: one[0])
        if best is not None:
            found[(*row, *best[1])] += 1
        elif how == "left":
            found[(*row, None, None, None)] += 1
    return found


@st.composite
def streams(draw):
    """Batches of both sides, in disorder of up to 400 us; no two right times of a key are equal."""
    rng = np.random.default_rng(draw(st.integers(0, 10**9)))
    n_keys, hot = draw(st.sampled_from([1, 5, 40])), draw(st.sampled_from([0.0, 0.6]))
    sizes = draw(st.lists(st.tuples(*[st.integers(0, 60)] * 2), min_size=1, max_size=6))
    found, serial = [], 0
    for batch, both in enumerate(sizes):
        sides = []
        for n in both:
            rows = []
            for _ in range(n):
                key = 0 if rng.random() < hot else int(rng.integers(n_keys))
                time = 10 * int(20 * batch + rng.integers(-20, 20)) + 10_000
                serial += 1
                nothing = rng.random(2)
                rows.append(
                    (
                        None if nothing[0] < 0.05 else key,
                        serial,
                        None if nothing[1] < 0.05 else time,
                    )
                )
            sides.append(rows)
        found.append(tuple(sides))
    return _apart(found)


def _apart(batches):
    """The batches without right tuples whose key and time were there before."""
    seen, found = set(), []
    for left, right in batches:
        kept = []
        for row in right:
            if row[2] is None or (row[0], row[2]) not in seen:
                kept.append(row)
            seen.add((row[0], row[2]))
        found.append((left, kept))
    return found


wishes = st.builds(
    Relayout, st.none() | st.sampled_from(SERVING).map(CHOICES.get), st.none() | st.integers(1, 6)
)


@pytest.mark.parametrize("layout", each_router(SERVING))
@relaxed
@given(
    batches=streams(),
    how=st.sampled_from(["inner", "left"]),
    direction=st.sampled_from(DIRECTIONS),
    tolerance=st.sampled_from(TOLERANCES),
    strict=st.booleans(),
    schedule=st.dictionaries(st.integers(1, 5), st.lists(wishes, min_size=1, max_size=1)),
    kills=kills,
    twice=st.booleans(),
    way=ways,
    memory=memories,
)
def test_each_left_tuple_has_its_nearest_once(
    layout, batches, how, direction, tolerance, strict, schedule, kills, twice, way, memory
):
    on = {"direction": direction, "tolerance": tolerance, "strict": strict}
    with tempfile.TemporaryDirectory() as folder:
        plan = joined(CHOICES[layout], how, **on, delay="2 ms")
        settings = Settings(schedule=schedule, memory_per_task=memory)
        query = local(folder, plan, layout, jobs=InlineJobs(twice=twice, **way), settings=settings)
        feed(query, batches, kills)
        query.finish(len(batches))
        left, right = ([row for both in batches for row in both[side]] for side in PAIR)
        wanted = nearest_pairs(left, right, how, direction, tolerance, strict)
        assert query.output() == wanted
        assert not query.state.shelves.state, "all is settled at the end"
        assert left_alone_is_divided(query.layout)


def left_alone_is_divided(layout):
    return all(
        one.mode is Mode.WHOLE or (one.mode is Mode.COPIED and one.split_side is Side.LEFT)
        for one in layout.table.placements.values()
    )


def with_latest(layout, how="left", **of):
    versions = latest(stream("right", RIGHT), **{"key": "rk", "order_by": "rv"} | of)
    left = stream("left", LEFT)
    return StreamJoin(left, versions, on=equi("lk", "rk"), how=how, layout=layout, instances=3)


def newest_before(batches, how, deleted):
    """Each left tuple with the greatest version of its key in the batches before its own."""
    newest, found = {}, Counter()
    for left, right in batches:
        for row in left:
            version = newest.get(row[0]) if row[0] is not None else None
            if version is not None and not (deleted and version[1] % 5 == 0):
                found[(*row, *version)] += 1
            elif how == "left":
                found[(*row, None, None, None)] += 1
        for row in right:
            if row[0] is not None and (row[0] not in newest or newest[row[0]][1] < row[1]):
                newest[row[0]] = row
    return found


@pytest.mark.parametrize("layout", each_router(SERVING))
@relaxed
@given(
    batches=streams(),
    how=st.sampled_from(["inner", "left"]),
    deleted=st.none() | st.just("rv % 5 = 0"),
    schedule=st.dictionaries(st.integers(1, 5), st.lists(wishes, min_size=1, max_size=1)),
    kills=kills,
    twice=st.booleans(),
    way=ways,
    memory=memories,
)
def test_each_left_tuple_meets_the_newest_of_the_batches_before(
    layout, batches, how, deleted, schedule, kills, twice, way, memory
):
    batches = [(left, right[::-1]) for left, right in batches]
    with tempfile.TemporaryDirectory() as folder:
        plan = with_latest(CHOICES[layout], how, deleted=deleted)
        settings = Settings(schedule=schedule, memory_per_task=memory)
        query = local(folder, plan, layout, jobs=InlineJobs(twice=twice, **way), settings=settings)
        feed(query, batches, kills)
        query.finish(len(batches))
        assert query.output() == newest_before(batches, how, deleted)
        assert left_alone_is_divided(query.layout)


def test_the_state_of_the_latest_follows_the_keys():
    with tempfile.TemporaryDirectory() as folder:
        query, held = local(folder, with_latest("hash"), "hash"), []
        for batch in range(24):
            query.run_tuples(batch, [], [(i % 5, 500 * batch + i, 0) for i in range(500)])
            held.append(query.state.shelves.rows)
        assert max(held[12:]) < 5 * 500, "some batches"
        query.run_tuples(24, [(key, 0, 0) for key in range(6)], [])
        assert {row[4] for row in query.output()} == {*range(500 * 23 + 495, 500 * 24), None}


@pytest.mark.parametrize("many", PAIR)
@pytest.mark.parametrize("layout", ["auto", "mnrt", "qmmp"])
def test_the_left_tuples_of_a_hot_key_are_shared_out_and_no_others(layout, many):
    """Most tuples are left ones, or right ones, which a join of pairs would divide."""
    sizes = (120, 20) if many is Side.LEFT else (20, 120)
    batches = []
    for batch in range(8):
        start = 1000 * batch
        left = [(0 if i % 3 else i, i, start + 7 * i) for i in range(sizes[0])]
        right = [(0 if i % 3 else i, i, start + 7 * i + 5) for i in range(sizes[1])]
        batches.append((left, right))
    with tempfile.TemporaryDirectory() as folder:
        plan = joined(CHOICES[layout], instances=4)
        query = local(folder, plan, layout, settings=Settings(load=Load.TUPLES))
        modes = Counter()
        for number, batch in enumerate(batches):
            query.run_tuples(number, *batch)
            table = query.layout.table
            modes.update(one.mode for one in table.placements.values())
            assert left_alone_is_divided(query.layout)
        query.finish(len(batches))
        left, right = ([row for both in batches for row in both[side]] for side in PAIR)
        assert modes[Mode.COPIED] or many is Side.RIGHT
        assert query.output() == nearest_pairs(left, right, "left", "backward", None, False)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_keys_that_share_a_hash_are_told_apart(direction, monkeypatch):
    monkeypatch.setattr(
        hashing, "hash_columns", lambda columns: np.full(len(columns[0]), 7 << 40, np.uint64)
    )
    monkeypatch.setattr("joinengine.exchange.keying.hash_columns", hashing.hash_columns)
    batches = [
        (
            [(i % 3, i, 1000 * batch + 7 * i) for i in range(20)],
            [(i % 4, i, 1000 * batch + 11 * i) for i in range(20)],
        )
        for batch in range(5)
    ]
    with tempfile.TemporaryDirectory() as folder:
        query = local(folder, joined("hash", direction=direction), "hash")
        feed(query, batches)
        query.finish(len(batches))
        left, right = ([row for both in batches for row in both[side]] for side in PAIR)
        assert query.output() == nearest_pairs(left, right, "left", direction, None, False)


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_state_follows_the_keys_and_not_their_versions(direction, tolerance):
    """Of each key what may still be nearest: 5 keys, of which each batch brings 100 versions."""
    with tempfile.TemporaryDirectory() as folder:
        on = {"direction": direction, "tolerance": tolerance, "delay": "0 us"}
        query = local(folder, joined("hash", **on), "hash")
        held = []
        for batch in range(24):
            start = 10_000 * batch
            right = [(i % 5, i, start + 10 * i) for i in range(500)]
            query.run_tuples(batch, [(0, 0, start + 5000)], right)
            held.append(query.state.shelves.rows)
        assert max(held[12:]) < 5 * 500, "some batches"


def test_the_files_hold_little_but_the_state():
    """Left tuples, gone after two batches, do not stay in the files of right ones, for twenty."""
    with tempfile.TemporaryDirectory() as folder:
        query = local(folder, joined("hash", tolerance="20000 us", delay="2000 us"), "hash")
        for batch in range(25):
            tuples = [(i, i, 1_000 * batch + 3 * i) for i in range(300)]
            query.run_tuples(batch, tuples, tuples)
        shelves = query.state.shelves
        stored = sum(file.size_bytes for file in shelves.files.values())
        assert stored < 1.5 * shelves.size_bytes


def test_of_right_tuples_of_one_time_the_last_read_is_taken():
    right = [[(0, 1, 100)], [(0, 2, 100), (0, 3, 90)], []]
    left = [[], [(0, 10, 100)], [(0, 11, 100)]]
    for direction in DIRECTIONS:
        with tempfile.TemporaryDirectory() as folder:
            query = local(folder, joined("hash", direction=direction), "hash")
            for number, both in enumerate(zip(left, right, strict=True)):
                query.run_tuples(number, *both, map_tasks=1)
            query.finish(3)
            found = {(row[1], row[4]) for row in query.output()}
            assert found == {(10, 2), (11, 2)}, direction


def test_a_stream_is_not_read_first_and_as_left_rows():
    both = stream("left", LEFT)
    given = {"on": equi("lk", "lk"), "suffixes": ("", "_r"), "instances": 2}
    with pytest.raises(InvalidRequest, match="the left side reads the same stream"):
        StreamJoin(both, latest(both, key="lk", order_by="lv"), **given)
    again = stream("left", LEFT)
    join = StreamJoin(both, latest(again, key="lk", order_by="lv"), **given)
    assert len(join.query().sources) == 2
    # Its state follows the keys, so it does not warn of growth without bound.
    alerts = Alerts(join.query())
    sides = [SideRecord(refused=Refused(100)) for _ in PAIR]
    entry = OperatorRecord(2, sides=sides, state=StateRecord(200, 6000))
    assert alerts.take(BatchRecord(0, 0.0, {"elapsed_s": 0.0}, joins=[entry])) == []


@pytest.mark.parametrize("tolerance", [None, "1 s"])
def test_explain_names_the_deletions_of_a_table_at_a_time(tolerance):
    given = {"key": "rk", "order_by": "rt", "at": "event", "deleted": "rv % 5 = 0"}
    on = asof("lt", "rt", by=equi("lk", "rk"), delay="1 s", tolerance=tolerance)
    sides = stream("left", LEFT), latest(stream("right", RIGHT), **given)
    text = StreamJoin(*sides, on=on, instances=2).explain()
    assert "and all rows after it" in text and "; deleted where rv % 5 = 0\n" in text


@pytest.mark.parametrize("name", ["pkg", "shuffle", "dynamic", "bi", "ftlb", "d-choices"])
def test_layouts_that_keep_right_tuples_apart_are_refused_by_name(name):
    with pytest.raises(InvalidRequest, match=f"layout {name} may keep right rows"):
        joined(name)


moments = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 5)),
    max_size=20,
)


@relaxed
@given(moments, moments, st.booleans())
def test_the_kernel_agrees_with_all_pairs_at_any_time(left, right, strict):
    sides = [
        nearest.Moments(
            np.array([group for group, _ in rows], np.uint64),
            np.array([time for _, time in rows], np.int64),
        )
        for rows in (left, right)
    ]
    numbers = np.arange(len(right), dtype=np.uint64)
    before = nearest.before(*sides, numbers, strict=strict).tolist()
    after = nearest.after(*sides, numbers, strict=strict).tolist()
    for (group, time), earlier, later in zip(left, before, after, strict=True):
        ours = [
            (t, n) for n, (g, t) in enumerate(right) if g == group and not (strict and t == time)
        ]
        assert earlier == max([(t, n) for t, n in ours if t <= time], default=(0, -1))[1]
        assert later == min([(t, -n) for t, n in ours if t >= time], default=(0, 1))[1] * -1
