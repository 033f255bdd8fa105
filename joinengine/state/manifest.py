"""A manifest as a value: all that one batch leaves behind, and all that the next one starts from.

An *outcome* is the result of a batch: it depends only on the batch, whichever driver computes it. A
*manifest* is an outcome that may count: only it has a nonce, a parent, and a CRC.
`joinengine.state.manifests` writes and reads manifests.
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

#: Source -> how far it has been read: the place in its feed. A source that is missing is at its
#: beginning, or is not read by joinengine.
Position = Mapping[int, Place]


class Link(NamedTuple):
    """Identifies a manifest in another manifest."""

    batch: int
    nonce: str
    crc32: int


class Handed(NamedTuple):
    """A micro-batch that Spark has handed over, of the streaming DataFrames of a query.

    `query`: Spark's id of the streaming query over them. `batch`: the number of the micro-batch.
    `crc32`: that of Spark's log of how far it goes, in hexadecimal digits. Query and CRC are empty
    in a manifest of a version whose batches had Spark's numbers.
    """

    query: str
    batch: int
    crc32: str

    def is_replay_of(self, noted: Handed) -> bool:
        """Whether Spark repeats the micro-batch `noted`."""
        return (
            self.batch == noted.batch
            and self._may_belong_to(noted)
            and (noted.crc32 in ("", self.crc32))
        )

    def follows(self, noted: Handed | None) -> bool:
        """Whether this is the next micro-batch after `noted`; None: there was none."""
        if noted is None:
            return self.batch == 0
        return self.batch == noted.batch + 1 and self._may_belong_to(noted)

    def _may_belong_to(self, noted: Handed) -> bool:
        return noted.query in ("", self.query)


#: In place of the restorable batch: the manifest's own batch is restorable.
NEWEST = 1 << 62
#: The parent of the first manifest.
NO_MANIFEST = Link(-1, "", 0)


@dataclass(frozen=True, slots=True)
class Chain:
    """The facts of a manifest from which the next one computes and stores only its changes.

    `full`: the last full manifest; `full_bytes`: its bytes. `bytes` and `links`: the bytes and the
    number of the manifests after it, up to this one. `operators` and `held`: as they are on disk.
    """

    full: Link
    full_bytes: int
    bytes: int
    links: int
    operators: tuple[OperatorState, ...]
    held: Held | None


@dataclass(frozen=True)
class Outcome:
    """The result of batch `batch`: all that the next batch starts from.

    `results`: the staged result files of the batch. `refused`: the staged files of refused tuples,
    if the query has a side output. `held`: the result files of earlier batches that are held back
    to become visible together with these; None: results are not held back. `totals`: of all batches
    up to this one. `clock_s`: the batch's clock, in seconds since the epoch; 0: of an earlier
    version. `position`: where the batch ends in each source. `wishes`: the wishes granted after it.
    `skipped`: the source files that it did not read and that no earlier batch has named. `quiet`:
    whether no tuple has arrived. `handed`: Spark's last micro-batch up to this batch; None: there
    was none. `partitions`: source -> its partitions. `serials`: how many serials tasks that bring
    tuples have taken so far. Position and wishes are None in a manifest of an earlier version.
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
        """The files in the folder of runs that the outcome names."""
        names = set[str]()
        for state in self.operators:
            names |= state.shelves.files.keys()
            names |= {stored.name for stored in state.layouts.history}
        return names


@dataclass(frozen=True)
class Manifest(Outcome):
    """An outcome that counts once it is on disk.

    `generation`: of the driver that committed it. `nonce`: distinguishes its attempt from any
    other. `parent`: the manifest that it follows. `restorable`: the newest batch whose files were
    all in the store at the commit. `spark`: name -> content of the files from which Spark repeats
    `handed`; may be empty. `crc32` (its own) and `chain` are known once it is on disk.
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
        """The manifest of an outcome; parameters as the fields of the same names."""
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
        """Whether it holds the whole state; False until it is on disk."""
        return self.chain is not None and self.chain.full == self.link
