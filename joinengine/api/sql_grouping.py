"""GROUP BY: a window, groups and aggregates become a `StreamAggregate`.

Its results are the groups, the aggregates, and the edges of the window, in this order. Steps behind
it do the rest: other columns of SELECT, computations with aggregates, and HAVING.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from joinengine.api.sql_text import bare, called, ticked, without_space
from joinengine.model.aggregation import session_windows, windows
from joinengine.model.columns import name_beside
from joinengine.model.errors import InvalidRequest
from joinengine.model.query import WINDOW_END, WINDOW_START
from joinengine.predicates.grouping import compile_aggregate
from joinengine.spark.session import session

_FUNCTIONS = ("count", "sum", "min", "max", "avg", "mean", "histogram")
_EDGES = (WINDOW_START, WINDOW_END)


def aggregated(node: Any) -> Any:
    """The first call of an aggregate in an expression; None without one."""
    return next((call for call in node.find_all(exp.Anonymous) if called(call) in _FUNCTIONS), None)


@dataclass
class Groups:
    """A SELECT with GROUP BY, being translated.

    `keys`: the groups, each once. `terms`: text of a term of GROUP BY -> the group that it is.
    `later`: groups that are computed behind a join -> their expression. `calls`: name of an
    aggregate -> its call. `shown`: name of a column -> what it is. `named`: all names of SELECT.
    """

    reader: Reader
    select: Any
    tree: Tree
    window: Any = None
    keys: list[Key] = field(default_factory=list)
    terms: dict[str, Key] = field(default_factory=dict)
    later: dict[Key, Any] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)

    def query(
        self, node_of: Callable[[Tree], Node], delay: Any, sizes: Mapping[str, Any]
    ) -> StreamAggregate:
        """The whole query. `node_of`: makes the operator of a join."""
        for term in self.select.args["group"].expressions:
            self._add_term(term)
        self.named = [item.alias_or_name for item in self.select.expressions]
        for item in self.select.expressions:
            self._add_item(item)
        having = self.select.args.get("having")
        if having is not None:
            self.reader.results = list(self.shown)
            self._add_parts(having.this)
        if not self.calls:
            raise self._refusal("GROUP BY needs an aggregate; write count(*) AS n in SELECT")
        source, names = self._source(node_of)
        with self.reader.text.at(self.select.args["group"]):
            by = [names[key] for key in self.keys]
            columns = dict[str, str]()
            for name in self.calls:
                columns[name] = name_beside([*by, *columns.values(), *_EDGES], name)
            made = StreamAggregate(
                source,
                by=by,
                aggregates=self._aggregates(schema_of_side(source), names, columns),
                window=self._windows(names, delay),
                **{name: value for name, value in sizes.items() if value is not None},
            )
        there = {**names, **{("", edge): edge for edge in _EDGES}}
        texts = {name: self._result(node, there, columns) for name, node in self.shown.items()}
        made, shown = with_columns(self.reader, made, texts, self.shown)
        if having is not None:
            there = {**{("", name): column for name, column in shown.items()}, **there}
            with self.reader.text.at(having.this):
                made = made.where(self._result(having.this, there, columns))
        with self.reader.text.at(self.select):
            return selected(made, shown)

    def _aggregates(
        self, schema: pa.Schema, names: Mapping[Key, str], columns: Mapping[str, str]
    ) -> dict[str, str]:
        """The aggregates as text. Refuses what predicates refuse, where it is written."""
        spark = self.reader.inputs.spark
        zone, exact = session.zone(spark), session.case_sensitive(spark)
        texts = {
            name: self.reader.spelled(call, names.__getitem__) for name, call in self.calls.items()
        }
        for name, text in texts.items():
            with self.reader.text.at(self.calls[name]):
                compile_aggregate(name, text, schema, [], zone, exact=exact)
        return {columns[name]: text for name, text in texts.items()}

    def _refusal(self, said: str) -> InvalidRequest:
        return self.reader.text.refusal(self.select.args["group"], said)

    def _add_term(self, term: Any) -> None:
        aliases, node = self.reader.bound(term, self.tree), bare(term)
        if called(node) in WINDOWS:
            if self.window is not None:
                raise self.reader.text.refusal(term, "GROUP BY takes one window")
            self.window = node
            return
        key, text = self.reader.key(term), self._text(node)
        if key is None and len(aliases) == 1 and not aliases & {"", *self.tree.nullable}:
            key = self.reader.compute(term, aliases, "key")
        elif key is None and aliases and "" not in aliases:
            key = "", text
            self.later[key] = term
        if key is None:
            raise self.reader.text.refusal(
                term, "GROUP BY takes columns, expressions, and one of TUMBLE, HOP and SESSION"
            )
        self.terms[text] = key
        if (key[0] or key in self.later) and key not in self.keys:
            self.keys.append(key)

    def _add_item(self, item: Any) -> None:
        node = item.this if isinstance(item, exp.Alias) else item
        name = item.alias if isinstance(item, exp.Alias) else ""
        if not name and isinstance(bare(node), exp.Column):
            name = bare(node).name
        if not name or name in self.shown:
            raise self.reader.text.refusal(node, "each column needs a name of its own; write AS")
        self.shown[name] = node
        self._add_parts(node, name)

    def _add_parts(self, node: Any, name: str | None = None) -> None:
        """Add the aggregates in an expression. Refuses columns that are in no group.

        `name`: the name for an aggregate that is the whole expression; None: no column of SELECT.
        """
        self.reader.bound(node, self.tree)
        known = [self._text(call) for call in self.calls.values()]
        for part in self._parts(node):
            if called(part) in _FUNCTIONS:
                if part is bare(node) and name is not None:
                    self.calls[name] = part
                elif self._text(part) not in known:
                    self.calls[name_beside([*self.calls, *self.named], "aggregate")] = part
                    known.append(self._text(part))
            elif isinstance(part, exp.Column):
                key = self.reader.keys[id(part)][0]
                named = {name.lower(): name for name in self.reader.results}
                alias = named.get(part.name.lower()) if len(part.parts) == 1 else None
                if key[0] and key not in self.keys and alias is not None:
                    self.reader.keys[id(part)] = ("", alias), 1
                elif key[0] and key not in self.keys:
                    raise self.reader.text.refusal(
                        part,
                        f"{part.name} is neither in GROUP BY nor an aggregate; add it to GROUP BY",
                    )

    def _parts(self, node: Any) -> Iterator[Any]:
        """The aggregates, the groups, and the columns that are in neither, of an expression."""

        def is_whole(part: Any) -> bool:
            return called(part) in _FUNCTIONS or self._group(part) is not None

        for part in bare(node).walk(prune=is_whole):
            if is_whole(part) or isinstance(part, exp.Column):
                yield part

    def _group(self, part: Any) -> Key | None:
        """The group that an expression is, as it stands in GROUP BY; None: it is not a group."""
        return self.terms.get(self._text(part)) if self.reader.text.is_placed(part) else None

    def _text(self, node: Any) -> str:
        """A text that is the same for equal expressions."""
        return without_space(self.reader.spelled(node, "\0".join))

    def _source(self, node_of: Callable[[Tree], Node]) -> tuple[Any, Mapping[Key, str]]:
        """The stream or join that is aggregated, and the names of its columns."""
        if isinstance(self.tree, Leaf):
            leaf, inputs = self.tree, self.reader.inputs
            source = inputs.only(leaf.stream, leaf.filters)
            names = {(leaf.alias, name): name for name in inputs.schema(leaf.stream).names}
            return source, names
        node = node_of(self.tree)
        assert isinstance(node.source, StreamJoin)
        texts = {
            text: self.reader.spelled(term, node.names.__getitem__)
            for (_, text), term in self.later.items()
        }
        terms = {text: term for (_, text), term in self.later.items()}
        made, shown = with_columns(self.reader, node.source, texts, terms, "key")
        return made, {**node.names, **{("", text): column for text, column in shown.items()}}

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

    def _result(self, node: Any, names: Mapping[Key, str], columns: Mapping[str, str]) -> str:
        """An expression over the results. `columns`: name of an aggregate -> its column there."""
        by_text = {self._text(call): columns[name] for name, call in self.calls.items()}
        known = dict[int, str]()
        for part in self._parts(node):
            if called(part) in _FUNCTIONS:
                known[id(part)] = by_text[self._text(part)]
            elif (key := self._group(part)) is not None:
                known[id(part)] = names[key]
        if id(bare(node)) in known:
            return ticked(known[id(bare(node))])
        key = self.reader.key(node)
        return ticked(names[key]) if key else self.reader.spelled(node, names.__getitem__, known)


Query = TypeVar("Query", bound=StreamQuery)


def with_columns(
    reader: Reader,
    query: Query,
    texts: Mapping[str, str],
    nodes: Mapping[str, Any],
    called_there: str | None = None,
) -> tuple[Query, dict[str, str]]:
    """The query with further columns; name -> the column of its results.

    `texts`: name -> the expression over the results. `nodes`: name -> where it is written.
    `called_there`: the name for the new columns, made unique; None: each has its own.
    """
    there, shown = list(query._results.schema.names), dict[str, str]()
    columns = {ticked(name): name for name in there}
    for name, text in texts.items():
        free = name_beside([*there, *shown.values()], called_there or name)
        shown[name] = columns.get(text) or free
        if text not in columns:
            with reader.text.at(nodes[name]):
                query = query.withColumn(shown[name], text)
    return query, shown


def selected(query: Query, shown: Mapping[str, str]) -> Query:
    """The query with these columns: name -> its name until now."""
    plain = [(name, name) for name in query._results.schema.names]
    return query if list(shown.items()) == plain else query.select(shown)
