"""The parts that the accounts of operators have in common."""

from __future__ import annotations

import base64
import re
from ast import literal_eval
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from joinengine.model.keys import Side
from joinengine.model.texts import condition_text

if TYPE_CHECKING:
    from joinengine.operators.asof.asof_operator import AsOfJoin
    from joinengine.operators.base import Operator
    from joinengine.operators.join.join_operator import Join

#: A column of results, in the text of an account.
_SHOWN = re.compile(r"""OutputColumn\(name=(?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def key_schema(fields: Sequence[pa.Field]) -> str:
    """Key columns as text, with the types of which their hashes are."""
    return base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode()


def in_words(name: str, value: Any) -> object:
    """The value that an account has under `name`, for a user to read; plain values stay as is.

    >>> in_words("select", ["OutputColumn(name='k', ..)"]), in_words("select", None)
    ('k', 'all columns')
    >>> in_words("key_schema", key_schema([pa.field("k", pa.int64())])), in_words("how", "inner")
    ('k: int64', 'inner')
    """
    if name == "key_schema" and value is not None:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value)))
        return ", ".join(f"{field.name}: {field.type}" for field in schema)
    if name == "steps":
        return ", ".join(value) if value else "none"
    if name == "select":
        shown = (_SHOWN.match(column) for column in value or ())
        return ", ".join(literal_eval(match["name"]) for match in shown if match) or "all columns"
    return value


def join_account(operator: Join | AsOfJoin) -> dict[str, Any]:
    """The common part of the accounts of joins and as-of joins."""
    filters = [None if predicate is None else predicate.text for predicate in operator.filters]
    return {
        "on": condition_text(operator.condition),
        **common_account(operator, operator.keys(Side.LEFT)),
        "key_schema": key_schema(operator.key_fields),
        "filters": filters,
        "right": operator.schemas[1].to_string(),
        "select": [str(column) for column in operator.output] if operator.is_selected else None,
    }


def common_account(operator: Operator, keys: Sequence[str]) -> dict[str, Any]:
    """The left schema, the inputs, the output, and the key columns, which `state --key` needs."""
    fields = [operator.schemas[0].field(name) for name in keys]
    return {
        "key_schema": key_schema(fields),
        "left": operator.schemas[0].to_string(),
        "inputs": repr(operator.inputs),
        "output": operator.output_schema.names,
    }
