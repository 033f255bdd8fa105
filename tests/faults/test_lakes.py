"""Deliveries to tables are killed, delayed, repeated at each step: no result is lost or twice."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from joinengine.model.errors import CheckpointMismatch, DamagedState, JoinEngineError, TakenOver
from joinengine.results import table_sinks
from tests.lakes import LAKES, deliver, rows_of, table_of


class Killed(BaseException):
    """The driver is gone."""


@pytest.fixture(params=LAKES, ids=lambda kind: kind.kind)
def lake(request, tmp_path):
    return request.param(tmp_path)


def expected(*ends):
    return rows_of(table_of(range(*ends)))


def nothing_else(lake):
    """Only what the table names is there, and DuckDB reads the same rows."""
    assert not lake.strays()
    assert lake.elsewhere().total() == lake.rows().total()


def steps_of(sink, call):
    """Call `call(name)` before and after each step of the deliveries of one driver."""
    target = sink.to
    patch = pytest.MonkeyPatch()

    def wrap(thing, name, step):
        real = getattr(thing, name)

        def called(*args, **kwargs):
            call(f"before {step}")
            found = real(*args, **kwargs)
            call(f"after {step}")
            return found

        patch.setattr(thing, name, called)

    wrap(target, "open", "open")
    wrap(target, "token", "token")
    real_show = table_sinks.show

    def show(output, staged, visible, batch):
        call(f"before rename {staged[-9:]}")
        real_show(output, staged, visible, batch)
        call(f"after rename {staged[-9:]}")

    real_commit = target.commit

    def commit(batches):
        patch.setattr(table_sinks, "show", show)
        try:
            call("before commit")
            real_commit(batches)
        finally:
            patch.setattr(table_sinks, "show", real_show)
        call("after commit")

    patch.setattr(target, "commit", commit)
    return patch


@contextmanager
def at_step(sink, number, action):
    """Inside, `action` runs once: at the step `number` of the driver's deliveries."""
    seen = []

    def call(name):
        seen.append(name)
        if len(seen) == number + 1:
            action()

    patch = steps_of(sink, call)
    try:
        yield seen
    finally:
        patch.undo()


#: Steps of a delivery of two files: open, token, commit with two renames in it.
STEPS = 10
#: A driver that dies at another one leaves the same files as at one of these, or one that sleeps
#: there has read the same.
FOR_DEATH, FOR_SLEEP = (4, 6, 8, 9), (0, 2, 4, 6, 8)


def steps(every, some):
    """Each of them; those that are none of `some` are tried by `make test-all`."""
    return [step if step in some else pytest.param(step, marks=pytest.mark.slow) for step in every]


def test_there_are_so_many_steps(lake):
    sink, generation = lake.sink()
    files = lake.stage(sink, generation, range(10))
    with at_step(sink, -1, None) as seen:
        sink.deliver(0, files, generation)
    assert len(seen) == STEPS, seen


@pytest.mark.parametrize("step", steps(range(STEPS), FOR_DEATH))
def test_a_driver_is_killed_at_a_step(lake, step):
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, range(10)), generation)
    files = lake.stage(sink, generation, range(10, 20))
    lost = lake.stage(sink, generation, range(90, 99))  # of an attempt that no manifest names

    def kill():
        raise Killed

    with at_step(sink, step, kill), pytest.raises(Killed):
        sink.close()  # so that each step is there
        sink.deliver(1, files, generation)
    after, generation = lake.sink()
    after.deliver(1, files, generation)
    after.clean(files, range(generation + 1))
    assert lost
    assert lake.rows() == expected(20)
    nothing_else(lake)
    lake.compact()  # else the log would not hold a file twice
    after.deliver(1, files, generation)
    assert lake.rows() == expected(20)


#: Those of gathered batches that are merged into one file: a rename less, and the merging.
GATHERED = [*range(STEPS - 2), "merged", "marked"]
GATHERED_FOR_DEATH, GATHERED_FOR_SLEEP = (
    (4, 6, 7, "merged", "marked"),
    (0, 2, 4, 6, "merged", "marked"),
)


def gathered(lake, generation, sink):
    return lake.held(sink, generation, range(5), range(5, 10), range(10, 15))


@contextmanager
def merging(lake, sink, step, action):
    """As `at_step`, and once tasks have merged, or the mark is there."""
    storage = lake.checkpoint.storage
    patch, done = pytest.MonkeyPatch(), []

    def then(real):
        def called(*args):
            found = real(*args)
            if not done:
                done.append(True)
                action()
            return found

        return called

    if step == "merged":
        sink.merge = then(sink.merge)
    elif step == "marked":
        patch.setattr(type(storage), "create", then(type(storage).create))
    else:
        with at_step(sink, step, action):
            yield
        return
    try:
        yield
    finally:
        patch.undo()


@pytest.mark.parametrize("step", steps(GATHERED, GATHERED_FOR_DEATH))
@pytest.mark.parametrize("merged_bytes", [1 << 20, None])
def test_a_driver_is_killed_while_it_merges_and_delivers(lake, step, merged_bytes):
    sink, generation = lake.sink(60.0, 1 << 20)
    held = gathered(lake, generation, sink)

    def kill():
        raise Killed

    with merging(lake, sink, step, kill), pytest.raises(Killed):
        sink.deliver_held(held, lake.checkpoint, generation, whole=True)
    after, generation = lake.sink(60.0, merged_bytes)  # it may merge no more
    after.check_held(held, lake.checkpoint)
    assert after.deliver_held(held, lake.checkpoint, generation, whole=True) == ()
    after.clean((), range(generation + 1))
    assert lake.rows() == expected(15)
    nothing_else(lake)


@pytest.mark.parametrize("step", steps(range(4, 10), (6, 8)))
@pytest.mark.parametrize("more", [(), range(40, 44)])
def test_a_driver_is_killed_while_it_renames_what_is_merged_in_part(lake, step, more):
    """Files of partitions without company are renamed as they are; a batch may come meanwhile."""
    lake.partition()
    sink, generation = lake.sink(60.0, 1 << 20)
    ends = range(5), range(5, 12), range(20, 31)
    held = lake.held(sink, generation, *ends)

    def kill():
        raise Killed

    with at_step(sink, step, kill), pytest.raises(Killed):
        sink.deliver_held(held, lake.checkpoint, generation, whole=True)
    after, generation = lake.sink(60.0, 1 << 20)
    after.check_held(held, lake.checkpoint)
    if more:
        held = (*held, (3, lake.stage(after, generation, more)))
    assert after.deliver_held(held, lake.checkpoint, generation, whole=True) == ()
    after.clean((), range(generation + 1))
    assert lake.rows() == rows_of(table_of([n for numbers in (*ends, more) for n in numbers]))
    nothing_else(lake)
    assert not [name for name in lake.checkpoint.storage.names() if name.startswith("merged-")]


@pytest.mark.parametrize("step", steps(GATHERED, GATHERED_FOR_SLEEP))
def test_a_driver_sleeps_while_it_merges_and_another_goes_on(lake, step):
    old, generation = lake.sink(60.0, 1 << 20)
    held = gathered(lake, generation, old)

    def another():
        new, newer = lake.sink(60.0, 1 << 20)
        new.deliver_held(held, lake.checkpoint, newer, whole=True)
        more = lake.stage(new, newer, range(15, 20))
        new.deliver(3, more, newer)
        lake.compact()  # else the log would not hold a file twice

    with merging(lake, old, step, another):
        try:
            old.deliver_held(held, lake.checkpoint, generation, whole=True)
        except (TakenOver, JoinEngineError):
            pass  # it stops
    assert lake.rows() == expected(20)
    assert lake.elsewhere() == dict.fromkeys(range(20), 1)


def test_a_part_of_what_is_gathered_that_is_there_already_is_not_merged(lake):
    first, generation = lake.sink(60.0, 1 << 20)
    held = gathered(lake, generation, first)
    first.deliver(*held[0], generation)
    again, generation = lake.sink(60.0, 1 << 20)
    again.deliver_held(held, lake.checkpoint, generation, whole=True)
    assert lake.rows() == expected(15)


@pytest.mark.parametrize("step", steps(range(STEPS), FOR_SLEEP))
def test_a_driver_sleeps_at_a_step_while_another_goes_on(lake, step):
    old, generation = lake.sink()
    files = lake.stage(old, generation, range(10))

    def another():
        new, newer = lake.sink()
        new.deliver(0, files, newer)
        more = lake.stage(new, newer, range(10, 20))
        new.deliver(1, more, newer)
        nothing_else(lake)
        lake.compact()  # else the log would not hold a file twice

    with at_step(old, step, another):
        try:
            old.deliver(0, files, generation)
        except (TakenOver, JoinEngineError):
            pass  # it stops
    assert lake.rows() == expected(20)
    assert lake.elsewhere() == dict.fromkeys(range(20), 1)


@pytest.mark.parametrize("step", [4, 5, 7])
def test_others_append_and_compact_meanwhile(lake, step):
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, range(10)), generation)
    files = lake.stage(sink, generation, range(10, 20))

    def meanwhile():
        lake.append(range(20, 25))
        lake.compact()
        if lake.kind == "delta" and step < 5:  # no file of the delivery is in the folder yet
            lake.vacuum()

    before = set(lake.paths())
    with at_step(sink, step, meanwhile):
        sink.close()
        sink.deliver(1, files, generation)
    assert not before & set(lake.paths())
    sink.deliver(1, files, generation)
    assert lake.rows() == expected(25)


def test_a_table_that_is_made_anew_is_refused(lake):
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, range(10)), generation)
    files = lake.stage(sink, generation, range(10, 20))
    lake.again()
    with pytest.raises(JoinEngineError, match="was dropped or made anew while the query"):
        sink.deliver(1, files, generation)
    with pytest.raises(CheckpointMismatch, match="has delivered its results to another table"):
        lake.sink()
    assert not lake.rows()


def test_a_table_that_is_gone_is_named(lake):
    sink, generation = lake.sink()
    sink.deliver(0, lake.stage(sink, generation, range(10)), generation)
    files = lake.stage(sink, generation, range(10, 20))
    lake.drop()
    with pytest.raises(JoinEngineError, match=r"table .* (was dropped|is gone|cannot be read)"):
        sink.deliver(1, files, generation)


def test_a_commit_that_fails_is_tried_again_and_then_named(lake, monkeypatch):
    sink, generation = lake.sink()
    files = lake.stage(sink, generation, range(10))
    module = "deltalake.DeltaTable.create_write_transaction"
    if lake.kind == "iceberg":
        module = "pyiceberg.table.Transaction.commit_transaction"

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, full)
        with pytest.raises(JoinEngineError, match=r"did not take batch 0 \(.*No space left"):
            sink.deliver(0, files, generation)
    sink.deliver(0, files, generation)
    assert lake.rows() == expected(10)
    nothing_else(lake)


def test_an_answer_that_is_lost_is_looked_for(lake, monkeypatch):
    """The commit has happened, and its answer is an error."""
    sink, generation = lake.sink()
    files = lake.stage(sink, generation, range(10))
    kind, name = "deltalake.DeltaTable", "create_write_transaction"
    if lake.kind == "iceberg":
        kind, name = "pyiceberg.table.Transaction", "commit_transaction"
    module, _, of = kind.rpartition(".")
    owner = getattr(__import__(module, fromlist=[of]), of)
    real, calls = getattr(owner, name), []

    def loses(*args, **kwargs):
        real(*args, **kwargs)
        calls.append(args)
        raise ConnectionError("connection reset")

    monkeypatch.setattr(owner, name, loses)
    sink.deliver(0, files, generation)
    assert len(calls) == 1
    assert lake.rows() == expected(10)


def test_a_checkpoint_that_is_older_than_the_table_is_refused(lake):
    """Its next batches would be taken for those that are in the table, and lost."""
    sink, generation = lake.sink()
    sink.begin(-1, generation)
    sink, generation = deliver(lake, range(10), range(10, 20), ())
    for batch in (1, 2, 9):
        sink, generation = lake.sink()
        sink.begin(batch, generation)
    for batch in (-1, 0):
        sink, generation = lake.sink()
        with pytest.raises(DamagedState, match=rf"up to batch 1, .* is of batch {batch}, so"):
            sink.begin(batch, generation)
        lake.checkpoint.storage.delete("table.json")  # the copy may be from before the first batch
    assert lake.rows() == rows_of(table_of(range(20)))
