"""An operator that waits for a watermark gets it, though the operators before it hold nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine import Stream, StreamAggregate, StreamJoin, equi, windows, within
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.sources.readings import Reading
from tests.harness import LocalQuery
from tests.laws.growing import Clock

INSTANT = pa.timestamp("us", "UTC")
SCHEMAS = {name: pa.schema([(f"{name}k", pa.int64()), (f"{name}t", INSTANT)]) for name in "abcd"}


def stream(name):
    made = Stream(None, {"kind": "recorded", "path": name}, Reading(SCHEMAS[name]))
    return made.withWatermark(f"{name}t", "1 second")


def join(left, right, keys, how="inner", **given):
    near = within(f"{keys[0]}t", f"{keys[1]}t", lower="0 s", upper="1 second")
    on = equi(f"{keys[0]}k", f"{keys[1]}k")
    return StreamJoin(left, right, on=on, within=near, how=how, instances=2, **given)


def three(how):
    """A semi join, whose results come a batch late, read by a join that holds nothing."""
    first = join(stream("a"), stream("b"), "ab", "left_semi")
    second = join(first, stream("c"), "ac")
    sides = (second, stream("d")) if how == "right" else (stream("d"), second)
    return join(*sides, "ad" if how == "right" else "da", how)


class Fed(LocalQuery):
    """Feeds a row of each stream in a batch: (seconds, name of the stream -> key)."""

    def __init__(self, folder, plan, **given):
        self._names = [source.place for source in plan._flat()[1]]
        choices = [node._choice for node in plan._flat()[0]]
        super().__init__(folder, plan.query(), "hash", choices=choices, **given)

    def feed(self, batch, seconds, keys):
        def row(name):
            columns = [[keys.get(name)], [seconds * 1_000_000]]
            arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMAS[name], strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[name])

        self.run(batch, [[(number, row(name)) for number, name in enumerate(self._names)]])


@pytest.mark.parametrize("how", ["left", "right"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_row_without_a_partner_is_a_result_once_time_has_passed(tmp_path, how, ends):
    query = Fed(tmp_path, three(how))
    query.feed(0, 0, {"a": 1, "b": 2, "d": 1})
    query.feed(1, 100, {})
    query.finish(2) if ends else query.settle(2)
    assert query.output().total() == 1 + ends, "at the end also the row without a key"


def test_a_window_over_a_semi_join_ends_though_the_join_holds_nothing(tmp_path):
    semi = join(
        stream("a"), stream("b"), "ab", "left_semi", left_where="ak > 0", right_where="bk > 0"
    )
    counts = StreamAggregate(
        semi,
        by="ak",
        aggregates={"n": "count(*)"},
        window=windows("at", "10 s"),
        instances=2,
    )
    query = Fed(tmp_path, counts)
    query.feed(0, 0, {"a": 1, "b": 1})
    query.feed(1, 20, {"a": -1, "b": -1})
    query.settle(2)
    assert [row[:2] for row in query.output()] == [(1, 1)]


def test_windows_end_with_their_sources_however_long_no_row_has_come():
    """Nothing matches for longer than `idle_after`; then both streams end."""
    counts = StreamAggregate(
        join(stream("a"), stream("b"), "ab"),
        by="ak",
        aggregates={"n": "count(*)"},
        window=windows("at", "10 s", idle_after="5 s"),
        instances=2,
    )
    query = Fed("/q", counts, jobs=InlineJobs(world=Clock()))
    query.feed(0, 0, {"a": 1, "b": 1})
    query.world.sleep(6)
    query.feed(1, 1, {"a": 2, "b": 3})
    query.world.sleep(6)
    query.finish(2)
    assert [row[:2] for row in query.output()] == [(1, 1)]
