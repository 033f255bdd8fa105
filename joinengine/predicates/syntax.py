"""Syntax trees of DuckDB's parser, as JSON: finds their parts, and turns them back into text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from joinengine.predicates.engine import engine, form
from joinengine.predicates.tokens import MATCH

#: A number as text, and its digits after the point.
_NUMBER = re.compile(r"[+-]?\d+(?:\.(\d+))?")
#: Functions whose result is one of their arguments.
_CHOOSING = {"nullif", "nvl", form("nvl"), "greatest", "least"}
#: Operators whose results are never text; of numbers, they are numbers.
OF_NUMBERS = {"+", "-", "*", form("/"), form("%")}


def arguments_of(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arguments of a call; DuckDB versions without named arguments call them children."""
    named = [argument["expression"] for argument in node.get("arguments", ())]
    return named or list(node.get("children", ()))


def compared(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The operands that an expression brings to one type; empty: it is another expression.

    These are the operands of a comparison, of BETWEEN, of IN, and of a sum with a text; and the
    values of `chosen`.
    """
    if node.get("class") in ("COMPARISON", "BETWEEN"):
        names = ("left", "right", "input", "lower", "upper")
        return [node[name] for name in names if isinstance(node.get(name), dict)]
    if node.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN"):
        return list(node["children"])
    if node.get("function_name") in ("+", "-") and any(map(is_text, arguments_of(node))):
        return arguments_of(node)
    return chosen(node)


def chosen(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The values from which an expression chooses one; empty: it is another expression."""
    if node.get("class") == "CASE":
        return [*(check["then_expr"] for check in node["case_checks"]), node["else_expr"]]
    if node.get("type") == "OPERATOR_COALESCE":
        return list(node["children"])
    name = node.get("function_name")
    if name == "if":
        return arguments_of(node)[1:]
    return arguments_of(node) if name in _CHOOSING else []


def is_text(operand: Mapping[str, Any]) -> bool:
    """Whether an operand is a text constant."""
    return operand.get("class") == "CONSTANT" and operand["literal"]["kind"] == "STRING"


def is_number(text: str, kind: str) -> bool:
    """Whether a text is a number that a type of whole numbers or decimals has, with all digits.

    >>> is_number("1.5", "DECIMAL(9,2)"), is_number("1.5", "BIGINT"), is_number("x", "BIGINT")
    (True, False, False)
    """
    number = _NUMBER.fullmatch(text)
    scale = int(kind.split(",")[1][:-1]) if kind.startswith("DECIMAL") else 0
    return number is not None and len(number[1] or "") <= scale


def may_be_text(operand: Mapping[str, Any], types: Sequence[pa.DataType]) -> bool:
    """Whether an operand may be text, judged by its form; `types`: of columns c0, c1, .."""
    if operand.get("class") == "CONSTANT":
        return is_text(operand)
    if operand.get("class") == "COLUMN_REF" and len(operand["column_names"]) == 1:
        return str(types[int(operand["column_names"][0][1:])]).endswith("string")
    if values := chosen(operand):
        return any(may_be_text(value, types) for value in values)
    return operand.get("function_name") not in OF_NUMBERS


def must_be_text(operand: Mapping[str, Any], types: Sequence[pa.DataType]) -> bool:
    """Whether the form of an operand says that it is text."""
    if values := chosen(operand):
        return all(must_be_text(value, types) for value in values)
    is_plain = operand.get("class") == "CONSTANT" or len(operand.get("column_names", ())) == 1
    return is_plain and may_be_text(operand, types)


def sql_of(tree: Any) -> str:
    """The text of a tree."""
    rows = engine().execute("select json_deserialize_sql(?)", [json.dumps(tree)]).fetchall()
    return str(rows[0][0])


def selecting(tree: Any, expression: Any) -> Any:
    """The tree of a SELECT with another expression."""
    (statement,) = tree["statements"]
    node = statement["node"] | {"select_list": [expression]}
    return tree | {"statements": [statement | {"node": node}]}


def of_expression(expression: str) -> dict[str, Any]:
    """The syntax tree of an expression in DuckDB's SQL."""
    text = f"select {expression}"
    row = engine().execute("select json_serialize_sql(?)", [text]).fetchall()[0]
    (tree,) = json.loads(row[0])["statements"][0]["node"]["select_list"]
    return dict(tree)


def is_match(node: dict[str, Any]) -> bool:
    """Whether GLOB stands for the operator RLIKE; its pattern loses the mark that says so."""
    literal = arguments_of(node)[1].get("literal", {})
    written = str(literal.get("text", ""))
    if not written.startswith(MATCH):
        return False
    literal["text"] = written.removeprefix(MATCH)
    return True


def truncated(argument: dict[str, Any]) -> dict[str, Any]:
    """A call of `trunc` as DuckDB's parser writes it."""
    call = of_expression("trunc(1)")
    if "arguments" in call:
        call["arguments"][0]["expression"] = argument
    else:
        call["children"] = [argument]
    return call


def nodes_of(tree: Any) -> list[dict[str, Any]]:
    """The expressions of a tree."""
    if isinstance(tree, list):
        return [node for part in tree for node in nodes_of(part)]
    if not isinstance(tree, dict):
        return []
    nodes = [tree] if "class" in tree else []
    return nodes + [node for part in tree.values() for node in nodes_of(part)]
