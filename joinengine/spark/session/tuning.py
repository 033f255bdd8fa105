"""Chooses the settings of Spark that help a query. Pure: it neither reads nor changes a session.

Some settings are fixed when Spark starts (sockets, the JVM's options), or Spark's own sources read
them from the user's session: `missing` names those that it lacks. A query can set the others for
itself in any session, since it runs in a clone of the session. Settings of the user stay.

Arrow batches: with a limit on their bytes, Spark adds up all buffers after every row, which is half
of a row's cost on its way to Python. The limit is removed only while it would have no effect: as
long as the greatest number of rows of a batch, times the width of a tuple, is below Spark's own
limit. The width of a tuple follows from the schema if all columns have a fixed width. Otherwise it
is measured, and measured again in every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
#: A checkpoint manager that writes Spark's logs faster than the default, on a local disk.
BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: The byte limit under which Spark does not add up buffers.
NO_LIMIT = 2**31 - 1
#: Rows of an Arrow batch without a limit on its bytes.
ROWS = 32768
#: Spark's own limit, in bytes.
MOST_BYTES = 64 << 20
#: The rows of an Arrow batch under Spark's own limit. Fewer tuples do not show how wide tuples are;
#: and if batches are so small, the byte limit costs little.
SAMPLE_ROWS = 10_000
UNIX_SOCKETS = "PYSPARK_UDS_MODE"
JVM_OPTIONS = "spark.driver.extraJavaOptions"
#: The gains of settings on two cores, at half a million rows a batch (docs/decisions/0004).
SOCKETS_GAIN = "15 ms less per Python task"
OPTIONS_GAIN = "a fifth less CPU per row in the first minutes"
MANAGER_GAIN = "10 ms less per batch for each of Spark's own file sources"


def fixed_width(schema: pa.Schema) -> float | None:
    """The bytes of a tuple in Arrow's format; None: a column has no fixed width.

    >>> fixed_width(pa.schema([("a", pa.int64()), ("b", pa.date32())]))
    12.25
    >>> fixed_width(pa.schema([("a", pa.int64()), ("b", pa.string())])) is None
    True
    """
    bits = 0
    for field in schema:
        try:
            bits += field.type.bit_width + 1  # one bit says whether the value is NULL
        except ValueError:
            return None
    return bits / 8


class ArrowBatches:
    """Chooses the size of Arrow batches for one run of a query, from the width of its tuples.

    `schemas`: source -> schema, of the streams whose tuples Spark converts. `chosen`: the user's
    values of ARROW_BYTES and ARROW_ROWS; None: not set.
    """

    def __init__(
        self, schemas: Mapping[int, pa.Schema], chosen: Mapping[str, str | None] | None = None
    ) -> None:
        chosen = chosen or {}
        rows = chosen.get(ARROW_ROWS)
        self._free = bool(schemas) and chosen.get(ARROW_BYTES) is None
        self._rows_are_free = rows is None
        self._rows = ROWS if rows is None else int(rows)
        widths = {source: fixed_width(schema) for source, schema in schemas.items()}
        self._width = max((width for width in widths.values() if width is not None), default=0.0)
        self._seen = {source: 0 for source, width in widths.items() if width is None}

    def see(self, source: int, width: float, rows: int) -> None:
        """Take note of the widest of the Arrow batches that held `rows` tuples of a stream.

        `width`: the mean bytes of a tuple in that Arrow batch. Only streams without a fixed width
        need it.
        """
        if source in self._seen:
            self._width = max(width, self._width)
            self._seen[source] += rows

    @property
    def unlimited(self) -> bool:
        """Whether the byte limit can go: all widths are known, and the row limit is enough."""
        known = all(rows >= SAMPLE_ROWS for rows in self._seen.values())
        return self._free and known and 0 < self._rows < MOST_BYTES / max(self._width, 1.0)

    def settings(self) -> dict[str, str]:
        """The settings for the next micro-batch that differ from Spark's defaults."""
        if not self.unlimited:
            return {}
        rows = {ARROW_ROWS: str(self._rows)} if self._rows_are_free else {}
        return {ARROW_BYTES: str(NO_LIMIT)} | rows


def missing(*, unix_sockets: bool, jvm_arguments: Iterable[str], manager: bool) -> list[str]:
    """The helpful settings that a query cannot set for itself and the session lacks, with gains.

    `jvm_arguments`: those of the running JVM; one about compilation counts as the user's choice.
    `manager`: whether a checkpoint manager is set in the session.
    """
    lacking = list[str]()
    if not unix_sockets:
        lacking.append(f"{UNIX_SOCKETS}=true in the environment ({SOCKETS_GAIN})")
    if not any(argument.startswith(("-XX:Tier", "-Xint")) for argument in jvm_arguments):
        lacking.append(f"JIT compiler thresholds in {JVM_OPTIONS} ({OPTIONS_GAIN})")
    if not manager:
        lacking.append(f"{CHECKPOINT_MANAGER}={BY_FILE_SYSTEM} ({MANAGER_GAIN})")
    return lacking
