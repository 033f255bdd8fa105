"""Changes go into tables by key, exactly once: killed, delayed, repeated, disturbed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.transforms import BucketTransform, IdentityTransform

from joinengine.model.errors import InvalidRequest, JoinEngineError, TakenOver
from joinengine.results.delta_merge import DeltaMergeTarget, check_merge
from joinengine.results.iceberg import IcebergTarget
from joinengine.results.iceberg import check_table as check_iceberg
from joinengine.results.iceberg_catalog import Catalog
from joinengine.results.iceberg_merge import IcebergMergeTarget
from joinengine.results.netting import net_by_key
from joinengine.results.staging import Cutting, staged_files
from joinengine.results.table_sinks import staging_of
from tests.lakes import QUERY, DeltaLake, IceLake

ROWS = pa.schema([("a", pa.int64()), ("s", pa.string()), ("V v", pa.int64())])
CHANGES = ROWS.append(pa.field("_change", pa.int64()))


class Killed(BaseException):
    """The driver is gone."""


class ByKey:
    """A table with keys a and s."""

    def prepare(self):
        self.schema = ROWS
        super().prepare()

    def cutting(self):
        return Cutting()

    def stage(self, sink, generation, rows, parts=2):
        made = sink.target(generation)
        storage, files = self.world.storage(made.folder), []
        for part in range(parts):
            some = list(zip(*rows[part::parts], strict=True))
            one = staged_files(storage, f"g{generation}-{next(self.numbers)}", made.cutting)
            arrays = [pa.array(c, f.type) for c, f in zip(some, CHANGES, strict=True)]
            one.add(pa.RecordBatch.from_arrays(arrays, schema=CHANGES))
            files += one.close()
        return tuple(files)

    def values(self):
        rows = self.content().to_pylist()
        found = {(row["a"], row["s"]): row["V v"] for row in rows}
        assert len(found) == len(rows)
        return found


class DeltaByKey(ByKey, DeltaLake):
    """Of Delta."""

    def target(self):
        return DeltaMergeTarget(self.world, self.place, QUERY, ROWS, keys=("a", "s"))

    def content(self):
        return self.opened().to_pyarrow_table()

    def token(self):
        return self.opened().transaction_version(QUERY)

    def create_partitioned_by(self, name):
        DeltaTable.create(self.place, ROWS, partition_by=[name])

    def append(self, key):
        write_deltalake(self.place, other(key), mode="append")


class IceByKey(ByKey, IceLake):
    """Of Iceberg: in buckets, and with a column that no change has."""

    spec = (("a", BucketTransform(2), "part"), ("s", IdentityTransform(), "s"))

    def create(self):
        self.schema = ROWS.append(pa.field("more", pa.string()))
        super().create()
        self.schema = ROWS

    def target(self):
        catalog = Catalog("test", self.told)
        told = self.world, catalog, "shop.sales", QUERY, ROWS
        found = check_iceberg(catalog, "shop.sales", ROWS)
        columns, units = zip(*found, strict=True)
        cutting = Cutting(partition_by=columns, units=units)
        return IcebergMergeTarget(*told, keys=("a", "s"), cutting=cutting)

    def content(self):
        return self.opened().scan().to_arrow()

    def token(self):
        return int(self.opened().properties[f"joinengine.batch.{QUERY}"])

    def commits(self):
        return self.opened().metadata.last_sequence_number

    def append(self, key):
        """As a writer without PyIceberg does, which cannot write buckets here."""
        rows = other(key).append_column("more", pa.array(["kept"]))
        told = self.world, Catalog("test", self.told), "shop.sales", "q", rows.schema
        target = IcebergTarget(*told)
        columns, units = zip(*check_iceberg(target.catalog, "shop.sales", ROWS), strict=True)
        storage = staging_of(target)
        storage.make()
        made = staged_files(storage, f"g1-{key}", Cutting(partition_by=columns, units=units))
        made.add(rows.to_batches()[0])
        target.make()
        target.token()
        target.commit(((key, tuple(made.close())),))


def other(key):
    return pa.table({"a": [key], "s": ["x"], "V v": [7]}, ROWS)


def row(a, value, change, s="x"):
    return a, s, value, change


#: Three rows; one is updated and one deleted; one that was deleted comes again.
BATCHES = [
    [row(1, 1, 1), row(2, 1, 1), row(3, 1, 1, None)],
    [row(2, 2, 1), row(2, 1, -1), row(3, 1, -1, None), row(4, 9, 1), row(4, 9, -1)],
    [row(3, 5, 1, None), row(1, 1, 1), row(1, 1, -1)],
]
NETS = [
    {(1, "x"): 1, (2, "x"): 1, (3, None): 1},
    {(1, "x"): 1, (2, "x"): 2},
    {(1, "x"): 1, (2, "x"): 2, (3, None): 5},
]
STEPS = ["before token", "after token", "before merge", "after merge"]


@pytest.fixture(params=[DeltaByKey, IceByKey], ids=["delta", "iceberg"])
def lake(request, tmp_path):
    return request.param(tmp_path)


def at_step(monkeypatch, sink, step, action):
    """Let `action` run once at a step of the deliveries of one driver."""
    when, name = step.split()
    verb, done = {"token": "token", "merge": "_merge"}[name], []
    real = getattr(sink.to, verb)

    def called(*told):
        if when == "before" and not done:
            done.append(action())
        found = real(*told)
        if when == "after" and not done:
            done.append(action())
        return found

    monkeypatch.setattr(sink.to, verb, called)
    return done


def test_each_batch_is_its_net_and_one_commit(lake):
    sink, generation = lake.sink()
    for batch, (rows, net) in enumerate(zip(BATCHES, NETS, strict=True)):
        files = lake.stage(sink, generation, rows)
        sink.deliver(batch, files, generation)
        assert lake.values() == net
        version = lake.commits()
        sink.deliver(batch, files, generation)
        assert lake.commits() == version
        assert lake.token() == batch
    sink.deliver(9, lake.stage(sink, generation, [row(7, 1, 1), row(7, 1, -1)]), generation)
    assert lake.commits() == version, "nothing has changed"


def test_keys_of_text_are_found_in_files_that_were_merged(lake):
    """The package writes such files with another type of text."""
    sink, generation = lake.sink()
    for batch, (rows, net) in enumerate(
        (
            ([row(1, n, 1, s) for n, s in enumerate("abd")], {"a": 0, "b": 1, "d": 2}),
            ([row(1, 3, 1, "c"), row(1, 1, -1, "b")], {"a": 0, "c": 3, "d": 2}),
            ([row(1, 2, -1, "d"), row(1, 4, 1, "d")], {"a": 0, "c": 3, "d": 4}),
        )
    ):
        sink.deliver(batch, lake.stage(sink, generation, rows), generation)
        assert lake.values() == {(1, s): value for s, value in net.items()}


def test_empty_text_in_a_partition_column_is_null(tmp_path):
    """As Delta keeps it: what came with empty text goes with it again."""
    lake = DeltaByKey(tmp_path)
    lake.create_partitioned_by("s")
    sink, generation = lake.sink()
    for batch, (rows, net) in enumerate(
        (
            ([row(1, 1, 1, ""), row(2, 1, 1, "")], {1: 1, 2: 1}),
            ([row(1, 1, -1, ""), row(2, 1, -1, ""), row(2, 5, 1, "")], {2: 5}),
        )
    ):
        sink.deliver(batch, lake.stage(sink, generation, rows), generation)
        assert lake.values() == {(a, None): value for a, value in net.items()}


def test_keys_that_are_dates_beyond_those_of_python(tmp_path):
    by_day = pa.schema([("d", pa.timestamp("us")), ("v", pa.int64())])
    far = pa.array([1 << 60, 0], pa.int64()).cast(pa.timestamp("us"))
    rows = pa.table([far, pa.array([1, 2])], by_day).append_column("n", pa.array([1, 1]))
    asked = []
    net = net_by_key(rows, ["d"], lambda near: asked.append(near) or by_day.empty_table())
    assert net.select(["d", "v"]).sort_by("v").equals(pa.table([far, pa.array([1, 2])], by_day))
    ((low, high),) = (bounds["d"] for bounds in asked)
    assert (low.value, high.value) == (0, 1 << 60)


def test_batches_that_are_gathered_are_one_net(lake):
    sink, generation = lake.sink(every_s=60.0)
    held = lake.held(sink, generation, *BATCHES)
    sink.deliver_held(held, lake.checkpoint, generation, whole=True)
    before = lake.commits()
    assert lake.values() == NETS[-1]
    sink.deliver_held(held, lake.checkpoint, generation, whole=True)
    assert lake.commits() == before == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_is_killed_at_a_step(lake, step, monkeypatch):
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, BATCHES[0]), generation)
    files = lake.stage(sink, generation, BATCHES[1])

    def kill():
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, sink, step, kill)
        sink.deliver(1, files, generation)
    after, generation = lake.sink()
    after.deliver(1, files, generation)
    assert lake.values() == NETS[1]
    after.deliver(2, lake.stage(after, generation, BATCHES[2]), generation)
    assert lake.values() == NETS[2]


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_sleeps_at_a_step_while_another_goes_on(lake, step, monkeypatch):
    old, generation = lake.sink()
    old.deliver(0, lake.stage(old, generation, BATCHES[0]), generation)
    files = lake.stage(old, generation, BATCHES[1])

    def another():
        new, newer = lake.sink()
        new.deliver(1, files, newer)
        new.deliver(2, lake.stage(new, newer, BATCHES[2]), newer)

    done = at_step(monkeypatch, old, step, another)
    try:
        old.deliver(1, files, generation)
    except (TakenOver, JoinEngineError):
        pass  # it stops
    assert done
    assert lake.values() == NETS[2]


def test_somebody_who_commits_meanwhile_is_seen(lake, monkeypatch):
    """What the net was checked against is what it is applied to."""
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, BATCHES[0]), generation)
    with monkeypatch.context() as patch:
        done = at_step(patch, sink, "before merge", lambda: lake.append(4))
        sink.deliver(1, lake.stage(sink, generation, BATCHES[1]), generation)
    assert done
    assert lake.values() == NETS[1] | {(4, "x"): 7}
    done = at_step(monkeypatch, sink, "before merge", lambda: lake.append(5))
    with pytest.raises(JoinEngineError, match="another row of key a = 5, s = 'x' is there already"):
        sink.deliver(2, lake.stage(sink, generation, [row(5, 8, 1), row(6, 1, 1)]), generation)
    assert done
    assert lake.values() == NETS[1] | {(4, "x"): 7, (5, "x"): 7}


def test_what_no_change_has_stays(tmp_path):
    """Rows that share a file with one that goes, and updated ones, keep their other columns."""
    lake = IceByKey(tmp_path)
    lake.append(1)
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, [row(3, 1, 1), row(5, 1, 1)]), generation)
    sink.deliver(1, lake.stage(sink, generation, [row(1, 7, -1), row(1, 8, 1)]), generation)
    assert lake.values() == {(1, "x"): 8, (3, "x"): 1, (5, "x"): 1}
    lake.append(9)
    changes = [row(3, 1, -1), row(5, 1, -1), row(5, 2, 1)]
    sink.deliver(2, lake.stage(sink, generation, changes), generation)
    kept = {one["a"]: one["more"] for one in lake.content().to_pylist()}
    assert kept == {1: "kept", 5: None, 9: "kept"}
    changes = [row(1, 8, -1), row(1, 9, 1), row(9, 7, -1)]
    sink.deliver(3, lake.stage(sink, generation, changes), generation)
    sink.deliver(4, lake.stage(sink, generation, [row(9, 7, 1), row(2, 1, 1)]), generation)
    kept = {one["a"]: one["more"] for one in lake.content().to_pylist()}
    assert kept == {1: "kept", 2: None, 5: None, 9: None}, "a row that comes again is new"


def test_files_whose_bounds_are_elsewhere_are_not_read(tmp_path, monkeypatch):
    lake, read = IceByKey(tmp_path), []
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, [row(1, 1, 1), row(2, 1, 1)]), generation)
    sink.deliver(1, lake.stage(sink, generation, [row(900, 1, 1)], parts=1), generation)
    real = IcebergMergeTarget._content

    def content(self, task):
        read.append(task.file.record_count)
        return real(self, task)

    monkeypatch.setattr(IcebergMergeTarget, "_content", content)
    changes = [row(900, 1, -1), row(902, 1, 1)]
    sink.deliver(2, lake.stage(sink, generation, changes), generation)
    assert read == [1]
    assert lake.values() == {(1, "x"): 1, (2, "x"): 1, (902, "x"): 1}


def test_partitions_by_decimals_are_refused(tmp_path):
    rows = pa.schema([("k", pa.int64()), ("p", pa.decimal128(9, 2))])
    with pytest.raises(InvalidRequest, match="has partitions by the decimal 'p'"):
        check_merge(str(tmp_path / "t"), rows, ["k"], ["p"])
    check_merge(str(tmp_path / "t"), rows, ["p"], ["k"])


def test_tables_that_only_grow_and_keys_that_are_none(tmp_path):
    lake = DeltaByKey(tmp_path)
    lake.target().make()
    with pytest.raises(InvalidRequest, match="mergeKeys: f is double, which cannot be a key"):
        check_merge(lake.place, pa.schema([("f", pa.float64())]), ["f"])
    lake.opened().alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(InvalidRequest, match=r"mergeKeys: the table .* is append-only"):
        check_merge(lake.place, ROWS, ["a"])
