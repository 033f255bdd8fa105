"""The inputs of a statement: a tree of `Leaf`s and `Pair`s, and the streams behind it.

A subquery or a common table expression is a Leaf, too: its columns are those of the stream, or
computed as the stream is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from joinengine.api import checks
from joinengine.api.joins import schema_of_side
from joinengine.api.queries import session_of
from joinengine.api.sql_text import ticked
from joinengine.model.columns import name_beside
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import in_a_line, quoted
from joinengine.predicates.computed_columns import compile_column
from joinengine.spark.session import session
from joinengine.spark.sources.inputs import Source, delays_of
from joinengine.spark.sources.own_streams import OwnStream

#: The alias of a Leaf, and a column of its stream; an edge of a window has no alias.
Key = tuple[str, str]


@dataclass(eq=False)
class Leaf:
    """A stream under an alias; `columns`: name -> column of the stream; `filters`: over those."""

    alias: str
    stream: str
    columns: dict[str, str]
    filters: list[str] = field(default_factory=list)

    #: of a Pair, the aliases whose columns are NULL in rows without a partner
    nullable: frozenset[str] = frozenset()

    @property
    def leaves(self) -> list[Leaf]:
        """The leaf itself."""
        return [self]

    @property
    def visible(self) -> list[Leaf]:
        """The leaf itself."""
        return [self]


@dataclass(eq=False)
class Pair:
    """A join; `on`: its conditions; `closest`: an ASOF join.

    `using`: name, in lower case -> the column of each side that USING makes one. `after`:
    conditions of WHERE on its results.
    """

    left: Tree
    right: Tree
    how: str
    node: Any
    closest: bool = False
    using: dict[str, tuple[Key, Key]] = field(default_factory=dict)
    on: list[Any] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)

    @property
    def leaves(self) -> list[Leaf]:
        """All streams below."""
        return [*self.left.leaves, *self.right.leaves]

    @property
    def visible(self) -> list[Leaf]:
        """The streams whose columns results may have."""
        right = [] if self.how in ("left_semi", "left_anti") else self.right.visible
        return [*self.left.visible, *right]

    @property
    def nullable(self) -> frozenset[str]:
        """The aliases whose columns are NULL in rows without a partner."""
        aliases = self.left.nullable | self.right.nullable
        if self.how in ("left", "full"):
            aliases |= {leaf.alias for leaf in self.right.leaves}
        if self.how in ("right", "full"):
            aliases |= {leaf.alias for leaf in self.left.leaves}
        return aliases


Tree = Leaf | Pair


def merged(tree: Tree, key: Key, name: str) -> bool:
    """Whether a column stands under the name of another stream, by USING."""
    if isinstance(tree, Leaf):
        return False
    inside = tree.left if key[0] in {leaf.alias for leaf in tree.left.leaves} else tree.right
    beside = inside is tree.right and name.lower() in tree.using
    return beside or merged(inside, key, name)


class Inputs:
    """The streams by name, with only the columns that the statement reads or computes."""

    def __init__(self, streams: Mapping[str, Source]) -> None:
        for source in streams.values():
            checks.check_source(source)
        self._sources = dict(streams)
        #: the session of the streams, whose zone and case of names hold; None: the current one
        first = next(iter(sorted(streams.values(), key=checks.is_table)), None)  # tables come last
        self.spark = None if first is None else session_of(first)
        self._used = {name: set[str]() for name in streams}
        self._computed = dict[tuple[str, str], str]()
        self.names = list(streams)
        #: per stream, the columns that it has of its own
        self.columns = {name: self.schema(name).names for name in streams}
        #: per stream, the columns for which it says how late its rows are: its event time
        self.timed = {
            stream: {name for name in self.schema(stream).names if name in delays_of(source)}
            for stream, source in streams.items()
        }

    def schema(self, stream: str) -> pa.Schema:
        """The columns of a stream, computed ones included."""
        return schema_of_side(self._sources[stream])

    def is_table(self, stream: str) -> bool:
        """Whether it is a bounded DataFrame."""
        return checks.is_table(self._sources[stream])

    def use(self, stream: str, column: str) -> None:
        """Note that a column is read."""
        self._used[stream].add(column)

    def computed(self, stream: str, name: str, text: str) -> str:
        """The column of a stream that has the values of an expression, `name` if that is free."""
        if (stream, text) not in self._computed:
            source, schema = self._sources[stream], self.schema(stream)
            column = name_beside(schema.names, name)
            self._sources[stream] = _with_column(stream, source, schema, column, text)
            self._computed[stream, text] = column
        column = self._computed[stream, text]
        self.use(stream, column)
        return column

    def source(self, stream: str) -> Source:
        """The stream with the columns that are read; the same object at each call."""
        source, names = self._sources[stream], self.schema(stream).names
        used = [name for name in names if name in self._used[stream]]
        if used and len(used) < len(names):
            quoted = [ticked(name) for name in used] if isinstance(source, DataFrame) else used
            source = self._sources[stream] = source.select(quoted)
        return source

    def only(self, stream: str, filters: list[str]) -> Source:
        """The stream without the rows that fail a filter."""
        source = self.source(stream)
        for text in filters:
            source = source.where(text)  # type: ignore[union-attr]  # tables stand in joins only
        return source


def _with_column(stream: str, source: Source, schema: pa.Schema, column: str, text: str) -> Source:
    """The stream with one more column, an expression over those of `schema`."""
    if isinstance(source, OwnStream):
        return source.withColumn(column, text)
    if isinstance(source, DataFrame):
        spark = source.sparkSession
        exact = session.case_sensitive(spark)
        compile_column(column, text, schema, session.zone(spark), exact=exact)
        try:
            return source.selectExpr("*", f"{text} as {ticked(column)}")
        except AnalysisException as error:
            why = in_a_line(str(error).strip().partition("\n")[0])
            raise InvalidRequest(
                f"{stream}: Spark computes columns of a DataFrame, and refuses {quoted(text)}: "
                f"{why}"
            ) from None
    raise InvalidRequest(f"{stream} is a table, of which no column can be computed")
