"""FROM and the items of SELECT: which streams a statement reads, and what its names mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from joinengine.api.sql_package import exp
from joinengine.api.sql_served import check_clauses, check_expressions
from joinengine.api.sql_streams import Inputs, Key, Leaf, Pair, Tree, merged
from joinengine.api.sql_text import SqlText, bare, called, conjuncts, is_under, ticked
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import meant
from joinengine.model.query import WINDOW_END, WINDOW_START
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.engine import keywords
from joinengine.spark.session import session

EDGES = (WINDOW_START, WINDOW_END)
#: Functions that name a window: how many arguments they take.
WINDOWS = {"tumble": 2, "hop": 3, "session": 2}
_KINDS = {
    **{("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner"},
    **{(side, kind): side.lower() for side in ("LEFT", "RIGHT", "FULL") for kind in ("", "OUTER")},
    **{(side, kind): f"left_{kind.lower()}" for side in ("", "LEFT") for kind in ("SEMI", "ANTI")},
}


@dataclass
class Reader:
    """Reads FROM, and says what the names of columns mean.

    `keys`: id of a node that is a column, or an expression computed as one -> (its Key, how many
    parts of its name say so). `results`: what else a name may mean, in HAVING: an aggregate.
    """

    text: SqlText
    inputs: Inputs
    keys: dict[int, tuple[Key, int]] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    results: Collection[str] = ()

    def tree(self, select: Any, known: Mapping[str, Any] | None = None) -> Tree:
        """The inputs of a query. `known`: common table expression -> (it, those before it)."""
        known = dict(known or {})
        if (clause := select.args.get("with_")) is not None:
            if clause.args.get("recursive"):
                raise self.text.refusal(clause, "WITH RECURSIVE is not supported; write a join")
            names = [named_query.alias.lower() for named_query in clause.expressions]
            for name, named_query in zip(names, clause.expressions, strict=True):
                if names.count(name) > 1:
                    said = f"WITH has {names.count(name)} queries called {name}; rename one"
                    raise self.text.refusal(named_query, said)
                known[name] = (named_query, dict(known))
        if select.args.get("from_") is None:
            raise self.text.refusal(select, "FROM is missing; name a stream of streams=")
        tree = self._entry(select.args["from_"].this, known)
        for join in select.args.get("joins") or ():
            tree = self._pair(tree, join, known)
        return tree

    def bound(self, node: Any, tree: Tree, leaves: list[Leaf] | None = None) -> set[str]:
        """Find the columns of an expression; the aliases that it names."""
        check_expressions(self.text, node)
        aliases = set[str]()
        for column in node.find_all(exp.Column):
            if isinstance(column.this, exp.Star):
                raise self.text.refusal(column, f"{column.table}.* is not supported here; write *")
            key, parts = self._key(column, tree, tree.visible if leaves is None else leaves)
            self.keys[id(column)] = key, parts
            aliases.add(key[0])
        return aliases

    def key(self, node: Any) -> Key | None:
        """The column that an expression is, or is computed as; None: it is an expression."""
        node = bare(node)
        key, parts = self.keys.get(id(node), (None, 0))
        whole = not isinstance(node, exp.Column) or parts == len(node.parts)
        return key if whole else None

    def spelled(
        self, node: Any, name: Callable[[Key], str], calls: Mapping[int, str] = MappingProxyType({})
    ) -> str:
        """An expression as text for predicates.

        `name(key)`: a column's name there. `calls`: id of a part -> the column that it is.
        """
        pieces = list[tuple[int, int, str]]()
        for call in node.walk() if calls else ():
            if id(call) in calls:
                pieces.append((*self.text.place(call), ticked(calls[id(call)])))
        inside = [(first, last) for first, last, _ in pieces]
        for column in node.find_all(exp.Column):
            (key, parts), first = self.keys[id(column)], column.parts[0].meta["start"]
            if any(start <= first < end for start, end in inside):
                continue
            side, _, there = name(key).rpartition("\0")
            typed = column.parts[parts - 1]
            if "end" not in typed.meta:
                said = f"{typed.name} is a word of SQL; put the column's name into double quotes"
                raise self.text.refusal(column, said)
            plain = not typed.args.get("quoted") and typed.name.lower() == there.lower()
            if parts > 1 and not side and there.lower() in keywords():
                plain = False  # allowed behind a dot, but not alone
            text = (f"{side}." if side else "") + (typed.name if plain else ticked(there))
            pieces.append((first, typed.meta["end"] + 1, text))
            fields = (part for part in column.parts[parts:] if part.args.get("quoted"))
            pieces += [(f.meta["start"], f.meta["end"] + 1, ticked(f.name)) for f in fields]
        return self.text.text_of(node, pieces)

    def compute(self, node: Any, aliases: set[str], name: str) -> Key:
        """The column that an expression over one Leaf, the one of `aliases`, is computed as."""
        (alias,) = aliases
        stream = self.streams[alias]
        with self.text.at(node):
            column = self.inputs.computed(stream, name, self.spelled(node, lambda key: key[1]))
        key = alias, column
        self.keys[id(bare(node))] = key, 0
        return key

    def add_condition(self, pair: Pair, node: Any) -> None:
        """Add a condition to a join; sides of an equality that are expressions become columns."""
        pair.on.append(node)
        if not isinstance(node, exp.EQ) or is_under(node):
            return
        sides = [{leaf.alias for leaf in tree.leaves} for tree in (pair.left, pair.right)]
        operands = [bare(node.this), bare(node.expression)]
        named = [self._aliases(operand) for operand in operands]
        across = any(
            aliases and other_aliases and aliases <= sides[n] and other_aliases <= sides[1 - n]
            for n in (0, 1)
            for aliases, other_aliases in [named]
        )
        if not across or any(called(operand) in WINDOWS for operand in operands):
            return
        hidden = pair.left.nullable | pair.right.nullable
        for operand, aliases in zip((node.this, node.expression), named, strict=True):
            if self.key(operand) is None and len(aliases) == 1 and not aliases & hidden:
                self.compute(operand, aliases, "key")

    def _aliases(self, node: Any) -> set[str]:
        return {self.keys[id(column)][0][0] for column in node.find_all(exp.Column)}

    # The entries of FROM

    def _entry(self, node: Any, known: Mapping[str, Any]) -> Tree:
        if isinstance(node, exp.Table):
            tree: Tree = self._named(node, known)
            for join in node.args.get("joins") or ():
                tree = self._pair(tree, join, known)
            return tree
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Select):
            if not node.alias:
                raise self.text.refusal(node, "a subquery needs a name; write (SELECT ..) AS name")
            return self._derived(node, node.alias, known)
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table) and not node.alias:
            tree = self._entry(node.this, known)
            for join in node.args.get("joins") or ():
                tree = self._pair(tree, join, known)
            return tree
        raise self.text.refusal(
            node, "FROM takes streams, joins, and subqueries that select from one stream"
        )

    def _named(self, node: Any, known: Mapping[str, Any]) -> Leaf:
        other = [name for name, value in node.args.items() if value]
        plain = isinstance(node.this, exp.Identifier)
        if set(other) - {"this", "alias", "joins"} or not plain:
            raise self.text.refusal(node, "FROM takes the name of a stream and an alias alone")
        name, alias = node.name, node.alias or node.name
        if name.lower() in known:
            named_query, before = known[name.lower()]
            leaf = self._derived(named_query, alias, before)
            leaf.columns = self._renamed(node, leaf.columns)
            return leaf
        names = self.inputs.names
        alike = [stream for stream in names if stream.lower() == name.lower()]
        streams = [name] if name in alike else alike
        if len(streams) != 1:
            raise self.text.refusal(
                node,
                f"stream {name!r} is unknown; the streams are {', '.join(names)}",
            )
        columns = self.inputs.columns[streams[0]]
        return self._leaf(node, alias, streams[0], {column: column for column in columns}, [])

    def _renamed(self, node: Any, columns: dict[str, str]) -> dict[str, str]:
        """The columns of an entry, under the names that its alias gives to the first of them."""
        given = _given(node)
        if len(given) > len(columns):
            said = f"{node.alias} has {len(columns)} columns, and {len(given)} names for them"
            raise self.text.refusal(node, f"{said}; leave out what is too many")
        names = [*given, *list(columns)[len(given) :]]
        self._check_names(node, names)
        return dict(zip(names, columns.values(), strict=True))

    def _check_names(self, node: Any, names: list[str]) -> None:
        """Refuse columns of one name, of which each later one would hide the one before."""
        exact = session.case_sensitive(self.inputs.spark)
        known = names if exact else [name.lower() for name in names]
        double = next((n for n, k in zip(names, known, strict=True) if known.count(k) > 1), None)
        if double is not None:
            said = f"two columns are called {double!r}; name them, with AS"
            raise self.text.refusal(node, said)

    def _leaf(
        self, node: Any, alias: str, stream: str, columns: dict[str, str], filters: list[str]
    ) -> Leaf:
        self.streams[alias] = stream
        return Leaf(alias, stream, self._renamed(node, columns), filters)

    def _derived(self, entry: Any, alias: str, known: Mapping[str, Any]) -> Leaf:
        """A query over one stream, of FROM or WITH, that selects columns and rows."""
        select = entry.this
        if not isinstance(select, exp.Select):
            raise self.text.refusal(select, "a subquery is one SELECT from one stream")
        check_clauses(self.text, select, but=("group", "having"))
        outside = dict(self.streams)  # a name inside may be that of another stream outside
        inner = self.tree(select, known)
        if isinstance(inner, Pair):
            raise self.text.refusal(
                select, "a subquery that joins is not supported; write the join without SELECT"
            )
        for node in self._where(select):
            self.bound(node, inner)
            inner.filters.append(self.filter_text(node, inner))
        items = list(self.items(select, inner, _given(entry)))
        self._check_names(select, [name for name, _, _ in items])
        columns = {
            name: (key or self.compute(node, {inner.alias}, name))[1] for name, node, key in items
        }
        self.streams = outside
        return self._leaf(entry, alias, inner.stream, columns, inner.filters)

    def _where(self, select: Any) -> list[Any]:
        where = select.args.get("where")
        return [] if where is None else conjuncts(where.this)

    def filter_text(self, node: Any, leaf: Leaf) -> str:
        """A condition on one Leaf, over the columns of its stream."""
        return self.checked(node, lambda key: key[1], (self.inputs.schema(leaf.stream),))

    def checked(self, node: Any, name: Callable[[Key], str], schemas: Sequence[pa.Schema]) -> str:
        """A condition as text, in parentheses if OR joins it. Refuses what predicates refuse."""
        text, spark = self.spelled(node, name), self.inputs.spark
        zone, exact = session.zone(spark), session.case_sensitive(spark)
        with self.text.at(node):
            compile_predicate(text, schemas, "a condition", zone, exact=exact)
        return f"({text})" if isinstance(node, exp.Or) else text

    def items(
        self, select: Any, tree: Tree, given: Sequence[str] = ()
    ) -> Iterator[tuple[str, Any, Key | None]]:
        """Yields (name, expression, Key if it is a column) of each column that a query selects.

        `given`: the names that the first columns get elsewhere, and may lack here.
        """
        count = 0
        for item in select.expressions:
            node = item.this if isinstance(item, exp.Alias) else item
            if isinstance(node, exp.Star) or isinstance(getattr(node, "this", None), exp.Star):
                star = node if isinstance(node, exp.Star) else node.this
                if any(star.args.values()):
                    raise self.text.refusal(star, "* takes no EXCEPT or REPLACE; name the columns")
                for shown, name in self._all(node, tree):
                    count += 1
                    yield name, node, shown
                continue
            self.bound(node, tree)
            key = self.key(node)
            name = item.alias if isinstance(item, exp.Alias) else bare(node).name if key else ""
            name, count = name or "".join(given[count : count + 1]), count + 1
            if not name:
                raise self.text.refusal(node, "an expression needs a name; write .. AS name")
            yield name, node, key

    def _all(self, node: Any, tree: Tree) -> Iterator[tuple[Key, str]]:
        """The columns that a star stands for."""
        alias = node.table if isinstance(node, exp.Column) else ""
        leaves = [leaf for leaf in tree.visible if not alias or leaf.alias.lower() == alias.lower()]
        if not leaves:
            raise self._no_alias(node, alias, tree.visible)
        for leaf in leaves:
            for name, column in leaf.columns.items():
                if not alias and merged(tree, (leaf.alias, column), name):
                    continue
                self.inputs.use(leaf.stream, column)
                yield (leaf.alias, column), name

    def _pair(self, left: Tree, join: Any, known: Mapping[str, Any]) -> Pair:
        args = join.args
        method, side = args.get("method") or "", (args.get("side") or "").upper()
        kind = _KINDS.get((side, (args.get("kind") or "").upper()))
        closest = method.upper() == "ASOF"
        if kind is None or (method and not closest) or (closest and kind not in ("inner", "left")):
            shown = " ".join(filter(None, (method, side, args.get("kind"))))
            raise self.text.refusal(
                join,
                f"{shown} JOIN is not supported; write JOIN, LEFT, RIGHT, FULL, SEMI or ANTI JOIN, "
                "ASOF JOIN or ASOF LEFT JOIN",
            )
        if (args.get("kind") or "").upper() == "CROSS" and args.get("on") is not None:
            raise self.text.refusal(join, "CROSS JOIN takes no ON; write JOIN")
        right = self._entry(join.this, known)
        pair = Pair(left, right, kind, join, closest)
        both = [leaf.alias.lower() for leaf in pair.leaves]
        if len(set(both)) < len(both):
            raise self.text.refusal(
                join.this, f"{right.leaves[0].alias} is the name of two entries; write AS"
            )
        for name in args.get("using") or ():
            column = exp.Column(this=name)
            keys = [self._key(column, tree, tree.visible)[0] for tree in (left, right)]
            pair.using[name.name.lower()] = keys[0], keys[1]
        for node in conjuncts(args["on"]) if args.get("on") is not None else ():
            self.bound(node, pair, [*left.visible, *right.visible])
            self.add_condition(pair, node)
        return pair

    # The names of columns

    def _key(self, column: Any, tree: Tree, leaves: list[Leaf]) -> tuple[Key, int]:
        parts = [part.name for part in column.parts]
        exact = session.case_sensitive(self.inputs.spark)

        def there(leaf: Leaf, name: str) -> str | None:
            same = [
                n for n in leaf.columns if n == name or (not exact and n.lower() == name.lower())
            ]
            return same[0] if same else None

        owner = [leaf for leaf in leaves if leaf.alias.lower() == parts[0].lower()]
        if owner and len(parts) > 1:
            name = there(owner[0], parts[1])
            if name is None:
                raise self.text.refusal(
                    column,
                    f"column {parts[1]!r} of {owner[0].alias} does not exist; its columns are "
                    f"{', '.join(owner[0].columns)}{meant(parts[1], owner[0].columns)}",
                )
            self._check_using(column, tree, owner[0], name)
            return self._used(owner[0], name), 2
        matching = [(leaf, name) for leaf in leaves if (name := there(leaf, parts[0])) is not None]
        matching = [
            (leaf, n) for leaf, n in matching if not merged(tree, (leaf.alias, leaf.columns[n]), n)
        ]
        if len(matching) == 1:
            return self._used(*matching[0]), 1
        results = {name.lower(): name for name in (*self.results, *EDGES)}
        if not matching and parts[0].lower() in results and len(parts) == 1:
            return ("", results[parts[0].lower()]), 1
        if matching:
            aliases = ", ".join(leaf.alias for leaf, _ in matching)
            raise self.text.refusal(
                column,
                f"column {parts[0]!r} is in {aliases}; write {matching[0][0].alias}.{parts[0]}",
            )
        if len(parts) > 1:
            raise self._no_alias(column, parts[0], leaves)
        known = list(dict.fromkeys(name for leaf in leaves for name in leaf.columns))
        raise self.text.refusal(
            column,
            f"column {parts[0]!r} does not exist; the columns are {', '.join(known)}"
            f"{meant(parts[0], known)}",
        )

    def _used(self, leaf: Leaf, name: str) -> Key:
        self.inputs.use(leaf.stream, leaf.columns[name])
        return leaf.alias, leaf.columns[name]

    def _no_alias(self, node: Any, name: str, leaves: list[Leaf]) -> InvalidRequest:
        known = ", ".join(leaf.alias for leaf in leaves)
        return self.text.refusal(node, f"{name!r} names no entry of FROM; the entries are {known}")

    def _check_using(self, node: Any, tree: Tree, leaf: Leaf, name: str) -> None:
        """Refuse a side's own column where USING has made one of both, which may differ."""
        while isinstance(tree, Pair):
            inside = tree.left if leaf in tree.left.leaves else tree.right
            merged = name.lower() in tree.using
            own = tree.how == "inner" or (inside is tree.left and tree.how.startswith("left"))
            if merged and not own:
                raise self.text.refusal(
                    node,
                    f"USING has made one column of {name!r}; write {name} without {leaf.alias}",
                )
            tree = inside


def _given(entry: Any) -> list[str]:
    """The names of columns in the alias of an entry: a(x, y)."""
    alias = entry.args.get("alias")
    return [column.name for column in (alias and alias.args.get("columns")) or ()]
