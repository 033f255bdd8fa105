"""The routing table: the placements of the keys that are not whole at their base home.

Why: key-based layouts differ only in the planner that fills this table. A placement names the mode
in which the homes of a key share its tuples. Here it becomes *strips*: for one side, a range of u,
the instances that store it and those that it probes. Since a word has the key hash above u, the
strips of all keys form one sorted array, and one binary search finds both the key and the strip.

Law: the strips of a placement agree with `reference.protocol.stores` and `probes`.
Cost: 2 ns a row to rule out most keys that are not in the table, 20 to 30 ns for other keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from joinengine.kernels.hashing import Words, first_word, key_hash
from joinengine.kernels.probing import Ints, expand_ranges
from joinengine.model.keys import HASH_BITS, PAIR, U_BITS, U_ONE, Fragment, Mode, Placement, Side
from joinengine.routing.base_functions import Base, holders_of, placements
from joinengine.routing.routes import BACKUP, BOTH, PROBE, Deliveries, Instances, storing
from joinengine.routing.table_columns import Columns

_FILTER_BITS = 16
_FILTER_SHIFT = np.uint64(64 - _FILTER_BITS)


class Strip(NamedTuple):
    """A range of u from u_lower to the next strip: where its tuples are stored, what they probe."""

    u_lower: int
    stores: tuple[int, ...]
    probes: tuple[int, ...]


def strips(placement: Placement, side: Side) -> list[Strip]:
    """The strips of `placement` for the tuples of `side`, in the order of u.

    >>> strips(Placement.whole(2), Side.LEFT)
    [Strip(u_lower=0, stores=(2,), probes=(2,))]
    """
    homes = placement.homes
    match placement.mode:
        case Mode.WHOLE:
            return [Strip(0, placement.holders, homes)]
        case Mode.SPLIT:
            return [Strip(f.u_lower, (f.instance,), homes) for f in placement.fragments]
        case Mode.COPIED if side is placement.split_side:
            return [Strip(f.u_lower, (f.instance,), (f.instance,)) for f in placement.fragments]
        case Mode.COPIED:
            return [Strip(0, homes, homes)]
        case Mode.GRID:
            rows, columns = placement.rows, placement.columns
            lines = (
                [homes[i * columns : (i + 1) * columns] for i in range(rows)]
                if side is Side.LEFT
                else [homes[i::columns] for i in range(columns)]
            )
            # Line i begins at the least u with u * len(lines) // U_ONE = i.
            return [Strip(-(-U_ONE * i // len(lines)), x, x) for i, x in enumerate(lines)]


class Strips(NamedTuple):
    """All strips of one side, by ascending word.

    Strip j begins at words[j] and delivers to the instances in bounds[j]:bounds[j + 1]. The homes
    of a key come before its backups.
    """

    words: Words
    bounds: NDArray[np.int64]
    instances: NDArray[np.uint16]
    flags: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TableRouter:
    """The routing table as arrays, for tasks. Small, picklable, and not to be changed."""

    base: Base
    listed: Words
    maybe: NDArray[np.bool_]
    sides: tuple[Strips, Strips]

    @property
    def instances(self) -> int:
        """The number of instances."""
        return self.base.instances

    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """The deliveries that store tuples; their present `holders` do not matter."""
        return storing(self.route(side, words))

    def route(self, side: Side, words: Words) -> Deliveries:
        """(n,) words of one side -> at least n deliveries; those of one row are adjacent."""
        everyone = np.arange(len(words))
        plain = holders_of(self.base, key_hash(words))
        if not len(self.listed):
            return _everywhere(everyone, plain)
        strips = self.sides[side]
        listed = np.flatnonzero(self.maybe[words >> _FILTER_SHIFT])
        strip = np.searchsorted(strips.words, words[listed], side="right") - 1
        is_listed = (strip >= 0) & (key_hash(strips.words[strip]) == key_hash(words[listed]))
        listed, strip = listed[is_listed], strip[is_listed]
        counts = np.full(len(words), plain.shape[1])
        counts[listed] = strips.bounds[strip + 1] - strips.bounds[strip]
        firsts = np.cumsum(counts) - counts
        rows = np.repeat(everyone, counts)
        if plain.shape[1] == 1:
            homes, flags = plain[rows, 0], np.full(len(rows), BOTH)
        else:
            copy = np.arange(len(rows)) - firsts[rows]
            homes = plain[rows, np.minimum(copy, plain.shape[1] - 1)]
            flags = np.where(copy == 0, BOTH, BACKUP)
        targets = expand_ranges(firsts[listed], counts[listed])
        entries = expand_ranges(strips.bounds[strip], counts[listed])
        homes[targets] = strips.instances[entries]
        flags[targets] = strips.flags[entries]
        return Deliveries(rows, homes, flags)


def _everywhere(rows: Ints, holders: Instances) -> Deliveries:
    """(n,) rows -> deliveries to (n, copies) holders, each a home and its backups."""
    copies = holders.shape[1]
    if copies == 1:
        return Deliveries(rows, holders[:, 0], np.full(len(rows), BOTH))
    flags = np.full(holders.shape, BACKUP)
    flags[:, 0] = BOTH
    return Deliveries(np.repeat(rows, copies), holders.ravel(), flags.ravel())


@dataclass(frozen=True)
class RoutingTable:
    """Key hash -> placement, for the keys that do not live whole at their base home."""

    placements: Mapping[int, Placement] = field(default_factory=dict)

    def place(self, hash_: int, base: Base) -> Placement:
        """The placement of the keys of one hash."""
        placement = self.placements.get(hash_)
        return placement or placements(base, np.array([hash_], np.uint64))[0]

    @cached_property
    def columns(self) -> Columns:
        """The table as columns; computed once, since it takes a loop over the keys."""
        return Columns.of(self.placements)

    @property
    def split_keys(self) -> int:
        """How many keys have more than one home."""
        return int((np.diff(self.columns.bounds) > 1).sum())

    def router(self, base: Base) -> TableRouter:
        """The router that tasks use."""
        listed = self.columns.hashes
        maybe = np.zeros(1 << _FILTER_BITS, bool)
        maybe[listed >> np.uint64(HASH_BITS - _FILTER_BITS)] = True
        left, right = (self._compiled(side) for side in PAIR)
        return TableRouter(base, listed, maybe, (left, right))

    def _compiled(self, side: Side) -> Strips:
        """The strips of all keys, in the order of their words.

        Most keys are whole and have no backup, and each of them has one strip.
        """
        columns = self.columns
        plain = columns.plain
        others = {h: self.placements[h] for h in columns.hashes[~plain].tolist()}
        ours = _compile(others, side)
        words = np.concatenate([first_word(columns.hashes[plain]), ours.words])
        homes = columns.homes[columns.bounds[:-1][plain]].astype(np.uint16)
        order = np.argsort(words)
        counts = np.concatenate([np.ones(len(homes), np.int64), np.diff(ours.bounds)])
        starts = np.cumsum(counts) - counts
        entries = expand_ranges(starts[order], counts[order])
        targets = np.concatenate([homes, ours.instances])
        flags = np.concatenate([np.full(len(homes), BOTH), ours.flags])
        bounds = np.concatenate([[0], np.cumsum(counts[order])]).astype(np.int64)
        return Strips(words[order], bounds, targets[entries], flags[entries])


def _compile(placements: Mapping[int, Placement], side: Side) -> Strips:
    """The strips of keys, in the order of `placements`."""
    words, bounds, targets, flags = list[int](), [0], list[int](), list[int]()
    for hash_, placement in placements.items():
        for strip in strips(placement, side):
            words.append(hash_ << U_BITS | strip.u_lower)
            backups = [i for i in strip.stores if i not in strip.probes]
            targets += [*strip.probes, *backups]
            flags += [int(BOTH if i in strip.stores else PROBE) for i in strip.probes]
            flags += [int(BACKUP)] * len(backups)
            bounds.append(len(targets))
    return Strips(
        np.array(words, np.uint64),
        np.array(bounds, np.int64),
        np.array(targets, np.uint16),
        np.array(flags, np.uint8),
    )


def to_json(table: RoutingTable) -> list[list[object]]:
    """The table as plain values.

    A row is [hash, mode, split side, columns, [[instance, lower, upper]], [backup]], the last only
    if there are backups.
    """
    return [
        [
            hash_,
            p.mode.value,
            int(p.split_side),
            p.columns,
            [[f.instance, f.u_lower, f.u_upper] for f in p.fragments],
            *([list(p.backups)] if p.backups else []),
        ]
        for hash_, p in sorted(table.placements.items())
    ]


def to_columns(table: RoutingTable) -> dict[str, list[Any]]:
    """The table as plain values, in a short form that is made quickly.

    `whole`: the hashes of whole keys without backups, and their homes; `others`: as `to_json`.
    """
    columns, plain = table.columns, table.columns.plain
    others = {h: table.placements[h] for h in columns.hashes[~plain].tolist()}
    homes = columns.homes[columns.bounds[:-1][plain]]
    return {
        "whole": [columns.hashes[plain].tolist(), homes.tolist()],
        "others": to_json(RoutingTable(others)),
    }


def from_columns(columns: Mapping[str, list[Any]]) -> RoutingTable:
    """The inverse of `to_columns`."""
    hashes, homes = columns["whole"]
    at = {home: Placement.whole(home) for home in set(homes)}
    listed = {hash_: at[home] for hash_, home in zip(hashes, homes, strict=True)}
    return RoutingTable(listed | dict(_placement(*row) for row in columns["others"]))


def _placement(
    hash_: int,
    mode: str,
    split_side: int,
    columns: int,
    fragments: list[list[int]],
    backups: Sequence[int] = (),
) -> tuple[int, Placement]:
    homes = tuple(Fragment(*fragment) for fragment in fragments)
    return hash_, Placement(Mode(mode), homes, Side(split_side), columns, tuple(backups))
