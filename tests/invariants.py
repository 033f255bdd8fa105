"""The invariants of a query's state after every batch, whatever the test is about."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa

from joinengine.routing.routes import only


def check_places(state, store, *, expires):
    """Check that each live tuple is once at each home of its layout version; returns their number.

    `expires`: some copies of a tuple may have left already, with the runs that they were in.
    `state`: that of an operator; `store`: opens its runs. If a change has been planned but not yet
    made, the newest version's state still follows the layout before it.
    """
    layouts = state.layouts
    newest = getattr(layouts.pending, "before", layouts.newest)
    live = {**layouts.older, layouts.version: newest}
    missing = {
        version: dict(getattr(one.layout, "incomplete", ())) for version, one in live.items()
    }
    routers = {
        version: Complete(one.router, missing[version]) if missing[version] else one.router
        for version, one in live.items()
    }
    held = defaultdict(list)
    for run in state.shelves.state.values():
        opened = store.open(run, state.shelves.files[run.file])
        if run.live:
            rows = opened.live_rows()
            if run.instance in missing[run.version]:
                rows = rows[opened.words[rows] < missing[run.version][run.instance]]
            held[run.version, run.side].append((run.instance, opened, rows))
    tuples = 0
    for (version, side), parts in held.items():
        words = np.concatenate([opened.words[rows] for _, opened, rows in parts])
        holders = np.concatenate(
            [np.full(len(rows), instance, np.uint16) for instance, _, rows in parts]
        )
        if _stand_at_homes(routers[version], side.routed, words, holders):
            tuples += len(np.unique(words))
        else:
            contents = [
                tuple(column[row].as_py() for column in columns)
                for _, opened, rows in parts
                for columns in [[_readable(column) for column in opened.columns.columns]]
                for row in rows.tolist()
            ]
            tuples += _check_each(
                routers[version], side.routed, words.tolist(), holders.tolist(), contents, expires
            )
    return tuples


class Complete:
    """A router, without the copies that instances have lost and not made anew."""

    def __init__(self, router, missing):
        self.router, self.missing = router, missing

    def homes(self, side, words, holders):
        found = self.router.homes(side, words, holders)
        first = [self.missing.get(instance, 1 << 64) for instance in found.instances.tolist()]
        there = [
            word < limit for word, limit in zip(words[found.rows].tolist(), first, strict=True)
        ]
        return only(found, np.array(there, bool))


def _readable(column):
    """Instants as numbers: Python has no years below 1."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _stand_at_homes(router, side, words, holders):
    """Whether (n,) copies stand at their homes, if each tuple has a word of its own."""
    order = np.lexsort((holders, words))
    words, holders = words[order], holders[order]
    first = np.flatnonzero(np.concatenate([np.ones(1, bool), words[1:] != words[:-1]]))
    homes = router.homes(side, words[first], holders[first])
    wanted = np.lexsort((homes.instances, homes.rows))
    return np.array_equal(words[first][homes.rows[wanted]], words) and np.array_equal(
        homes.instances[wanted], holders
    )


def _check_each(router, side, words, holders, contents, expires):
    """The same tuple by tuple, with columns that tell tuples of one word apart; their number."""
    copies = defaultdict(list)
    for word, holder, content in zip(words, holders, contents, strict=True):
        copies[word, repr(content)].append(holder)
    for (word, content), found in copies.items():
        one = np.array([word], np.uint64), np.array(found[:1], np.uint16)
        homes = router.homes(side, *one).instances.tolist()
        there = Counter(found) <= Counter(homes) if expires else sorted(found) == sorted(homes)
        assert there, (
            f"{side.name} tuple {content} of word {word} is held by {sorted(found)}, "
            f"its homes are {sorted(homes)}"
        )
    return len(copies)
