"""Spark's part of a checkpoint: reads its logs, carries them in manifests, and restores them.

Why: Spark keeps the offsets of its sources in its own logs, at the checkpoint location. If the
state lies in an object store, that location may be a disk that dies with the driver's machine. So
each manifest carries the few files from which Spark repeats its micro-batch. A driver that starts
elsewhere, on an empty folder, writes them there. Spark then repeats the micro-batch; since it has a
manifest, it is delivered and not computed.

This is impossible if a source or earlier step of the query keeps more than offsets: Spark's file
source, and aggregations and joins by Spark.

Law: a folder whose logs contradict the manifest is refused; logs that are older than the manifest
are completed from it.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from joinengine.model.errors import CheckpointMismatch, DamagedState
from joinengine.spark.session.session import paths_are_local
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest

#: Steps of a streaming plan that keep state, by the starts of their names in Spark.
_STATEFUL = (
    *("Aggregate", "Deduplicate", "FlatMapGroups", "TransformWithState", "FlatMapCoGroups"),
    *("GlobalLimit", "SessionWindow"),
)
#: The first line of a log that is JSON, after the version.
_SAID = 1
#: The first line with a source in a log of offsets.
_SOURCES = 2
_log = logging.getLogger("joinengine")


class SparkLogs:
    """The logs of one query at its checkpoint location, through Spark's own file system.

    `apart`: the engine's part lies elsewhere. `obstacle`: why manifests cannot carry the logs;
    None: they can.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: Checkpoint, frames: Iterable[DataFrame]
    ) -> None:
        self._spark: Any = spark
        self._checkpoint = checkpoint
        # Reading a local file takes tens of microseconds; through the JVM, it takes milliseconds.
        self._on_disk = "://" not in checkpoint.spark and paths_are_local(spark)
        self.apart = checkpoint.spark != checkpoint.location
        self.obstacle = next(filter(None, map(_obstacle, frames)), None) if self.apart else None

    def of_batch(self, batch: int) -> dict[str, str]:
        """Name -> content of the files from which Spark repeats a micro-batch.

        Empty if manifests need not or cannot carry them.
        """
        if not self.apart or self.obstacle is not None:
            return {}
        wanted = ["metadata", f"offsets/{batch}"]
        if batch:
            wanted += [f"offsets/{batch - 1}", f"commits/{batch - 1}"]
        contents = {name: self._read(name) for name in wanted}
        return {name: content for name, content in contents.items() if content is not None}

    def offset(self, batch: int) -> dict[str, int]:
        """Where a batch of an earlier version ends in the first source of its plan, joinengine's.

        Raises DamagedState if Spark has not logged it.
        """
        name = f"offsets/{batch}"
        return offset_in(self._text(name), f"{self._checkpoint.spark}/{name}")

    def crc32_of(self, batch: int) -> str:
        """The CRC of Spark's log of how far a micro-batch goes, in hexadecimal digits.

        Spark writes it before it runs the batch. Raises DamagedState if it is not there.
        """
        content = self._text(name := f"offsets/{batch}")
        if content is None:
            raise _not_there(f"{self._checkpoint.spark}/{name}")
        return f"{zlib.crc32(content.encode()):08x}"

    def know_a_source_of_ours(self) -> bool:
        """Whether Spark's logs have a source of joinengine's, as in earlier versions."""
        batches = self._batches("offsets")
        lines = (self._text(f"offsets/{max(batches)}") or "").splitlines() if batches else []
        with suppress(IndexError, ValueError, TypeError):
            return "tick" in json.loads(lines[_SOURCES])
        return False

    def metadata(self) -> str | None:
        """Spark's metadata, with the query's id; None: Spark has run no query here."""
        return self._text("metadata")

    def _text(self, name: str) -> str | None:
        """The content of a log; None: it does not exist."""
        if self._on_disk:
            return _text_of(f"{self._checkpoint.spark}/{name}")
        return self._read(name)

    def warn(self) -> None:
        """Warn that the query cannot be restarted without its checkpoint folder."""
        if self.apart and self.obstacle is not None:
            _log.warning(
                "joinengine: %s keeps its progress in checkpointLocation %s only; keep that "
                "folder, because the state in %s alone cannot restart the query",
                *(self.obstacle, self._checkpoint.spark, self._checkpoint.location),
            )

    def check(self, manifest: Manifest) -> None:
        """Raise CheckpointMismatch if Spark's logs and the manifest do not fit together.

        Raises DamagedState for a log that Spark would fail to read.
        """
        if not manifest.spark:  # otherwise `mend` writes missing logs
            self._check_readable()
        self._missing(manifest)

    def _check_readable(self) -> None:
        """Read what Spark reads first: its metadata, and the last two logs of each kind."""
        begun = {log: sorted(self._batches(log)) for log in ("offsets", "commits")}
        if not any(begun.values()):
            return  # no logs yet: the first micro-batch shows whether this is right
        if not begun["offsets"]:
            raise _not_there(f"{self._checkpoint.spark}/offsets")
        last = (f"{log}/{number}" for log, numbers in begun.items() for number in numbers[-2:])
        for name in ("metadata", *last):
            try:
                lines = (self._read(name) or "").splitlines()
                json.loads(lines[0 if name == "metadata" else _SAID])
            except (Py4JJavaError, PySparkException, IndexError, ValueError) as error:
                # a wrong CRC, a folder, or not the whole text
                raise _not_there(f"{self._checkpoint.spark}/{name}") from error

    def mend(self, manifest: Manifest) -> None:
        """Write the log files that Spark lacks for the batch of `manifest`; raises as `check`."""
        missing = self._missing(manifest)
        for name, content in missing.items():
            self._write(name, content)
        if missing and manifest.handed is not None:
            _log.warning(
                "joinengine: checkpointLocation %s lacked Spark's logs of batch %s; they were "
                "restored from the state in %s",
                *(self._checkpoint.spark, manifest.handed.batch, self._checkpoint.location),
            )

    def _missing(self, manifest: Manifest) -> dict[str, str]:
        """Name -> content of the missing files that Spark needs to go on after `manifest`."""
        batch = -1 if manifest.handed is None else manifest.handed.batch
        carried = manifest.spark
        if not self.apart or batch < 0:
            return {}
        there = self._batches("offsets")
        if not carried:
            if not there or max(there) < batch:
                raise CheckpointMismatch(self._too_old(batch, there))
            return {}
        if there and max(there) > batch + 1:
            raise CheckpointMismatch(
                f"checkpointLocation {self._checkpoint.spark} has reached batch {max(there)}, but "
                f"the state in {self._checkpoint.location} ends with the older batch {batch}; "
                "restore the state, or start with a new checkpointLocation and stateLocation"
            )
        missing = dict[str, str]()
        for name, content in carried.items():
            logged = self._read(name)
            if logged is None:
                missing[name] = content
            elif logged != content:
                raise CheckpointMismatch(
                    f"checkpointLocation {self._checkpoint.spark} and the state in "
                    f"{self._checkpoint.location} belong to two different queries or runs: their "
                    f"{name} differ; give the folder that belongs to the state, or an empty folder"
                )
        return missing

    def _too_old(self, batch: int, there: Iterable[int]) -> str:
        logs, location = self._checkpoint.spark, self._checkpoint.location
        last = max(there, default=None)
        state = "is empty" if last is None else f"ends with batch {last}"
        why = self.obstacle or "the query that wrote this state"
        return (
            f"checkpointLocation {logs} {state}, but the state in {location} is at batch {batch}: "
            f"{why} keeps its progress in that folder only; restore the folder, or start with a "
            "new checkpointLocation and stateLocation"
        )

    # Files, through Spark's own file system

    def _path(self, name: str) -> tuple[Any, Any]:
        jvm = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._checkpoint.spark}/{name}")
        conf = self._spark._jsparkSession.sessionState().newHadoopConf()
        return path, path.getFileSystem(conf)

    def _batches(self, log: str) -> list[int]:
        path, files = self._path(log)
        if not files.exists(path):
            return []
        names = [status.getPath().getName() for status in files.listStatus(path)]
        return [int(name) for name in names if name.isdigit()]

    def _read(self, name: str) -> str | None:
        path, files = self._path(name)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(self._spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, name: str, content: str) -> None:
        path, files = self._path(name)
        stream = files.create(path, True)
        try:
            stream.write(bytearray(content.encode()))
        finally:
            stream.close()


def offset_in(content: str | None, place: str) -> dict[str, int]:
    """Where a batch ends in the first source, from the `content` of Spark's log of its offsets.

    Raises DamagedState, with the `place` of the log, if the log is missing or does not say so.
    """
    try:
        offset: dict[str, int] = json.loads((content or "").splitlines()[_SOURCES])
    except (IndexError, ValueError):
        raise _not_there(place) from None
    return offset


def _not_there(place: str) -> DamagedState:
    return DamagedState(
        f"{place} is missing or damaged: Spark keeps there how far the query is; restore it from a "
        "copy"
    )


def _text_of(path: str) -> str | None:
    """The content of a file, where invalid UTF-8 is replaced; None: it does not exist."""
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return None


def _obstacle(frame: DataFrame) -> str | None:
    """The part of a streaming DataFrame that keeps more than offsets, in words; None: no part."""
    plan: Any = frame
    for node in _nodes(plan._jdf.queryExecution().analyzed()):
        if not node.isStreaming():
            continue
        name = node.nodeName()
        if name == "StreamingRelation" and str(node.toString()).startswith("FileSource"):
            return "Spark's file source"
        if name.startswith(_STATEFUL):
            return f"a stateful step of Spark's own before the join ({name})"
        if name == "Join" and all(child.isStreaming() for child in _children(node)):
            return "a streaming join of Spark's own"
    return None


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(number) for number in range(children.size())]
