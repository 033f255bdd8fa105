"""Converts column types from Spark to Arrow and back, and finds the columns of files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, UserDefinedType

from joinengine.model.errors import InvalidRequest
from joinengine.model.nested_types import with_null_parts
from joinengine.model.texts import in_a_line, quoted
from joinengine.sources.listing import OnBadFile, read_footers, survey
from joinengine.sources.schemas import (
    Footer,
    folder_union,
    partition_columns,
    refuse_clash,
)
from joinengine.sources.sourcefiles import SourceFile, exists, found_below

#: Spark's JSON of a type that Parquet lacks.
_LACKING = re.compile(r'"(?:t|elementT|keyT|valueT)ype":"(?:interval|variant|void)')
#: The most footers that are read if the user gives the columns.
_SAMPLED = 1000


def arrow_schema(schema: StructType, what: str = "schema") -> pa.Schema:
    """The Arrow schema in which the engine handles tuples: instants are microseconds in UTC.

    Parts of a column may be NULL, as those of a row without a partner are.
    Raises InvalidRequest, with the column, for a type that does not travel as Arrow.
    """
    for field in schema:
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
            supported = all(map(_travels, _kinds(field.dataType)))
        except Exception:
            supported = False
        if not supported:
            raise InvalidRequest(
                f"{what}: column {field.name!r} is of type {field.dataType.simpleString()}, which "
                "joinengine does not support; cast it or leave it out"
            )
    plain = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([pa.field(field.name, with_null_parts(field.type)) for field in plain])


def _travels(kind: DataType) -> bool:
    """False for types that PySpark converts, but not the JVM, or Arrow's Parquet."""
    if isinstance(kind, StructType):  # names may repeat in Spark; without a field, Parquet fails
        return 0 < len(kind.names) == len(set(kind.names))
    return not isinstance(kind, UserDefinedType)


def _kinds(kind: DataType) -> Iterator[DataType]:
    """A type, and those inside it."""
    yield kind
    match kind:
        case StructType():
            inside = [field.dataType for field in kind]
        case ArrayType():
            inside = [kind.elementType]
        case MapType():
            inside = [kind.keyType, kind.valueType]
        case _:
            inside = []
    for part in inside:
        yield from _kinds(part)


def refuse_collations(schema: StructType, what: str = "schema") -> None:
    """Raise InvalidRequest, with the column, for text that Spark does not compare by its bytes."""
    for field in schema:
        if '"__COLLATIONS":{' in field.json():  # so Spark writes them, at any depth
            raise InvalidRequest(
                f"{what}: column {field.name!r} is of type {field.dataType.simpleString()}, and "
                "joinengine compares text by its bytes; apply collate(.., 'UTF8_BINARY') to the "
                "column, or leave it out"
            )


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark form of an Arrow schema."""
    return from_arrow_schema(schema)


def parquet_row(schema: pa.Schema, but: Collection[str] = ()) -> str | None:
    """The columns, without those of `but`, as Spark's JSON; None if Parquet has all their types.

    Parquet lacks intervals, variants and columns of NULLs alone. Spark's writer puts this text into
    footers, and its readers find the types there.
    """
    row = spark_schema(pa.schema([field for field in schema if field.name not in but])).json()
    return row if _LACKING.search(row) else None


def said_columns(schema: Any) -> pa.Schema | None:
    """The columns that a user gives, as a StructType or DDL text; None: none are given.

    All columns, and all fields inside them, may be NULL, as in Spark's own file sources. Raises
    InvalidRequest for anything else, for no columns, and for two columns of one name.
    """
    if schema is None:
        return None
    try:
        said = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except Exception as error:
        why = in_a_line(str(error).partition("== SQL ==")[0])
        raise InvalidRequest(f"schema: {quoted(schema)} is not a list of columns: {why}") from None
    if not isinstance(said, StructType):
        raise InvalidRequest(
            f"schema: {in_a_line(repr(schema))} is a {type(schema).__name__}; give a StructType or "
            "DDL text, such as 'id bigint, at timestamp'"
        )
    if not said.names:
        raise InvalidRequest("schema: no column is named; name at least one, or leave schema= out")
    double = next((name for name in said.names if said.names.count(name) > 1), None)
    if double is not None:
        raise InvalidRequest(f"schema: column {double!r} is given twice; give each column once")
    refuse_collations(said)
    return arrow_schema(said.toNullable())


@dataclass(frozen=True, slots=True)
class FolderColumns:
    """The columns of the files of a folder.

    `readable`: the columns that have a Spark type. `others`: column -> its type, of those that have
    none. `footers`: path -> footer, of whole files.
    """

    readable: pa.Schema
    others: Mapping[str, pa.DataType]
    footers: Mapping[str, Footer]

    @property
    def all(self) -> pa.Schema:
        """All columns."""
        return pa.schema([*self.readable, *self.others.items()])


def folder_columns(
    folder: Path | str, schema: pa.Schema | None, on_bad_file: OnBadFile
) -> FolderColumns:
    """The columns of the Parquet files below a folder or URL, and those in names of its folders.

    `schema`: the columns, if the user gives them. Raises InvalidRequest if there is no folder, if
    no file shows the columns, which a stream must know before it starts, and for two files whose
    types do not fit together.
    """
    what = f"parquet_stream: {folder}"
    if not exists(str(folder)):
        if any(char in str(folder) for char in "*?["):
            raise InvalidRequest(
                f"{what} is a glob; give the folder, and all files below it are read"
            )
        raise InvalidRequest(f"{what} does not exist; create it, or give another folder")
    if schema is not None:
        return _with_folders(str(folder), schema)
    footers, faults = survey(folder)
    if not footers:
        half = next((f", {file} {fault}" for file, fault in faults.items()), "")
        raise InvalidRequest(
            f"{what} holds no Parquet file yet{half}; put one there, or pass schema="
        )
    skip = on_bad_file is OnBadFile.SKIP
    on_clash = (lambda _: None) if skip else refuse_clash(str(folder))
    columns = folder_union(footers, str(folder), on_clash)
    return FolderColumns(*readable_columns(columns), footers)


def _with_folders(root: str, schema: pa.Schema) -> FolderColumns:
    """The given columns, and those in names of folders.

    A folder may hold a million files, so only some footers are read, for the size of row groups.
    """
    folders, files = dict[str, str](), list[SourceFile]()

    def some_of(paths: list[str]) -> list[str]:
        folders.update((path.rpartition("/")[0], path) for path in paths)
        return paths[: _SAMPLED - len(files)]

    for file in found_below(root, some_of):
        files.append(file)
    parts = partition_columns(folders.values(), root)
    added = [field for field in parts if field.name not in schema.names]
    read = zip(files, read_footers(files, {}), strict=True)
    footers = {file.path: footer for file, footer in read if isinstance(footer, Footer)}
    return FolderColumns(*readable_columns(pa.schema([*schema, *added])), footers)


def readable_columns(columns: pa.Schema) -> tuple[pa.Schema, dict[str, pa.DataType]]:
    """The columns that have a Spark type, as Spark hands them over, and the others."""
    readable, others = list[pa.Field](), dict[str, pa.DataType]()
    for field in columns:
        try:
            readable += arrow_schema(from_arrow_schema(pa.schema([field])))
        except Exception:
            others[field.name] = field.type
    return pa.schema(readable), others
