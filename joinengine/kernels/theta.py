"""Any SQL predicate over candidate pairs, evaluated by DuckDB a chunk at a time.

Why DuckDB: a predicate is SQL, and an engine that evaluates SQL in vectors is there. It is shut
in: no files, no network, no other tables, one thread, and only operators that mean the same in
Spark (docs/predicates.md); subqueries, aggregates, windows and functions outside that list are
refused when the join is built.

Cost: about 12 ns a pair for a comparison, in chunks of 2^18 pairs.
"""

from __future__ import annotations

import atexit
import json
import re
from collections.abc import Sequence
from datetime import date
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints
from joinengine.model.conditions import Predicate
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side

#: Kinds of expressions, as DuckDB's syntax tree names them.
EXPRESSIONS = {
    *("COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CASE"),
    "FUNCTION",
}
#: Functions and operators that are functions; `~~` and `!~~` are LIKE and NOT LIKE.
FUNCTIONS = {
    *("+", "-", "*", "/", "%", "||", "~~", "!~~"),
    *("abs", "greatest", "least", "lower", "upper", "length", "contains", "year", "month", "day"),
}
_SETTINGS = {"threads": "1", "enable_external_access": "false", "lock_configuration": "true"}
_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\b(left|right)\s*\.""", re.IGNORECASE)


def holds(
    predicate: Predicate,
    batches: tuple[pa.RecordBatch, pa.RecordBatch],
    rows: tuple[Ints, Ints],
) -> NDArray[np.bool_]:
    """(n,) whether a predicate is true of left row rows[0][i] and right row rows[1][i]."""
    taken = (pa.array(rows[0]), pa.array(rows[1]))
    arrays = [batches[side].column(name).take(taken[side]) for side, name in predicate.columns]
    return _evaluated(predicate, arrays or [pa.nulls(len(rows[0]), pa.int8())])


def passes(predicate: Predicate, batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """(n,) whether a predicate over one side is true of the rows of `batch`."""
    arrays = [batch.column(name) for _, name in predicate.columns]
    return _evaluated(predicate, arrays or [pa.nulls(batch.num_rows, pa.int8())])


def _evaluated(predicate: Predicate, arrays: list[pa.Array]) -> NDArray[np.bool_]:
    here = engine()
    here.register("pairs", pa.table(arrays, names=[f"c{i}" for i in range(len(arrays))]))
    found = here.sql(predicate.sql).to_arrow_table().column(0)
    here.unregister("pairs")
    return np.asarray(found.fill_null(False).to_numpy(), bool)


def compile_predicate(text: str, schemas: tuple[pa.Schema, pa.Schema], what: str) -> Predicate:
    """The predicate `text` over columns of two sides; `left.` and `right.` where both have a name.

    Raises InvalidRequest, naming the argument `what`, for a text that is no predicate, columns
    that are not there or on both sides, and whatever is not among the operators that are served.
    """
    columns = list[tuple[Side, str]]()
    sql = resolved_sql(parsed(text, what), schemas, columns, text, what)
    kind = type_of(sql, schemas, columns, text, what)
    if str(kind) != "BOOLEAN":
        raise InvalidRequest(f"{what}: {text!r} is of type {kind}, not a predicate")
    return Predicate(text, f"{sql} from pairs", tuple(columns))


def resolved_sql(
    tree: Any,
    schemas: tuple[pa.Schema, pa.Schema],
    columns: list[tuple[Side, str]],
    text: str,
    what: str,
) -> str:
    """A syntax tree as `select ...` over c0, c1, ..; `columns` learns what these are.

    Raises InvalidRequest for what is not among the operators that are served.
    """
    for node in _nodes(tree["statements"][0]["node"]["select_list"]):
        kind, name = node.get("class"), node.get("function_name")
        if kind == "TYPE" or _is_date(node, f"{what}: {text!r}"):
            continue
        if kind not in EXPRESSIONS or (kind == "FUNCTION" and name not in FUNCTIONS):
            raise InvalidRequest(
                f"{what}: {name or str(kind).lower()} in {text!r} is not served; "
                f"docs/predicates.md lists what is"
            )
        if kind == "COLUMN_REF":
            column = _resolved(node["column_names"], schemas, what)
            if column not in columns:
                columns.append(column)
            node["column_names"] = [f"c{columns.index(column)}"]
    found = engine().execute("select json_deserialize_sql(?)", [json.dumps(tree)]).fetchall()
    return str(found[0][0])


def type_of(
    sql: str,
    schemas: tuple[pa.Schema, pa.Schema],
    columns: Sequence[tuple[Side, str]],
    text: str,
    what: str,
) -> Any:
    """DuckDB's type of a select over c0, c1, .. Raises InvalidRequest where it has none."""
    fields = [
        schemas[side].field(name).with_name(f"c{i}") for i, (side, name) in enumerate(columns)
    ]
    here = engine()
    here.register("pairs", pa.schema(fields or [pa.field("c0", pa.int8())]).empty_table())
    try:
        return here.sql(f"{sql} from pairs").types[0]
    except duckdb.Error as error:
        raise InvalidRequest(f"{what}: {text!r}: {_first_line(error)}") from None
    finally:
        here.unregister("pairs")


def parsed(text: str, what: str) -> Any:
    """The syntax tree of `select (text)`, and nothing but that."""
    quoted = _TOKENS.sub(
        lambda match: f'"{match[1].lower()}".' if match[1] else match[0], text.strip()
    )
    row = engine().execute("select json_serialize_sql(?)", [f"select ({quoted})"]).fetchall()[0]
    tree = json.loads(row[0])
    if tree.get("error"):
        raise InvalidRequest(f"{what}: {text!r} is no predicate: {tree['error_message']}")
    node = tree["statements"][0]["node"]
    plain = node["type"] == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY"
    if len(tree["statements"]) != 1 or not plain or len(node["select_list"]) != 1:
        raise InvalidRequest(f"{what}: {text!r} is no single predicate")
    return tree


def _nodes(tree: Any) -> list[dict[str, Any]]:
    """The expressions of a tree."""
    if isinstance(tree, list):
        return [node for part in tree for node in _nodes(part)]
    if not isinstance(tree, dict):
        return []
    here = [tree] if "class" in tree else []
    return here + [node for part in tree.values() for node in _nodes(part)]


def _resolved(
    names: Sequence[str], schemas: tuple[pa.Schema, pa.Schema], what: str
) -> tuple[Side, str]:
    """The column that a reference means."""
    column = names[-1]
    sides = list(Side)
    if len(names) > 1:
        if len(names) != 2 or names[0].lower() not in ("left", "right"):
            raise InvalidRequest(f"{what}: {'.'.join(names)}: say left.{column} or right.{column}")
        sides = [Side.LEFT if names[0].lower() == "left" else Side.RIGHT]
    found = [
        (side, name)
        for side in sides
        for name in schemas[side].names
        if name.lower() == column.lower()
    ]
    if not found:
        known = ", ".join(name for side in sides for name in schemas[side].names)
        raise InvalidRequest(f"{what}: column {'.'.join(names)!r} is not there; there are {known}")
    if len(found) > 1:
        raise InvalidRequest(
            f"{what}: column {column!r} is on both sides: say left.{column} or right.{column}"
        )
    return found[0]


def _is_date(node: dict[str, Any], what: str) -> bool:
    """Whether a cast is a constant of type date: `date '2024-02-29'`.

    Raises InvalidRequest where that is no date: evaluated later it would end a running query.
    """
    target = str(node.get("type_expr", {}).get("type_name", "")).lower()
    child = node.get("child", {})
    if node.get("class") != "CAST" or target != "date" or child.get("class") != "CONSTANT":
        return False
    written = str(child.get("literal", {}).get("text"))
    try:
        date.fromisoformat(written)
    except ValueError:
        raise InvalidRequest(f"{what}: {written!r} is no date; write date '2024-02-29'") from None
    return True


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


@cache
def engine() -> duckdb.DuckDBPyConnection:
    """One per process."""
    opened = duckdb.connect(config=_SETTINGS)
    atexit.register(_close, opened)
    return opened


def _close(opened: duckdb.DuckDBPyConnection) -> None:
    engine.cache_clear()
    opened.close()
