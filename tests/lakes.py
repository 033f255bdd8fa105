"""Tables of Delta and Iceberg for tests, with sinks that deliver staged files without Spark."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import DayTransform, IdentityTransform

from joinengine.results.delta import DeltaTarget, check_table
from joinengine.results.iceberg import IcebergTarget
from joinengine.results.iceberg import check_table as check_iceberg
from joinengine.results.iceberg_catalog import Catalog
from joinengine.results.merging import merge
from joinengine.results.staging import Cutting, staged_files
from joinengine.results.table_sinks import STAGING, TableSink
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.world import Machine

QUERY = "aquery"
SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("at", pa.timestamp("us", "UTC"))])
#: A day, in microseconds.
DAY = 86_400_000_000


class Patient(Machine):
    """A machine on which waiting takes no time; `wakes` is called at each wait."""

    def __init__(self):
        self.slept_s, self.wakes = 0.0, lambda: None

    def now_s(self):
        return super().now_s() + self.slept_s

    def sleep(self, seconds):
        self.slept_s += seconds
        self.wakes()


def table_of(numbers, schema=SCHEMA):
    """Rows; every third text is NULL, and days go on every ten rows."""
    numbers = list(numbers)
    texts = [None if n % 3 == 0 else f"s{n % 3}" for n in numbers]
    days = pa.array([n // 10 * DAY for n in numbers], pa.int64())
    columns = {"a": pa.array(numbers, pa.int64()), "s": pa.array(texts, pa.string()), "at": days}
    return pa.table([columns[name] for name in schema.names], names=schema.names).cast(schema)


def rows_of(table):
    return Counter(tuple(row.values()) for row in table.to_pylist())


def deliver(lake, *batches):
    """Batches of rows with these numbers, by a new driver; its sink and generation."""
    sink, generation = lake.sink()
    for batch, numbers in enumerate(batches):
        sink.deliver(batch, lake.stage(sink, generation, numbers), generation)
    return sink, generation


class Lake:
    """A table, and a checkpoint of a query that delivers to it."""

    def __init__(self, folder):
        self.root = Path(folder)
        self.world = Patient()
        self.checkpoint = Checkpoint.below(self.root / "checkpoint", world=self.world)
        self.checkpoint.create()
        self.numbers = itertools.count()
        self.schema, self.partitions = SCHEMA, ()
        self.prepare()

    def prepare(self):
        pass

    def sink(self, every_s=0.0, merged_bytes=None):
        """The sink of a driver that starts now, and its generation.

        `merged_bytes`: up to this size it merges the files of gathered batches.
        """
        target, cutting = self.target(), replace(self.cutting(), target_bytes=merged_bytes)
        merge = None if merged_bytes is None else self.merge
        made = TableSink(self.checkpoint, target, every_s, cutting, merge=merge)
        return made, fence.claim(self.checkpoint)

    def merge(self, tasks):
        return [merge(task, self.world) for task in tasks]

    def held(self, sink, generation, *batches):
        """Batches that are held back, one for each of `batches` with these numbers."""
        staged = (self.stage(sink, generation, numbers) for numbers in batches)
        return tuple(enumerate(staged))

    def stage(self, sink, generation, numbers, parts=2):
        """The files that tasks stage for a batch."""
        made = sink.target(generation)
        storage, files, numbers = self.world.storage(made.folder), [], list(numbers)
        for part in range(parts):
            name = f"g{generation}-{next(self.numbers)}"
            one = staged_files(storage, name, made.cutting)
            rows = table_of(numbers[part::parts], self.schema).combine_chunks()
            for batch in rows.to_batches():
                one.add(batch)
            files += one.close()
        return tuple(files)

    def check(self, schema=None, partitions=()):
        raise NotImplementedError

    def elsewhere(self):
        """The rows of the files that the table names, read by DuckDB."""
        files = self.paths()
        assert files
        found = duckdb.execute(
            "select a from read_parquet(?, hive_partitioning=false)", [files]
        ).fetchall()
        return Counter(a for (a,) in found)

    def strays(self):
        """Data files that the table does not name, and staged ones."""
        folder = self.data
        there = {str(one) for one in folder.rglob("*.parquet") if "_delta_log" not in one.parts}
        return there - set(self.paths())


class DeltaLake(Lake):
    kind = "delta"

    @property
    def data(self):
        return self.root / "table"

    @property
    def place(self):
        return str(self.data)

    def target(self):
        return DeltaTarget(self.world, self.place, QUERY, self.schema, self.partitions)

    def cutting(self):
        return Cutting(partition_by=self.check(self.schema, self.partitions))

    def check(self, schema=None, partitions=()):
        schema = self.schema if schema is None else schema
        return check_table(self.place, schema, partitions, exact=True)

    def opened(self):
        return DeltaTable(self.place)

    def partition(self):
        """Partition it by the text column."""
        self.partitions = ("s",)

    def rows(self):
        return rows_of(self.opened().to_pyarrow_table().select(self.schema.names))

    def paths(self):
        return [uri.removeprefix("file://") for uri in self.opened().file_uris()]

    def commits(self):
        return self.opened().version()

    def append(self, numbers):
        write_deltalake(self.place, table_of(numbers, self.schema), mode="append")

    def compact(self):
        self.opened().optimize.compact()

    def vacuum(self):
        self.opened().vacuum(0, dry_run=False, enforce_retention_duration=False)

    def drop(self):
        for one in (*self.data.glob("part-*"), self.data / "_delta_log"):
            shutil.rmtree(one) if one.is_dir() else one.unlink()

    def again(self):
        self.drop()
        self.target().make()


class IceLake(Lake):
    kind = "iceberg"
    spec = ()

    def prepare(self):
        self.catalog().create_namespace("shop")
        self.create()

    def create(self):
        table = self.catalog().create_table("shop.sales", self.schema)
        with table.update_spec() as update:
            for column, transform, name in self.spec:
                update.add_field(column, transform, name)

    @property
    def database(self):
        return self.root / "catalog.db"

    @property
    def told(self):
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.database}",
            "warehouse": f"file://{self.root}/warehouse",
        }

    def catalog(self):
        return load_catalog("test", **self.told)

    @property
    def data(self):
        return Path(self.opened().location().removeprefix("file://")) / "data"

    def target(self):
        return IcebergTarget(
            self.world, Catalog("test", self.told), "shop.sales", QUERY, self.schema
        )

    def cutting(self):
        found = self.check()
        return Cutting(
            partition_by=tuple(one.column for one in found), units=tuple(one.unit for one in found)
        )

    def check(self, schema=None, name="shop.sales"):
        schema = self.schema if schema is None else schema
        return check_iceberg(Catalog("test", self.told), name, schema)

    def opened(self):
        return self.catalog().load_table("shop.sales")

    def partition(self):
        """Partition it by the text column and the day."""
        self.spec = (("s", IdentityTransform(), "s"), ("at", DayTransform(), "at_day"))
        self.again()

    def rows(self):
        return rows_of(self.opened().scan().to_arrow().select(self.schema.names))

    def paths(self):
        files = self.opened().inspect.files()["file_path"].to_pylist()
        return [path.removeprefix("file://") for path in files]

    def commits(self):
        return len(self.opened().snapshots())

    def append(self, numbers):
        self.opened().append(table_of(numbers, self.schema))

    def compact(self):
        table = self.opened()
        table.overwrite(table.scan().to_arrow())
        with table.update_schema() as update:
            update.update_column("a", doc="seen")

    def drop(self):
        self.catalog().drop_table("shop.sales")

    def again(self):
        self.drop()
        self.create()


LAKES = (DeltaLake, IceLake)
__all__ = ["LAKES", "QUERY", "STAGING", "DeltaLake", "IceLake", "Lake", "rows_of", "table_of"]
