"""The dialect of predicates and expressions: Spark's SQL, translated into DuckDB's SQL.

DuckDB's parser gives a syntax tree. Its columns are resolved, and casts and functions get the form
that means in DuckDB what they mean in Spark. Everything that is not on the lists below
(docs/predicates.md) is refused at once: subqueries, aggregates, windows, other functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import duckdb
import pyarrow as pa

from joinengine.model.conditions import Predicate
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.texts import in_a_line, quoted
from joinengine.predicates.engine import (
    EPOCHS,
    FORMS,
    INSTEAD,
    MATCHES,
    PATTERNS,
    engine,
    form,
    over,
    reason_of,
)
from joinengine.predicates.interval_constants import INTERVALS, check_constant, settle_sum
from joinengine.predicates.names import resolve
from joinengine.predicates.nesting import check_brackets, check_said, check_written, shallow
from joinengine.predicates.patterns import (
    check_extracted,
    check_replaced,
    in_re2,
    replacement_in_re2,
)
from joinengine.predicates.precedence import check_precedence
from joinengine.predicates.syntax import (
    arguments_of,
    compared,
    is_match,
    is_number,
    is_text,
    may_be_text,
    must_be_text,
    nodes_of,
    of_expression,
    selecting,
    sql_of,
    truncated,
)
from joinengine.predicates.tokens import in_duckdb

#: Kinds of expressions, as DuckDB's syntax tree names them.
EXPRESSIONS = {
    *("COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CASE"),
    *("FUNCTION", "CAST"),
}
#: DuckDB's operators that mean the same in Spark. Indexing a list is left out: `tags[1]` is the
#: first element in DuckDB and the second in Spark.
OPERATORS = {
    *("OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE"),
    *("COMPARE_IN", "COMPARE_NOT_IN"),
}
#: Functions and operators that are functions; `~~`, `!~~`, `~~*` are LIKE, NOT LIKE and ILIKE.
FUNCTIONS = {
    *("+", "-", "*", "&", "|", "~", "||", "~~", "!~~", "~~*", "!~~*"),
    *("abs", "greatest", "least", "floor", "ceil", "ceiling", "round", "sqrt", "exp"),
    *("power", "pow", "sin", "cos", "tan", "atan", "radians", "degrees", "pi"),
    *("lower", "upper", "length", "char_length", "contains", "instr", "position"),
    *("replace", "repeat", "ascii"),
    *("nullif", "if", "year", "quarter", "month", "day", "hour", "minute", "second"),
    *("dayofyear", "weekofyear", "last_day", "date_part", "date_trunc"),
    *FORMS,
}
#: Functions whose first argument is one of a few words: the words of each.
_UNITS = {
    "date_part": {"year", "quarter", "month", "day", "hour", "minute"},
    "date_trunc": {"year", "quarter", "month", "week", "day", "hour", "minute", "second"},
}
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_INSTANT = "TIMESTAMP WITH TIME ZONE"
#: Spark's names of the types to which a cast is served; timestamps mean what Spark means by them.
_TYPES = {
    **{name: "TINYINT" for name in ("tinyint", "byte")},
    **{name: "SMALLINT" for name in ("smallint", "short")},
    **{name: "INTEGER" for name in ("integer", "int")},
    **{name: "BIGINT" for name in ("bigint", "long")},
    **{name: _INSTANT for name in ("timestamp", "timestamp_ltz", _INSTANT.lower())},
    **{name: "VARCHAR" for name in ("varchar", "string")},
    **{name: name.upper() for name in ("double", "decimal", "boolean", "date", "interval")},
    "timestamp_ntz": "TIMESTAMP",
}
_TIMES = {"DATE", "TIMESTAMP", _INSTANT}
#: Types whose values Spark and DuckDB write differently.
_UNWRITTEN = {"DOUBLE", "FLOAT", "INTERVAL", *_TIMES - {"DATE"}}
#: Functions that take arguments of some types only -> whether a type is one of them.
_TYPED: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("||", "concat"), lambda kind: kind not in _UNWRITTEN),
    **dict.fromkeys(("date_add", "date_sub"), lambda kind: _kind(kind) in ("DATE", "INTEGER")),
    **dict.fromkeys((*EPOCHS, "date_from_unix_date"), lambda kind: _kind(kind) == "INTEGER"),
}
#: Kind of type -> kinds that can be cast to it with the same result as in Spark.
_CASTS = {
    **{kind: {"INTEGER", "DECIMAL", "DOUBLE", "BOOLEAN"} for kind in ("INTEGER", "DOUBLE")},
    "DECIMAL": {"INTEGER", "DECIMAL"},
    "BOOLEAN": {"INTEGER", "BOOLEAN"},
    "VARCHAR": {"VARCHAR", "INTEGER", "DECIMAL", "BOOLEAN", "DATE"},
    **{kind: _TIMES for kind in _TIMES},
}
#: A type of numbers below 1.
_FRACTION = re.compile(r"DECIMAL\((\d+),\1\)")
#: DuckDB's complaint about the number of arguments of one of FORMS.
_MACRO = re.compile(r"Macro spark_(\w+)\(\) does not support the supplied arguments")
#: What may follow the escape character in a pattern.
_PATTERN = re.compile(r"(?:[^\\]|\\[%_\\])*", re.DOTALL)


def compile_predicate(
    text: str, schemas: Sequence[pa.Schema], what: str, zone: str = "UTC", *, exact: bool = False
) -> Predicate:
    """The predicate `text` over two sides; a column of both needs `left.` or `right.` before it.

    `schemas`: those of both sides, or one schema for rows without sides. `zone`: the time zone in
    which instants have dates and hours. `exact`: whether the case of column names matters.

    Raises InvalidRequest, which names the argument `what`, if the text is not a predicate, if a
    column is missing or on both sides, and for every expression that is not served.
    """
    reading = Translation(text, schemas, what, zone, exact=exact)
    sql, kind = reading.select(parsed(text, what))
    if kind != "BOOLEAN":
        raise InvalidRequest(
            f"{what}: expected a predicate, found {quoted(text)} of type {kind}; "
            "compare it with something"
        )
    return Predicate(text, f"{sql} from pairs", tuple(reading.columns), zone)


def parsed(text: str, what: str) -> Any:
    """The syntax tree of `select (text)`, and nothing but that."""
    try:
        check_precedence(text)
        inside = in_duckdb(text.strip())
    except ValueError as error:
        raise InvalidRequest(f"{what}: {quoted(text)}: {error}") from None
    check_brackets(inside, what, text)
    row = engine().execute("select json_serialize_sql(?)", [f"select ({inside})"]).fetchall()[0]
    with shallow(what, text):
        tree = json.loads(row[0])
    if tree.get("error"):
        why = in_a_line(tree["error_message"])
        check_said(why, what, text)
        if tree.get("position") == str(len(f"select ({inside}".encode())):
            why = "it ends before it is complete"
        else:
            why += " (a column name that is an SQL keyword needs backticks, such as `at`)"
        raise InvalidRequest(f"{what}: {quoted(text)} is not a valid predicate: {why}")
    node = tree["statements"][0]["node"]
    plain = node["type"] == "SELECT_NODE" and node["from_table"]["type"] == "EMPTY"
    if len(tree["statements"]) != 1 or not plain or len(node["select_list"]) != 1:
        raise InvalidRequest(f"{what}: expected a single predicate, found {quoted(text)}")
    return tree


@dataclass(slots=True)
class Translation:
    """A text being read: `columns` collects the columns that it names, as c0, c1, .."""

    text: str
    schemas: Sequence[pa.Schema]
    what: str
    zone: str
    columns: list[tuple[Side, str]] = field(default_factory=list)
    exact: bool = False

    def select(self, tree: Any) -> tuple[str, str]:
        """A syntax tree as (`SELECT ...` over c0, c1, .., DuckDB's type of it).

        Raises InvalidRequest for expressions that are not served, and for types that do not fit.
        """
        with shallow(self.what, self.text):
            check_written(tree, self.what, self.text)
            for expression in tree["statements"][0]["node"]["select_list"]:
                self._settle(expression, tree)
            sql = sql_of(tree)
        return sql, self._type_of(sql)

    def empty(self) -> pa.Table:
        """A table of the columns c0, c1, .. without rows."""
        fields = [
            pa.field(f"c{i}", evaluated_type(self.schemas[side].field(name).type))
            for i, (side, name) in enumerate(self.columns)
        ]
        return pa.schema(fields or [pa.field("c0", pa.int8())]).empty_table()

    def _settle(self, node: Any, tree: Any) -> None:
        """Give `node`, and every expression below it, the form that DuckDB is to evaluate."""
        if isinstance(node, list):
            for part in node:
                self._settle(part, tree)
        if not isinstance(node, dict) or node.get("class") == "TYPE":
            return
        name, kind = node.get("function_name"), node.get("class")
        if name in INTERVALS:
            self._check_interval(node)
            return
        for part in node.values():
            self._settle(part, tree)
        if kind is None:
            return
        if name == "~~~" and is_match(node):
            node["function_name"] = name = "rlike"
        if kind not in EXPRESSIONS or (kind == "FUNCTION" and name not in FUNCTIONS):
            raise self._refusal(name or str(kind).lower())
        if kind == "OPERATOR" and node["type"] not in OPERATORS:
            raise self._refusal(str(node["type"]).lower())
        self._check_compared(compared(node), tree)
        if kind == "COLUMN_REF":
            self._settle_column(node)
        elif kind == "CAST":
            self._settle_cast(node, tree)
        elif kind == "FUNCTION":
            self._settle_function(node, tree)

    def _check_compared(self, operands: list[dict[str, Any]], tree: Any) -> None:
        """Refuse a number beside a text that DuckDB would round to the number's type."""
        types = [self.schemas[side].field(name).type for side, name in self.columns]
        if not any(may_be_text(part, types) for part in operands):
            return  # asking for a type takes longer than everything else
        kinds = [
            "VARCHAR" if must_be_text(part, types) else self._type_of(sql_of(selecting(tree, part)))
            for part in operands
        ]
        self._check_bytes(kinds)
        others = [kind for part, kind in zip(operands, kinds, strict=True) if "literal" not in part]
        numbers = [kind for kind in kinds if _kind(kind) in ("INTEGER", "DECIMAL")]
        if numbers and "VARCHAR" in others:
            raise self._refusal(f"{numbers[0]} beside a text of any value (cast it to string)")
        texts = [str(part["literal"]["text"]) for part in operands if is_text(part)]
        for text, kind in product(texts, (kind for kind in others if kind in numbers)):
            if not is_number(text, kind):
                raise self._refusal(f"a value of type {kind} beside the text {text!r}")

    def _check_bytes(self, kinds: list[str]) -> None:
        # In a text beside bytes, DuckDB reads and writes escapes such as \xFF.
        if {"VARCHAR", "BLOB"} <= set(kinds):
            raise self._refusal("text beside bytes (write bytes as X'61')")

    def _settle_function(self, node: dict[str, Any], tree: Any) -> None:
        name = node["function_name"]
        arguments = arguments_of(node)
        typed = arguments if name in _TYPED else []
        kinds = [self._type_of(sql_of(selecting(tree, argument))) for argument in typed]
        self._check_bytes(kinds)
        for kind in kinds:
            if not _TYPED[name](kind):
                raise self._refusal(f"{name} of {kind.lower()}")
        if (
            name == "round" and len(arguments) > 1
        ):  # Spark and DuckDB round 2.675 to two digits differently
            raise self._refusal("round to digits")
        if name in _UNITS:
            first = arguments[0] if arguments else {}
            unit = str(first.get("literal", {}).get("text", "an expression that is not constant"))
            if unit.lower() not in _UNITS[name]:
                raise self._refusal(f"{name} of {unit.lower()}")
        if name in ("+", "-"):
            types = [self.schemas[side].field(column).type for side, column in self.columns]
            settle_sum(
                node, types, lambda p: self._type_of(sql_of(selecting(tree, p))), self._refusal
            )
            return
        if name in MATCHES:
            self._settle_match(name, arguments)
        if name in PATTERNS and self._is_plain_pattern(arguments[1]):
            return
        if name in FORMS:
            node["function_name"] = form(name)
            node["is_operator"] = False
            node["qualified_name"] = {"path": [form(name)]}

    def _settle_match(self, name: str, arguments: list[dict[str, Any]]) -> None:
        """Give a pattern and its replacement the form that RE2 reads."""
        if len(arguments) not in MATCHES[name]:
            raise self._refusal(f"{name} with {len(arguments)} arguments")
        literals = [argument.get("literal", {"kind": "NULL_LITERAL"}) for argument in arguments[1:]]
        if any(literal["kind"] == "NULL_LITERAL" for literal in literals):
            raise self._refusal(f"{name} with a pattern or group that is not constant")
        written, *others = (str(literal["text"]) for literal in literals)
        try:
            pattern = in_re2(written)
            arguments[1]["literal"]["text"] = pattern.text
            if name == "regexp_replace":
                check_replaced(pattern)
                arguments[2]["literal"]["text"] = replacement_in_re2(others[0], pattern.groups)
            elif name == "regexp_extract":
                check_extracted(pattern, others[0] if others else "1")
        except ValueError as error:
            raise InvalidRequest(
                f"{self.what}: the regular expression {quoted(written)} in {quoted(self.text)} is "
                f"not supported: found {error} (docs/predicates.md)"
            ) from None

    def _is_plain_pattern(self, pattern: dict[str, Any]) -> bool:
        """Whether a pattern is a constant without escapes; refuses escapes of other letters."""
        if pattern.get("class") != "CONSTANT":
            return False
        written = str(pattern["literal"].get("text", ""))
        if not _PATTERN.fullmatch(written):
            raise InvalidRequest(
                f"{self.what}: the escape character \\ must precede %, _ or \\, but pattern "
                f"{quoted(written)} in {quoted(self.text)} has another character there. To match a "
                f"backslash, write \\\\, or \\\\\\\\ in a text constant"
            )
        return "\\" not in written

    def _settle_cast(self, node: dict[str, Any], tree: Any) -> None:
        """Refuse casts that Spark does differently; cut numbers to whole ones, as Spark does."""
        written = str(node["type_expr"].get("type_name", "")).lower()
        target = _TYPES.get(written)
        child = node["child"]
        constant = child["literal"].get("text") if child.get("class") == "CONSTANT" else None
        source = self._type_of(sql_of(selecting(tree, child)))
        if target in (*_TIMES, "INTERVAL") and source == "VARCHAR" and constant is not None:
            check_constant(str(constant), str(target), self.what)
        elif target is None or _kind(source) not in ('"NULL"', *_CASTS.get(_kind(target), ())):
            raise self._refusal(f"a cast from {source.lower()} to {written}")
        if target == "DECIMAL" and not node["type_expr"].get("children"):
            raise self._refusal("a cast to decimal without precision and scale")
        if target == "VARCHAR" and _FRACTION.fullmatch(source):  # DuckDB writes .5 for 0.5
            raise self._refusal(f"a cast from {source.lower()} to {written}")
        if target in _INTEGERS and _kind(source) in ("DECIMAL", "DOUBLE"):
            node["child"] = truncated(child)
        node["type_expr"] |= {"type_name": target, "qualified_name": {"path": [target]}}

    def _check_interval(self, node: dict[str, Any]) -> None:
        inner = [part for part in nodes_of(node) if part["class"] not in ("CAST", "TYPE")]
        constants = [p["literal"].get("text", "") for p in inner if p["class"] == "CONSTANT"]
        if node["function_name"] != "to_seconds" and any("." in str(text) for text in constants):
            raise self._refusal("an interval of a fraction")
        if any(p["class"] != "CONSTANT" and p.get("function_name") != "trunc" for p in inner[1:]):
            raise self._refusal("an interval of an expression that is not constant")

    def _refusal(self, refused: str) -> InvalidRequest:
        usual = "Compute it before the query, or use an expression that docs/predicates.md lists"
        advice = INSTEAD.get(refused, usual)
        return InvalidRequest(
            f"{self.what}: {refused} in {quoted(self.text)} is not supported. {advice}"
        )

    def _type_of(self, sql: str) -> str:
        """DuckDB's type of a select over c0, c1, .., tried on a row of NULLs.

        Raises InvalidRequest if the select has no type, or holds a constant that cannot be read and
        would stop the query in a batch.
        """
        row = pa.Table.from_pylist([{}], self.empty().schema)
        try:
            with over("pairs", row, self.zone) as database:
                answer = database.sql(f"{sql} from pairs")
                answer.fetchall()
                return str(answer.types[0])
        except duckdb.Error as error:
            first = reason_of(error)
            check_said(first, self.what, self.text)
            if (called := _MACRO.search(first)) is not None:
                raise self._refusal(f"{called[1]} with these arguments") from None
            raise InvalidRequest(f"{self.what}: {quoted(self.text)}: {first}") from None

    def _settle_column(self, node: dict[str, Any]) -> None:
        """Rename a column to c0, c1, ..; a field of it keeps its path below that name."""
        reference = resolve(node["column_names"], self.schemas, self.what, exact=self.exact)
        column = reference.side, reference.column
        if column not in self.columns:
            self.columns.append(column)
        node["column_names"] = [f"c{self.columns.index(column)}", *reference.path]
        if reference.path and evaluated_type(reference.kind) != reference.kind:
            widened = of_expression("cast(c0 as double)") | {"child": dict(node)}
            node.clear()
            node.update(widened)


def evaluated_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is evaluated; floats as doubles, as Spark widens them."""
    return pa.float64() if pa.types.is_floating(kind) else kind


def _kind(name: str) -> str:
    if name in _INTEGERS:
        return "INTEGER"
    return "DECIMAL" if name.startswith("DECIMAL") else name
