"""Multiway joins: what a chain of joins on one key makes, each result once.

The oracle combines all tuples of the whole stream (`combinations`), pair by pair within the bounds.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter, defaultdict
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine import StreamJoin, equi, within
from joinengine.balancing.costs import Load
from joinengine.driver.settings import MEMORY_PER_TASK, Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS
from joinengine.model.keys import Mode, Side
from joinengine.operators import MultiwayJoin
from joinengine.operators.multiway import multiway_task, partners
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from joinengine.state.wished import Relayout
from tests.harness import TIME, LocalQuery
from tests.laws.cases import CHOICES, each_router, feed, kills, relaxed, ways

#: Layouts under which each left tuple meets all others of its key.
SERVING = [name for name in LAYOUTS if CHOICES[name].meets_all]
MOST = 4
#: How much later than a stream's tuple that of the next one may be, at least and at most.
BOUNDS = [(-60, 90), (0, 120), (-200, -20)]
#: Tuples of a batch come in any order, and after those of the batches before.
DELAY_US = 0


def schema(n):
    return pa.schema([(f"k{n}", pa.int64()), (f"v{n}", pa.int64()), (f"t{n}", TIME)])


def stream(n):
    return Stream(None, {"kind": "recorded", "path": f"s{n}"}, Reading(schema(n)))


def chained(layout, sides=3, *, windowed=False, after=None, instances=3, **settings):
    """s0 join s1 join s2 .., each later stream near to stream `after[n]`."""
    joined = stream(0)
    for n in range(1, sides):
        to = 0 if after is None else after[n]
        window = None
        if windowed:
            low, high = BOUNDS[n - 1]
            bounds = {"lower": f"{low} us", "upper": f"{high} us", "delay": f"{DELAY_US} us"}
            window = within(f"t{to}", f"t{n}", **bounds)
        on = equi(f"k{to}", f"k{n}")
        told = {"layout": layout, "instances": instances, **settings}
        joined = StreamJoin(joined, stream(n), on=on, within=window, **told)
    return joined


def combinations(batches, sides, *, windowed, after):
    """All results of the whole stream by nested loops, key by key: keys that differ never meet."""
    of_key = defaultdict(lambda: [[] for _ in range(sides)])
    for batch in batches:
        for n in range(sides):
            for row in batch[n]:
                if row[0] is not None and not (windowed and row[2] is None):
                    of_key[row[0]][n].append(row)
    found = Counter()
    for tuples in of_key.values():
        for rows in itertools.product(*tuples):
            if windowed:
                apart = [rows[n][2] - rows[after[n]][2] for n in range(1, sides)]
                if any(not low <= d <= high for d, (low, high) in zip(apart, BOUNDS, strict=False)):
                    continue
            found[tuple(itertools.chain.from_iterable(rows))] += 1
    return found


class Query(LocalQuery):
    """A query of many streams."""

    def __init__(self, folder, plan, layout, **settings):
        planned = plan._planned()
        super().__init__(folder, planned.query, layout, choices=planned.choices, **settings)

    def run_tuples(self, batch, sides, _, map_tasks=2):
        frame = []
        for task in range(map_tasks):
            dealt = [(n, rows[task::map_tasks]) for n, rows in enumerate(sides)]
            frame.append([(n, batch_of(n, rows)) for n, rows in dealt if rows])
        self.run(batch, frame)


def batch_of(n, rows):
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema(n), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(n))


@st.composite
def streams(draw, sides):
    """Batches of all sides, which follow each other in time; few tuples, since they multiply.

    The more sides, the fewer: a key with all tuples then has some ten thousand results, not a
    million, of which one draw in a hundred would take longer than all others.
    """
    rng = np.random.default_rng(draw(st.integers(0, 10**9)))
    n_keys, hot = draw(st.sampled_from([1, 3, 12])), draw(st.sampled_from([0.0, 0.6]))
    most = {3: 12, 4: 4}[sides] // (2 if n_keys == 1 else 1)
    sizes = draw(st.lists(st.tuples(*[st.integers(0, most)] * sides), min_size=1, max_size=5))
    serial, found = itertools.count(), []
    for batch, counts in enumerate(sizes):
        found.append(
            tuple(
                [
                    (
                        None if rng.random() < 0.04 else 0 if rng.random() < hot else int(k),
                        next(serial),
                        None if rng.random() < 0.04 else int(100 * batch + 10 * rng.integers(10)),
                    )
                    for k in rng.integers(n_keys, size=n)
                ]
                for n in counts
            )
        )
    return found


wishes = st.builds(
    Relayout, st.none() | st.sampled_from(SERVING).map(CHOICES.get), st.none() | st.integers(1, 6)
)


@pytest.mark.parametrize("layout", each_router(SERVING))
@relaxed
@given(
    data=st.data(),
    sides=st.integers(3, MOST),
    windowed=st.booleans(),
    schedule=st.dictionaries(st.integers(1, 4), st.lists(wishes, min_size=1, max_size=1)),
    kills=kills,
    twice=st.booleans(),
    way=ways,
    few=st.booleans(),
)
def test_each_combination_once(layout, data, sides, windowed, schedule, kills, twice, way, few):
    batches, after = data.draw(streams(sides)), [0, 0]
    for n in range(2, sides):  # a window is of one side of the join before
        after.append(data.draw(st.sampled_from([after[-1], n - 1])))
    most = (2, 3) if few else (multiway_task.GATHERED, partners.COMBINED)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(multiway_task, "GATHERED", most[0]),
        patch.object(partners, "COMBINED", most[1]),
    ):
        plan = chained(CHOICES[layout], sides, windowed=windowed, after=after)
        assert isinstance(plan.query().operators[0], MultiwayJoin)
        jobs = InlineJobs(twice=twice, **way)
        memory = 600 if few else MEMORY_PER_TASK  # of some tuples alone
        settings = Settings(schedule=schedule, memory_per_task=memory)
        query = Query(folder, plan, layout, jobs=jobs, settings=settings)
        feed(query, [(batch, None) for batch in batches], kills)
        query.finish(len(batches))
        assert query.output() == combinations(batches, sides, windowed=windowed, after=after)
        if windowed:
            assert not query.state.shelves.state, "no tuple can come any more"
        table = query.layout.table.placements.values()
        assert all(
            one.mode is Mode.WHOLE or (one.mode is Mode.COPIED and one.split_side is Side.LEFT)
            for one in table
        )


def played(folder, plan, batches, layout="hash", **settings):
    query = Query(folder, plan, layout, settings=Settings(**settings))
    tables = []
    for number, batch in enumerate(batches):
        query.run_tuples(number, batch, None)
        tables.append(query.layout.table)
    query.finish(len(batches))
    return query, tables


@pytest.mark.parametrize("layout", ["auto", "mnrt", "qmmp"])
def test_the_tuples_of_the_first_stream_are_shared_out(layout, tmp_path):
    batches = [
        tuple([(0 if i % 3 else i, i, 1000 * batch + i) for i in range(n)] for n in (240, 4, 4))
        for batch in range(4)
    ]
    plan = chained(CHOICES[layout], instances=4)
    query, tables = played(tmp_path, plan, batches, layout, load=Load.TUPLES)
    placed = [one for table in tables for one in table.placements.values()]
    assert any(one.mode is Mode.COPIED for one in placed)
    assert {one.split_side for one in placed if one.mode is Mode.COPIED} == {Side.LEFT}
    assert query.output() == combinations(batches, 3, windowed=False, after=[0, 0, 0])


@pytest.mark.parametrize("windowed", [False, True])
def test_keys_that_share_a_hash_are_told_apart(windowed, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "joinengine.exchange.keying.hash_columns",
        lambda columns: np.full(len(columns[0]), 7 << 40, np.uint64),
    )
    batches = [
        tuple([(i % m, i, 100 * batch + 9 * i) for i in range(9)] for m in (2, 3, 4))
        for batch in range(3)
    ]
    query, _ = played(tmp_path, chained("hash", windowed=windowed), batches)
    wanted = combinations(batches, 3, windowed=windowed, after=[0, 0, 0])
    assert wanted
    assert query.output() == wanted


def test_what_is_looked_at_is_near_and_complete(tmp_path):
    """Of a key without tuples on one side nothing is combined, and of others only near tuples."""
    sides = [[(1, i, 10_000 * i) for i in range(50)] for _ in range(3)]
    sides[0] += [(2, i, 10_000 * i) for i in range(50)]
    sides[1] += [(2, i, 10_000 * i) for i in range(50)]
    query, _ = played(tmp_path, chained("hash", windowed=True), [tuple(sides)])
    assert sum(query.output().values()) == 50
    assert query.records[0].joins[0].work.candidates == 2 * 50


def test_each_stream_is_stored_once_and_nothing_in_between(tmp_path):
    batches = [tuple([(0, i, i) for i in range(20)] for _ in range(3))]
    states = {}
    for multiway in (True, False):
        folder = tmp_path / str(multiway)
        folder.mkdir()
        query, _ = played(folder, chained("hash", multiway=multiway), batches)
        states[multiway] = sum(one.state.rows for one in query.records[-1].joins)
        assert sum(query.output().values()) == 20**3
    assert states == {True: 60, False: 60 + 400}


def test_a_tuple_is_kept_as_long_as_the_bounds_add_up_to(tmp_path):
    """The first tuple may be 90 + 120 before the third; the watermark is 150 when that comes."""
    batches = [
        ([(1, 0, 0)], [], []),
        ([], [(1, 1, 90)], []),
        ([(2, 2, 150)], [(2, 3, 150)], [(2, 4, 150)]),
        ([], [], [(1, 5, 180)]),
        ([(2, 6, 400)], [(2, 7, 400)], [(2, 8, 400)]),
        ([(3, 9, 500)], [(3, 10, 400)], [(3, 11, 400)]),
    ]
    query, _ = played(tmp_path, chained("hash", windowed=True, after=[0, 0, 1]), batches)
    values = {row[1::3] for row in query.output()}
    assert values == {(0, 1, 5), (2, 3, 4), (6, 7, 8)}
    held = [record.joins[0].state.rows for record in query.records]
    assert held[3] == 6
    assert held[5] < 9, "those of the first key have left"


def test_only_what_is_near_in_time_is_gathered(tmp_path, monkeypatch):
    """A tuple of a key with much state looks at the times of all, and at the rest of few."""
    taken, gathered = [], partners.gathered

    def watched(*arguments):
        taken.append(len(gathered(*arguments).of_key))
        return gathered(*arguments)

    monkeypatch.setattr(multiway_task, "gathered", watched)
    batches = [
        ([(1, i, 10 * i) for i in range(20)], [(1, i, 10 * i) for i in range(20)], [(1, 0, 0)]),
        ([], [], [(1, 1, 200)]),
    ]
    query = Query(tmp_path, chained("hash", windowed=True, after=[0, 0, 0]), "hash")
    query.run_tuples(0, batches[0], None)
    taken.clear()
    query.run_tuples(1, batches[1], None)
    assert taken == [12, 18]  # s0 from 80 on, and s1 from 60 before that
    wanted = combinations(batches, 3, windowed=True, after=[0, 0, 0])
    assert query.output() == wanted
