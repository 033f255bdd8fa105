"""Re-homing: moves all state of an operator to the homes that another layout names.

Why: a plan for a few keys says which word ranges move. Another layout, another base function or
another number of instances affects every tuple. So each task reads the words of all runs, and takes
the tuples that its instances must hold. A run that no tuple leaves stays as it is.

Law: after a re-homing each tuple lies at exactly the homes that the new layout names. A home that
held the tuple keeps its own copy; the other homes copy it from the first of its old homes.
Cost: every task reads 8 bytes of each tuple, and whole tuples if it takes them; memory is bounded
by `memory_bytes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.layouts.versions import AnyRouter
from joinengine.model.keys import Side
from joinengine.routing.routes import only
from joinengine.state.keeper import Keeper
from joinengine.state.operator_state import Layouts, Rehome
from joinengine.state.run import OpenRun, Run

#: A run spans at most 1/SPAN_PART of the window, so that it expires as a whole, soon after its
#: tuples have.
SPAN_PART = 8


@dataclass(frozen=True, slots=True)
class Rehoming:
    """A re-homing from the live versions `old` to `new`, the only layout from now on.

    `absent`: per version, the instances that have lost tuples. Their copies are dropped, since all
    tuples are also elsewhere.
    """

    old: Mapping[int, AnyRouter]
    new: AnyRouter
    version: int
    absent: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, layouts: Layouts) -> Rehoming | None:
        """The re-homing that is pending; None: there is none."""
        if not isinstance(layouts.pending, Rehome):
            return None
        older = {version: layout.router for version, layout in layouts.older.items()}
        old = older | {layouts.version: layouts.pending.before.router}
        absent = {version: layout.absent for version, layout in layouts.older.items()}
        absent |= {layouts.version: layouts.pending.absent}
        return cls(old, layouts.newest.router, layouts.version, absent)

    def taken(self, run: Run, words: Words, hosted: Collection[int]) -> tuple[Ints, Ints]:
        """(n,) words of `run` -> rows that `hosted` instances take, and the taker of each."""
        side, holder, old = run.side.routed, run.instance, self.old[run.version]
        present = old.homes(side, words, np.full(len(words), holder, np.uint16))
        if absent := self.absent[run.version]:
            present = only(present, ~np.isin(present.instances, absent))
        first = np.ones(len(present.rows), bool)
        first[1:] = present.rows[1:] != present.rows[:-1]
        firsts = present.instances[first]
        # All tasks must find the same new homes, whichever holder's run they read.
        homes = self.new.homes(side, words, firsts)
        rows, targets = homes.rows, homes.instances.astype(np.int64)
        n = max(old.instances, self.new.instances)
        has_it = np.isin(rows * n + targets, present.rows * n + present.instances.astype(np.int64))
        takes = np.where(has_it, targets == holder, firsts[rows] == holder)
        takes &= np.isin(targets, list(hosted))
        return rows[takes], targets[takes]


class _Piece(NamedTuple):
    words: Words
    columns: pa.RecordBatch
    settled: int | None


@dataclass
class _Gathered:
    """Tuples that the hosted instances have taken but not yet sealed."""

    pieces: dict[int, list[_Piece]] = field(default_factory=lambda: defaultdict(list))
    size: int = 0
    since: int | None = None


def shared_files(runs: Iterable[Run]) -> set[str]:
    """The files that hold runs of several instances."""
    holders = defaultdict[str, set[int]](set)
    for run in runs:
        holders[run.file].add(run.instance)
    return {name for name, readers in holders.items() if len(readers) > 1}


def rehome(
    rehoming: Rehoming,
    runs: Iterable[Run],
    keeper: Keeper,
    hosted: Collection[int],
    memory_bytes: int,
    span_us: int | None,
) -> dict[tuple[int, Side], list[OpenRun]]:
    """The spines of the hosted instances under the new layout."""
    spines = defaultdict[tuple[int, Side], list[OpenRun]](list)
    ordered = sorted(runs, key=lambda run: (run.side, run.min_time or 0, run.ident))
    # If keys have copies, no two instances may share a file.
    split = shared_files(ordered) if keeper.apart else set[str]()
    for side in sorted({run.side for run in ordered}):
        gathered = _Gathered()
        for run in (run for run in ordered if run.side is side):
            if _is_full(gathered, run, memory_bytes, span_us):
                _seal(gathered, side, keeper, spines)
                gathered = _Gathered(since=run.min_time)
            _take(rehoming, run, keeper, hosted, gathered, spines, may_stay=run.file not in split)
        _seal(gathered, side, keeper, spines)
    return spines


def _is_full(gathered: _Gathered, run: Run, memory_bytes: int, span_us: int | None) -> bool:
    if gathered.since is None and gathered.size == 0:
        gathered.since = run.min_time
    too_large = gathered.size + run.live_bytes > memory_bytes
    too_long = (
        span_us is not None
        and gathered.since is not None
        and run.max_time is not None
        and run.max_time - gathered.since > span_us // SPAN_PART
    )
    return gathered.size > 0 and (too_large or too_long)


def _take(
    rehoming: Rehoming,
    run: Run,
    keeper: Keeper,
    hosted: Collection[int],
    gathered: _Gathered,
    spines: dict[tuple[int, Side], list[OpenRun]],
    *,
    may_stay: bool,
) -> None:
    """Gather the tuples of one run that the hosted instances take; keep a run that stays whole."""
    (opened,) = keeper.open([run])
    live = opened.live_rows()
    words = opened.words[live]
    rows, targets = rehoming.taken(run, words, hosted)
    if may_stay and len(rows) == len(words) and (targets == run.instance).all():
        stays = keeper.relabel(opened, rehoming.version)
        spines[run.instance, run.side].append(stays)
        return
    moved = int((targets != run.instance).sum())
    keeper.moved(moved, run.live_bytes * moved // max(run.live, 1))
    for target in np.unique(targets).tolist():
        target_rows = rows[targets == target]
        columns = opened.columns.take(pa.array(live[target_rows]))
        gathered.pieces[target].append(_Piece(words[target_rows], columns, run.settled_time))
        gathered.size += columns.nbytes


def _seal(
    gathered: _Gathered,
    side: Side,
    keeper: Keeper,
    spines: dict[tuple[int, Side], list[OpenRun]],
) -> None:
    """Seal one run for each instance that took tuples."""
    for target, pieces in sorted(gathered.pieces.items()):
        words = np.concatenate([piece.words for piece in pieces])
        order = np.argsort(words, kind="stable")
        columns = pa.concat_batches([piece.columns for piece in pieces]).take(pa.array(order))
        settled = min((p.settled for p in pieces if p.settled is not None), default=None)
        sealed = keeper.seal(
            target, side, words[order], columns, own_file=True, oldest_input=settled
        )
        spines[target, side].append(sealed)
