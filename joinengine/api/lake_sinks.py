"""The sinks for tables, Delta and Iceberg, made from the options of a writer and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from joinengine.api import options as given
from joinengine.api.file_sinks import check_untransformed
from joinengine.api.resolved import ResolvedJoin
from joinengine.driver.settings import Settings
from joinengine.model.columns import require_column
from joinengine.model.errors import InvalidRequest
from joinengine.results import delta, delta_merge, iceberg, iceberg_catalog
from joinengine.results.delta import DeltaTarget
from joinengine.results.delta_merge import DeltaMergeTarget
from joinengine.results.iceberg import IcebergTarget
from joinengine.results.iceberg_catalog import Catalog
from joinengine.results.iceberg_merge import IcebergMergeTarget
from joinengine.results.netting import check_keys
from joinengine.results.sinks import SinkFactory
from joinengine.results.staging import Cutting
from joinengine.results.table_sinks import TableSink, TableTarget
from joinengine.spark.jobs.result_jobs import merges
from joinengine.spark.query.query_folders import Output
from joinengine.spark.session import session
from joinengine.spark.sources.locations import place
from joinengine.state.checkpoint import Checkpoint

#: (checkpoint, id of the query) -> the target; how its files are cut; the folder that was named.
_Made = tuple[Callable[[Checkpoint, str], TableTarget], Cutting, Output | None]


def table_sink(
    kind: str,
    join: ResolvedJoin,
    options: Mapping[str, str],
    settings: Settings,
    partitions: tuple[str, ...],
    name: str | None,
) -> tuple[SinkFactory, Output | None]:
    """A function that makes the sink for a table, and the folder that the user has named for it.

    `name`: the name of the query.

    Raises InvalidRequest if the package, the catalogue or a table of Iceberg is missing, or the
    results do not fit the table.
    """
    check_untransformed(join, kind)
    make = _delta if kind == "delta" else _iceberg
    target_of, cutting, output = make(join, options, settings, partitions)
    codec = given.value_of(options, "compression")
    size = given.value_of(options, "targetFileSize")
    cutting = replace(cutting, codec=codec, target_bytes=size)
    every_s = given.value_of(options, "commitEvery") or 0.0

    def sink_of(checkpoint: Checkpoint, query: str) -> TableSink:
        target = target_of(checkpoint, query)
        is_merging = size is not None and every_s and "mergeKeys" not in options
        merge = merges(join.spark, name) if is_merging else None
        return TableSink(checkpoint, target, every_s, cutting, settings.fsync, merge)

    return sink_of, output


def _delta(
    join: ResolvedJoin, options: Mapping[str, str], settings: Settings, partitions: tuple[str, ...]
) -> _Made:
    delta.library()
    if "path" not in options:
        raise InvalidRequest("delta: path is missing; give .option('path', folder of the table)")
    folder = place(options["path"], "path")
    exact = session.case_sensitive(join.spark)
    keys = _merge_keys(join, options, exact=exact)
    rows = _rows(join, keys)
    columns = delta.check_table(folder, rows, partitions, exact=exact)
    if keys:
        delta_merge.check_merge(folder, rows, keys, partitions)

    def target_of(checkpoint: Checkpoint, query: str) -> TableTarget:
        about = checkpoint.world, folder, query, rows, columns
        if not keys:
            return DeltaTarget(*about, fsync=settings.fsync)
        return DeltaMergeTarget(*about, fsync=settings.fsync, keys=keys, shown=settings.show_keys)

    return target_of, Cutting() if keys else Cutting(partition_by=columns), Output(folder)


def _rows(join: ResolvedJoin, keys: tuple[str, ...]) -> pa.Schema:
    """The columns of the table: merged results are changes, whose last column says which."""
    return pa.schema(list(join.schema)[:-1]) if keys else join.schema


def _merge_keys(join: ResolvedJoin, options: Mapping[str, str], *, exact: bool) -> tuple[str, ...]:
    """The columns that `mergeKeys` names; none: results are appended.

    Raises InvalidRequest for missing columns, and for results that are not changes.
    """
    text = options.get("mergeKeys")
    if text is None:
        return ()
    if not join.query.operators[-1].is_changelog:
        raise InvalidRequest(
            "mergeKeys: the results are rows that stay, and not changes; leave mergeKeys out, or "
            "give StreamJoin(.., changes=..)"
        )
    rows = pa.schema(list(join.schema)[:-1])
    names = [name.strip() for name in text.split(",")]
    return tuple(require_column(rows, name, "mergeKeys", exact=exact).name for name in names)


def _iceberg(
    join: ResolvedJoin, options: Mapping[str, str], settings: Settings, partitions: tuple[str, ...]
) -> _Made:
    assert not partitions, "the table itself says how it is partitioned"
    iceberg_catalog.library()
    if "table" not in options:
        raise InvalidRequest("iceberg: table is missing; give .option('table', 'namespace.table')")
    table = options["table"]
    catalog = catalog_of(options)
    keys = _merge_keys(join, options, exact=session.case_sensitive(join.spark))
    rows = _rows(join, keys)
    check_keys(rows, keys)
    by = iceberg.check_table(catalog, table, rows)
    columns, units = (tuple(part) for part in zip(*by, strict=True)) if by else ((), ())
    cutting = Cutting(partition_by=columns, units=units)

    def target_of(checkpoint: Checkpoint, query: str) -> TableTarget:
        about = checkpoint.world, catalog, table, query, rows
        if not keys:
            return IcebergTarget(*about, fsync=settings.fsync)
        return IcebergMergeTarget(
            *about,
            fsync=settings.fsync,
            keys=keys,
            shown=settings.show_keys,
            cutting=replace(cutting, codec=given.value_of(options, "compression")),
        )

    return target_of, Cutting() if keys else cutting, None


def catalog_of(options: Mapping[str, str]) -> Catalog:
    """The catalogue that the options of a writer name."""
    prefix = given.PREFIXES["iceberg"]
    properties = {
        name.removeprefix(prefix): text for name, text in options.items() if name.startswith(prefix)
    }
    return Catalog(given.value_of(options, "catalog"), properties)
