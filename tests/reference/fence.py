"""The fence in memory: docs/decisions/0009 as a program of drivers that may sleep at any step.

Why: the harm that a driver can do when it wakes up depends on the order of its steps and of the
steps that others have made meanwhile. Here a driver is a generator that stops between any two
steps, so that a scheduler can try the orders. A batch computes the simplest result that can be
wrong: the pairs of all left with all right items.

Law: however drivers are started, put to sleep, woken and killed while items arrive, each pair is
visible exactly once, each item is logged once, and every file that the newest manifest names is
there. The law holds even if no driver looks at the generations: a look only ends an old driver
sooner.

`bugs` plants one or more of `BUGS`; each breaks the law.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from joinengine.model.keys import Side

#: The bugs that can be planted: steps that are left out or done wrong.
BUGS = (
    "no boundary",
    "no nonce",
    "removal before the first commit",
    "removal by exclusion",
    "boundary overwritten",
    "doubled log entry",
    "newer manifest taken up",
    "removal inside the chain",
    "newest change taken for the whole",
    "changes since its own attempt",
)
#: Every FULL_EVERY-th manifest is full: more often than in the engine, so that names are soon free.
FULL_EVERY = 3

#: A tuple of the input: its side and its number.
Item = tuple[Side, int]
Step = Iterator[str]


class Name(NamedTuple):
    """A file's name: the generation that made it, and a number."""

    generation: int
    number: int


class Manifest(NamedTuple):
    """What is true after a batch: all runs if it is full, else those that are `new` and `gone`.

    `parent`: the nonce of the manifest before. `links`: how many manifests lie between this one and
    the last full one.
    """

    batch: int
    generation: int
    nonce: int
    new: tuple[Name, ...]
    result: Name | None
    gone: tuple[Name, ...] = ()
    parent: int = -1
    links: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it needs no other manifest."""
        return not self.links

    def after(self, runs: tuple[Name, ...]) -> tuple[Name, ...]:
        """The runs after this batch; `runs`: the runs before it."""
        stay = () if self.is_full else (name for name in runs if name not in self.gone)
        return (*stay, *self.new)


FIRST = Manifest(-1, 0, -1, (), None)


class Stopped(Exception):
    """A driver has found a newer one, and stops."""


class Failed(Exception):
    """A driver cannot go on for another reason."""


@dataclass
class Disk:
    """The file system, which all drivers see.

    Items arrive in `folder`; `log`: the number of items before a segment -> its items. `offsets`
    and `commits` are Spark's logs.
    """

    manifests: dict[int, Manifest] = field(default_factory=dict)
    files: dict[Name, tuple[Any, ...]] = field(default_factory=dict)
    visible: dict[tuple[int, Name], tuple[Any, ...]] = field(default_factory=dict)
    generations: set[int] = field(default_factory=set)
    boundary: set[int] = field(default_factory=lambda: {-1})
    log: dict[int, tuple[Item, ...]] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=lambda: {-1: 0})
    commits: set[int] = field(default_factory=lambda: {-1})
    folder: list[Item] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def newest(self) -> Manifest:
        """The newest manifest; FIRST if there is none."""
        return self.manifests[max(self.manifests)] if self.manifests else FIRST

    def runs(self) -> tuple[Name, ...]:
        """The runs that the newest manifest names, by its chain."""
        last, runs = self.newest(), tuple[Name, ...]()
        for batch in range(last.batch - last.links, last.batch + 1):
            runs = self.manifests[batch].after(runs)
        return runs

    def logged(self) -> list[Item]:
        """The source log as a driver that starts now reads it."""
        return [item for _, items in sorted(self.log.items()) for item in items]


@dataclass
class Driver:
    """One driver; `run` yields the name of the step that comes next.

    `manners`: whether the driver checks now and then if a newer one was started. `lost_reply`: the
    reply to its next commit gets lost, and the file system repeats the request.
    """

    disk: Disk
    bugs: Container[str] = ()
    manners: bool = True
    lost_reply: bool = False

    def run(self) -> Step:
        """The steps of the driver, without end; if there is no new item, it is idle."""
        yield "claim"
        self.generation = max(self.disk.generations, default=0) + 1
        self.disk.generations.add(self.generation)
        self.committed = False
        while not (yield from self._read_newest()):
            pass
        if "newer manifest taken up" not in self.bugs:
            # It has slept since it took its number: a newer driver takes its files for leftovers.
            if self.manifest.generation > self.generation:
                raise Stopped
        yield from self._deliver()
        if "removal before the first commit" in self.bugs:
            yield from self._remove()
        yield "start Spark"
        self.log = self.disk.logged()
        last = max(self.disk.offsets)
        batch = last + 1 if last in self.disk.commits else last
        start = self.disk.offsets[batch - 1]
        while True:
            end = self.disk.offsets[batch] if batch <= last else None
            if end is None:
                end = yield from self._offer(batch, start)
            yield from self._run_batch(batch, self.log[start:end])
            yield "tell Spark"
            if batch in self.disk.commits:
                raise Failed("Spark's log of commits")
            self.disk.commits.add(batch)
            batch, start = batch + 1, end

    def _read_newest(self) -> Generator[str, None, bool]:
        """Read the newest manifest and its chain; False if another one has become the newest."""
        yield "read the newest"
        chain = [self.disk.newest()]
        while not chain[-1].is_full and "newest change taken for the whole" not in self.bugs:
            yield "read a link"
            found = self.disk.manifests.get(chain[-1].batch - 1)
            if found is None or found.nonce != chain[-1].parent:
                if self.disk.newest() == chain[0]:
                    raise Failed("a link is missing")
                return False
            chain.append(found)
        self.manifest, runs = chain[0], tuple[Name, ...]()
        while chain:
            runs = chain.pop().after(runs)
        self.runs = runs
        return True

    # The source

    def _offer(self, batch: int, start: int) -> Generator[str, None, int]:
        """Wait for items, and write into Spark's log how far the batch goes."""
        while True:
            yield "look for items"
            self._look_around()
            new = [item for item in self.disk.folder if item not in self.log]
            yield "log them"
            self._append(new)
            if len(self.log) > start:
                break
            yield "idle"
        yield "tell Spark how far"
        if batch in self.disk.offsets:
            raise Failed("Spark's log of offsets")
        self.disk.offsets[batch] = len(self.log)
        return len(self.log)

    def _append(self, new: list[Item]) -> None:
        """Write one segment, unless another driver has written it."""
        if not new:
            return
        position = len(self.log)
        if "doubled log entry" in self.bugs:  # written after the other driver's segment
            position = len(self.disk.logged())
        if position in self.disk.log:
            self.log = self.disk.logged()
            return  # and look again
        self.disk.log[position] = tuple(new)
        self.log += new

    # A batch

    def _run_batch(self, batch: int, items: list[Item]) -> Step:
        if batch == self.manifest.batch:
            yield from self._deliver()
            return
        if batch != self.manifest.batch + 1:
            raise Failed(f"batch {batch} after {self.manifest.batch}")
        yield "compute"
        state = [item for name in self.runs for item in self._read(name)]
        pairs = [
            pair
            for pair in itertools.product(state + items, repeat=2)
            if (pair[0][0], pair[1][0]) == (Side.LEFT, Side.RIGHT)
            and not (pair[0] in state and pair[1] in state)
        ]
        yield "write a run"
        merges = len(self.runs) >= 2
        run = self._write(state + items if merges else items)
        yield "write results"
        result = self._write(pairs)
        yield from self._commit(self._told(batch, run, result, self.runs if merges else ()))
        yield from self._deliver()
        if self.committed:
            yield from self._retire()
            yield from self._remove()

    def _told(self, batch: int, run: Name, result: Name, gone: tuple[Name, ...]) -> Manifest:
        """The next manifest: full, or what has changed since the last."""
        last, nonce = self.manifest, next(self.disk.numbers)
        links = (last.links + 1) % FULL_EVERY if last.batch >= 0 else 0
        told: tuple[Name, ...] = (run,)
        if not links:
            told = (*(name for name in self.runs if name not in gone), run)
        return Manifest(batch, self.generation, nonce, told, result, gone, last.nonce, links)

    def _commit(self, mine: Manifest) -> Step:
        yield "create the manifest"
        there = mine.batch in self.disk.manifests
        found = self.disk.manifests.setdefault(mine.batch, mine)
        if self.lost_reply and not there:
            self.lost_reply = False
            yield "ask again"
            there, found = True, self.disk.manifests.get(mine.batch, mine)
        yield "look at the boundary"
        if "no boundary" not in self.bugs and mine.batch <= max(self.disk.boundary):
            raise Stopped
        self._look_around()
        if "no nonce" in self.bugs and there:
            found = mine  # "my reply got lost"
        if found.generation > self.generation:
            raise Stopped
        known = mine if "changes since its own attempt" in self.bugs else found
        self.runs = known.after(self.runs)
        self.manifest, self.committed = found, found.nonce == mine.nonce

    def _deliver(self) -> Step:
        """Rename the results; results that are already renamed must exist."""
        yield "deliver"
        batch, result = self.manifest.batch, self.manifest.result
        if result is None:
            return
        if result in self.disk.files:
            self.disk.visible[batch, result] = self.disk.files.pop(result)
        elif (batch, result) not in self.disk.visible:
            raise Failed(f"results {result} are missing")

    def _retire(self) -> Step:
        """Close the batches before a full manifest, then remove their manifests."""
        if not self.manifest.is_full and "removal inside the chain" not in self.bugs:
            return
        last = self.manifest.batch - 1
        yield "raise the boundary"
        if "boundary overwritten" in self.bugs:
            self.disk.boundary = {last}
        else:
            self.disk.boundary.add(last)
        for batch in [batch for batch in self.disk.manifests if batch <= last]:
            yield "remove a manifest"
            self.disk.manifests.pop(batch, None)

    def _remove(self) -> Step:
        """Remove files of drivers up to this one that its newest manifest does not name."""
        yield "list the files"
        named = {*self.runs, self.manifest.result}
        spared = "removal by exclusion" not in self.bugs
        for name in list(self.disk.files):
            if name not in named and not (spared and name.generation > self.generation):
                yield "remove a file"
                self.disk.files.pop(name, None)

    def _look_around(self) -> None:
        if self.manners and max(self.disk.generations) > self.generation:
            raise Stopped

    def _read(self, name: Name) -> list[Item]:
        if name not in self.disk.files:
            raise Failed(f"run {name} is missing")
        return list(self.disk.files[name])

    def _write(self, content: Sequence[Any]) -> Name:
        name = Name(self.generation, next(self.disk.numbers))
        self.disk.files[name] = tuple(content)
        return name
