"""Changes go into a Delta table by key, exactly once: killed, delayed, repeated, disturbed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from joinengine.model.errors import InvalidRequest, JoinEngineError, TakenOver
from joinengine.results.delta_merge import DeltaMergeTarget, check_merge
from joinengine.results.staging import Cutting, staged_files
from tests.lakes import QUERY, DeltaLake

ROWS = pa.schema([("a", pa.int64()), ("s", pa.string()), ("V v", pa.int64())])
CHANGES = ROWS.append(pa.field("_change", pa.int64()))


class Killed(BaseException):
    """The driver is gone."""


class ByKey(DeltaLake):
    """A table with keys a and s."""

    def prepare(self):
        self.schema = ROWS

    def target(self):
        return DeltaMergeTarget(self.world, self.place, QUERY, ROWS, keys=("a", "s"))

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
        rows = self.opened().to_pyarrow_table().to_pylist()
        found = {(row["a"], row["s"]): row["V v"] for row in rows}
        assert len(found) == len(rows)
        return found


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


@pytest.fixture
def lake(tmp_path):
    return ByKey(tmp_path)


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
        assert DeltaTable(lake.place).transaction_version(QUERY) == batch
    sink.deliver(9, lake.stage(sink, generation, [row(7, 1, 1), row(7, 1, -1)]), generation)
    assert lake.commits() == version, "nothing has changed"


def test_batches_that_are_gathered_are_one_net(lake):
    sink, generation = lake.sink(every_s=60.0)
    held = lake.held(sink, generation, *BATCHES)
    sink.deliver_held(held, lake.checkpoint, generation, whole=True)
    assert lake.values() == NETS[-1]
    assert lake.commits() == 1


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


def append(lake, key):
    write_deltalake(lake.place, pa.table({"a": [key], "s": ["x"], "V v": [7]}, ROWS), mode="append")


def test_somebody_who_commits_meanwhile_is_seen(lake, monkeypatch):
    """What the net was checked against is what it is applied to."""
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, BATCHES[0]), generation)
    with monkeypatch.context() as patch:
        done = at_step(patch, sink, "before merge", lambda: append(lake, 4))
        sink.deliver(1, lake.stage(sink, generation, BATCHES[1]), generation)
    assert done
    assert lake.values() == NETS[1] | {(4, "x"): 7}
    done = at_step(monkeypatch, sink, "before merge", lambda: append(lake, 5))
    with pytest.raises(JoinEngineError, match="another row of key a = 5, s = 'x' is there already"):
        sink.deliver(2, lake.stage(sink, generation, [row(5, 8, 1), row(6, 1, 1)]), generation)
    assert done
    assert lake.values() == NETS[1] | {(4, "x"): 7, (5, "x"): 7}


def test_tables_that_only_grow_and_keys_that_are_none(lake):
    lake.target().make()
    with pytest.raises(InvalidRequest, match="mergeKeys: f is double, which cannot be a key"):
        check_merge(lake.place, pa.schema([("f", pa.float64())]), ["f"])
    lake.opened().alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(InvalidRequest, match=r"mergeKeys: the table .* is append-only"):
        check_merge(lake.place, ROWS, ["a"])
