"""Backups of a home, dealt over several instances: where they lie, and who takes over."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from joinengine.kernels.hashing import first_word
from joinengine.layouts import Ftlb, choose
from joinengine.layouts.backup_spread import DEFAULT_SPREAD, MOST_SPREAD
from joinengine.model.conditions import equi
from joinengine.model.errors import DamagedState, InvalidRequest
from joinengine.operators.unbacked import unbacked_keys
from joinengine.routing.base_functions import BASES, Backed, Modulo, following
from joinengine.routing.table import RoutingTable

N = 6
SPREADS = [1, 2, 3, "all"]
HASHES = np.random.default_rng(1).integers(0, 1 << 40, 60_000).astype(np.uint64)


def others_of(spread):
    return N - 1 if spread == "all" else spread


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("spread", SPREADS)
def test_the_keys_of_a_home_are_dealt_evenly_over_the_instances_after_it(base, spread):
    start = Ftlb(base=base, spread=spread).start(N)
    homes, backups = start.base.holders(HASHES).T
    assert np.array_equal(homes, BASES[base](N).homes(HASHES))
    for home in range(N):
        counts = np.bincount(backups[homes == home], minlength=N)
        assert np.flatnonzero(counts).tolist() == sorted(
            (home + step) % N for step in range(1, others_of(spread) + 1)
        )
        assert counts.max() < 1.15 * counts.sum() / others_of(spread)


@pytest.mark.parametrize("backups", [1, 2, 3])
def test_further_backups_are_at_the_instances_after_the_first(backups):
    roles = Ftlb(backups=backups, spread="all").start(N).base.roles
    assert len(roles) == N * (N - 1)
    for row, (home, *copies) in enumerate(roles.tolist()):
        ring = [(home + step) % N for step in range(1, N)] * 2
        assert home == row % N
        assert copies == ring[row // N : row // N + backups]


@pytest.mark.parametrize(("instances", "domains"), [(7, 3), (6, 2), (9, 4), (5, 1)])
def test_first_backups_are_spread_over_other_domains(instances, domains):
    base = Ftlb(spread="all", domains=domains).start(instances).base
    for home in range(instances):
        copies = [row[1] for row in base.roles.tolist() if row[0] == home]
        assert home not in copies
        assert len(set(copies)) == len(copies) == base.spread
        apart = {one % domains for one in copies} - {home % domains}
        assert domains == 1 or apart == set(range(domains)) - {home % domains}
        for lot in range(base.spread):
            assert sorted(following(home, instances, domains, lot)) == list(range(instances))


def test_spread_over_one_keys_lie_where_they_lay():
    for instances, domains in ((4, None), (7, 3), (7, 2)):
        start = Ftlb(spread=1, backups=2, domains=domains).start(instances)
        assert start.base == Backed.over(Modulo(instances), 2, domains)
        homes = start.base.rows(HASHES)
        assert np.array_equal(homes, HASHES % np.uint64(instances))


@pytest.mark.parametrize("spread", SPREADS)
def test_other_instances_share_the_keys_of_a_lost_one(spread):
    layout = Ftlb(spread=spread).start(N)
    after = layout.copied.without({2})
    was, now = (one.base.holders(HASHES) for one in (layout, after))
    ours = was[:, 0] == 2
    assert np.array_equal(now[~ours], was[~ours])
    assert np.array_equal(now[ours], was[ours][:, ::-1])
    assert len(np.unique(now[ours, 0])) == others_of(spread)
    back = after.copied.whole().copied.restored()
    assert back == layout


@pytest.mark.parametrize("backups", [1, 2])
@pytest.mark.parametrize("spread", SPREADS)
def test_keys_are_lost_only_with_all_their_copies(spread, backups):
    layout = Ftlb(spread=spread, backups=backups).start(N)
    rows = [set(row) for row in layout.base.roles.tolist()]
    for count in (1, 2, 3):
        for lost in map(set, combinations(range(N), count)):
            gone = [number % N for number, row in enumerate(rows) if row <= lost]
            if not gone:
                after = layout.copied.without(lost)
                assert not lost & set(after.base.roles[:, 0].tolist())
                continue
            assert count > backups
            with pytest.raises(DamagedState) as refusal:
                layout.copied.without(lost)
            whole = {home for home in gone if gone.count(home) == others_of(spread)}
            said = str(refusal.value)
            assert ("all keys of base home" in said) is bool(whole)
            assert ("some keys of base home" in said) is bool(set(gone) - whole)
            assert all(f"{home}" in said for home in gone)


def test_with_all_others_any_two_take_keys_along():
    lost = [set(pair) for pair in combinations(range(N), 2)]
    fatal = {}
    for spread in SPREADS:
        rows = [set(row) for row in Ftlb(spread=spread).start(N).base.roles.tolist()]
        fatal[spread] = sum(pair in rows for pair in lost)
    assert fatal == {1: 6, 2: 12, 3: 15, "all": 15}


def test_keys_without_a_second_copy_are_counted_in_their_lots():
    base = Ftlb(spread=2).start(4).base
    hashes = [0, 4, 8, 12, 16]  # all of home 0, of lots 0, 1, 0, ..
    assert base.holders(np.array(hashes, np.uint64))[:, 1].tolist() == [1, 2, 1, 2, 1]
    opened = [SimpleNamespace(words=first_word(np.array(hashes, np.uint64)), gone=None)]
    for missing, alone in (({1: 0}, 3), ({2: 0}, 2), ({1: 0, 2: 0}, 5), ({3: 0}, 0)):
        assert unbacked_keys(RoutingTable().router(base), missing, 0, opened) == alone


def test_listed_keys_go_on_where_their_lot_begins():
    level = {"name": "a", "backups": 3, "keys": [[1], [2]], "hashes": [6, 12]}
    start = Ftlb(spread=2, levels=[level]).start(N)
    assert [start.place(one).holders for one in (6, 12)] == [(0, 2, 3, 4), (0, 1, 2, 3)]
    same = Ftlb(spread=2, backups=3, levels=[level]).start(N)
    assert not same.table.placements, "they lie as the base function says"


@pytest.mark.parametrize("spread", [None, *SPREADS])
def test_a_layout_is_as_it_was_after_a_restart(spread):
    choice = Ftlb(spread=spread, backups=2)
    layout = choice.start(N).copied.without({0, 3})
    assert choice.restore(layout.to_json()) == layout


def test_fewer_others_are_enough_unless_a_number_is_asked_for():
    on = equi("a", "b")
    for spread in (None, "all"):
        Ftlb(spread=spread).check(on, 2)
        assert Ftlb(spread=spread).start(2).base.spread == 1
    assert Ftlb().start(MOST_SPREAD).base.spread == DEFAULT_SPREAD
    assert Ftlb(spread="all").start(MOST_SPREAD + 9).base.spread == MOST_SPREAD
    Ftlb(spread=3).check(on, 4)
    with pytest.raises(InvalidRequest, match=r"spread=3 needs at least 4 instances, .* found 3"):
        Ftlb(spread=3).check(on, 3)
    with pytest.raises(InvalidRequest, match="layout ftlb needs from 4"):
        Ftlb(spread=3, backups=3).check(on, 3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"spread": 0}, r"ftlb: spread must be from 1 to 64 instances, or 'all', found 0"),
        ({"spread": 65}, r"ftlb: spread must be from 1 to 64 instances, or 'all', found 65"),
        ({"spread": "some"}, r"spread must be a whole number, all or none, found 'some'"),
        ({"spread": True}, r"ftlb: spread: True \(bool\) is not a whole number"),
        ({"spread": 2, "standby": True}, r"ftlb: spread=2 places backups of keys, but standby"),
    ],
)
def test_what_no_backups_can_be_spread_over_is_refused(settings, said):
    with pytest.raises(InvalidRequest, match=said):
        Ftlb(**settings)
    assert Ftlb(spread=1, standby=True).start(3).base.spread == 1


def test_spread_is_written_as_other_settings_are():
    assert choose("ftlb:spread=all") == Ftlb(spread="all")
    assert choose("ftlb:spread=3") == Ftlb(spread=3)
    assert choose("ftlb:spread=none") == Ftlb()
    assert Ftlb(spread="all").label == "ftlb:spread=all"
    with pytest.raises(InvalidRequest, match="spread must be a whole number, all or none, found"):
        choose("ftlb:spread=many")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"spread": 1}, "any instance, whose keys go on at another, and of 2 at once if"),
        ({"spread": "all"}, "any instance, whose keys go on at 7 others, and of 2 at once"),
        (
            {"spread": 2, "backups": 2},
            "any 2 instances at once, whose keys go on at 2 others, and of 3",
        ),
        ({"standby": True}, "any instance, whose keys go on at another, and of 2 at once if"),
    ],
)
def test_explain_says_which_losses_are_survived(settings, said):
    (line,) = Ftlb(**settings).lines(8)
    assert line.startswith(f"inner joins survive the loss of {said}")
