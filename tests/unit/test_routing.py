"""The routing table and its moves against the protocol model's definitions."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.kernels.hashing import make_words
from joinengine.layouts.candidates import covering, head_places
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, U_BITS, U_ONE, Fragment, Mode, Placement, Side
from joinengine.operators.rehoming import Rehoming
from joinengine.operators.unbacked import unbacked_keys
from joinengine.routing import table as routing
from joinengine.routing.base_functions import Backed, Modulo
from joinengine.routing.moves import plan_moves, replaced
from joinengine.routing.routes import BACKUP, KEPT, PROBE
from joinengine.routing.table import RoutingTable
from tests.laws.cases import INSTANCES, placements
from tests.reference import protocol

BASE = Modulo(INSTANCES)
BACKED = Backed(BASE, np.array([[0, 1], [1, 2], [3, 0], [3, 1]], np.uint16))
bases = st.sampled_from([BASE, BACKED])

HASHES = [3, 4, 1 << 39, (1 << 40) - 1]
tables = st.dictionaries(st.sampled_from(HASHES), placements()).map(RoutingTable)
tuples = st.lists(
    st.tuples(st.sampled_from([*HASHES, 0, 5]), st.integers(0, U_ONE - 1)), max_size=20
)


def words_of(rows):
    hashes = np.array([h for h, _ in rows], np.uint64) << np.uint64(U_BITS)
    return make_words(hashes, np.array([u for _, u in rows], np.uint64))


@given(bases, tables, tuples, st.sampled_from(PAIR))
def test_router_delivers_what_the_placement_says(base, table, rows, side):
    deliveries = table.router(base).route(side, words_of(rows))
    found = defaultdict(set)
    flags = defaultdict(int)
    columns = (deliveries.rows, deliveries.instances, deliveries.flags)
    for row, instance, flag in zip(*(c.tolist() for c in columns), strict=True):
        assert instance not in found[row], "a tuple is delivered to an instance once"
        found[row].add(instance)
        flags[row, instance] = flag
    assert deliveries.rows.tolist() == sorted(deliveries.rows.tolist())
    for row, (hash_, u) in enumerate(rows):
        placement = table.place(hash_, base)
        probed = {i for i in found[row] if flags[row, i] & PROBE}
        assert probed == protocol.probes(placement, side, u)
        kept = {i for i in found[row] if flags[row, i] & KEPT}
        assert kept == protocol.stores(placement, side, u)
        backups = {i for i in found[row] if flags[row, i] & BACKUP}
        assert backups == {i for i in found[row] if flags[row, i] == BACKUP}
        assert backups == set(placement.backups)


@given(bases, tables, tables, tuples)
def test_moves_turn_one_table_into_the_other(base, old, new, rows):
    moves = plan_moves(replaced(old, new, base))
    for hash_, u in rows:
        word = hash_ << U_BITS | u
        for side in PAIR:
            before = protocol.stores(old.place(hash_, base), side, u)
            held = set(before)
            for pull in moves.pulls:
                if pull.side is side and pull.lower <= word < pull.upper:
                    assert pull.source in before
                    held.add(pull.target)
            for drop in moves.drops:
                if drop.side is side and drop.lower <= word < drop.upper:
                    held.discard(drop.instance)
            assert held == protocol.stores(new.place(hash_, base), side, u)


@given(tables)
def test_a_table_survives_json(table):
    assert routing.from_columns(routing.to_columns(table)).placements == table.placements


def test_a_placement_must_partition_u():
    half = U_ONE // 2
    for fragments in [(Fragment(0, 0, half),), (Fragment(0, 0, half), Fragment(1, 9, U_ONE))]:
        with pytest.raises(InvalidRequest, match="partition"):
            Placement(Mode.SPLIT, fragments)
    with pytest.raises(InvalidRequest, match="one home"):
        Placement(Mode.WHOLE, (Fragment(0, 0, half), Fragment(1, half, U_ONE)))
    with pytest.raises(InvalidRequest, match="each cell of a grid needs its own instance"):
        Placement(Mode.GRID, (Fragment(0, 0, half), Fragment(0, half, U_ONE)))
    with pytest.raises(InvalidRequest, match="only whole keys have backups"):
        Placement(Mode.SPLIT, (Fragment(0, 0, half), Fragment(1, half, U_ONE)), backups=(2,))
    for holders in ((0, 0), (0, 1, 1)):
        with pytest.raises(InvalidRequest, match="each copy of a key needs its own instance"):
            Placement.whole(holders[0], holders[1:])


def test_a_re_homing_leaves_out_per_version_what_is_lost():
    """A tuple of version 1 is at 1 and 2; 1 has lost what it held of version 0 alone."""
    old = RoutingTable().router(Backed.over(Modulo(4), 1))
    words = words_of([(1, 0), (5, 9)])
    run = SimpleNamespace(side=Side.LEFT, instance=1, version=1)
    for absent, taken in (({0: (1,), 1: (2,)}, [0, 1]), ({0: (), 1: (1,)}, [])):
        rehoming = Rehoming({0: old, 1: old}, RoutingTable().router(Modulo(4)), 2, absent)
        rows, targets = rehoming.taken(run, words, range(4))
        assert rows.tolist() == taken, absent
        assert set(targets.tolist()) <= {1}


@given(
    st.dictionaries(st.sampled_from(HASHES), st.permutations(range(INSTANCES)), max_size=3),
    st.dictionaries(st.integers(0, INSTANCES - 1), st.sampled_from([0, 4 << U_BITS, 1 << 63])),
    st.lists(st.lists(st.tuples(st.sampled_from([*HASHES, *range(12)]), st.just(7)), max_size=9)),
    st.sampled_from(range(INSTANCES)),
)
def test_keys_without_a_second_copy_are_counted_once(listed, missing, runs, instance):
    table = RoutingTable(
        {hash_: Placement.whole(home, (backup,)) for hash_, (home, backup, *_) in listed.items()}
    )
    held = {hash_ for rows in runs for hash_, _ in rows}
    homes = {hash_: table.place(hash_, BACKED) for hash_ in held}
    alone = [
        hash_
        for hash_, placement in homes.items()
        if placement.homes == (instance,)
        and all((hash_ << U_BITS) >= missing.get(one, 1 << 64) for one in placement.backups)
    ]
    opened = [SimpleNamespace(words=np.sort(words_of(rows)), gone=None) for rows in runs]
    assert unbacked_keys(table.router(BACKED), missing, instance, opened) == len(alone)


@pytest.mark.parametrize("instances", [1, 2, 7, 40])
def test_the_least_degree_that_covers_all_holders_of_a_key(instances):
    rng = np.random.default_rng(instances)
    for hash_ in range(40):
        holders = rng.choice(instances, rng.integers(0, min(instances, 4) + 1), replace=False)
        degree = covering(hash_, holders, 1, instances)
        assert {*holders.tolist()} <= {*head_places(hash_, degree, instances).tolist()}
        if 1 < degree < instances:
            assert not {*holders.tolist()} <= {*head_places(hash_, degree - 1, instances).tolist()}
