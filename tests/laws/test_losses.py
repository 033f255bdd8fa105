"""Instances that lose their state: with copies of keys no result is lost, and copies come again."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.reasons import Cause
from joinengine.driver.settings import Settings
from joinengine.exchange.exchange import ExchangeKind
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.layouts import Ftlb, choose
from joinengine.layouts.copies import KeyCopies
from joinengine.layouts.key_based import KeyBased
from joinengine.model.errors import DamagedState, InvalidRequest
from joinengine.model.keys import ALL_WORDS, U_BITS, U_ONE, Side
from joinengine.model.windows import within
from joinengine.reporting.words import plan_words
from joinengine.routing.base_functions import Backed, Modulo
from joinengine.state.run import RunStore, RunStores
from joinengine.state.wished import Relayout
from tests.harness import LocalQuery, rows, two_way
from tests.laws import cases
from tests.laws.cases import (
    CHOICES,
    check_results,
    kills,
    model,
    relaxed,
    skewed_batches,
    streams,
    values,
    ways,
    windows,
)
from tests.laws.losing import NEAR, NERVOUS, check_near, failing, feed, joins, lose


def noticed(query):
    """Batch -> the instances that it has found lost."""
    return {
        n: set(join.lost.instances) for n, join in enumerate(joins(query)) if join.lost.instances
    }


losses = st.dictionaries(
    st.integers(1, 6), st.sets(st.integers(0, 5), min_size=1, max_size=1), min_size=1, max_size=2
)
wishes = st.dictionaries(
    st.integers(1, 6),
    st.lists(
        st.builds(
            Relayout,
            st.none() | st.just(Ftlb(backups=3, **NERVOUS)),
            st.none() | st.integers(5, 8),
        ),
        min_size=1,
        max_size=1,
    ),
    max_size=2,
)


@pytest.mark.parametrize("budget", [10, 40, 1000])
@relaxed
@given(
    losses,
    wishes,
    st.sets(st.integers(1, 6), max_size=2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
    ways,
)
def test_no_result_is_lost_with_an_instance(
    budget, losses, wishes, restarts, twice, lazy, seed, way
):
    """Whatever is planned, wished or under way at that moment, with two backups and two losses."""
    choice = Ftlb(backups=2, refill_rows=budget, **NERVOUS)
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder,
            two_way(None, 6),
            "ftlb",
            choice=choice,
            settings=Settings(schedule=wishes, lazy=lazy),
            jobs=InlineJobs(twice=twice, **way),
        )
        batches = skewed_batches(7, seed=seed)
        lost = feed(query, batches, losses, restarts)
        check_results(query, batches)
        assert noticed(query) == lost


@relaxed
@given(losses, kills, st.integers(0, 99), ways)
def test_a_driver_that_is_killed_meanwhile_finds_the_loss_again(losses, kills, seed, way):
    choice = Ftlb(backups=2, refill_rows=30, **NERVOUS)
    with tempfile.TemporaryDirectory() as folder:
        jobs = InlineJobs(**way)
        query = LocalQuery(folder, two_way(None, 6), "ftlb", choice=choice, jobs=jobs)
        batches = skewed_batches(7, seed=seed)
        lost = set()

        def lose_then(name):
            """Between the route and the join of a batch, each time once."""
            batch = query.runner.manifest.batch + 1
            if name == "routed" and batch not in lost:
                lost.add(batch)
                lose(query, losses.get(batch, ()))

        cases.feed(query, batches, kills, before=lose_then)
        check_results(query, batches)
        assert lost >= losses.keys()


def test_what_is_lost_is_made_anew_in_the_background(tmp_path):
    choice = Ftlb(backups=1, refill_rows=80, imbalance=9.0)  # which never re-plans
    query = LocalQuery(tmp_path, two_way(None, 4), "ftlb", choice=choice)
    batches = skewed_batches(10)
    feed(query, batches[:3], {2: {1}})
    assert dict(query.layout.incomplete).keys() == {1}
    feed_from(query, batches, 3)
    check_results(query, batches)
    recovered = [join.lost.recovered_rows for join in joins(query)]
    assert sum(recovered[:3]) == 0
    assert sum(n > 0 for n in recovered) > 3, "in several batches"
    assert query.layout.incomplete == ()
    unbacked = [join.lost.unbacked_keys for join in joins(query)]
    assert unbacked[:2] == [0, 0]
    assert unbacked[2] > 0, "of the keys of the lost instance, and of those it was the backup of"
    assert unbacked[2:] == sorted(unbacked[2:], reverse=True)
    assert unbacked[-1] == 0
    assert not query.records[-1].joins[0].lost.instances
    assert [record.recovery_s > 0 for record in query.records].count(True) <= 1
    reason = joins(query)[2].reason
    assert reason.cause is Cause.LOSS
    assert plan_words(reason, {}, 4) == (
        "instance 1 lost its state; the backups of its keys have taken over"
    )
    assert joins(query)[-1].state.rows == 2 * sum(len(side) for one in batches for side in one)
    whole = next(n for n, join in enumerate(joins(query)) if n > 2 and not join.lost.unbacked_keys)
    back = [n for n, join in enumerate(joins(query)) if n > 2 and join.reason]
    assert back == [whole], "once it has all copies again"
    reason = joins(query)[whole].reason
    assert reason.cause is Cause.REFILLED
    assert reason.after.skew <= reason.before.skew * (1 + 1e-9)
    assert query.layout.base.roles[:, 0].tolist() == [0, 1, 2, 3] * query.layout.base.spread
    assert plan_words(reason, {}, 4).startswith("instances have their state again (load skew")
    # A second loss is survived by what was made anew.
    query.settings = Settings()
    more = skewed_batches(12)
    others = [one for one in range(4) if one != 1]
    lose(query, others[:1])
    feed_from(query, more, 10)
    check_results(query, batches + more[10:])


def feed_from(query, batches, first):
    for number in range(first, len(batches)):
        query.run_tuples(number, *batches[number])


def test_more_losses_than_copies_are_refused_by_name(tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 4), "ftlb", choice=Ftlb(imbalance=9.0, spread=1))
    batches = skewed_batches(3)
    feed(query, batches[:2], {})
    lose(query, {1, 2})
    with pytest.raises(
        DamagedState, match=r"instances 1, 2 is lost, and no copy exists of all keys of base home 1"
    ):
        query.run_tuples(2, *batches[2])


def test_instances_fail_on_demand(tmp_path):
    """In all joins of a query, and once: not again if the driver starts anew."""
    settings = failing({2: (1, 4), 4: (0,)})
    query = LocalQuery(
        tmp_path, two_way(None, 6), "ftlb", choice=Ftlb(backups=2, imbalance=9.0), settings=settings
    )
    batches = skewed_batches(7)
    feed(query, batches, {}, restarts={3})
    check_results(query, batches)
    assert noticed(query) == {2: {1, 4}, 4: {0}}
    assert sum(join.lost.recovered_rows for join in joins(query)) > 0


@pytest.mark.parametrize(
    ("how", "layout", "losses", "message"),
    [
        ("inner", "mnrt", {2: (1,)}, "layout mnrt keeps no copies of keys.* use layout ftlb"),
        ("inner", "ftlb", {2: (6,)}, "instance 6 does not exist; give one from 0 to 5"),
        (
            "left",
            "ftlb",
            {2: (1,)},
            "protect inner joins only",
        ),
    ],
)
def test_what_cannot_fail_is_refused_before_the_start(how, layout, losses, message, tmp_path):
    window = within("lt", "rt", lower="0 us", upper="50 us", delay="0 us")
    with pytest.raises(InvalidRequest, match=f"fail: batch 2: join 0: .*{message}"):
        LocalQuery(tmp_path, two_way(window, 6, how=how), layout, settings=failing(losses))


def test_a_loss_after_a_switch_to_a_layout_without_copies_is_refused(tmp_path):
    """It had no effect, and nothing said so."""
    wishes = {2: [Relayout(choose("mnrt"), None)]}
    settings = failing({2: (3,)}, schedule=wishes)
    with pytest.raises(InvalidRequest, match="fail: batch 2: join 0: layout mnrt keeps no copies"):
        LocalQuery(tmp_path / "1", two_way(None, 6), "ftlb", settings=settings)
    before = failing({1: (3,)}, schedule=wishes)
    query = LocalQuery(tmp_path / "2", two_way(None, 6), "ftlb", settings=before)
    batches = skewed_batches(4)
    feed(query, batches, {})
    check_results(query, batches)
    assert noticed(query) == {1: {3}}


def test_a_loss_that_nothing_could_mend_any_more_does_not_happen(tmp_path):
    """A user has changed the layout of the running query meanwhile."""
    settings = failing({1: (2,), 4: (3,)})
    query = LocalQuery(tmp_path, two_way(None, 6), "ftlb", settings=settings)
    batches = skewed_batches(6)
    for number, (left, right) in enumerate(batches):
        if number == 2:
            query.runner.relayout(Relayout(choose("hash"), None))
        query.run_tuples(number, left, right)
    check_results(query, batches)
    assert noticed(query) == {1: {2}}


@pytest.mark.parametrize("layout", ["mnrt", "hash"])
def test_without_copies_a_lost_instance_is_refused_as_ever(layout, tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 4), layout, choice=CHOICES[layout])
    batches = skewed_batches(2)
    query.run_tuples(0, *batches[0])
    query.checkpoint.runs.delete(next(iter(query.state.shelves.files)))
    query.jobs.stores = RunStores(query.world)  # else they are mapped, and can still be read
    with pytest.raises(DamagedState, match="is missing; restore it from a copy"):
        query.run_tuples(1, *batches[1])


@pytest.mark.parametrize("jobs", [InlineJobs(parallelism=1), InlineJobs(parallelism=2)])
def test_after_a_switch_instances_share_no_file(jobs, tmp_path):
    """Also runs that could have stayed where they were, beside those of other instances."""
    schedule = {2: [Relayout(Ftlb(imbalance=9.0, spread=1), None)]}
    settings = failing({4: (0,)}, schedule=schedule)
    query = LocalQuery(tmp_path, two_way(None, 4), "hash", jobs=jobs, settings=settings)
    batches = skewed_batches(6)
    for number, (left, right) in enumerate(batches[:3]):
        query.run_tuples(number, left, right)
    lost = lose(query, {2})
    assert lost == {2}
    for number, (left, right) in enumerate(batches[3:], start=3):
        query.run_tuples(number, left, right)
    check_results(query, batches)
    assert noticed(query) == {3: {2}, 4: {0}}


@pytest.mark.parametrize("exchange", ExchangeKind)
def test_a_table_survives_too(exchange, tmp_path):
    """The stream beside it is not stored, so it goes to no backup."""
    left, (_, right) = [one for one, _ in skewed_batches(6)], skewed_batches(1, seed=9)[0]
    jobs = InlineJobs(tables=[[(1, rows(Side.RIGHT, right))]], exchange=exchange)
    query = LocalQuery(
        tmp_path,
        two_way(None, 4, table=Side.RIGHT),
        "ftlb",
        choice=Ftlb(refill_rows=9),
        jobs=jobs,
        settings=failing({2: (1,), 5: (3,)}),
    )
    for number, some in enumerate(left):
        query.run(number, [[(0, rows(Side.LEFT, some))]])
    assert query.output() == Counter(a + b for a in chain(*left) for b in right if a[0] == b[0])
    assert noticed(query) == {2: {1}, 5: {3}}
    assert sum(joins(query)[1].work.received) == len(left[1])


def test_keys_come_again_whole():
    """Whatever the budget, what has come ends where a key does."""
    layout = KeyBased(Backed.over(Modulo(4), 1), incomplete=((2, 5 << U_BITS),))
    for held, most in ((1000, 1), (7, 3), (10**9, 1), (0, 5), (3, 10**6)):
        refill = KeyCopies(layout).next_refill(held, most)
        assert (refill.instance, refill.lower) == (2, 5 << U_BITS)
        assert refill.upper % U_ONE == 0
        assert refill.lower < refill.upper <= ALL_WORDS
    assert KeyCopies(KeyBased(Modulo(4))).next_refill(10, 10) is None


@relaxed
@given(streams(), windows, losses, st.booleans())
def test_what_depends_on_time_and_what_does_not(batches, window, losses, twice):
    """Late tuples, windows that end, and the full history: as if nothing had been lost."""
    choice = Ftlb(backups=2, refill_rows=20, **NERVOUS)
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(
            folder, two_way(window, 6), "ftlb", choice=choice, jobs=InlineJobs(twice=twice)
        )
        feed(query, batches, losses)
        pairs, last = model(batches, window)
        assert values(query.output()) == pairs
        assert sum(join.refused.late for join in joins(query)) == last.late


@relaxed
@given(losses, st.integers(0, 99))
def test_bands_go_on_too(losses, seed):
    """A tuple of a band probes cells whose homes may be lost while others of its cells are not."""
    choice = Ftlb(backups=2, refill_rows=60, **NERVOUS)
    with tempfile.TemporaryDirectory() as folder:
        query = LocalQuery(folder, two_way(None, 6, on=NEAR), "ftlb", choice=choice)
        batches = skewed_batches(7, seed=seed)
        feed(query, batches, losses)
        check_near(query, batches)


def test_a_file_that_was_trusted_and_is_gone_is_named(tmp_path):
    """Its writer does not check it again, and has not mapped it yet."""
    query = LocalQuery(tmp_path, two_way(None, 4), "hash")
    query.run_tuples(0, *skewed_batches(1)[0])
    (stored, *_) = query.state.shelves.files.values()
    store = RunStore(query.checkpoint.runs)
    store.trust(stored.name)
    query.checkpoint.runs.delete(stored.name)
    (run, *_) = [one for one in query.state.shelves.state.values() if one.file == stored.name]
    with pytest.raises(DamagedState, match="is missing; restore it from a copy"):
        store.open(run, stored)


def test_a_file_that_was_trusted_and_is_torn_is_named(tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 4), "hash")
    query.run_tuples(0, *skewed_batches(1)[0])
    (stored, *_) = query.state.shelves.files.values()
    store, runs = RunStore(query.checkpoint.runs), query.checkpoint.runs
    store.trust(stored.name)
    runs.put(stored.name, runs.get(stored.name)[:-9])
    with pytest.raises(DamagedState, match="it is truncated or was overwritten"):
        store.check(stored)
