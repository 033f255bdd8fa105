"""The batch protocol in memory: the meaning of docs/decisions/0001 as a program.

Why: the engine spreads these steps over a driver, tasks and files. Here they are one loop over
plain tuples, so that exactly-once, moves, layout versions and restarts can be tried against a
nested loop in milliseconds, and the engine against this model.

Law: under all batches, layouts, moves and kills, every matching pair of tuples that are on time is
delivered exactly once.

Cost: quadratic.
Source: the pairing rule is ours (docs/decisions/0001); store one, probe all is Fang et al., JOS
2017, algorithm 1; keeping old homes alive by versions is the idea of NM-Join (2022).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joinengine.model.keys import PAIR, U_ONE, Mode, Placement, Side
from joinengine.model.windows import Within

NEVER = -math.inf


@dataclass(frozen=True, slots=True)
class Row:
    """One tuple: `ident` tells equal tuples apart, `u` is drawn once and kept.

    `key` None: it is NULL, or a filter drops the tuple. Such a tuple joins nothing and is not
    counted as late, but it moves the watermark.
    """

    side: Side
    key: int | None
    u: int
    time: float
    ident: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The tuples of one side and key with u in [u_lower, u_upper)."""

    side: Side
    key: int
    u_lower: int
    u_upper: int

    def __contains__(self, row: Row) -> bool:
        ours = row.side is self.side and row.key == self.key
        return ours and self.u_lower <= row.u < self.u_upper


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves that a re-layout asks of the next batch: slices to pull and slices to drop."""

    pulls: tuple[tuple[Slice, int, int], ...] = ()  # (slice, source, target)
    drops: tuple[tuple[Slice, int], ...] = ()  # (slice, instance)


@dataclass(frozen=True, slots=True)
class Layout:
    """One version of the routing table over the base function key modulo instances."""

    version: int
    instances: int
    table: Mapping[int, Placement] = field(default_factory=dict)

    def place(self, key: int | None) -> Placement:
        """The placement of a key."""
        assert key is not None, "a tuple without a key is stored nowhere"
        return self.table.get(key) or Placement.whole(key % self.instances)


@dataclass(frozen=True, slots=True)
class Run:
    """An immutable batch of one side at one instance, stored under one layout version."""

    side: Side
    instance: int
    version: int
    file: int
    exclusions: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that batch `batch` leaves behind, from which the next batch starts."""

    batch: int
    runs: tuple[Run, ...]
    layouts: tuple[Layout, ...]  # the live versions, newest last
    moves: Moves = Moves()
    newest: tuple[float, float] = (NEVER, NEVER)
    watermark: float = NEVER  # of the next batch
    late: int = 0
    results: int | None = None


@dataclass
class Disk:
    """The files that survive a kill. A file that no manifest names does not exist."""

    manifests: list[Manifest]
    files: dict[int, tuple[object, ...]] = field(default_factory=dict)
    delivered: dict[int, tuple[tuple[Row, Row], ...]] = field(default_factory=dict)

    def write(self, rows: Iterable[object]) -> int:
        """Write a new file; returns its name."""
        name = max(self.files, default=0) + 1
        self.files[name] = tuple(rows)
        return name


def stores(placement: Placement, side: Side, u: int) -> set[int]:
    """The instances that keep a tuple."""
    match placement.mode:
        case Mode.GRID:
            rows, columns = placement.rows, placement.columns
            cells = [fragment.instance for fragment in placement.fragments]
            if side is Side.LEFT:
                row = u * rows // U_ONE
                return set(cells[row * columns : (row + 1) * columns])
            return set(cells[u * columns // U_ONE :: columns])
        case Mode.COPIED if side is not placement.split_side:
            return set(placement.homes)
        case Mode.WHOLE:
            return set(placement.holders)
        case _:
            return {f.instance for f in placement.fragments if f.u_lower <= u < f.u_upper}


def probes(placement: Placement, side: Side, u: int) -> set[int]:
    """The instances where a tuple looks for partners."""
    match placement.mode:
        case Mode.WHOLE | Mode.SPLIT:
            return set(placement.homes)
        case _:
            return stores(placement, side, u)


def plan_moves(old: Layout, new: Layout, keys: Iterable[int]) -> Moves:
    """The moves that turn the state of `old` into the state of `new`, slice by slice."""
    pulls, drops = [], []
    for key, side in itertools.product(sorted(set(keys)), PAIR):
        before, after = old.place(key), new.place(key)
        cuts = sorted({0, U_ONE} | _cuts(before) | _cuts(after))
        for lower, upper in itertools.pairwise(cuts):
            piece = Slice(side, key, lower, upper)
            had, wants = stores(before, side, lower), stores(after, side, lower)
            pulls += [(piece, min(had), target) for target in sorted(wants - had)]
            drops += [(piece, instance) for instance in sorted(had - wants)]
    return Moves(tuple(pulls), tuple(drops))


def _cuts(placement: Placement) -> set[int]:
    if placement.mode is Mode.GRID:
        steps = (placement.rows, placement.columns)
        return {-(-U_ONE * i // n) for n in steps for i in range(n)}
    return {fragment.u_lower for fragment in placement.fragments}


@dataclass
class Engine:
    """A driver with its tasks; all that it must remember is on `disk`.

    `step(name)` is called between any two steps and may raise, which is a kill.
    """

    disk: Disk
    within: Within | None
    step: Callable[[str], None] = lambda name: None

    def run_batch(
        self, batch: int, rows: Sequence[Row], replan: Callable[[Manifest], Manifest] | None = None
    ) -> None:
        """Process one micro-batch; if it is already committed, deliver it again."""
        last = self.disk.manifests[-1]
        if batch == last.batch:
            self._deliver(last)
            return
        assert batch == last.batch + 1, f"batch {batch} after {last.batch}"
        wanted = [row for row in rows if row.key is not None]
        on_time = [row for row in wanted if row.time >= last.watermark]
        self.step("routed")
        runs, pairs = list[Run](), list[tuple[Row, Row]]()
        for instance in range(max(layout.instances for layout in last.layouts)):
            kept, found = self._join(last, instance, on_time)
            runs += kept
            pairs += found
            self.step("joined an instance")
        results = self.disk.write(pairs)
        self.step("results staged")
        manifest = self._next(last, batch, rows, runs, results)
        manifest = replace(manifest, late=last.late + len(wanted) - len(on_time))
        if replan:
            manifest = replan(manifest)
        self.step("planned")
        self.disk.manifests.append(manifest)
        self.step("committed")
        self._deliver(manifest)

    def _join(
        self, last: Manifest, instance: int, rows: Sequence[Row]
    ) -> tuple[list[Run], list[tuple[Row, Row]]]:
        """The pairing rule at one instance.

        State that moves in is placed; left tuples probe and are stored; right tuples probe and are
        stored; expired state leaves.
        """
        newest = last.layouts[-1]
        runs = self._placed(last, instance)
        state = defaultdict[tuple[int, Side], list[Row]](list)
        for run in runs:
            state[run.version, run.side] += self._live(run)
        pairs = list[tuple[Row, Row]]()
        for side in PAIR:
            arrived = [row for row in rows if row.side is side]
            for layout in last.layouts:
                for row in arrived:
                    if instance in probes(layout.place(row.key), side, row.u):
                        pairs += self._matches(row, state[layout.version, side.other])
            kept = [r for r in arrived if instance in stores(newest.place(r.key), side, r.u)]
            state[newest.version, side] += kept
            if kept:
                runs.append(Run(side, instance, newest.version, self.disk.write(kept)))
        return [run for run in runs if not self._expired(run, last.watermark)], pairs

    def _placed(self, last: Manifest, instance: int) -> list[Run]:
        """The runs of `instance` once the moves that batch `last` planned are done."""
        newest = last.layouts[-1].version
        runs = list[Run]()
        for run in last.runs:
            if run.instance == instance:
                ours = run.version == newest
                gone = [piece for piece, where in last.moves.drops if ours and where == instance]
                runs.append(replace(run, exclusions=run.exclusions + tuple(gone)))
        for side in PAIR:
            pulled = [
                row
                for piece, source, target in last.moves.pulls
                for run in last.runs
                if target == instance and run.instance == source and run.version == newest
                for row in self._live(run)
                if row in piece and row.side is side
            ]
            if pulled:
                runs.append(Run(side, instance, newest, self.disk.write(pulled)))
        return runs

    def _live(self, run: Run) -> list[Row]:
        rows: list[Row] = list(self.disk.files[run.file])  # type: ignore[arg-type]
        return [row for row in rows if not any(row in piece for piece in run.exclusions)]

    def _matches(self, row: Row, others: Iterable[Row]) -> list[tuple[Row, Row]]:
        pairs = [
            (row, o) if row.side is Side.LEFT else (o, row) for o in others if o.key == row.key
        ]
        return [pair for pair in pairs if matches(self.within, *pair)]

    def _expired(self, run: Run, watermark: float) -> bool:
        if self.within is None:
            return False
        last = [self.within.last_partners(run.side, row.time) for row in self._live(run)]
        return all(time < watermark for time in last)

    def _next(
        self, last: Manifest, batch: int, rows: Sequence[Row], runs: list[Run], results: int
    ) -> Manifest:
        times = [[row.time for row in rows if row.side is side] for side in PAIR]
        newest = tuple(max([seen, *new]) for seen, new in zip(last.newest, times, strict=True))
        watermark = last.watermark
        if self.within is not None:
            delays = self.within.delays_us
            ahead = min(seen - (delay or 0) for seen, delay in zip(newest, delays, strict=True))
            watermark = max(watermark, ahead)
        live = {run.version for run in runs} | {last.layouts[-1].version}
        layouts = tuple(layout for layout in last.layouts if layout.version in live)
        return Manifest(
            batch, tuple(runs), layouts, Moves(), (newest[0], newest[1]), watermark, 0, results
        )

    def _deliver(self, manifest: Manifest) -> None:
        """Make the results visible, then remove the files that no manifest names any more."""
        if manifest.results is not None:
            pairs: tuple[tuple[Row, Row], ...] = self.disk.files[manifest.results]  # type: ignore[assignment]
            self.disk.delivered[manifest.batch] = pairs
        self.step("delivered")
        named = {run.file for run in manifest.runs} | {manifest.results}
        self.disk.files = {name: rows for name, rows in self.disk.files.items() if name in named}


def matches(within: Within | None, left: Row, right: Row) -> bool:
    """Equal keys, close enough in time."""
    if left.key is None or left.key != right.key:
        return False
    if within is None:
        return True
    lead = right.time - left.time
    low, high = within.lower_us, within.upper_us
    return (low is None or low <= lead) and (high is None or lead <= high)


def relayout(manifest: Manifest, table: Mapping[int, Placement], *, lazy: bool) -> Manifest:
    """Plan the next batch's layout: eager moves take the state along, lazy ones open a version."""
    current = manifest.layouts[-1]
    if lazy:
        new = Layout(current.version + 1, current.instances, table)
        return replace(manifest, layouts=(*manifest.layouts, new))
    new = Layout(current.version, current.instances, table)
    moves = plan_moves(current, new, [*current.table, *table])
    return replace(manifest, layouts=(*manifest.layouts[:-1], new), moves=moves)
