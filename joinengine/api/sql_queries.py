"""`sql`: a SELECT over streams as a `StreamJoin` or a `StreamAggregate`.

Law: a statement becomes calls of the public API alone, so it has the plan of the same query in
Python. What is not supported is refused before anything runs, with its line.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joinengine.api.aggregates import StreamAggregate
from joinengine.api.joins import StreamJoin, schema_of_side
from joinengine.api.sql_conditions import Conditions, Node
from joinengine.api.sql_grouping import Groups, aggregated, selected, with_columns
from joinengine.api.sql_names import Reader
from joinengine.api.sql_package import exp
from joinengine.api.sql_served import check_clauses, check_parts
from joinengine.api.sql_streams import Inputs, Key, Leaf, Pair, Tree
from joinengine.api.sql_text import SqlText, conjuncts, ticked
from joinengine.layouts import LayoutChoice
from joinengine.model.arguments import check_one_of, check_text
from joinengine.model.columns import name_beside
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.lateness import Duration
from joinengine.model.query import WINDOW_END, WINDOW_START
from joinengine.model.windows import Sliding
from joinengine.predicates.nesting import shallow
from joinengine.spark.sources.inputs import Source


def sql(
    text: str,
    streams: Mapping[str, Source],
    *,
    delay: Duration | tuple[Duration, Duration] | None = None,
    layout: str | LayoutChoice | None = None,
    instances: int | None = None,
) -> StreamJoin | StreamAggregate:
    """The query that a SELECT over `streams` means (docs/sql.md).

    `text`: one SELECT with JOINs, GROUP BY with a window, or both.
    `streams`: name in FROM -> a `Stream`, a streaming DataFrame, or a bounded DataFrame: a table.
    `delay`: how late rows may be, in all windows. If not given: that of each `withWatermark`.
    `layout`, `instances`: as in `StreamJoin`, for all operators.

    Raises InvalidRequest, with the line and the column, for whatever is not supported.
    """
    check_text(text, "sql", "'SELECT .. FROM f JOIN w ON f.k = w.k'")
    check_one_of(streams, [Mapping], "sql: streams", "{'f': clicks, 'w': purchases}")
    sizes = {"layout": layout, "instances": instances}
    with shallow("sql", text):
        reader = Reader(SqlText(text), Inputs(streams))
        select = reader.text.statement()
        check_parts(reader.text, select)
        check_clauses(reader.text, select)
        return Statement(reader, select, reader.tree(select), delay, sizes).query()


@dataclass
class Statement:
    """A SELECT being translated."""

    reader: Reader
    select: Any
    tree: Tree
    delay: Any
    sizes: Mapping[str, Any]

    def query(self) -> StreamJoin | StreamAggregate:
        """The whole query."""
        self._place()
        if self.select.args.get("group") is not None:
            return self._grouped()
        if self.select.args.get("having") is not None:
            raise self._refusal("having", "HAVING needs GROUP BY; write WHERE")
        for node in self.select.expressions:
            if node.find(exp.Window) is None and (aggregate := aggregated(node)) is not None:
                raise self.reader.text.refusal(
                    aggregate,
                    "an aggregate needs a window; write GROUP BY TUMBLE(time, INTERVAL ..)",
                )
        if isinstance(self.tree, Leaf):
            raise self._refusal("from_", "one stream is not a query; write a JOIN or a GROUP BY")
        return self._joined(self.tree)

    def _refusal(self, clause: str, said: str) -> InvalidRequest:
        return self.reader.text.refusal(self.select.args[clause], said)

    # WHERE

    def _place(self) -> None:
        """Put each condition of WHERE where it has the same effect."""
        where = self.select.args.get("where")
        for node in [] if where is None else conjuncts(where.this):
            aliases = self.reader.bound(node, self.tree)
            if "" in aliases and isinstance(self.tree, Pair):
                self.tree.after.append(node)
            elif not aliases or "" in aliases:
                raise self.reader.text.refusal(
                    node,
                    "WHERE compares columns of streams; put what is about groups and their windows "
                    "into HAVING, and leave other conditions out",
                )
            else:
                self._put(self.tree, node, aliases)

    def _put(self, tree: Tree, node: Any, aliases: set[str]) -> None:
        """Make a condition a filter of the stream that it is about, or a condition of a join."""
        if isinstance(tree, Leaf):
            tree.filters.append(self.reader.filter_text(node, tree))
            return
        for side, inside in zip(PAIR, (tree.left, tree.right), strict=True):
            if aliases <= {leaf.alias for leaf in inside.leaves}:
                kept = ("inner", ("left", "right")[side])
                if tree.how in kept or (side is Side.LEFT and tree.how.startswith("left_")):
                    if not (tree.closest and side is Side.RIGHT):
                        self._put(inside, node, aliases)
                        return
        if tree.how == "inner" and not tree.closest:
            self.reader.add_condition(tree, node)
        else:
            tree.after.append(node)

    # Joins

    def _joined(self, tree: Pair) -> StreamJoin:
        """The query of a statement without GROUP BY: its last join shows what is selected."""
        reader, later = self.reader, list[tuple[str, Any]]()
        wanted = dict[str, Key]()
        hidden = tree.nullable
        items = list(reader.items(self.select, tree))
        for name, node, known in items:
            key = known
            aliases = {
                reader.keys[id(column)][0][0] for column in node.find_all(exp.Column) if not key
            }
            if key is None and len(aliases) == 1 and not aliases & {*hidden, ""}:
                key = reader.compute(node, aliases, name)
            if name in wanted or name in dict(later):
                raise reader.text.refusal(
                    node, f"two columns are called {name!r}; name them, with AS"
                )
            if key is None:
                later.append((name, node))
            else:
                wanted[name] = key
        needed = [
            reader.keys[id(column)][0]
            for node in [*(node for _, node in later), *tree.after]
            for column in node.find_all(exp.Column)
        ]
        shown = dict(wanted)
        for key in needed:
            if key not in shown.values():
                shown[name_beside(shown, key[1])] = key
        if not shown:  # constants alone
            leaf = tree.visible[0]
            column = next(iter(leaf.columns.values()))
            reader.inputs.use(leaf.stream, column)
            shown[column] = leaf.alias, column
        joined = self._node(tree, shown).source
        assert isinstance(joined, StreamJoin)
        if not later and not tree.after:
            return joined
        names = {key: name for name, key in reversed(shown.items())}
        joined = self._filtered(joined, tree, names)
        asked = dict(later)
        texts = {
            name: reader.spelled(asked[name], names.__getitem__) if name in asked else ticked(name)
            for name, _, _ in items
        }
        nodes = {name: node for name, node, _ in items}
        with reader.text.at(self.select):
            return selected(*with_columns(reader, joined, texts, nodes))

    def _node(self, tree: Tree, shown: Mapping[str, Key] | None = None) -> Node:
        """The operator of a part of FROM. `shown`: its columns; None: all of both sides."""
        reader = self.reader
        if isinstance(tree, Leaf):
            source = reader.inputs.source(tree.stream)
            names = {(tree.alias, n): n for n in schema_of_side(source).names}
            is_table = reader.inputs.is_table(tree.stream)
            return Node(source, names, tuple(tree.filters), is_table)
        sides = self._node(tree.left), self._node(tree.right)
        with reader.text.at(tree.node):
            arguments = Conditions(reader, tree, sides, self.delay).arguments()
            columns = _Columns.of(tree, sides, arguments.get("within"))
            select = columns.select_all() if shown is None else columns.select(shown)
            joined = StreamJoin(
                sides[0].source, sides[1].source, **arguments, **select, **self.sizes
            )
        if shown is None:
            joined = self._filtered(joined, tree, columns.names)
        return Node(joined, columns.names)

    def _filtered(self, joined: StreamJoin, tree: Pair, names: Mapping[Key, str]) -> StreamJoin:
        """A join whose results fulfil the conditions on them; `names`: of their columns."""
        for node in tree.after:
            with self.reader.text.at(node):
                keys = (self.reader.keys[id(column)][0] for column in node.find_all(exp.Column))
                _check_there(keys, names)
                joined = joined.where(self.reader.spelled(node, names.__getitem__))
        return joined

    # GROUP BY

    def _grouped(self) -> StreamAggregate:
        return Groups(self.reader, self.select, self.tree).query(self._node, self.delay, self.sizes)


def _check_there(keys: Iterable[Key], there: Container[Key]) -> None:
    """Refuse the edge of a window of a join that has none."""
    for _, name in (key for key in keys if key not in there):
        raise InvalidRequest(
            f"{name} needs a window; write ON .. AND TUMBLE(f.ts, INTERVAL ..) = "
            "TUMBLE(w.ts, INTERVAL ..)"
        )


@dataclass(frozen=True)
class _Columns:
    """The columns that a join may show: `default`: name -> column as `select` has it.

    `places`: Key -> column as `select` has it. `names`: Key -> the name that it has by default.
    """

    default: dict[str, str]
    places: dict[Key, str]
    names: dict[Key, str]

    @classmethod
    def of(cls, tree: Pair, sides: tuple[Node, Node], window: Any) -> _Columns:
        """Of a join; columns of one name have their alias before it."""
        edges = (WINDOW_START, WINDOW_END) if isinstance(window, Sliding) else ()
        shown = [Side.LEFT] if tree.how in ("left_semi", "left_anti") else list(PAIR)
        merged = dict(tree.using.values())
        there = {side: list(dict.fromkeys(sides[side].names.values())) for side in PAIR}
        gone = {sides[Side.RIGHT].names[key] for key in merged.values()}
        columns = [
            (side, name)
            for side in shown
            for name in there[side]
            if not (side is Side.RIGHT and name in gone)
        ]
        lower = [name.lower() for _, name in columns] + list(edges)
        keyed = {(side, name): key for side in PAIR for key, name in sides[side].names.items()}
        default, called = dict[str, str](), dict[tuple[Side, str], str]()
        using = {sides[Side.LEFT].names[key] for key in merged}
        for side, name in columns:
            clashes = lower.count(name.lower()) > 1
            new = f"{keyed[side, name][0]}_{name}" if clashes else name
            new = name_beside({*default, *(lower if new != name else ())}, new)
            is_merged = side is Side.LEFT and name in using
            default[new] = name if is_merged else f"{side.name.lower()}.{name}"
            called[side, name] = new
        default |= {edge: edge for edge in edges}
        names = {
            key: called[side, name]
            for side in shown
            for key, name in sides[side].names.items()
            if (side, name) in called
        }
        names |= {right: names[left] for left, right in merged.items()}
        names |= {("", edge): edge for edge in edges}
        return cls(default, {key: default[name] for key, name in names.items()}, names)

    def select(self, shown: Mapping[str, Key]) -> dict[str, Any]:
        """The argument `select` for columns; empty if a join shows these columns anyway."""
        _check_there(shown.values(), self.places)
        return self._argument({name: self.places[key] for name, key in shown.items()})

    def select_all(self) -> dict[str, Any]:
        """The argument `select` for all columns."""
        return self._argument(self.default)

    def _argument(self, select: dict[str, str]) -> dict[str, Any]:
        same = list(select.items()) == list(self.default.items())
        plain = all(name == (at.partition(".")[2] or at) for name, at in select.items())
        return {} if same and plain else {"select": select}
