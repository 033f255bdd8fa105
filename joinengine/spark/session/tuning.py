"""Which of Spark's settings help a query, as values: nothing here asks or changes a session.

Some are fixed when Spark starts (sockets, the JVM's options), or Spark's own sources read them from
the session of the user: `missing` names those that it lacks. The others a query can have for itself
in any session, for it runs in a clone of that session. A setting that the user has set is his
choice and stays.

Arrow batches: with a limit on their bytes Spark adds up all buffers after every row, half of what a
row costs on its way to Python. The limit goes only as far as it does not bind: while the rows that
a batch may have, at the width of a tuple, stay below Spark's own limit. The width of a tuple is
known from the schema if all columns have a fixed width; else it is measured, and measured again in
every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
#: Writes a file of Spark's own logs faster than the default does, on a local disk.
BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: The number of bytes at which Spark does not add up buffers.
NO_LIMIT = 2**31 - 1
#: Rows of an Arrow batch without a limit on its bytes.
ROWS = 32768
#: Spark's own limit, in bytes.
MOST_BYTES = 64 << 20
#: As many tuples as an Arrow batch has by Spark's own limit. Fewer do not show how wide tuples are;
#: and where batches are so small, the limit costs little.
SAMPLE_ROWS = 10_000
UNIX_SOCKETS = "PYSPARK_UDS_MODE"
JVM_OPTIONS = "spark.driver.extraJavaOptions"
#: What they are worth on two cores at half a million rows a batch (docs/decisions/0004).
SOCKETS_GAIN = "15 ms less per Python task"
OPTIONS_GAIN = "a fifth less CPU per row in the first minutes"
MANAGER_GAIN = "10 ms less per batch for each of Spark's own file sources"


def fixed_width(schema: pa.Schema) -> float | None:
    """Bytes of a tuple as Arrow holds it; None: a column has no fixed width.

    >>> fixed_width(pa.schema([("a", pa.int64()), ("b", pa.date32())]))
    12.25
    >>> fixed_width(pa.schema([("a", pa.int64()), ("b", pa.string())])) is None
    True
    """
    bits = 0
    for field in schema:
        try:
            bits += field.type.bit_width + 1  # a bit says whether the value is NULL
        except ValueError:
            return None
    return bits / 8


class ArrowBatches:
    """How large the Arrow batches of one run of a query may be, from what is known of its tuples.

    `schemas`: source -> schema, of the streams whose tuples Spark converts. `chosen`: the values of
    ARROW_BYTES and ARROW_ROWS that the user has set; None: he has not.
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

        `width`: bytes of a tuple, as a mean over that Arrow batch. Only what has no fixed width is
        to be measured.
        """
        if source in self._seen:
            self._width = max(width, self._width)
            self._seen[source] += rows

    @property
    def unlimited(self) -> bool:
        """Whether the limit in bytes can go: all streams are known, and rows alone keep below."""
        known = all(rows >= SAMPLE_ROWS for rows in self._seen.values())
        return self._free and known and 0 < self._rows < MOST_BYTES / max(self._width, 1.0)

    def settings(self) -> dict[str, str]:
        """What the next micro-batch must have set, as far as it is not as Spark comes."""
        if not self.unlimited:
            return {}
        rows = {ARROW_ROWS: str(self._rows)} if self._rows_are_free else {}
        return {ARROW_BYTES: str(NO_LIMIT)} | rows


def missing(*, unix_sockets: bool, jvm_arguments: Iterable[str], manager: bool) -> list[str]:
    """What helps, a query cannot have for itself, and the session lacks; with its gain.

    `jvm_arguments`: those of the running JVM. One that says how to compile counts as a choice.
    `manager`: whether the session has a checkpoint manager that somebody has chosen.
    """
    lacking = list[str]()
    if not unix_sockets:
        lacking.append(f"{UNIX_SOCKETS}=true in the environment ({SOCKETS_GAIN})")
    if not any(argument.startswith(("-XX:Tier", "-Xint")) for argument in jvm_arguments):
        lacking.append(f"JIT compiler thresholds in {JVM_OPTIONS} ({OPTIONS_GAIN})")
    if not manager:
        lacking.append(f"{CHECKPOINT_MANAGER}={BY_FILE_SYSTEM} ({MANAGER_GAIN})")
    return lacking
