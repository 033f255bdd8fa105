"""Instances that lose their state under any layout: it is read again from the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joinengine import StreamAggregate, top, windows
from joinengine.driver.cleaning import clean
from joinengine.driver.settings import Settings
from joinengine.lab.emulation.emulating import Emulation
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import LAYOUTS, Ftlb
from joinengine.model.errors import DamagedState
from joinengine.model.recovery import Recovery
from joinengine.model.speeds import Speed
from joinengine.model.windows import within
from joinengine.reporting.words import plan_words
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from joinengine.state.run import RunStores
from joinengine.world.memory import MemoryWorld
from joinengine.world.world import MACHINE
from tests.harness import LEFT, two_way
from tests.laws import cases
from tests.laws.cases import (
    CHOICES,
    EACH_ROUTER,
    EXAMPLES,
    check_results,
    kills,
    relaxed,
    schedules,
    skewed_batches,
)
from tests.laws.losing import failing
from tests.laws.storing import (
    HARM,
    NOWHERE,
    STORE,
    WINDOW,
    Clocked,
    Stored,
    StoredStream,
    alter,
    files_of,
    harm,
    in_memory,
    noticed,
    runs_of,
    timed_batches,
)

hows = st.sampled_from(["inner", "full", "left_semi", "left_anti"])
harms = st.dictionaries(
    st.integers(1, 5),
    st.tuples(st.sets(st.integers(0, 5), min_size=1, max_size=3), st.sampled_from(list(HARM))),
    max_size=2,
)
fails = st.dictionaries(st.integers(1, 5), st.sets(st.integers(0, 3), min_size=1), max_size=2)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(relaxed, max_examples=max(2, EXAMPLES // 4))  # the store knows nothing of layouts
@given(
    how=hows,
    harms=harms,
    fails=fails,
    wishes=schedules,
    lazy=st.booleans(),
    kills=kills,
    twice=st.booleans(),
    place=st.sampled_from([None, "/elsewhere"]),
    seed=st.integers(0, 99),
)
def test_what_is_lost_is_read_again(
    layout, how, harms, fails, wishes, lazy, kills, twice, place, seed
):
    """Every layout and join type, whatever is planned, wished, or killed at that moment."""
    settings = replace(STORE, schedule=wishes, lazy=lazy, store_location=place)
    batches, spec = timed_batches(6, seed), two_way(WINDOW, 4, how=how)
    plain = in_memory(spec, layout, choice=CHOICES[layout])
    cases.feed(plain, batches)
    plain.finish(len(batches))
    trial = Emulation(losses={n: tuple(some) for n, some in fails.items()})
    settings = replace(settings, trial=trial)
    query = in_memory(spec, layout, settings, choice=CHOICES[layout], twice=twice)
    harmed = {}

    def harm_then(name):
        """Between the route and the join of a batch, each time once."""
        batch = query.runner.manifest.batch + 1
        if name == "routed" and batch not in harmed:
            harmed[batch] = harm(query, *harms[batch]) if batch in harms else 0

    cases.feed(query, batches, kills, before=harm_then)
    query.finish(len(batches))
    assert query.output() == plain.output()
    assert query.output()
    if how == "inner":
        check_results(query, batches, WINDOW)
    if not kills:
        assert all(any(noticed(query, batch)) for batch, files in harmed.items() if files)


@pytest.mark.parametrize("layout", EACH_ROUTER)
def test_instances_fail_on_demand_under_every_layout(layout):
    """The layout stays as it would have been, and what is read again is counted and told."""
    settings = failing({2: (1, 3)}, recovery=Recovery.STORE)
    batches = skewed_batches(4)
    plain, query = (in_memory(two_way(None, 4), layout, one) for one in (Settings(), settings))
    for number, batch in enumerate(batches):
        held = [sum(r.live for r in runs_of(query) if r.instance == i) for i in (1, 3)]
        plain.run_tuples(number, *batch)
        query.run_tuples(number, *batch)
        assert query.layout.to_json() == plain.layout.to_json()
        join = query.records[number].joins[0]
        assert join.lost.instances == ([1, 3] if number == 2 else [])
        assert join.lost.recovered_rows == (sum(held) if number == 2 else 0)
        assert (query.records[number].recovery_s > 0) == (number == 2)
    check_results(query, batches)
    words = "instances 1, 3 lost their state; it was read again from the store"
    assert plan_words(query.records[2].joins[0].reason, {}, 4).startswith(words)


@pytest.mark.parametrize("how", HARM)
@pytest.mark.parametrize("best", [None, 2])
@pytest.mark.parametrize("layout", ["hash", "mnrt", "pkg", "shuffle"])
def test_aggregates_go_on_too(layout, best, how):
    """At each of their stages, with partial results that wait to be merged."""
    plan = StreamAggregate(
        Stream(None, {"kind": "recorded", "path": "left"}, Reading(LEFT)),
        by="lk",
        aggregates={"n": "count(*)", "total": "sum(lv)"},
        window=windows("lt", "130 us", "50 us", delay="400 us"),
        top=None if best is None else top(best, by="total"),
        layout=CHOICES[layout],
        instances=4,
        merge_every=2,
    )
    choices = [node._choice for node in plan._flat()[0]]
    batches, outputs, lost = timed_batches(8, 5), [], 0
    for harmful in (False, True):
        settings = failing({3: (1,)} if harmful else {}, recovery=Recovery.STORE)
        jobs = InlineJobs(world=MemoryWorld())
        query = StoredStream(
            NOWHERE, plan.query(), layout, choices=choices, jobs=jobs, settings=settings
        )
        for number, (left, _) in enumerate(batches):
            if harmful and number == 6:
                harm(query, {0, 1, 2, 3}, how)
            query.run_tuples(number, left, [])
        query.finish(len(batches))
        outputs.append(query.output())
        lost = [any(noticed(query, number)) for number in (3, 6)]
    assert outputs[0] == outputs[1]
    assert outputs[0]
    assert lost == [True, True]


def test_both_copies_damaged_are_refused_by_name(tmp_path):
    query = Stored(tmp_path, two_way(None, 3), "hash", settings=STORE)
    batches = skewed_batches(2)
    query.run_tuples(0, *batches[0])
    (stored, *_) = files_of(query)
    harm(query, {0, 1, 2}, "truncated")
    alter(query.checkpoint.store, stored.name)
    with pytest.raises(
        DamagedState,
        match=rf"join 0: run file .*{stored.name} has .* bytes.*; and its copy in the store "
        rf".*store/{stored.name} does not match its CRC",
    ):
        query.run_tuples(1, *batches[1])


@pytest.mark.parametrize("how", HARM)
def test_files_on_disk_are_mended(how, tmp_path):
    """A copy is no link: what is altered in place is altered in one of the two."""
    query = Stored(tmp_path, two_way(None, 3), "mnrt", settings=STORE)
    batches = skewed_batches(4)
    query.run_tuples(0, *batches[0])
    for stored in files_of(query):
        path = tmp_path / "joinengine" / "runs" / stored.name
        content = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(content[:-7] if how == "truncated" else b"x" + content[1:])
    query.jobs.stores = RunStores(MACHINE)
    query._opened.retain(())
    for number in (1, 2, 3):
        query.run_tuples(number, *batches[number])
    check_results(query, batches)
    assert noticed(query, 1) == [[0, 1, 2]]
    assert noticed(query, 2) == [[]]


def test_a_store_may_come_and_go(tmp_path):
    """A start with a store copies what is there; without one, copies leave with their runs."""
    batches = skewed_batches(9)
    window = within("lt", "rt", lower="0 us", upper="120 us", delay="0 us")
    timed = [
        tuple([(key, v, 100 * b) for key, v, _ in side] for side in batch)
        for b, batch in enumerate(batches)
    ]
    query = Stored(tmp_path, two_way(window, 3), "mnrt")
    query.run_tuples(0, *timed[0])
    assert not query.checkpoint.store.names()
    query.settings = STORE
    query.restart()
    copied = set(query.checkpoint.store.names())
    assert copied == {stored.name for stored in files_of(query)}
    harm(query, {0, 2}, "gone")
    query.run_tuples(1, *timed[1])
    assert noticed(query, 1) == [[0, 2]]
    query.settings = Settings()
    query.restart()
    for number in (2, 3, 4, 5):
        query.run_tuples(number, *timed[number])
        assert set(query.checkpoint.store.names()) <= query.runner.manifest.named_files()
    assert not query.checkpoint.store.names(), "the runs that had copies have expired"
    query.settings = STORE
    query.restart()
    harm(query, {1}, "truncated")
    for number in (6, 7, 8):
        query.run_tuples(number, *timed[number])
    check_results(query, timed, window)
    assert noticed(query, 6) == [[1]]


def test_a_start_replaces_torn_copies_and_copies_nothing_damaged(tmp_path):
    query = Stored(tmp_path, two_way(None, 3), "hash", settings=STORE)
    batches = skewed_batches(3)
    query.run_tuples(0, *batches[0])
    torn, missing = (stored.name for stored in files_of(query)[:2])
    store, runs = query.checkpoint.store, query.checkpoint.runs
    store.put(torn, store.get(torn)[:-1])
    store.delete(missing)
    whole = runs.get(missing)
    alter(runs, missing)
    query.restart()
    assert store.get(torn) == runs.get(torn)
    assert not store.exists(missing)
    runs.put(missing, whole)
    query.restart()
    assert store.get(missing) == whole


def test_a_driver_without_a_store_leaves_the_copies_of_a_newer_one(tmp_path):
    """It slept before it removes what its manifest does not name; the newer one has copied that."""
    older = Stored(tmp_path, two_way(None, 3), "hash")
    older.run_tuples(0, *skewed_batches(1)[0])
    newer = Stored(tmp_path, two_way(None, 3), "hash", settings=STORE)
    copies = set(newer.checkpoint.store.names())
    assert copies
    runner = older.runner
    clean(runner._checkpoint, runner.manifest, (), runner.delivery, None)
    assert set(newer.checkpoint.store.names()) == copies


def test_the_speed_of_the_store_is_waited_for():
    """Each batch waits for what it writes, a loss for what it reads; instances side by side."""
    speed = Speed(bytes_per_s=1e4, latency_s=2.0)
    world = Clocked()
    settings = failing({1: (0, 2)}, speed, recovery=Recovery.STORE)
    query = in_memory(two_way(None, 3), "hash", settings, world=world)
    batches = skewed_batches(2)
    world.slept = []
    query.run_tuples(0, *batches[0])
    first = [sum(r.size_bytes for r in runs_of(query) if r.instance == i) for i in range(3)]
    assert world.slept == [2.0 + max(first) / 1e4]
    world.slept, before = [], {stored.name for stored in files_of(query)}
    query.run_tuples(1, *batches[1])
    new = [r for r in runs_of(query) if r.file not in before]
    second = [sum(r.size_bytes for r in new if r.instance == i) for i in range(3)]
    assert world.slept == [2.0 + max(first[0], first[2]) / 1e4, 2.0 + max(second) / 1e4]
    assert query.records[1].recovery_s > 2.0


@pytest.mark.parametrize("recovery", [Recovery.REPLICAS, Recovery.STORE])
def test_more_losses_than_copies_are_read_from_the_store_that_is_kept(recovery):
    """Where copies of keys are enough they are taken, unless the query recovers from the store."""
    settings = failing({2: (1,), 6: (1, 2)}, Speed(), recovery=recovery)
    query = in_memory(two_way(None, 4), "ftlb", settings, choice=Ftlb(imbalance=9.0))
    batches = skewed_batches(8)
    for number, batch in enumerate(batches):
        query.run_tuples(number, *batch)
    check_results(query, batches)
    assert [noticed(query, number) for number in (2, 6)] == [[[1]], [[1, 2]]]
    told = [plan_words(query.records[n].joins[0].reason, {}, 4) for n in (2, 6)]
    assert ("keys have taken over" in told[0]) == (recovery is Recovery.REPLICAS)
    assert ("read again from the store" in told[0]) == (recovery is Recovery.STORE)
    assert "read again from the store" in told[1]


def test_a_loss_while_copies_are_missing_or_state_lies_elsewhere():
    """Copies that are not there yet, and runs of an older layout version: the store has them."""
    settings = failing({2: (1,), 3: (0, 2)}, Speed())
    choice = Ftlb(imbalance=9.0, refill_rows=5)
    query = in_memory(two_way(None, 4), "ftlb", settings, choice=choice)
    batches = skewed_batches(6)
    for number, batch in enumerate(batches):
        query.run_tuples(number, *batch)
    check_results(query, batches)
    assert [noticed(query, number) for number in (2, 3)] == [[[1]], [[0, 2]]]


@pytest.mark.parametrize("how", ["full", "left_anti"])
def test_watchers_go_back_to_the_store_under_copies_of_keys(how):
    """Keys have copies and what watchers hold has none."""
    settings = failing({2: (1,)}, Speed())
    outputs = []
    for one in (Settings(), settings):
        query = in_memory(two_way(WINDOW, 4, how=how), "ftlb", one)
        batches = timed_batches(6, 2)
        for number, batch in enumerate(batches):
            query.run_tuples(number, *batch)
        query.finish(len(batches))
        outputs.append(query.output())
    assert outputs[0] == outputs[1]
    assert noticed(query, 2) == [[1]]
