"""What a batch has come to is in its manifest, and an attempt that is lost changes nothing."""

from __future__ import annotations

import json
from threading import Thread
from unittest.mock import patch

import pytest

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import BiK, Ftlb, Hash, Mixed, Pkg
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.skipped import Skipped
from joinengine.state import manifests
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, two_way

SIDES = [(1, 1, 0), (2, 2, 0)], [(1, 1, 0)]
WISHES = [
    Relayout(Hash()),
    Relayout(instances=3),
    Relayout(Mixed(imbalance=0.2), 4),
    Relayout(Ftlb(backups=2, domains=3)),
    Relayout(Ftlb(levels={"a": {"top": 1, "backups": 3}})),
]


class Failing(InlineJobs):
    """Route tasks that fail in the batches `fails`, once each, and skip a file in batch 1."""

    fails = ()

    def route(self, frame, plan, *ends):
        if frame is None:
            self.ends = [*getattr(self, "ends", []), ends]
        reports = super().route(frame or [[]], plan, *ends)
        if plan.batch == 1 and frame is not None:
            reports[0].skipped.append(Skipped("a.parquet", "is cut off"))
        if plan.batch in self.fails:
            self.fails = [one for one in self.fails if one != plan.batch]
            raise JoinEngineError("the disk is full")
        return reports


def start(folder="/nowhere/query", **jobs):
    query = LocalQuery(folder, two_way(), "mnrt", jobs=Failing(world=MemoryWorld(), **jobs))
    query.jobs.fails = []
    return query


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_a_wish_is_the_same_after_a_manifest(wish):
    assert Relayout.from_json(json.loads(json.dumps(wish.to_json()))) == wish


def test_a_manifest_says_where_its_batch_ends_and_what_was_wished():
    query = start()
    query.runner.relayout(WISHES[1])
    query.run_tuples(0, *SIDES)
    found = manifests.newest(query.checkpoint.manifests)
    assert found.wishes == (WISHES[1],)
    assert found.operators[0].layouts.newest.wanted == 3
    assert not found.quiet
    query.runner.run({0: 5, 2: 1})
    found = manifests.newest(query.checkpoint.manifests)
    assert found.position == query.runner.manifest.position == {0: 5, 2: 1}
    assert found.wishes == ()
    assert found.quiet
    assert found.skipped == query.runner.manifest.skipped == ()
    query.restart()
    query.runner.run({0: 7, 2: 1})
    assert query.jobs.ends == [({}, {0: 5, 2: 1}), ({0: 5, 2: 1}, {0: 7, 2: 1})]


def test_a_wish_waits_for_a_batch_that_is_committed():
    query = start()
    query.run_tuples(0, *SIDES)
    query.runner.relayout(Relayout(instances=5))
    full = JoinEngineError("the disk is full")
    with (
        patch.object(query.runner, "_commit", side_effect=full),
        pytest.raises(JoinEngineError, match="the disk is full"),
    ):
        query.run_tuples(1, *SIDES)
    assert query.runner.wishes == [Relayout(instances=5)]
    query.run_tuples(1, *SIDES)
    assert query.runner.wishes == []
    assert query.layout.instances == 5


SMALL, WIDE = Relayout(instances=4), Relayout(Pkg(choices=6))


def test_a_wish_is_refused_that_another_one_makes_impossible():
    """Six candidates a key, on four instances: whichever of the two wishes comes first."""
    jobs = InlineJobs(world=MemoryWorld())
    query = LocalQuery("/q", two_way(None, 8), "mnrt", jobs=jobs)
    query.run_tuples(0, *SIDES)
    query.runner.relayout(WIDE)
    for _ in range(2):  # it waits, and is granted
        with pytest.raises(InvalidRequest, match=r"pkg: choices must be .* instances, 4, found 6"):
            query.runner.relayout(SMALL)
        query.runner.relayout(Relayout(instances=7))
        query.run_tuples(query.runner.manifest.batch + 1, *SIDES)
    assert query.layout.instances == 7


def test_of_two_wishes_at_a_time_that_exclude_each_other_the_second_is_refused():
    query = LocalQuery("/q", two_way(None, 8), "mnrt", jobs=InlineJobs(world=MemoryWorld()))
    query.run_tuples(0, *SIDES)
    check, refused = query.runner._check, []

    def wish_too():
        try:
            query.runner.relayout(SMALL)
        except InvalidRequest as error:
            refused.append(error)

    other = Thread(target=wish_too)

    def checked(wishes):
        check(wishes)
        if other.ident is None:
            other.start()
            other.join(0.2)  # it waits for this one

    with patch.object(query.runner, "_check", checked):
        query.runner.relayout(WIDE)
    other.join()
    assert query.runner.wishes == [WIDE]
    assert len(refused) == 1


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({3: [SMALL], 1: [WIDE]}, "choices must be at most"),
        ({1: [SMALL], 3: [WIDE]}, "choices must be at most"),
        ({1: [Relayout(BiK(6))]}, "bi-k needs from 12"),
        ({1: [WIDE], 2: [Relayout(Hash())], 3: [SMALL]}, None),
        ({2: [Relayout(BiK(6))], 1: [Relayout(instances=12)]}, None),
        ({1: [WIDE, Relayout(Hash(), 4)]}, None),
    ],
)
def test_scheduled_wishes_are_checked_as_they_follow_each_other(schedule, said):
    jobs, settings = InlineJobs(world=MemoryWorld()), Settings(schedule=schedule)

    def begin():
        return LocalQuery("/q", two_way(None, 8), "mnrt", jobs=jobs, settings=settings)

    if said is not None:
        with pytest.raises(InvalidRequest, match=said):
            begin()
        return
    query = begin()
    for batch in range(4):
        query.run_tuples(batch, *SIDES)
        query.restart()  # what was granted before is not asked for again


def test_a_wish_is_refused_that_does_not_go_with_what_is_scheduled():
    jobs, settings = InlineJobs(world=MemoryWorld()), Settings(schedule={5: [SMALL]})
    query = LocalQuery("/q", two_way(None, 8), "mnrt", jobs=jobs, settings=settings)
    with pytest.raises(InvalidRequest, match="choices must be at most"):
        query.runner.relayout(WIDE)
    for batch in range(5):
        query.run_tuples(batch, *SIDES)
    query.runner.relayout(Relayout(Pkg(choices=6), 6))


def test_a_skipped_file_is_named_when_its_batch_counts(caplog):
    query = start()
    query.run_tuples(0, *SIDES)
    query.jobs.fails = [1]
    with pytest.raises(JoinEngineError, match="the disk is full"):
        query.run_tuples(1, *SIDES)
    assert "skipped" not in caplog.text
    query.run_tuples(1, *SIDES)
    assert caplog.text.count("joinengine: skipped a.parquet: it is cut off") == 1
    found = manifests.newest(query.checkpoint.manifests)
    assert found.skipped == (Skipped("a.parquet", "is cut off"),)
    assert found.totals.skipped_files == 1


def test_a_wish_of_a_batch_that_another_driver_has_committed_still_waits():
    older = start()
    older.run_tuples(0, *SIDES)
    world = older.jobs.world
    newer = LocalQuery("/nowhere/query", two_way(), "mnrt", jobs=Failing(world=world))
    commit = newer.runner._commit

    def late(draft):
        older.runner.check_alone = lambda: None
        with pytest.raises(JoinEngineError, match="another driver"):
            older.run_tuples(1, *SIDES)
        return commit(draft)

    newer.runner._commit = late
    newer.runner.relayout(Relayout(instances=5))
    newer.run_tuples(1, *SIDES)
    assert newer.runner.manifest.generation == older.runner.generation
    assert newer.runner.wishes == [Relayout(instances=5)]
    newer.runner._commit = commit
    newer.run_tuples(2, *SIDES)
    assert newer.runner.wishes == []
    assert newer.layout.instances == 5
