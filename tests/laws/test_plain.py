"""Plain predicates have DuckDB's answers, or none."""

from __future__ import annotations

import datetime as dt
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.predicates import plain
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.theta import holds
from tests.laws.cases import tries

UTC = pa.timestamp("us", "UTC")
#: Names of columns of either side, with their types.
KINDS = {
    "d": pa.float64(),
    "f": pa.float32(),
    "t": pa.int8(),
    "i": pa.int32(),
    "b": pa.int64(),
    "at": UTC,
    "day": pa.date32(),
    "s": pa.string(),
}
SCHEMAS = tuple(
    pa.schema([(f"{side}{name}", kind) for name, kind in KINDS.items()]) for side in "lr"
)
DOUBLES = [0.0, -0.0, 0.1, 0.3, 2.5, -7.25, 2.0**53, 1e300, -1e308, 5e-324, 127.0, 0.001]
ODD_DOUBLES = [float("nan"), float("inf"), -float("inf")]


def whole(bits):
    """Whole numbers of a type: small ones, and those at its ends."""
    ends = [-(1 << bits - 1), 1 - (1 << bits - 1), (1 << bits - 1) - 1, 1 << bits - 2]
    return st.one_of(st.integers(-20, 20), st.sampled_from(ends))


MOMENTS = [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
VALUES = {
    "d": st.sampled_from(DOUBLES),
    "f": st.sampled_from([0.0, 0.1, -3.5, 16777216.0]),
    "t": whole(8),
    "i": whole(32),
    "b": whole(64) | st.sampled_from([2**53, 2**53 + 1]),
    "at": st.sampled_from(MOMENTS),
    "day": st.sampled_from([one.date() for one in MOMENTS]),
    "s": st.sampled_from(["", "a"]),
}


@st.composite
def rows_of(draw):
    """(n,) rows of both sides, pair by pair; some with a NULL or a number that is none."""
    n, batches = draw(st.integers(0, 5)), []
    odd = draw(st.sampled_from([[], [], [None], ODD_DOUBLES]))
    for side in "lr":
        columns = {}
        for name, kind in KINDS.items():
            values = [draw(VALUES[name]) for _ in range(n)]
            if n and odd and (None in odd or name == "d"):
                values[draw(st.integers(0, n - 1))] = draw(st.sampled_from(odd))
            columns[f"{side}{name}"] = pa.array(values, kind)
        batches.append(pa.record_batch(columns))
    return tuple(batches)


NUMBERS = st.recursive(
    st.sampled_from(
        [
            *(side + name for side in "lr" for name in "ddftib"),
            *(
                "1",
                "-3",
                "127",
                "2.5",
                "0.001",
                "1e-3",
                "9007199254740993",
                "0.1234567890123456789",
            ),
        ]
    ),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("abs({})".format, inner),
    ),
    max_leaves=4,
)
COMPARED = st.sampled_from(["=", "<>", "<", ">", "<=", ">="])
CONDITIONS = st.recursive(
    st.one_of(
        st.builds("({} {} {})".format, NUMBERS, COMPARED, NUMBERS),
        st.builds("({} between {} and {})".format, NUMBERS, NUMBERS, NUMBERS),
        st.builds("(lat {} rat)".format, COMPARED),
        st.builds("(lday {} rday)".format, COMPARED),
        st.just("(ls = rs)"),
        st.just("(lat < rday)"),
    ),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=4,
)


def both(text, batches):
    """What NumPy answers, or None, and what DuckDB does, or its error."""
    predicate = compile_predicate(text, SCHEMAS, "theta")
    n = batches[0].num_rows
    rows = (np.arange(n), np.arange(n))
    seen = []

    def answer(*args):
        seen.append(plain_answer(*args))  # and has no answer itself, so DuckDB is asked, too

    plain_answer = plain.evaluated
    with patch.object(plain, "evaluated", answer):
        try:
            asked = holds(predicate, batches, rows).tolist()
        except Exception as error:
            asked = error
    (found,) = seen
    return None if found is None else found.tolist(), asked


@tries(400)
@given(CONDITIONS, rows_of())
def test_an_answer_is_duckdbs(text, batches):
    try:
        found, asked = both(text, batches)
    except InvalidRequest:  # of a decimal with too many digits, say
        return
    if found is not None:
        assert found == asked


def row(side, **values):
    """One row with the values that are given."""
    told = {"d": 1.0, "f": 1.0, "t": 1, "i": 1, "b": 1, "at": MOMENTS[0], "day": MOMENTS[0].date()}
    told |= {"s": "a"} | values
    columns = {f"{side}{name}": pa.array([told[name]], kind) for name, kind in KINDS.items()}
    return pa.record_batch(columns)


@pytest.mark.parametrize(
    ("text", "left", "expected"),
    [
        ("ld - rd < 0.001 and rd - ld < 0.001", {}, [True]),
        ("not (lb * 2 between 3 and ri + 4) or lat > rat", {}, [True]),
        ("abs(li - rb) <> 3 and lday <= rday", {"i": 4}, [False]),
        ("lf + 1e0 >= rt", {}, [True]),
        ("ld < rd", {"d": float("nan")}, None),
        ("ld < rd", {"d": None}, None),
        ("ld * ld - ld * ld <= rd", {"d": 1e300}, None),
        ("lb + rb > 0", {"b": (1 << 63) - 1}, None),
        ("lt + rt > 0", {"t": 127}, None),
        ("lb * 3 > rb", {"b": 1 << 62}, None),
        ("abs(lt) > 1", {"t": -128}, None),
        ("lt <= abs(0) + 127", {}, None),
        ("lb <= abs(-1)", {}, None),
        ("lb < 2.5", {}, None),
        ("lb between 1 and rd", {}, None),
        ("ld < 0.1234567890123456789", {}, None),
        ("ls = rs", {}, None),
        ("lat < rday", {}, None),
        ("ld / rd < 2", {}, None),
    ],
)
def test_what_is_plain(text, left, expected):
    found, asked = both(text, (row("l", **left), row("r")))
    assert found == expected
    assert expected is None or found == asked


@pytest.mark.parametrize(
    ("text", "left", "right", "expected"),
    [
        ("lb - rb < 3", [(1 << 63) - 1, 0], [-5, 0], None),
        ("lb * rb < 3", [1 << 62, -1], [1, -(1 << 62)], None),
        ("(lb - rb) * (lb - rb) < 5", [1 << 62, 2 + (1 << 62)], [1 + (1 << 62)] * 2, [True] * 2),
    ],
)
def test_bounds_are_those_of_all_pairs(text, left, right, expected):
    """Whichever row meets whichever; and large numbers have small differences."""
    batches = [
        pa.record_batch({f"{side}b": pa.array(numbers, pa.int64())})
        for side, numbers in (("l", left), ("r", right))
    ]
    found, asked = both(text, batches)
    assert found == expected
    assert expected is None or found == asked


def test_sides_of_pairs_are_told_apart():
    predicate = compile_predicate("ld < rd", SCHEMAS, "theta")
    assert [side for side, _ in predicate.columns] == [Side.LEFT, Side.RIGHT]
    rows = (np.array([0, 0]), np.array([0, 0]))
    assert holds(predicate, (row("l", d=0.5), row("r")), rows).tolist() == [True, True]
    assert holds(predicate, (row("l"), row("r", d=0.5)), rows).tolist() == [False, False]
