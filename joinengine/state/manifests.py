"""Commits and reads the manifests of a checkpoint.

Why: state lies in many files that many tasks write. A batch is done once its manifest exists: one
file, created whole and exclusively. It names the runs that exist, the exclusions from them, the
results that count, and the watermark, layout and moves of the next batch. If the driver is killed
before the manifest is created, only garbage is left; if it is killed later, the batch is done.

A batch changes little of a large state. So a *full* manifest holds the whole state, and the
manifests after it hold only the changes of their batches (`joinengine.state.changes`). Each names
its parent and its full manifest by a *link*: batch, nonce and CRC. The manifests from the newest
one back to its full one are the *chain*, which a driver reads when it starts.

Law: the newest manifest is the truth, and its chain says the same as if it were full. If a manifest
of the chain is damaged, missing or does not fit its link, the checkpoint is refused; an older
manifest is never taken instead. A manifest of an unknown format is refused, never guessed at. A
manifest is committed if it was created while its batch was above the boundary
(`joinengine.state.fence`).

Formats: 7 has links. Clock and restorable batch were added later under the same number: a manifest
without them is read as if its clock were 0 and its own batch restorable. Format 8 says where its
batch ends in each source, and which wishes were granted; an older version would go on from where
Spark's logs end, so it must refuse this format. Format 9 names Spark's last micro-batch; before, a
batch of a query with a DataFrame had Spark's number.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from typing import Any, NamedTuple

from joinengine.model.errors import CheckpointMismatch, DamagedState, taken_over
from joinengine.model.skipped import Skipped
from joinengine.state import changes, fence
from joinengine.state import plain_states as plain
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import (
    NEWEST,
    NO_MANIFEST,
    Chain,
    Handed,
    Link,
    Manifest,
    Position,
)
from joinengine.state.partitions import BySource, Partitions
from joinengine.state.totals import Totals
from joinengine.state.wished import Relayout
from joinengine.world.storage import Storage

FORMAT = 9
#: The formats that this version reads.
READ = (7, 8, FORMAT)
#: A full manifest follows after at most so many others. It follows sooner if these are together
#: longer than LONGEST times the last full one, so that a start reads little more than it needs.
FULL_EVERY = 50
LONGEST = 1.0
#: An earlier version wrote no serials: the tasks of each batch took this many bits of them.
_TASK_BITS = 12
_HEADER = re.compile(rb"joinengine manifest (\d+) crc32=([0-9a-f]{8}) bytes=(\d+)\n")
_NAME = re.compile(r"(\d{8,})\.json")


class _Written(NamedTuple):
    """A manifest as it is on disk: the plain values in it, and its size."""

    plain: dict[str, Any]
    crc32: int
    size_bytes: int

    @property
    def link(self) -> Link:
        return Link(self.plain["batch"], self.plain["nonce"], self.crc32)

    @property
    def parent(self) -> Link:
        return Link(*self.plain["parent"])

    @property
    def full(self) -> Link:
        """The full manifest of its chain."""
        full = self.plain["full"]
        return self.link if full is None else Link(*full)


def commit(checkpoint: Checkpoint, manifest: Manifest, last: Manifest | None = None) -> Manifest:
    """Commit `manifest`, which follows `last`; returns the manifest of the batch that counts.

    That is another manifest if an older driver was faster. Raises TakenOver if a newer driver was
    faster, or has taken the checkpoint over, and CheckpointMismatch if the batch already has a
    manifest with another parent. Until this returns, nothing may be delivered or removed. If `last`
    is None or not on disk, the manifest is full.
    """
    before = None if last is None else last.chain
    ours, body = _written(manifest, before)
    header = f"joinengine manifest {FORMAT} crc32={ours.crc32:08x} bytes={len(body)}\n"
    manifests, name = checkpoint.manifests, name_of(manifest.batch)
    try:
        created = manifests.create(name, header.encode() + body)
    except OSError:
        if not manifests.exists(name):
            raise
        created = False  # the file may still be this driver's own: the link below decides
    written = ours if created else _found(manifests, manifest.batch)
    # These checks must follow the creation: if another driver had removed a manifest of this name,
    # its boundary or generation is visible by now.
    fence.check_boundary(checkpoint, manifest.batch)
    fence.check_generation(checkpoint.generations, manifest.generation)
    if written is None or written.plain["generation"] > manifest.generation:
        raise taken_over(
            f"another driver has committed batch {manifest.batch} of checkpoint "
            f"{checkpoint.location}; nothing is lost. Leave this driver stopped"
        )
    if written.parent != manifest.parent:
        raise CheckpointMismatch(
            f"manifest {manifests.folder}/{name} follows a batch {manifest.batch - 1} that this "
            "driver does not know, so files of two checkpoints are mixed; restore it from a copy"
        )
    if written.link == ours.link:
        return replace(manifest, crc32=ours.crc32, chain=_chain(ours, manifest, before))
    if before is None:  # `last` is not on disk as this driver has it
        return read(manifests, manifest.batch)
    return _from_json(written, before)


def name_of(batch: int) -> str:
    """The name of the manifest of a batch."""
    return f"{batch:08d}.json"


def newest(manifests: Storage) -> Manifest | None:
    """The newest manifest; None in a fresh checkpoint.

    Raises DamagedState if a manifest of its chain is missing or not what was written, and
    CheckpointMismatch if one has an unknown format.
    """
    batches = batches_of(manifests)
    while batches:
        try:
            return read(manifests, max(batches))
        except (FileNotFoundError, DamagedState) as error:
            again = batches_of(manifests)
            if again and max(again) == max(batches):
                reason = f"{error}; {_how_far(manifests)}"
                raise DamagedState(reason) from None
            batches = again  # a running driver has committed a newer one and removed older ones
    return None


def read(manifests: Storage, batch: int) -> Manifest:
    """The manifest of a batch, from its chain.

    Raises FileNotFoundError if it is missing, and DamagedState if one of its chain is.
    """
    chain = [_load(manifests, batch)]
    while chain[-1].link != chain[0].full:
        chain.append(_followed(manifests, chain[-1], chain[0].full))
    manifest = _from_json(chain.pop(), None)
    while chain:
        manifest = _from_json(chain.pop(), manifest.chain)
    return manifest


def _followed(manifests: Storage, follower: _Written, full: Link) -> _Written:
    """The parent of `follower`, in the chain of `full`. Raises DamagedState if it is not that."""
    path = f"{manifests.folder}/{name_of(follower.parent.batch)}"
    try:
        followed = _load(manifests, follower.parent.batch)
    except FileNotFoundError:
        raise DamagedState(
            f"manifest {path} is missing, and the manifest of batch {follower.link.batch} follows "
            "it; restore it from a copy"
        ) from None
    if followed.link != follower.parent or followed.full != full:
        raise DamagedState(
            f"manifest {path} is not the one that the manifest of batch {follower.link.batch} "
            "follows, so files of two checkpoints are mixed; restore it from a copy"
        )
    return followed


def _how_far(manifests: Storage) -> str:
    """Up to which batch there is a complete chain, in words."""
    good = NO_MANIFEST
    for batch in sorted(batches_of(manifests)):
        try:
            written = _load(manifests, batch)
        except (FileNotFoundError, DamagedState, CheckpointMismatch):
            continue
        if written.link == written.full or written.parent == good:
            good = written.link
    if good.batch < 0:
        return "no batch has a complete chain of manifests"
    return f"the chain of manifests is complete up to batch {good.batch}"


def _found(manifests: Storage, batch: int) -> _Written | None:
    try:
        return _load(manifests, batch)
    except FileNotFoundError:
        return None


def _load(manifests: Storage, batch: int) -> _Written:
    """One manifest as it is on disk, checked; raises as `newest`."""
    content = manifests.get(name_of(batch))
    path = f"{manifests.folder}/{name_of(batch)}"
    match = _HEADER.match(content)
    if not match:
        raise DamagedState(f"manifest {path} has no readable header; restore it from a copy")
    body = content[match.end() :]
    if int(match[1]) not in READ:
        raise CheckpointMismatch(
            f"manifest {path} has format {int(match[1])}, but this version reads formats {READ[0]} "
            f"to {FORMAT}; use the version that wrote the checkpoint, or start with a new one"
        )
    crc = zlib.crc32(body)
    if len(body) != int(match[3]) or crc != int(match[2], 16):
        raise DamagedState(
            f"manifest {path} does not match its header, so it is truncated or was altered; "
            "restore it from a copy"
        )
    return _Written(json.loads(body), crc, len(body))


def batches_of(manifests: Storage) -> list[int]:
    """The batches that have a manifest, in no order."""
    names = (_NAME.fullmatch(name) for name in manifests.names())
    return [int(match[1]) for match in names if match]


# Plain values, and back


def _written(manifest: Manifest, before: Chain | None) -> tuple[_Written, bytes]:
    """The manifest as it will be on disk, and its bytes; full if it must be or that is shorter."""
    if before is not None and before.links + 1 < FULL_EVERY:
        fields = _changes_to_json(manifest, before)
        body = _dumped(fields)
        if before.bytes + len(body) <= LONGEST * before.full_bytes:
            return _Written(fields, zlib.crc32(body), len(body)), body
    fields = _to_json(manifest)
    body = _dumped(fields)
    return _Written(fields, zlib.crc32(body), len(body)), body


def _dumped(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _chain(written: _Written, manifest: Manifest, before: Chain | None) -> Chain:
    """The chain up to `written`, the form of `manifest` on disk; `before`: that of its parent."""
    states, held = manifest.operators, manifest.held
    if written.full == written.link:
        return Chain(written.link, written.size_bytes, 0, 0, states, held)
    assert before is not None
    size = before.bytes + written.size_bytes
    return Chain(before.full, before.full_bytes, size, before.links + 1, states, held)


def _to_json(manifest: Manifest) -> dict[str, Any]:
    """A full manifest as plain values."""
    return {
        **_around(manifest),
        "full": None,
        "operators": [plain.state_to_json(state) for state in manifest.operators],
        "held": plain.held_to_json(manifest.held),
    }


def _changes_to_json(manifest: Manifest, before: Chain) -> dict[str, Any]:
    """A manifest that holds only changes, as plain values."""
    states = zip(before.operators, manifest.operators, strict=True)
    return {
        **_around(manifest),
        "full": before.full,
        "operators": [changes.change(was, state) for was, state in states],
        "held": changes.held_change(before.held, manifest.held),
    }


def _around(manifest: Manifest) -> dict[str, Any]:
    """The part that every manifest holds in full, as plain values."""
    return {
        "query": manifest.query,
        "batch": manifest.batch,
        "generation": manifest.generation,
        "nonce": manifest.nonce,
        "parent": manifest.parent,
        "totals": manifest.totals.to_json(),
        "clock_s": manifest.clock_s,
        "position": manifest.position,
        "wishes": None if manifest.wishes is None else [wish.to_json() for wish in manifest.wishes],
        "skipped": manifest.skipped,
        "quiet": manifest.quiet,
        "handed": manifest.handed,
        "serials": manifest.serials,
        "restorable": min(manifest.restorable, manifest.batch),
        "spark": manifest.spark,
        "results": plain.files_to_json(manifest.results),
        "refused": plain.files_to_json(manifest.refused),
    } | _partitions_to_json(manifest.partitions)


def _partitions_to_json(partitions: BySource) -> dict[str, Any]:
    """Source -> its partitions, as plain values; empty if no source has any."""
    by_source = {source: progress.to_json() for source, progress in partitions.items()}
    return {"partitions": by_source} if by_source else {}


def _from_json(written: _Written, before: Chain | None) -> Manifest:
    """The manifest from its form on disk; `before`: the chain of its parent, unless it is full."""
    fields = written.plain
    if written.full == written.link:
        operators = tuple(plain.state_from_json(state) for state in fields["operators"])
        held = plain.held_from_json(fields["held"])
    else:
        assert before is not None
        states = zip(before.operators, fields["operators"], strict=True)
        operators = tuple(changes.changed(was, state) for was, state in states)
        held = changes.held_changed(before.held, fields["held"])
    manifest = Manifest(
        query=fields["query"],
        batch=fields["batch"],
        operators=operators,
        results=plain.files_from_json(fields["results"]),
        refused=plain.files_from_json(fields["refused"]),
        held=held,
        generation=fields["generation"],
        nonce=fields["nonce"],
        parent=written.parent,
        restorable=fields.get("restorable", NEWEST),
        totals=Totals.from_json(fields["totals"]),
        clock_s=fields.get("clock_s", 0.0),
        position=_position_from_json(fields.get("position")),
        wishes=_wishes_from_json(fields.get("wishes")),
        skipped=tuple(Skipped(*skip) for skip in fields.get("skipped", ())),
        quiet=fields.get("quiet", True),
        handed=_handed_from_json(fields),
        serials=fields.get("serials", (fields["batch"] + 1) << _TASK_BITS),
        spark=fields.get("spark", {}),
        partitions={
            int(source): Partitions.from_json(progress)
            for source, progress in fields.get("partitions", {}).items()
        },
        crc32=written.crc32,
    )
    return replace(manifest, chain=_chain(written, manifest, before))


def _position_from_json(sources: dict[str, Any] | None) -> Position | None:
    """A position from plain values, in which the numbers of sources are texts."""
    if sources is None:
        return None
    return {
        int(source): {int(partition): to for partition, to in at.items()}
        if isinstance(at, dict)
        else at
        for source, at in sources.items()
    }


def _handed_from_json(fields: dict[str, Any]) -> Handed | None:
    """The last micro-batch. Before format 9, a batch with a DataFrame had Spark's number."""
    if "handed" not in fields:
        return Handed("", fields["batch"], "")
    return None if fields["handed"] is None else Handed(*fields["handed"])


def _wishes_from_json(wishes: list[dict[str, Any]] | None) -> tuple[Relayout, ...] | None:
    return None if wishes is None else tuple(map(Relayout.from_json, wishes))
