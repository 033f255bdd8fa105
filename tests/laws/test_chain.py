"""Manifests as changes: the chain says what whole manifests would, and a broken one is refused."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joinengine.driver.settings import Settings
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import CheckpointMismatch, DamagedState
from joinengine.model.keys import Side
from joinengine.model.windows import within
from joinengine.state import changes, manifests
from joinengine.state.manifest import Handed
from joinengine.state.wished import Relayout
from joinengine.world.memory import MemoryWorld
from tests.harness import LocalQuery, rows, two_way
from tests.laws.cases import (
    CHOICES,
    EACH_ROUTER,
    HOT,
    enough,
    feed,
    kills,
    relaxed,
    schedules,
    skewed_batches,
    streams,
    tries,
)

WINDOW = within("lt", "rt", lower="-300 us", upper="300 us", delay="100 us")
#: How manifests were told: layout -> how many as changes.
TOLD = Counter()


@contextmanager
def full_every(every):
    """As many changes as may follow one another, however long they are."""
    with patch.object(manifests, "FULL_EVERY", every), patch.object(manifests, "LONGEST", 1e9):
        yield


def start(layout="mnrt", *, world=None, how="inner", schedule=None, compact=None, lazy=False):
    return LocalQuery(
        "/nowhere/query",
        two_way(window=WINDOW, instances=enough(layout, 3), how=how),
        layout,
        jobs=InlineJobs(world=world or MemoryWorld()),
        choice=CHOICES[layout],
        settings=Settings(schedule=schedule or {}, lazy=lazy),
        compact=compact,
    )


def whole(manifest):
    """What a full manifest would tell, in the order in which it would."""
    return json.dumps(manifests._to_json(manifest))


def read_again(manifest):
    """The manifest as it is read if it was written whole."""
    plain = json.loads(whole(manifest))
    return manifests._from_json(manifests._Written(plain, manifest.crc32, 0), None)


def without_silence(manifest):
    """A manifest that does not tell since when sides are silent, which each start moves."""
    operators = []
    for state in manifest.operators:
        sides = tuple(replace(side, idle_since=0.0) for side in state.clock.sides)
        operators.append(replace(state, clock=replace(state.clock, sides=sides)))
    return replace(manifest, operators=tuple(operators))


def check(query):
    """The chain on disk says what the driver knows, and what a whole manifest would."""
    ours = query.runner.manifest
    found = manifests.newest(query.checkpoint.manifests)
    assert whole(without_silence(found)) == whole(without_silence(ours))
    assert whole(ours) == whole(read_again(ours))
    TOLD[query.choice.name] += not found.is_full


every = st.sampled_from([2, 3, 50])


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(
    batches=streams(max_rows=12),
    killed=kills,
    every=every,
    how=st.sampled_from(["inner", "full"]),
    schedule=schedules | st.just({}),
    compact=st.none() | st.just((3, 4000)),
    lazy=st.booleans(),
)
@example(skewed_batches(5), {(1, "routed"), (3, "committed")}, 50, "full", {}, (3, 4000), False)
@example(HOT, set(), 50, "inner", {2: (Relayout(CHOICES["bi"]),)}, None, True)
def test_the_chain_says_what_whole_manifests_would(
    layout, batches, killed, every, how, schedule, compact, lazy
):
    query = start(layout, how=how, schedule=schedule, compact=compact, lazy=lazy)
    seen = []

    def before(name):
        if name == "routed":
            seen.append(check(query) if query.runner.manifest.crc32 else None)

    with full_every(every):
        feed(query, batches, killed, before)
        query.jobs.step = lambda name: None
        query.restart()
        assert len(seen) >= len(batches)
        found = manifests.newest(query.checkpoint.manifests)
        assert [manifests.name_of(b) for b in range(found.chain.full.batch, len(batches))] == (
            query.checkpoint.manifests.names()
        )
        assert found.chain.links < every
    if batches == HOT:
        assert TOLD[layout]


def test_a_full_manifest_comes_in_time():
    query = start("hash")
    batches = skewed_batches(8)
    fulls = []
    with full_every(3):
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
            fulls.append(query.runner.manifest.is_full)
            if number == 4:
                query.restart()
    assert fulls == [True, False, False] * 2 + [True, False]


def test_changes_are_together_no_longer_than_the_last_full_one():
    query = start("hash")
    sizes = {}
    for number, (left, right) in enumerate(skewed_batches(12)):
        query.run_tuples(number, left, right)
        body = query.checkpoint.manifests.get(manifests.name_of(number)).partition(b"\n")[2]
        sizes[number] = len(body)
        told = query.runner.manifest.chain
        after = [sizes[batch] for batch in range(told.full.batch + 1, number + 1)]
        assert (told.full_bytes, told.bytes) == (sizes[told.full.batch], sum(after))
        assert told.links == len(after)
        assert sum(after) <= sizes[told.full.batch]
    assert 0 < told.full.batch < 12


def test_a_change_names_what_is_new_alone():
    """Some keys of a table of thousands, and the runs of one batch."""
    query = start("mnrt")
    for number, (left, right) in enumerate(HOT):
        query.run_tuples(number, left, right)
    before = query.state
    placement, *_ = before.layouts.newest.layout.table.placements.values()
    layout = before.layouts.newest.layout
    many = {h: placement for h in range(1, 20_000)}
    listed = with_table(before, replace(layout.table, placements=many))
    fewer = {h: p for h, p in many.items() if h != 7} | {10**9: placement}
    after = with_table(before, replace(layout.table, placements=fewer))
    told = json.loads(json.dumps(changes.change(listed, after)))
    assert len(json.dumps(told)) < 3000
    assert told["layouts"]["newest"]["gone"] == [7]
    found = changes.changed(listed, told)
    assert found.layouts.newest.layout.table.placements == fewer
    assert found == after


def with_table(state, table):
    newest = state.layouts.newest
    chosen = replace(newest, layout=replace(newest.layout, table=table))
    return replace(state, layouts=replace(state.layouts, newest=chosen))


values = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 1))


@tries(300)
@given(before=values, after=values)
def test_entries_come_back_in_their_order(before, after):
    gone, new = changes._entries(before, after)
    assert list(changes._updated(before, gone, new).items()) == list(after.items())


# Broken chains


@cache
def files_of_chain():
    """The files of a query whose chain goes from batch 0 to batch 4."""
    query = start("mnrt")
    with full_every(50):
        for number, (left, right) in enumerate(skewed_batches(5)):
            query.run_tuples(number, left, right)
    return query.world.files


@pytest.fixture
def query():
    """A query that has started on a copy of them."""
    query = start("mnrt", world=MemoryWorld(dict(files_of_chain())))
    assert query.runner.manifest.chain.links == 4
    return query


def flip(content):
    return content[:-40] + bytes([content[-40] ^ 4]) + content[-39:]


DAMAGE = {"flipped": flip, "truncated": lambda content: content[:-9], "headless": lambda _: b"x"}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("batch", range(5))
def test_a_damaged_link_is_refused_by_name(query, batch, how):
    folder, name = query.checkpoint.manifests, manifests.name_of(batch)
    folder.put(name, DAMAGE[how](folder.get(name)))
    check_refusal(query, batch)


@pytest.mark.parametrize("batch", range(4))
def test_a_missing_link_is_refused_by_name(query, batch):
    query.checkpoint.manifests.delete(manifests.name_of(batch))
    check_refusal(query, batch)


def check_refusal(query, batch):
    whole = f"is complete up to batch {batch - 1}" if batch else "no batch has a complete chain"
    with pytest.raises(DamagedState, match=rf"{manifests.name_of(batch)}.*{whole}"):
        query.restart()


@pytest.mark.parametrize("batch", range(4))
def test_another_manifest_in_the_place_of_a_link_is_refused(query, batch):
    """It has the right number, and is whole; another attempt has written it."""
    folder, name = query.checkpoint.manifests, manifests.name_of(batch)
    _, _, body = folder.get(name).partition(b"\n")
    told = json.loads(body) | {"nonce": "another"}
    folder.put(name, sealed(told))
    with pytest.raises(DamagedState, match=rf"{name} is not the one that .* {batch + 1} follows"):
        query.restart()


def sealed(told, number=manifests.FORMAT):
    body = json.dumps(told).encode()
    return (
        f"joinengine manifest {number} crc32={zlib.crc32(body):08x} bytes={len(body)}\n".encode()
        + body
    )


def test_a_reader_that_is_overtaken_begins_again(query, monkeypatch):
    """While it reads the chain, the driver commits a full manifest and removes those before."""
    folder = query.checkpoint.manifests
    load, overtaken = manifests._load, []

    def slow(storage, batch):
        if batch == 2 and not overtaken:
            overtaken.append(batch)
            with full_every(1):
                query.run_tuples(5, *skewed_batches(1)[0])
            assert folder.names() == [manifests.name_of(5)]
        return load(storage, batch)

    monkeypatch.setattr(manifests, "_load", slow)
    assert manifests.newest(folder).batch == 5
    assert overtaken


def test_an_adopted_batch_is_what_the_next_change_follows(query):
    """The newer driver has computed batch 5 too, under other names of runs."""
    world = query.world
    with full_every(50):
        newer = start("mnrt", world=world)
        frame = skewed_batches(7)
        commit = newer.runner._commit

        def late(draft):
            older = query.runner
            with patch.object(type(older), "check_alone", lambda self: None):
                older._run(framed(frame[5]), {}, Handed("q", 5, ""))
            newer.runner._commit = commit
            return commit(draft)

        newer.runner._commit = late
        with patch.object(manifests.fence, "check_generation", lambda *_: None):
            newer.run_tuples(5, *frame[5])
        assert newer.runner.manifest.generation == query.runner.generation
        newer.run_tuples(6, *frame[6])
        assert newer.runner.manifest.chain.links == 6
        check(newer)
        newer.restart()
        newer.check_state()


def framed(sides):
    return [[(0, rows(Side.LEFT, sides[0])), (1, rows(Side.RIGHT, sides[1]))]]


# Formats


def test_other_formats_are_refused(query):
    folder = query.checkpoint.manifests
    for number in (6, manifests.FORMAT + 1):
        folder.put(manifests.name_of(5), sealed({}, number))
        reads = f"format {number}, but this version reads formats 7 to {manifests.FORMAT};"
        with pytest.raises(CheckpointMismatch, match=reads):
            query.restart()
