"""Tuples that are read before their batch is due: an order brings what it says, whatever came."""

from __future__ import annotations

import os
from functools import cache
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.exchange.exchange import ThroughFiles
from joinengine.exchange.readahead import ReadAhead
from joinengine.exchange.route import Portion, RoutePlan
from joinengine.model.errors import UnreadableFile
from joinengine.sources.listing import OnBadFile
from joinengine.sources.positions import RowGroup
from joinengine.sources.readings import Reading
from joinengine.spark.jobs import tasks
from joinengine.spark.jobs.tasks import RouteOrders
from joinengine.wire.codec import decode, encode
from joinengine.wire.reports import RouteReport
from joinengine.world.world import MACHINE

SCHEMA = pa.schema([("value", pa.int64())])
#: Of the files of two sources, and their row groups.
FILES, GROUPS, ROWS = (2, 1), 3, 10
PLAN = encode(RoutePlan(0, 0, {}, ThroughFiles("/nowhere"), 1 << 20))
#: Nothing, about one batch, and all.
BUDGETS = (0, 1, 1 << 30)
READINGS = {source: Reading(SCHEMA) for source in range(len(FILES))}


def written(path, first):
    values = pa.table({"value": range(first, first + GROUPS * ROWS)}, schema=SCHEMA)
    pq.write_table(values, path, row_group_size=ROWS)
    return [RowGroup(str(path), number, ROWS) for number in range(GROUPS)]


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """(source, row group), of all files."""
    folder = tmp_path_factory.mktemp("read_ahead")
    places = [(source, n) for source, files in enumerate(FILES) for n in range(files)]
    return [
        (source, group)
        for number, (source, n) in enumerate(places)
        for group in written(folder / f"{source}-{n}.parquet", 1000 * number)
    ]


def portion_of(chosen):
    """A portion of these row groups, as they come."""
    parts = groupby(chosen, lambda one: (one[0], one[1].file))
    return encode(Portion(tuple((key[0], tuple(g for _, g in part)) for key, part in parts)))


@cache
def values_in(file):
    """The values of a file, which no test changes once it has asked."""
    return pq.read_table(file)["value"].to_pylist()


def values_of(chosen):
    """(source, value) of all tuples of these row groups, in their order."""
    return [
        (source, value)
        for source, group in chosen
        for value in values_in(group.file)[group.group * ROWS :][:ROWS]
    ]


class Routed:
    """A route task that keeps the tuples that it gets."""

    def __init__(self, *_, **__):
        self.task, self.report = self, RouteReport(0)
        self.tuples = kept[-1]

    def add(self, source, batches):
        for batch in batches:
            self.report.source_rows += batch.num_rows
            self.tuples += [(source, value) for value in batch["value"].to_pylist()]
            yield

    def close(self):
        self.report.seconds = {"read": 0.0}
        return self.report


kept = [[]]


@pytest.fixture(scope="module")
def orders():
    """Makes `RouteOrders` whose tasks keep what they get."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_Routing", Routed)
        yield lambda: RouteOrders(READINGS)


def routed(given_orders, portion):
    """The tuples that an order brings, and its report."""
    kept.append([])
    report = decode(given_orders(portion, PLAN, b"0"), RouteReport)
    return kept.pop(), report


@given(data=st.data())
def test_an_order_brings_what_it_says(groups, orders, data):
    """Another driver may have ended the batch before elsewhere; orders may come twice, or not."""
    given_orders = orders()
    some = st.lists(st.sampled_from(groups), max_size=6)
    for _ in range(data.draw(st.integers(1, 4))):
        ahead = data.draw(st.none() | some)
        if ahead is not None:
            budget = b"%d" % data.draw(st.sampled_from(BUDGETS))
            assert given_orders(portion_of(ahead), budget) is None
        chosen = data.draw(some if ahead is None else some | st.just(ahead))
        found, report = routed(given_orders, portion_of(chosen))
        assert found == values_of(chosen)
        assert report.source_rows == len(found)
        assert not report.skipped


@pytest.mark.parametrize(("budget", "most"), [(0, 0), (1, 1), (8 * ROWS + 1, 2), (1 << 30, 9)])
def test_no_more_is_read_than_may_wait(groups, budget, most):
    read = list[int]()

    class Counted:
        def batches(self, portion, *_):
            for group in portion:
                read.append(group.group)
                yield pa.record_batch([pa.array(range(ROWS))], schema=SCHEMA)

    counted = dict.fromkeys(READINGS, Counted())
    files = ReadAhead(counted, portion_of(groups), budget, MACHINE).files
    assert len(read) == most
    assert sum(batch.num_rows for _, tuples in files for batch in tuples) == ROWS * len(groups)


def test_what_was_read_ahead_is_not_read_again(tmp_path, orders):
    file = tmp_path / "0.parquet"
    chosen = [(0, group) for group in written(file, 0)]
    expected, given_orders = values_of(chosen), orders()
    given_orders(portion_of(chosen), b"%d" % BUDGETS[-1])
    file.unlink()
    found, report = routed(given_orders, portion_of(chosen))
    assert found == expected
    assert report.seconds["read"] > 0
    with pytest.raises(UnreadableFile, match=r"0\.parquet"):
        routed(given_orders, portion_of(chosen))  # once


@pytest.mark.parametrize("size", [-1, 0])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_bad_file_is_told_by_the_order_that_routes_it(tmp_path, orders, budget, size):
    """`size`: of the file as it was logged; 0: it has changed since."""
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    chosen = [(0, group) for group in written(good, 0)]
    written(bad, 0)
    os.truncate(bad, bad.stat().st_size // 2)
    harmed = [*chosen, (0, RowGroup(str(bad), 0, ROWS, size))]
    given_orders = orders()
    given_orders(portion_of(harmed), b"%d" % budget)
    with pytest.raises(UnreadableFile, match=r"bad\.parquet"):
        routed(given_orders, portion_of(harmed))
    skipping = RouteOrders({0: Reading(SCHEMA, on_bad_file=OnBadFile.SKIP)})
    skipping(portion_of(harmed), b"%d" % budget)
    found, report = routed(skipping, portion_of(harmed))
    assert found == values_of(chosen)
    assert [one.file for one in report.skipped] == [str(bad)]
