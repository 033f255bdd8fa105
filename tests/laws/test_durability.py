"""State that is uploaded behind: executors die, drivers start again, and no result is lost."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from joinengine.driver.batch import BatchRunner
from joinengine.driver.recovery import durability
from joinengine.driver.recovery.demands import check_durability
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import ExchangeKind
from joinengine.layouts import Ftlb, Hash
from joinengine.model.errors import DamagedState, InvalidRequest, JoinEngineError, StoreUnreachable
from joinengine.model.recovery import Durability, Recovery
from joinengine.model.windows import within
from joinengine.state import manifests
from joinengine.state.run import RunStore
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryStorage
from tests.executors import ClusterJobs
from tests.harness import LocalQuery, two_way
from tests.laws.cases import check_results, matched, relaxed, skewed_batches, usable
from tests.laws.losing import NERVOUS

EXECUTORS = 3
#: Every hour a batch; state leaves after three.
HOUR_US = 3_600_000_000
WINDOW = within("lt", "rt", lower="-2 hours", upper="1 hour", delay="10 minutes")


def timed(batches, late=True):
    """Tuples of a batch in its hour; each seventh is late by an hour and a half."""

    def at(number, serial):
        hours = number - 1.5 * (late and number > 2 and serial % 7 == 0)
        return round(hours * HOUR_US) + serial % 1000

    return [
        tuple([(key, one, at(number, one)) for key, one, _ in side] for side in sides)
        for number, sides in enumerate(batches)
    ]


def started(jobs, window=None, schedule=None, **choice):
    made = Ftlb(domains=EXECUTORS, **{"refill_rows": 60, **NERVOUS, **choice})
    settings = Settings(durability=Durability.REPLICAS, schedule=schedule or {})
    query = LocalQuery("/q", two_way(window, 7), "ftlb", choice=made, settings=settings, jobs=jobs)
    query._opened = RunStore(Everywhere(jobs))
    return query


class Everywhere:
    """The run files of a cluster, on whichever disk they are."""

    def __init__(self, jobs):
        self.jobs = jobs

    def __getattr__(self, name):
        return getattr(MemoryStorage("/q/joinengine/runs", self.jobs.disks()), name)


def start_again(query):
    query.jobs.restart()
    query.restart()


events = st.lists(
    st.fixed_dictionaries(
        {
            "die": st.sets(st.integers(0, EXECUTORS - 1), max_size=2),
            "restart": st.integers(0, 5).map(lambda n: n == 0),
            "uploads": st.integers(0, 12),
            "stalled": st.integers(0, 5).map(lambda n: n == 0),
        }
    ),
    min_size=8,
    max_size=8,
)
wishes = st.dictionaries(
    st.integers(1, 9),
    st.lists(st.builds(Relayout, st.none(), st.integers(5, 9)), min_size=1, max_size=1),
    max_size=2,
)


def persist(query, action):
    """Do something; if it fails, start again with a store that answers, until it is done."""
    for _ in range(4):
        try:
            return action()
        except (DamagedState, StoreUnreachable) as error:
            event(type(error).__name__)
            query.jobs.world.stalled = False
            start_again(query)
    raise AssertionError("it never went through")


@pytest.mark.parametrize("exchange", list(ExchangeKind))
@relaxed
@given(events, wishes, st.booleans(), st.sampled_from([0, 20]), st.integers(0, 99))
def test_no_result_is_lost_or_doubled(
    exchange, monkeypatch, events, wishes, windowed, misplace, seed
):
    monkeypatch.setattr(durability, "LAG", 4)  # that few batches may be behind the restorable one
    jobs = ClusterJobs(exchange=exchange, misplace=misplace)
    window = WINDOW if windowed else None
    query = started(jobs, window, wishes)
    batches = skewed_batches(8, seed=seed)
    batches = timed(batches) if windowed else batches
    for number, (sides, what) in enumerate(zip(batches, events, strict=True)):
        jobs.world.stalled = what["stalled"]
        for place in what["die"]:
            jobs.lose(place)
        if what["restart"]:
            persist(query, lambda: start_again(query))
        persist(query, lambda number=number, sides=sides: query.run_tuples(number, *sides))
        jobs.upload(what["uploads"])
        assert number - query.runner._uploaded._line[0].batch <= durability.LAG
    late = sum(record.joins[0].refused.late for record in query.records)
    if not windowed:
        check_results(query, batches)
    else:
        found = query.output()
        everything = matched(*usable(batches, window), window)
        on_time = [
            tuple([row for row in side if row[2] // HOUR_US >= number] for side in sides)
            for number, sides in enumerate(batches)
        ]
        assert matched(*usable(on_time, window), window) <= found <= everything
        assert late


class Repeating(ClusterJobs):
    """Notes which batches are repeated."""

    repeated = ()

    def route(self, frame, plan, *ends):
        self.repeated = (*self.repeated, *[plan.batch] * (frame is None))
        return super().route(frame, plan, *ends)


def test_what_is_lost_with_a_driver_is_computed_again_as_it_was():
    """With and without starts of the driver in between, to the last late tuple."""
    batches = timed(skewed_batches(9))
    outputs, layouts, repeated = [], [], []
    for starts in ((), (4, 5, 7)):
        jobs = Repeating()
        wishes = {2: [Relayout(instances=8)], 4: [Relayout(instances=6)]}
        query = started(jobs, WINDOW, wishes, imbalance=9.0)
        for number, sides in enumerate(batches):
            if number in starts:
                start_again(query)
            query.run_tuples(number, *sides)
        outputs.append(query.output())
        layouts.append(query.layout.instances)
        repeated.append(jobs.repeated)
    assert outputs[0] == outputs[1] != {}
    assert layouts == [6, 6]
    # Tasks that take state over wait until it is in the store: so before batch 2. What is computed
    # again is in no manifest, until the next batch commits it with its own.
    assert repeated == [(), (2, 3, 2, 3, 4, 2, 3, 4, 5, 6)]


def test_what_is_computed_again_is_refused_by_the_clock_that_it_had():
    """Tuples from the future stay so, and a source that was idle was idle."""
    window = within(
        *("lt", "rt"),
        lower="-2 hours",
        upper="1 hour",
        delay="0 s",
        max_ahead="1 hour",
        idle_after="90 minutes",
    )
    serial = iter(range(1000))
    outputs, refused, batches = [], [], []
    for number in range(8):
        now_us = 1_800_000_000_000_000 + number * HOUR_US
        left = [(one % 4, next(serial), now_us + (one - 12) * HOUR_US // 6) for one in range(24)]
        right = [(key, next(serial), time) for key, _, time in left[::3]]
        batches.append((left, right if number not in (3, 4, 5) else []))
    for starts in ((), (2, 6, 7)):
        jobs = ClusterJobs()
        query = started(jobs, window, imbalance=9.0)
        for number, sides in enumerate(batches):
            jobs.world.readings = number * 3600 * 1024
            if number in starts:
                start_again(query)
            query.run_tuples(number, *sides)
        outputs.append(query.output())
        refused.append([one.joins[0].refused for one in query.records])
    assert outputs[0] == outputs[1]
    assert outputs[0]
    assert refused[0] == refused[1]
    assert any(one.ahead for one in refused[0]) and any(one.late for one in refused[0])


class Astray(ClusterJobs):
    """In so many jobs a task runs away from its state, in each another one."""

    times = 0
    astray = None

    def run(self, operator, tasks):
        self.astray = self.times % self.executors if self.times else None
        self.times = max(0, self.times - 1)
        return super().run(operator, tasks)

    def place(self, task):
        return (task + (task == self.astray)) % self.executors


@pytest.mark.parametrize("times", [1, 2, 4])
def test_tasks_that_run_away_from_their_state_run_again(times):
    """More of them in turn than there are copies; nothing is lost by that."""
    jobs = Astray()
    query = started(jobs, imbalance=9.0)
    batches = skewed_batches(6)
    for number, sides in enumerate(batches):
        jobs.times = times if number == 4 else 0
        query.run_tuples(number, *sides)
        assert not jobs.times
    check_results(query, batches)


def test_state_that_no_executor_has_is_computed_again_by_the_next_start():
    jobs = Astray()
    query = started(jobs, imbalance=9.0)
    batches = skewed_batches(5)
    for number, sides in enumerate(batches[:4]):
        query.run_tuples(number, *sides)
    jobs.times = 99
    with pytest.raises(DamagedState, match=r"was on .* \(run file \S+ is missing\), .* start the"):
        query.run_tuples(4, *batches[4])
    jobs.times = 0
    start_again(query)
    query.run_tuples(4, *batches[4])
    check_results(query, batches)


def test_a_batch_does_not_wait_unless_copies_are_missing():
    jobs = ClusterJobs()
    jobs.world.stalled = True  # who waits, waits in vain
    query = started(jobs, imbalance=9.0)
    batches = skewed_batches(8)
    for number, sides in enumerate(batches[:4]):
        query.run_tuples(number, *sides)
    assert not query.checkpoint.runs.names() or all(
        "counts" in name for name in query.checkpoint.runs.names()
    )
    assert query.runner.manifest.restorable == -1
    jobs.lose(1)
    with pytest.raises(StoreUnreachable, match=r"were not uploaded .* batch is not committed"):
        query.run_tuples(4, *batches[4])
    assert query.runner.manifest.batch == 3
    jobs.world.stalled = False
    query.run_tuples(4, *batches[4])
    assert query.runner.manifest.restorable == 4
    assert query.records[-1].joins[0].lost.instances
    for number in range(5, 8):
        query.run_tuples(number, *batches[number])
    check_results(query, batches)


def test_a_batch_waits_when_too_many_before_it_are_not_uploaded():
    jobs = ClusterJobs()
    query = started(jobs, imbalance=9.0)
    batches = skewed_batches(durability.LAG + 1)
    seen = []
    for number, sides in enumerate(batches):
        query.run_tuples(number, *sides)
        seen.append(query.runner.manifest.restorable)
    assert seen[: durability.LAG - 1] == [-1] * (durability.LAG - 1)
    assert durability.LAG - 1 in seen
    check_results(query, batches)


def test_a_query_that_ends_says_what_the_store_lacks(caplog):
    jobs = ClusterJobs()
    query = started(jobs, imbalance=9.0)
    batches = skewed_batches(3)
    for number, sides in enumerate(batches):
        query.run_tuples(number, *sides)
    jobs.world.stalled = True
    query.runner.finish()
    assert "the next start computes these batches again" in caplog.text
    jobs.world.stalled = False
    caplog.clear()
    query.runner.finish()
    assert not caplog.text
    start_again(query)
    assert not jobs.frames.keys() - {0, 1, 2}
    check_results(query, batches)
    assert "computed again" not in caplog.text


def test_an_adopted_batch_is_computed_again_if_its_files_are_elsewhere():
    """The older driver is first to commit batch 3, and its executors end with it."""
    older = started(ClusterJobs(), imbalance=9.0)
    batches = skewed_batches(7)
    for number in range(3):
        older.run_tuples(number, *batches[number])
    newer = started(ClusterJobs(world=older.jobs.world, frames=older.jobs.frames), imbalance=9.0)
    commit = newer.runner._commit

    def late(draft):
        with patch.object(BatchRunner, "check_alone", lambda self: None):
            older.run_tuples(3, *batches[3])
        return commit(draft)

    with (
        patch.object(manifests.fence, "check_generation", lambda *_: None),
        patch.object(newer.runner, "_commit", late),
    ):
        newer.run_tuples(3, *batches[3])
    assert newer.runner.manifest.generation == older.runner.generation
    newer.jobs.upload(1000)
    newer.runner._uploaded._look()
    newer.run_tuples(4, *batches[4])
    newer.run_tuples(5, *batches[5])
    assert newer.runner.manifest.restorable == -1  # the one on disk names the older one's files
    start_again(newer)
    newer.run_tuples(6, *batches[6])
    check_results(newer, batches)


def test_manifests_and_files_of_the_restorable_batch_stay(monkeypatch):
    monkeypatch.setattr(manifests, "FULL_EVERY", 2)
    jobs = ClusterJobs()
    query = started(jobs)
    batches = skewed_batches(7)
    for number, sides in enumerate(batches[:2]):
        query.run_tuples(number, *sides)
    jobs.upload(1000)
    query.runner._uploaded._look()
    for number, sides in enumerate(batches[2:], 2):
        query.run_tuples(number, *sides)
    assert query.runner.manifest.restorable == 1
    assert {"00000001.json", "00000006.json"} <= set(query.checkpoint.manifests.names())
    start_again(query)
    check_results(query, batches)


def test_a_later_start_that_waits_for_uploads_restores_as_well():
    jobs = ClusterJobs()
    query = started(jobs)
    batches = skewed_batches(6)
    for number, sides in enumerate(batches[:4]):
        query.run_tuples(number, *sides)
    query.settings = replace(query.settings, durability=Durability.BATCH)
    start_again(query)
    for number, sides in enumerate(batches[4:], 4):
        query.run_tuples(number, *sides)
    assert query.runner.manifest.restorable == 5
    check_results(query, batches)


def test_a_restorable_batch_that_is_damaged_is_refused_by_name():
    jobs = ClusterJobs()
    query = started(jobs)
    batches = skewed_batches(4)
    for number, sides in enumerate(batches):
        query.run_tuples(number, *sides)
        if number == 1:
            jobs.upload(1000)
            query.runner._uploaded._look()
    runs = query.checkpoint.runs
    gone = min(name for name in runs.names() if "run" in name)
    runs.delete(gone)
    with pytest.raises(DamagedState, match=f"run file .*{gone} is missing"):
        start_again(query)


@pytest.mark.parametrize(
    ("choice", "settings", "how", "said"),
    [
        (Hash(), {}, "inner", "keeps no copies"),
        (Ftlb(), {}, "inner", "at least two executors"),
        (Ftlb(domains=1), {}, "inner", "at least two executors"),
        (Ftlb(domains=3), {}, "left", "protect inner joins only"),
        (Ftlb(domains=3), {"recovery": Recovery.STORE}, "inner", "which recovery 'store'"),
        (Ftlb(domains=3), {"lazy": True}, "inner", "moves 'eager'"),
        (Ftlb(domains=3, standby=True), {}, "inner", "give 5 or 7 instances"),
    ],
)
def test_what_has_no_copies_is_refused_at_the_start(choice, settings, how, said):
    query = two_way(WINDOW if how == "left" else None, 6, how=how)
    asked = Settings(durability=Durability.REPLICAS, **settings)
    with pytest.raises(InvalidRequest, match=f"durability: .*{said}"):
        check_durability(query.operators, [choice], asked)
    check_durability(query.operators, [choice], replace(asked, durability=Durability.BATCH))


def test_errors_are_those_of_the_engine():
    assert issubclass(StoreUnreachable, JoinEngineError)
