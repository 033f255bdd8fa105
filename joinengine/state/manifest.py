"""A manifest: all that one batch leaves behind, and all that the next one starts from.

An *outcome* is what a batch has come to: it follows from the batch alone, whoever computes it. A
*manifest* is an outcome that is to count: only it has a nonce, a parent, and a CRC. How manifests
lie on disk says `joinengine.state.manifests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from joinengine.model.skipped import Skipped
from joinengine.sources.places import Place
from joinengine.state.operator_state import OperatorState
from joinengine.state.partitions import BySource
from joinengine.state.plain_states import Held
from joinengine.state.totals import Totals
from joinengine.state.wished import Relayout
from joinengine.world.storage import StoredFile

#: Source -> how far it has been read: the place in its feed. Sources that are not named are at
#: their begin, or are not read by joinengine.
Position = Mapping[int, Place]


class Link(NamedTuple):
    """A manifest as others name it."""

    batch: int
    nonce: str
    crc32: int


class Handed(NamedTuple):
    """A micro-batch of Spark's, of the streaming DataFrames of a query.

    `query`: the id that Spark has given the streaming query over them, `batch`: that of the
    micro-batch, `crc32`: of Spark's log of how far it goes, in hexadecimal digits. Query and CRC
    are empty in a manifest of a version that ran its batches by the numbers of Spark's.
    """

    query: str
    batch: int
    crc32: str

    def is_replay_of(self, noted: Handed) -> bool:
        """Whether this is the micro-batch that was noted, which Spark repeats."""
        return (
            self.batch == noted.batch
            and self._may_belong_to(noted)
            and (noted.crc32 in ("", self.crc32))
        )

    def follows(self, noted: Handed | None) -> bool:
        """Whether this comes next behind the micro-batch that was noted last; None: none was."""
        if noted is None:
            return self.batch == 0
        return self.batch == noted.batch + 1 and self._may_belong_to(noted)

    def _may_belong_to(self, noted: Handed) -> bool:
        return noted.query in ("", self.query)


#: In place of a restorable batch: the manifest's own.
NEWEST = 1 << 62
#: The parent of the first manifest.
NO_MANIFEST = Link(-1, "", 0)


@dataclass(frozen=True, slots=True)
class Chain:
    """What the next manifest must know of this one, so that it can tell what has changed.

    `full`: the last full manifest. `full_bytes`: its bytes. `bytes`: those of the manifests after
    it up to this one, and `links` their number. `operators` and `held`: as they are on disk.
    """

    full: Link
    full_bytes: int
    bytes: int
    links: int
    operators: tuple[OperatorState, ...]
    held: Held | None


@dataclass(frozen=True)
class Outcome:
    """What is true after batch `batch`.

    `results` are the staged result files of the batch, `refused` the staged files of refused
    tuples, if the user keeps them. `held`: the result files of earlier batches that are held back
    to become visible together with these; None: the results become visible with their batch.
    `totals`: of all batches up to this one. `clock_s`: the batch's clock, seconds since the epoch;
    0: of an earlier version. `position`: where the batch ends in each source. `wishes`: those of
    users that were granted after it. `skipped`: the files of sources that it did not read, and that
    no batch before it has named. `quiet`: whether nothing has arrived. `handed`: the last
    micro-batch of Spark's that this one or one before it holds; None: none does. `partitions`:
    how far sources with partitions have come in each. `serials`: how many serial numbers tasks that
    bring tuples have taken. Position and wishes are None in a manifest of
    an earlier version.
    """

    query: str
    batch: int
    operators: tuple[OperatorState, ...]
    results: tuple[StoredFile, ...] = ()
    refused: tuple[StoredFile, ...] = ()
    held: Held | None = None
    totals: Totals = field(default_factory=Totals)
    clock_s: float = 0.0
    position: Position | None = None
    wishes: tuple[Relayout, ...] | None = None
    skipped: tuple[Skipped, ...] = ()
    quiet: bool = True
    handed: Handed | None = None
    partitions: BySource = field(default_factory=dict)
    serials: int = 0

    def named_files(self) -> set[str]:
        """The files in the folder of runs that the manifest names."""
        names = set[str]()
        for state in self.operators:
            names |= state.shelves.files.keys()
            names |= {stored.name for stored in state.layouts.history}
        return names


@dataclass(frozen=True)
class Manifest(Outcome):
    """An outcome that counts, once it is on disk.

    `generation`: of the driver that committed it. `nonce`: tells its attempt from any other.
    `parent`: the manifest that it follows. `restorable`: the newest batch of which the store had
    all files when this was committed. `spark`: name -> content of the files by which Spark repeats
    `handed`, if they are carried. `crc32`: its own CRC, and `chain`, are known once it is on disk.
    """

    generation: int = 0
    nonce: str = ""
    parent: Link = NO_MANIFEST
    restorable: int = NEWEST
    spark: Mapping[str, str] = field(default_factory=dict)
    crc32: int = 0
    chain: Chain | None = field(default=None, compare=False, repr=False)

    @classmethod
    def finished(
        cls,
        outcome: Outcome,
        *,
        generation: int,
        nonce: str,
        parent: Link,
        restorable: int,
        spark: Mapping[str, str],
    ) -> Manifest:
        """The manifest of an outcome; parameters as the fields."""
        facts = {field.name: getattr(outcome, field.name) for field in fields(Outcome)}
        return cls(
            **facts,
            generation=generation,
            nonce=nonce,
            parent=parent,
            restorable=restorable,
            spark=spark,
        )

    @property
    def link(self) -> Link:
        """The `parent` of the next manifest."""
        return Link(self.batch, self.nonce, self.crc32)

    @property
    def is_full(self) -> bool:
        """Whether it tells the whole state; not before it is on disk."""
        return self.chain is not None and self.chain.full == self.link
