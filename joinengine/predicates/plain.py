"""Comparisons of numbers and times, computed in NumPy.

Why: DuckDB takes 15 ns a pair or more to receive a chunk of pairs and answer. Most predicates
compare sums and differences of numbers, for which NumPy takes 1 to 3 ns.

Law: every answer equals DuckDB's. Where it might not, this module gives none and DuckDB evaluates:
for NULL, NaN and infinity, where whole numbers might overflow, for decimals beside whole numbers,
and for all other types and functions.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.hashing import fixed_width
from joinengine.model.conditions import Predicate
from joinengine.predicates.engine import engine
from joinengine.predicates.syntax import arguments_of

Bools = NDArray[np.bool_]

#: Kinds of numbers. A decimal is a constant with digits behind its point.
_WHOLE, _DOUBLE, _DECIMAL = "whole", "double", "decimal"
#: Decimals of up to so many digits have distinct nearest doubles.
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
    """DuckDB must evaluate the predicate."""


class Number(NamedTuple):
    """What is known of numbers before they are computed: all are from `low` to `high`.

    `kind`: _WHOLE, _DOUBLE or _DECIMAL, or the type of times, which compare only with the same
    type. `most`: the greatest value that the narrowest of their columns holds, if it has bounds.
    `compute`: the values of all columns -> these numbers.
    """

    kind: str
    low: Any
    high: Any
    most: int | None
    compute: Callable[[Values], Any]
    is_constant: bool = False


class Column(NamedTuple):
    """(n,) values, with the facts that `Number` has."""

    values: NDArray[Any]
    kind: str
    low: Any = 0
    high: Any = 0
    most: int | None = None


#: The values of columns, in shapes that broadcast: one row each, or rows of both sides as a grid.
Values = Sequence[NDArray[Any]]
Test = Callable[[Values], Bools]
_Columns = Sequence[Number]
_Numbers = Callable[[_Columns], Number]
_Condition = Callable[[_Columns], Test]


def evaluated(predicate: Predicate, arrays: Sequence[pa.Array]) -> Bools | None:
    """(n,) whether a predicate is true of rows of its columns; None: DuckDB must evaluate it."""
    columns = columns_of(arrays) if is_plain(predicate) else None
    test = None if columns is None else test_of(predicate, columns)
    return None if test is None or columns is None else test([column.values for column in columns])


def is_plain(predicate: Predicate) -> bool:
    """Whether NumPy can compute the predicate, provided its columns are plain, too."""
    return _condition_of(predicate) is not None


def columns_of(arrays: Sequence[pa.Array]) -> list[Column] | None:
    """Columns as numbers; None: DuckDB must evaluate the predicate."""
    try:
        return [_column(array) for array in arrays]
    except _NotPlain:
        return None


def test_of(predicate: Predicate, columns: Sequence[Column]) -> Test | None:
    """A function from values of columns to whether the predicate is true; None: only DuckDB can.

    It is right for any values within the bounds of the columns, in any shapes that broadcast.
    """
    condition = _condition_of(predicate)
    if condition is None:
        return None
    numbers = [Number(*column[1:], operator.itemgetter(at)) for at, column in enumerate(columns)]
    try:
        return condition(numbers)
    except _NotPlain:
        return None


@lru_cache(maxsize=256)
def _condition_of(predicate: Predicate) -> _Condition | None:
    database = engine(predicate.zone)
    serialized = database.execute("select json_serialize_sql(?)", [predicate.sql]).fetchall()[0][0]
    try:
        (tree,) = json.loads(serialized)["statements"][0]["node"]["select_list"]
        return _condition(tree)
    except (_NotPlain, RecursionError):
        return None


def _condition(node: dict[str, Any]) -> _Condition:
    """The condition that a node of the syntax tree is."""
    kind = node["type"]
    if kind in _CONJUNCTIONS:
        joined, parts = _CONJUNCTIONS[kind], [_condition(child) for child in node["children"]]
        return lambda columns: _joined(joined, [part(columns) for part in parts])
    if kind == "OPERATOR_NOT":
        (inner,) = map(_condition, node["children"])
        return lambda columns: _denied(inner(columns))
    if kind in _COMPARISONS:
        compare, left, right = _COMPARISONS[kind], *map(_number, (node["left"], node["right"]))
        return lambda columns: _compared(compare, left(columns), right(columns))
    if kind == "COMPARE_BETWEEN":
        value, lower, upper = (_number(node[part]) for part in ("input", "lower", "upper"))
        return lambda columns: _between(value(columns), lower(columns), upper(columns))
    raise _NotPlain


def _joined(join: Callable[[Any, Any], Any], tests: Sequence[Test]) -> Test:
    return lambda values: reduce(join, (test(values) for test in tests))


def _denied(test: Test) -> Test:
    return lambda values: ~test(values)


def _between(value: Number, lower: Number, upper: Number) -> Test:
    if value.kind != _DOUBLE and {lower.kind, upper.kind} != {value.kind}:
        raise _NotPlain  # DuckDB compares all three in one type
    ends = _compared(operator.le, lower, value), _compared(operator.le, value, upper)
    return _joined(operator.and_, ends)


def _compared(compare: Callable[[Any, Any], Any], left: Number, right: Number) -> Test:
    _common(left, right)
    left_of, right_of = left.compute, right.compute
    return lambda values: compare(left_of(values), right_of(values))


def _number(node: dict[str, Any]) -> _Numbers:
    """The numbers that a node of the syntax tree computes."""
    kind = node["class"]
    if kind == "COLUMN_REF" and len(node["column_names"]) == 1:
        place = int(node["column_names"][0].removeprefix("c"))
        return lambda columns: columns[place]
    if kind == "CONSTANT":
        constant = _constant(node["literal"])
        return lambda _: constant
    if kind != "FUNCTION":
        raise _NotPlain
    name, given = node["function_name"], [_number(argument) for argument in arguments_of(node)]
    if name in _SUMS and len(given) == 2:
        left, right = given
        return lambda columns: _summed(name, left(columns), right(columns))
    if name == "abs" and len(given) == 1:
        return lambda columns: _absolute(given[0](columns))
    raise _NotPlain


def _constant(literal: dict[str, Any]) -> Number:
    text = str(literal.get("text", ""))
    if literal["kind"] == "INTEGER" and abs(int(text)) <= np.iinfo(np.int64).max:
        return _fixed(int(text), _WHOLE)
    if literal["kind"] != "NUMERIC":
        raise _NotPlain
    if "e" in text.lower():
        return _fixed(float(text), _DOUBLE)
    if len(text.strip("+-").replace(".", "")) > _MOST_DIGITS:
        raise _NotPlain
    return _fixed(float(text), _DECIMAL)


def _fixed(value: float, kind: str) -> Number:
    return Number(kind, value, value, None, lambda _: value, is_constant=True)


def _column(array: pa.Array) -> Column:
    if array.null_count:
        raise _NotPlain
    kind = array.type
    if pa.types.is_float64(kind):
        values = fixed_width(array, np.dtype(np.float64))
        low, high = map(float, _ends(values))
        if not math.isfinite(high - low):  # DuckDB compares NaN and infinity in another way
            raise _NotPlain
        return Column(values, _DOUBLE, low, high)
    if pa.types.is_signed_integer(kind):
        dtype = np.dtype(f"i{kind.bit_width // 8}")
        values = fixed_width(array, dtype)
        low, high = map(int, _ends(values))
        return Column(values, _WHOLE, low, high, int(np.iinfo(dtype).max))
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return Column(fixed_width(array, np.dtype(f"i{kind.bit_width // 8}")), str(kind))
    raise _NotPlain


def _ends(values: NDArray[Any]) -> tuple[Any, Any]:
    """The least and the greatest value; NaN if any value is NaN."""
    return (values.min(), values.max()) if len(values) else (0, 0)


def _common(left: Number, right: Number) -> str:
    """The kind in which two are compared or added up."""
    kinds = {left.kind, right.kind}
    if left.is_constant and right.is_constant:
        raise _NotPlain
    if len(kinds) == 1 and _DECIMAL not in kinds:
        return left.kind
    if _DOUBLE in kinds and kinds <= {_DOUBLE, _WHOLE, _DECIMAL}:
        return _DOUBLE
    raise _NotPlain


def _summed(name: str, left: Number, right: Number) -> Number:
    """A sum, a difference or a product."""
    apply, kind = _SUMS[name], _common(left, right)
    if kind not in (_DOUBLE, _WHOLE):
        raise _NotPlain
    ends = [apply(end, other_end) for end in left[1:3] for other_end in right[1:3]]
    low, high, left_of, right_of = min(ends), max(ends), left.compute, right.compute
    if kind == _DOUBLE:
        if not math.isfinite(high - low):
            raise _NotPlain
        return Number(
            kind, low, high, None, lambda values: apply(left_of(values), right_of(values))
        )
    most = min(part.most for part in (left, right) if part.most is not None)
    if max(-low, high) > most:
        raise _NotPlain
    return Number(
        kind, low, high, most, lambda values: apply(_wide(left_of(values)), _wide(right_of(values)))
    )


def _absolute(number: Number) -> Number:
    most, inner = max(-number.low, number.high), number.compute
    if (
        number.is_constant
        or number.kind not in (_DOUBLE, _WHOLE)
        or (number.kind == _WHOLE and most > (number.most or 0))
    ):
        raise _NotPlain
    return Number(number.kind, 0, most, number.most, lambda values: np.abs(inner(values)))


def _wide(values: Any) -> Any:
    return values.astype(np.int64, copy=False) if isinstance(values, np.ndarray) else values
