"""Totals are the sums of the committed batches, whatever was killed, restarted or taken over."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, reduce
from unittest.mock import patch

import pytest
from hypothesis import given

from joinengine.driver import batch as driver
from joinengine.driver import step
from joinengine.driver.batch_totals import added
from joinengine.driver.figures import FIGURES, SUMS
from joinengine.driver.records import BatchRecord
from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import TakenOver
from joinengine.model.skipped import Skipped
from joinengine.model.windows import within
from joinengine.state import manifests
from joinengine.state.manifest import Handed
from joinengine.state.totals import Totals
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way
from tests.laws.cases import CHOICES, enough, feed, kills, relaxed, skewed_batches

WINDOW = within("lt", "rt", lower="-300 us", upper="300 us", delay="100 us")
#: The figures of an operator that this stream must bring, else they would be 0 on both sides.
BROUGHT = {"output_rows", "late_rows", "null_rows", "expired_rows", "busy_s"}
COUNTS = SUMS


def timed_batches(n=4):
    """Skewed batches whose event time goes on, each with late tuples and some without a key."""
    for number, (left, right) in enumerate(skewed_batches(n)):
        yield tuple(
            [(key, value, 400 * number + value % 300) for key, value, _ in side]
            + [(None, number, 400 * number), (1, 10**7 + number, -5000)]
            for side in (left, right)
        )


BATCHES = list(timed_batches())


def start(layout, jobs=None):
    return LocalQuery(
        "/nowhere/query",
        two_way(window=WINDOW, instances=enough(layout, 2)),
        layout,
        jobs=jobs or InlineJobs(world=MemoryWorld()),
        choice=CHOICES[layout],
        settings=Settings(schedule={2: (Relayout(instances=3),)}),
    )


def closed_records():
    """Batch -> record, of all attempts of all drivers; later attempts see the same tuples."""
    found, real = {}, step.record_of

    def noted(*args):
        record = real(*args)
        found[record.batch] = record
        return record

    return found, patch.object(step, "record_of", noted)


def without_time(totals):
    """Totals without the seconds that tasks worked: another attempt takes other ones."""
    return replace(totals, operators=tuple({**one, "busy_s": 0} for one in totals.operators))


def check(query, records):
    """The newest manifest counts every batch once, by the sums of the records' fields."""
    found = manifests.newest(query.checkpoint.manifests).totals
    ours = [records[number] for number in range(len(BATCHES))]
    assert found.batches == len(BATCHES)
    assert found.input_rows == sum(len(side) for batch in BATCHES for side in batch)
    assert found.output_rows == query.output().total() > 0
    (operator,) = found.operators
    joins = [record.joins[0] for record in ours]
    for name in COUNTS:
        assert operator[name] == sum(FIGURES[name].of(join) for join in joins), name
    for name in BROUGHT:
        assert operator[name] > 0, name
    return found


@cache
def never_killed(layout):
    query = start(layout)
    feed(query, BATCHES)
    return query


# What is counted does not depend on the layout; these move state, copy it, and do neither.
@pytest.mark.parametrize("layout", ["mnrt", "dynamic", "hash"])
@relaxed
@given(killed=kills)
def test_totals_are_the_sums_over_kills_and_restarts(layout, killed):
    records, noting = closed_records()
    with noting:
        query = start(layout)
        feed(query, BATCHES, killed)
        query.jobs.step = lambda name: None
        query.restart()
        check(query, records)
    once = never_killed(layout)
    ours, other = (one.runner.manifest.totals for one in (query, once))
    assert without_time(ours) == without_time(other)
    # Of a run that nothing has cut off, the observers have seen each record; then seconds agree.
    assert other == reduce(added, once.records, Totals())


def test_moves_and_replans_are_counted():
    query = start("mnrt")
    feed(query, BATCHES)
    (operator,) = query.runner.manifest.totals.operators
    joins = [record.joins[0] for record in query.records]
    assert operator["replans"] == sum(join.replanned for join in joins) > 0
    assert operator["moved_rows"] == sum(join.moved.rows for join in joins) > 0
    assert operator["moved_bytes"] == sum(join.moved.size_bytes for join in joins) > 0
    assert operator["probe_copies"] == sum(join.work.probe_copies for join in joins) > 0


@pytest.mark.parametrize("step", ["before the commit", "routed", "joined"])
@pytest.mark.parametrize("done", [0, 1])
def test_a_batch_that_two_drivers_compute_counts_once(step, done):
    """While one driver is in batch 2, another one takes over and commits `done` batches.

    Or, `done` is 0: the second is in batch 2 too and the first wakes up, so that one is adopted.
    """
    records, noting = closed_records()
    world = MemoryWorld()
    with noting:
        first = start("mnrt", InlineJobs(world=world))
        for number in (0, 1):
            first.run_tuples(number, *BATCHES[number])
        sleeper, others = first, []
        if not done:
            others = [start("mnrt", InlineJobs(world=world))]
            sleeper = others[0]

        def asleep():
            if done:
                others.append(start("mnrt", InlineJobs(world=world)))
                others[0].run_tuples(2, *BATCHES[2])
            else:
                with pytest.raises(TakenOver):
                    first.runner._run(frame_of(first, 2), {}, Handed("q", 2, ""))

        once_at(step, sleeper, asleep)
        if done:
            with pytest.raises(TakenOver):
                first.run_tuples(2, *BATCHES[2])
        else:
            sleeper.run_tuples(2, *BATCHES[2])
            assert not sleeper.records  # the batch of the older driver was adopted
            assert sleeper.runner.manifest.generation == 1
        others[0].run_tuples(3, *BATCHES[3])
        check(others[0], records)


def frame_of(query, number):
    """What `run_tuples` would hand to the driver."""
    found = []
    with patch.object(query, "run", lambda batch, frame: found.append(frame)):
        query.run_tuples(number, *BATCHES[number])
    return found[0]


def once_at(step, query, asleep):
    """Let `asleep` happen once at a step of the query, or before it commits."""
    armed = [step]

    def at(name):
        if name in armed:
            armed.clear()
            asleep()

    query.jobs.step = at
    if step == "before the commit":
        commit = query.runner._commit

        def first_asleep(draft):
            at(step)
            return commit(draft)

        query.runner._commit = first_asleep


def test_a_skipped_file_counts():
    record = BatchRecord(0, 0.0, skipped=[Skipped("a.parquet", "is cut off")])
    assert added(added(Totals(), record), record).skipped_files == 2


def test_totals_as_plain_values():
    ours = Totals(3, 5, 7, 1, ({"late_rows": 2, "busy_s": 0.1 + 0.2}, {}))
    plain = json.loads(json.dumps(ours.to_json()))
    assert Totals.from_json(plain) == ours
    # A field of a later version is passed over, one that an earlier version lacks is 0.
    plain["new"] = 1
    assert Totals.from_json(plain) == ours
    del plain["skipped_files"]
    assert Totals.from_json(plain) == replace(ours, skipped_files=0)


def test_an_uncommitted_batch_is_in_no_totals():
    query = start("mnrt")
    query.run_tuples(0, *BATCHES[0])
    before = query.runner.manifest.totals
    with patch.object(driver.manifests, "commit", side_effect=OSError("no space")):
        with pytest.raises(OSError, match="no space"):
            query.run_tuples(1, *BATCHES[1])
    assert query.runner.manifest.totals == before
