"""Syntax trees of DuckDB's parser, as JSON: their parts, and how they are written again."""

from __future__ import annotations

import json
from typing import Any

from joinengine.predicates.engine import engine
from joinengine.predicates.tokens import MATCH


def arguments_of(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of a call; before DuckDB knew named arguments, they were its children."""
    named = [argument["expression"] for argument in node.get("arguments", ())]
    return named or list(node.get("children", ()))


def compared(node: dict[str, Any]) -> list[dict[str, Any]]:
    """What stands side by side in one type; none: it is another expression.

    The operands of a comparison, of BETWEEN, of IN or of coalesce.
    """
    if node.get("class") in ("COMPARISON", "BETWEEN"):
        names = ("left", "right", "input", "lower", "upper")
        return [node[name] for name in names if isinstance(node.get(name), dict)]
    if node.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_COALESCE"):
        return list(node["children"])
    return []


def sql_of(tree: Any) -> str:
    """The text of a tree."""
    rows = engine().execute("select json_deserialize_sql(?)", [json.dumps(tree)]).fetchall()
    return str(rows[0][0])


def selecting(tree: Any, expression: Any) -> Any:
    """The same tree with another expression."""
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
