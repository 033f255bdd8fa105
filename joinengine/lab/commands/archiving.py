"""`joinengine archive`: writes a class-data archive, with which programs start seconds sooner.

A separate JVM runs joins from sources of both kinds and writes the archive as it ends: it holds the
classes that they have loaded (joinengine.spark.session.archive).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from joinengine.lab.commands import console
from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.spark.session.archive import archive_folder, archive_key, archives
from joinengine.spark.session.java import check_java

#: Far longer than a JVM takes to write the archive, in seconds.
_MOST_S = 300


@click.command()
@click.option(
    "--again",
    is_flag=True,
    help="Replace an existing archive, for example after Spark has changed.",
)
def archive(again: bool) -> None:
    """Make programs start sooner: write a class-data archive of Spark (190 MB) to the cache.

    Run it once per machine or image, and again after an upgrade of Java or Spark. It takes half a
    minute.
    `joinengine.session()`, and thus every command, starts its JVM with the archive.
    """
    check_java()
    key, folder = archive_key(), archive_folder()
    if key is None:
        raise InvalidRequest("archive: Spark is not installed; install pyspark")
    before = archives()
    if before and not again:
        console.tell(f"{before[-1]} already exists; --again replaces it")
        return
    console.say("running small joins to record the classes that they load")
    folder.mkdir(parents=True, exist_ok=True)
    start, draft = time.monotonic(), folder / f".{key}.{uuid.uuid4().hex[:8]}"
    try:
        _write(draft)
        size = draft.stat().st_size
        path = draft.rename(folder / f"{key}-{size}.jsa")
    finally:
        draft.unlink(missing_ok=True)
    for old in before:  # a JVM that has mapped an old archive keeps it
        if old != path:
            old.unlink(missing_ok=True)
    took_s = time.monotonic() - start
    console.tell(
        f"{path}: {size / 1e6:.0f} MB, written in {took_s:.0f} s; `joinengine cache` lists it"
    )


def _write(draft: Path) -> None:
    """Write the archive in a separate process, since its JVM must end."""
    command = [sys.executable, "-m", "joinengine.lab.commands.archiving", str(draft)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not draft.exists():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise JoinEngineError(
            "archive: Java wrote no archive, so programs start as before. The last output of Java "
            f"or Spark was: {said[-1] if said else 'none'}"
        )


def _load(draft: Path) -> None:
    """Run what most programs run, and end the JVM, which then writes the archive."""
    from joinengine import parquet_stream, session  # noqa: PLC0415

    options = f'"-XX:ArchiveClassesAtExit={draft}" -Xlog:disable'  # written when the JVM ends
    spark = session(master="local[2]", spark__driver__extraJavaOptions=options)
    with tempfile.TemporaryDirectory(prefix="joinengine-") as folder:
        left, right = (Path(folder, side) for side in ("left", "right"))
        for path in (left, right):
            path.mkdir()
            times = pa.array([0, 1_000_000], pa.timestamp("us", "UTC"))
            columns = {"key": [1, 2], f"{path.name}_at": times, f"{path.name}_name": ["a", "b"]}
            pq.write_table(pa.table(columns), path / "0.parquet")

        def theirs(path: Path) -> Any:
            schema = spark.read.parquet(str(path)).schema
            return spark.readStream.schema(schema).parquet(str(path))

        _join(parquet_stream(spark, left), parquet_stream(spark, right), folder, "ours")
        _join(theirs(left), theirs(right), folder, "theirs")
        spark.read.parquet(f"{folder}/ours").groupBy("key").count().collect()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_MOST_S)


def _join(left: Any, right: Any, folder: str, out: str) -> None:
    from joinengine import StreamJoin, within  # noqa: PLC0415

    window = within("left_at", "right_at", lower="-1 s", upper="1 s", delay="0 s")
    joined = StreamJoin(left, right, on="key", within=window, instances=2)
    writer = joined.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint of {out}")
    writer.start(f"{folder}/{out}").awaitTermination()


if __name__ == "__main__":
    _load(Path(sys.argv[1]))
