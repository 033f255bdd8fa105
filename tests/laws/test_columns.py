"""The routing table as columns says what its placements say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joinengine.balancing.loads import gather_loads
from joinengine.balancing.statistics import KeyCounts, summarise
from joinengine.kernels.probing import distinct, rows_among
from joinengine.model.keys import PAIR, U_BITS, U_ONE, Mode, Placement
from joinengine.routing.base_functions import Backed, Modulo
from joinengine.routing.routes import BACKUP, BOTH, PROBE
from joinengine.routing.table import RoutingTable, strips
from tests.laws.cases import INSTANCES, placements, tries

many = tries(150)
hashes = st.integers(0, (1 << 40) - 1) | st.integers(0, 9)
#: In any order, as re-plans leave them.
tables = st.dictionaries(hashes, placements(), max_size=8).map(RoutingTable)


@many
@given(tables)
def test_columns_say_what_placements_say(table):
    columns = table.columns
    assert columns.hashes.tolist() == sorted(table.placements)
    assert table.split_keys == sum(len(p.homes) > 1 for p in table.placements.values())
    for row, hash_ in enumerate(columns.hashes.tolist()):
        placement = table.placements[hash_]
        ours = slice(*columns.bounds[row : row + 2])
        shares = dict.fromkeys(placement.homes, 0.0)
        for one in placement.fragments:
            shares[one.instance] += (one.u_upper - one.u_lower) / U_ONE
        found = dict(zip(columns.homes[ours].tolist(), columns.shares[ours].tolist(), strict=True))
        assert list(found.items()) == list(shares.items())
        backups = columns.backups[slice(*columns.backup_bounds[row : row + 2])]
        assert tuple(backups.tolist()) == placement.backups
        assert columns.copied[row] == (placement.mode is Mode.COPIED)
        assert columns.whole[row] == (placement.mode is Mode.WHOLE)
        assert columns.split_sides[row] == placement.split_side


@many
@given(tables, st.sampled_from(PAIR))
def test_a_router_has_the_strips_of_all_keys_in_order(table, side):
    found = table.router(Modulo(INSTANCES)).sides[side]
    words, targets = [], []
    for hash_, placement in sorted(table.placements.items()):
        for strip in strips(placement, side):
            words.append(hash_ << U_BITS | strip.u_lower)
            backups = [i for i in strip.stores if i not in strip.probes]
            flags = [BOTH if i in strip.stores else PROBE for i in strip.probes]
            targets.append(
                list(
                    zip([*strip.probes, *backups], [*flags, *[BACKUP] * len(backups)], strict=True)
                )
            )
    assert found.words.tolist() == words
    for strip, wanted in enumerate(targets):
        ours = slice(*found.bounds[strip : strip + 2])
        assert list(zip(found.instances[ours], found.flags[ours], strict=True)) == wanted
    assert found.bounds[-1] == len(found.instances) == sum(map(len, targets))


@many
@given(tables, st.lists(hashes, max_size=6), st.booleans())
def test_loads_follow_the_placements_of_keys(table, others, backed):
    """Each key brought 10 left and 4 right tuples, to each of its homes and backups."""
    base = Backed.over(Modulo(INSTANCES), 1) if backed else Modulo(INSTANCES)
    keys = sorted({*table.placements, *others})
    places = {hash_: table.place(hash_, base) for hash_ in keys}
    rows = [
        (i, side, hash_, 10 - 6 * side, 20)
        for hash_ in keys
        for i in places[hash_].holders
        for side in PAIR
    ]
    counts = (
        KeyCounts(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
        if rows
        else KeyCounts.empty()
    )
    counts = counts._replace(hashes=counts.hashes.astype(np.uint64))
    stored = np.zeros((2, INSTANCES), np.int64)
    np.add.at(stored, (counts.sides, counts.instances), counts.stored)
    backed_rows = (np.zeros_like(stored), base) if backed else None
    interval = summarise(counts, stored, stored, table, 1, backed_rows)
    assert interval.hashes.tolist() == keys
    for column, hash_ in enumerate(keys):
        placement, homes = places[hash_], len(places[hash_].homes)
        copied = placement.split_side.other if placement.mode is Mode.COPIED else None
        lines = placement.rows, placement.columns
        for side in PAIR:
            times = 1 if side == copied else homes + len(placement.backups)
            times = lines[side] if placement.mode is Mode.GRID else times
            assert interval.arrived[side, column] == (10 - 6 * side) * times
    loads = gather_loads([interval], table, base)
    for column, hash_ in enumerate(loads.hashes.tolist()):
        ours = loads.keys == column
        assert loads.instances[ours].tolist() == list(places[hash_].homes)
        assert np.isclose(loads.shares[ours].sum(), 1)
        backups = loads.backups.instances[loads.backups.keys == column].tolist()
        assert backups == (list(places[hash_].backups) if backed else [])
        if places[hash_].mode is Mode.COPIED:
            sizes = interval.arrived[:, column] + interval.held[:, column]
            side = places[hash_].split_side
            kept = sizes[side.other] < 2 * sizes[side]
            assert loads.split_sides[column] == (side if kept else side.other)


@many
@given(st.lists(st.integers(0, 20), max_size=20), st.lists(st.integers(0, 20), max_size=20))
def test_numbers_each_once_and_where_they_are(values, known):
    one, other = np.array(values, np.uint64), distinct(np.array(known, np.uint64))
    assert other.tolist() == sorted(set(known))
    rows, places = rows_among(one, other)
    assert rows.tolist() == [row for row, value in enumerate(values) if value in known]
    assert other[places].tolist() == [values[row] for row in rows.tolist()]


def test_a_key_of_the_table_is_whole_in_most_cases():
    """So most of the strips need no loop."""
    table = RoutingTable({5: Placement.whole(1), 3: Placement.whole(2, (0,))})
    assert table.columns.whole.tolist() == [True, True]
    assert table.columns.backups.tolist() == [0]
