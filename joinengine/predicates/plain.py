"""Comparisons of numbers and times, computed in NumPy.

Why: to hand DuckDB a chunk of pairs, run it and fetch its answer takes 15 ns a pair and more; most
predicates compare sums and differences of numbers, which takes NumPy 1 to 3 ns.

Law: an answer is DuckDB's. Where it might not be, there is none, and DuckDB is asked: for NULL, NaN
and infinity, where whole numbers might overflow, for decimals beside whole numbers, and for all
other types and functions.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.hashing import fixed_width
from joinengine.model.conditions import Predicate
from joinengine.predicates.dialect import arguments_of
from joinengine.predicates.engine import engine

Bools = NDArray[np.bool_]

#: Kinds of numbers. A decimal is a constant with digits behind its point.
_WHOLE, _DOUBLE, _DECIMAL = "whole", "double", "decimal"
#: A double has all decimals of so many digits, exactly as their nearest neighbour.
_MOST_DIGITS = 15
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "COMPARE_EQUAL": operator.eq,
    "COMPARE_NOTEQUAL": operator.ne,
    "COMPARE_LESSTHAN": operator.lt,
    "COMPARE_GREATERTHAN": operator.gt,
    "COMPARE_LESSTHANOREQUALTO": operator.le,
    "COMPARE_GREATERTHANOREQUALTO": operator.ge,
}
_CONJUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "CONJUNCTION_AND": operator.and_,
    "CONJUNCTION_OR": operator.or_,
}
_SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


class _NotPlain(Exception):
    """DuckDB is to be asked."""


class _Number(NamedTuple):
    """(n,) numbers, or one; `most`: what the narrowest of their columns holds, if it has bounds.

    `kind`: _WHOLE, _DOUBLE or _DECIMAL; of times their type, so that they are compared alone.
    """

    values: Any
    kind: str
    most: int | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is one."""
        return not isinstance(self.values, np.ndarray)


_Columns = Sequence[_Number]
_Numbers = Callable[[_Columns], _Number]
_Condition = Callable[[_Columns], Bools]


def evaluated(predicate: Predicate, arrays: Sequence[pa.Array]) -> Bools | None:
    """(n,) whether a predicate is true of rows of its columns; None: DuckDB is to be asked."""
    condition = _condition_of(predicate)
    if condition is None:
        return None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return condition([_column(array) for array in arrays])
    except _NotPlain:
        return None


@lru_cache(maxsize=256)
def _condition_of(predicate: Predicate) -> _Condition | None:
    here = engine(predicate.zone)
    told = here.execute("select json_serialize_sql(?)", [predicate.sql]).fetchall()[0][0]
    (tree,) = json.loads(told)["statements"][0]["node"]["select_list"]
    try:
        return _condition(tree)
    except _NotPlain:
        return None


def _condition(node: dict[str, Any]) -> _Condition:
    """What a node of the syntax tree says of rows."""
    kind = node["type"]
    if kind in _CONJUNCTIONS:
        joined, parts = _CONJUNCTIONS[kind], [_condition(one) for one in node["children"]]
        return lambda columns: reduce(joined, (part(columns) for part in parts))
    if kind == "OPERATOR_NOT":
        (inner,) = map(_condition, node["children"])
        return lambda columns: ~inner(columns)
    if kind in _COMPARISONS:
        compare, left, right = _COMPARISONS[kind], *map(_number, (node["left"], node["right"]))
        return lambda columns: _compared(compare, left(columns), right(columns))
    if kind == "COMPARE_BETWEEN":
        value, lower, upper = (_number(node[part]) for part in ("input", "lower", "upper"))
        return lambda columns: _between(value(columns), lower(columns), upper(columns))
    raise _NotPlain


def _between(value: _Number, lower: _Number, upper: _Number) -> Bools:
    if value.kind != _DOUBLE and {lower.kind, upper.kind} != {value.kind}:
        raise _NotPlain  # DuckDB compares all three in one type
    return _compared(operator.le, lower, value) & _compared(operator.le, value, upper)


def _compared(compare: Callable[[Any, Any], Any], left: _Number, right: _Number) -> Bools:
    _common(left, right)
    return np.asarray(compare(left.values, right.values))


def _number(node: dict[str, Any]) -> _Numbers:
    """The numbers that a node of the syntax tree gives."""
    kind = node["class"]
    if kind == "COLUMN_REF" and len(node["column_names"]) == 1:
        place = int(node["column_names"][0].removeprefix("c"))
        return lambda columns: columns[place]
    if kind == "CONSTANT":
        constant = _constant(node["literal"])
        return lambda _: constant
    if kind != "FUNCTION":
        raise _NotPlain
    name, given = node["function_name"], [_number(one) for one in arguments_of(node)]
    if name in _SUMS and len(given) == 2:
        left, right = given
        return lambda columns: _summed(name, left(columns), right(columns))
    if name == "abs" and len(given) == 1:
        return lambda columns: _absolute(given[0](columns))
    raise _NotPlain


def _constant(literal: dict[str, Any]) -> _Number:
    text = str(literal.get("text", ""))
    if literal["kind"] == "INTEGER" and abs(int(text)) <= np.iinfo(np.int64).max:
        return _Number(int(text), _WHOLE)
    if literal["kind"] != "NUMERIC":
        raise _NotPlain
    if "e" in text.lower():
        return _Number(float(text), _DOUBLE)
    if len(text.strip("+-").replace(".", "")) > _MOST_DIGITS:
        raise _NotPlain
    return _Number(float(text), _DECIMAL)


def _column(array: pa.Array) -> _Number:
    if array.null_count:
        raise _NotPlain
    kind = array.type
    if pa.types.is_float64(kind):
        return _finite(fixed_width(array, np.dtype(np.float64)))
    if pa.types.is_signed_integer(kind):
        dtype = np.dtype(f"i{kind.bit_width // 8}")
        return _Number(fixed_width(array, dtype), _WHOLE, int(np.iinfo(dtype).max))
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _Number(fixed_width(array, np.dtype(f"i{kind.bit_width // 8}")), str(kind))
    raise _NotPlain


def _finite(values: NDArray[np.float64]) -> _Number:
    """Doubles without NaN and infinity, which DuckDB compares in another way."""
    if not np.isfinite(values.sum()):  # one pass without a copy; a sum that overflows is none
        raise _NotPlain
    return _Number(values, _DOUBLE)


def _common(left: _Number, right: _Number) -> str:
    """The kind in which two are compared or added up."""
    kinds = {left.kind, right.kind}
    if left.is_constant and right.is_constant:
        raise _NotPlain
    if len(kinds) == 1 and _DECIMAL not in kinds:
        return left.kind
    if _DOUBLE in kinds and kinds <= {_DOUBLE, _WHOLE, _DECIMAL}:
        return _DOUBLE
    raise _NotPlain


def _summed(name: str, left: _Number, right: _Number) -> _Number:
    """A sum, a difference or a product."""
    apply, kind = _SUMS[name], _common(left, right)
    if kind == _DOUBLE:
        return _finite(apply(left.values, right.values))
    if kind != _WHOLE:
        raise _NotPlain
    most = min(one.most for one in (left, right) if one.most is not None)
    sizes = _size(left), _size(right)
    if (sizes[0] * sizes[1] if name == "*" else sum(sizes)) > most:
        raise _NotPlain
    return _Number(apply(_wide(left), _wide(right)), _WHOLE, most)


def _absolute(one: _Number) -> _Number:
    if one.kind == _DOUBLE:
        return one._replace(values=np.abs(one.values))
    if one.kind != _WHOLE or one.most is None or _size(one) > one.most:
        raise _NotPlain
    return one._replace(values=np.abs(one.values))


def _size(one: _Number) -> int:
    """The greatest absolute value."""
    if one.is_constant:
        return abs(int(one.values))
    values = one.values
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def _wide(one: _Number) -> Any:
    return one.values if one.is_constant else one.values.astype(np.int64, copy=False)
