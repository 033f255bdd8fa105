"""GROUP BY: a window, groups and aggregates become a `StreamAggregate`.

Its results are the groups, the aggregates, and the edges of the window, in this order. If SELECT
says otherwise, or computes with aggregates, or there is a HAVING, steps behind it do so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from joinengine.api.aggregates import StreamAggregate
from joinengine.api.joins import StreamJoin, schema_of_side
from joinengine.api.queries import StreamQuery
from joinengine.api.sql_conditions import Node, window_of
from joinengine.api.sql_names import WINDOWS, Reader
from joinengine.api.sql_package import exp
from joinengine.api.sql_streams import Key, Leaf, Tree
from joinengine.api.sql_text import bare, called, ticked
from joinengine.model.aggregation import session_windows, windows
from joinengine.model.columns import name_beside
from joinengine.model.errors import InvalidRequest
from joinengine.model.query import WINDOW_END, WINDOW_START
from joinengine.predicates.grouping import compile_aggregate
from joinengine.spark.session import session

_FUNCTIONS = ("count", "sum", "min", "max", "avg", "mean", "histogram")
_EDGES = (WINDOW_START, WINDOW_END)


def aggregated(node: Any) -> Any:
    """The first call of an aggregate in an expression; None: there is none."""
    return next((call for call in node.find_all(exp.Anonymous) if called(call) in _FUNCTIONS), None)


@dataclass
class Groups:
    """A SELECT with GROUP BY, being translated.

    `keys`: the groups. `calls`: name of an aggregate -> its call. `shown`: name of a column ->
    what it is.
    """

    reader: Reader
    select: Any
    tree: Tree
    window: Any = None
    keys: list[Key] = field(default_factory=list)
    calls: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)

    def query(
        self, node_of: Callable[[Tree], Node], delay: Any, sizes: Mapping[str, Any]
    ) -> StreamAggregate:
        """The whole query. `node_of`: makes the operator of a join."""
        for term in self.select.args["group"].expressions:
            self._add_term(term)
        for item in self.select.expressions:
            self._add_item(item)
        having = self.select.args.get("having")
        if having is not None:
            self.reader.results = [name for name in self.shown if name in self.calls]
            self._add_calls(having.this)
        if not self.calls:
            raise self._refusal("GROUP BY needs an aggregate; write count(*) AS n in SELECT")
        source, names = self._source(node_of)
        with self.reader.text.at(self.select.args["group"]):
            settings = {
                "by": [names[key] for key in self.keys],
                "aggregates": self._aggregates(schema_of_side(source), names),
                "window": self._windows(names, delay),
                **{name: value for name, value in sizes.items() if value is not None},
            }
            made = StreamAggregate(source, **settings)
        texts = {name: self._result(node, names) for name, node in self.shown.items()}
        columns = made._output_schema().names
        of_text = {ticked(name): name for name in columns}
        if having is not None or not all(text in of_text for text in texts.values()):
            return self._computed(made, names, texts, None if having is None else having.this)
        select = {name: of_text[text] for name, text in texts.items()}
        if list(select.items()) == [(name, name) for name in columns]:
            return made
        return StreamAggregate(source, **settings, select=select)

    def _aggregates(self, schema: pa.Schema, names: Mapping[Key, str]) -> dict[str, str]:
        """The aggregates as text. Refuses what predicates refuse, where it is written."""
        zone, exact = session.zone(), session.case_sensitive()
        texts = {
            name: self.reader.spelled(call, names.__getitem__) for name, call in self.calls.items()
        }
        for name, text in texts.items():
            with self.reader.text.at(self.calls[name]):
                compile_aggregate(name, text, schema, [], zone, exact=exact)
        return texts

    def _refusal(self, said: str) -> InvalidRequest:
        return self.reader.text.refusal(self.select.args["group"], said)

    def _add_term(self, term: Any) -> None:
        aliases = self.reader.bound(term, self.tree)
        if called(bare(term)) in WINDOWS:
            if self.window is not None:
                raise self.reader.text.refusal(term, "GROUP BY takes one window")
            self.window = bare(term)
            return
        key = self._key(term, aliases)
        if key is None:
            raise self.reader.text.refusal(
                term,
                "GROUP BY takes columns, expressions over one stream, and one of TUMBLE, HOP and "
                "SESSION",
            )
        if key[0]:
            self.keys.append(key)

    def _key(self, node: Any, aliases: set[str]) -> Key | None:
        """The column that an expression is, or can be computed as."""
        key = self.reader.key(node)
        if key is None and len(aliases) == 1 and not aliases & {"", *self.tree.nullable}:
            key = self.reader.compute(node, aliases, "key")
        return key

    def _add_item(self, item: Any) -> None:
        node = item.this if isinstance(item, exp.Alias) else item
        aliases = self.reader.bound(node, self.tree)
        name = item.alias if isinstance(item, exp.Alias) else ""
        call = aggregated(node)
        if not name and isinstance(bare(node), exp.Column):
            name = bare(node).name
        if not name or name in self.shown:
            raise self.reader.text.refusal(node, "each column needs a name of its own; write AS")
        self.shown[name] = node
        if call is bare(node):
            self.calls[name] = call
        elif call is not None:
            self._add_calls(node)
        elif (key := self._key(node, aliases)) is None or (key[0] and key not in self.keys):
            raise self.reader.text.refusal(
                node, f"{name} is neither in GROUP BY nor an aggregate; add it to GROUP BY"
            )

    def _add_calls(self, node: Any) -> None:
        """Add the aggregates inside an expression."""
        self.reader.bound(node, self.tree)
        known = [self._text(call) for call in self.calls.values()]
        for call in node.find_all(exp.Anonymous):
            if called(call) in _FUNCTIONS and self._text(call) not in known:
                self.calls[name_beside({*self.calls, *self.shown}, "aggregate")] = call

    def _text(self, node: Any) -> str:
        return self.reader.spelled(node, "\0".join)

    def _source(self, node_of: Callable[[Tree], Node]) -> tuple[Any, Mapping[Key, str]]:
        """What is aggregated, and the names of its columns."""
        if isinstance(self.tree, Leaf):
            leaf, inputs = self.tree, self.reader.inputs
            source = inputs.only(leaf.stream, leaf.filters)
            names = {(leaf.alias, name): name for name in inputs.schema(leaf.stream).names}
            return source, names
        node = node_of(self.tree)
        assert isinstance(node.source, StreamJoin)
        return node.source, node.names

    def _windows(self, names: Mapping[Key, str], delay: Any) -> Any:
        """The window of the aggregate; None: that of the join."""
        if self.window is None:
            return None
        name, key, lengths = window_of(self.reader, self.window)
        match name:
            case "tumble":
                return windows(names[key], lengths[0], delay=delay)
            case "hop":
                return windows(names[key], lengths[1], lengths[0], delay=delay)
        return session_windows(names[key], gap=lengths[0], delay=delay)

    def _computed(
        self, made: StreamAggregate, names: Mapping[Key, str], texts: Mapping[str, str], having: Any
    ) -> StreamAggregate:
        """The query with the columns of SELECT, and without the groups that HAVING leaves out."""
        if having is not None:
            with self.reader.text.at(having):
                made = made.where(self._result(having, names))
        columns = made._output_schema().names
        if list(texts.items()) == [(name, ticked(name)) for name in columns]:
            return made
        return with_columns(self.reader, made, texts, self.shown)

    def _result(self, node: Any, names: Mapping[Key, str]) -> str:
        """An expression over the results, in which a column alone stands in backticks."""
        by_text = {self._text(call): name for name, call in self.calls.items()}
        calls = {
            id(call): by_text[self._text(call)]
            for call in node.find_all(exp.Anonymous)
            if called(call) in _FUNCTIONS
        }
        if id(bare(node)) in calls:
            return ticked(calls[id(bare(node))])
        key = self.reader.key(node)
        if key is not None:
            return ticked(names[key] if key[0] else key[1])
        results = {("", name): name for name in (*self.calls, *_EDGES)}
        return self.reader.spelled(node, {**names, **results}.__getitem__, calls)


Query = TypeVar("Query", bound=StreamQuery)


def with_columns(
    reader: Reader, query: Query, texts: Mapping[str, str], nodes: Mapping[str, Any]
) -> Query:
    """The query with the columns of SELECT: name -> the expression over its results.

    `nodes`: name -> where the expression is written.
    """
    there, shown = list(query._results.schema.names), dict[str, str]()
    columns = {ticked(name): name for name in there}
    for name, text in texts.items():
        shown[name] = columns.get(text) or name_beside([*there, *shown.values()], name)
        if text not in columns:
            with reader.text.at(nodes[name]):
                query = query.withColumn(shown[name], text)
    return query.select(shown)
