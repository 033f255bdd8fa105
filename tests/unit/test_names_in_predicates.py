"""What a name in a predicate means: a side, a column, a field; and what has no meaning."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from joinengine import InvalidRequest
from joinengine.model.errors import JoinEngineError
from joinengine.model.keys import Side
from joinengine.predicates.computed_columns import compile_column, computed
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.grouping import compile_aggregate
from joinengine.predicates.theta import passes

GEO = pa.struct([("Lat", pa.float64()), ("in", pa.struct([("x y", pa.int64())]))])
LEFT = pa.schema([("geo", GEO), ("k", pa.int64()), ("a.b", pa.int64()), ("right", GEO)])
RIGHT = pa.schema([("geo", GEO), ("r", pa.int64()), ("list", pa.list_(GEO))])

MEANT = {
    "left.geo.lat > 1": (Side.LEFT, "geo"),
    "RIGHT.GEO.LAT > 1": (Side.RIGHT, "geo"),
    "left.geo.in.`x y` = 1": (Side.LEFT, "geo"),
    '`a.b` = 1 and left."a.b" = 2': (Side.LEFT, "a.b"),
    "left.right.lat > 1": (Side.LEFT, "right"),
    "`right`.lat > 1": (Side.LEFT, "right"),
    "right.r = 1": (Side.RIGHT, "r"),
    "K = 1": (Side.LEFT, "k"),
}


@pytest.mark.parametrize("text", MEANT)
def test_what_a_name_means(text):
    assert compile_predicate(text, (LEFT, RIGHT), "where").columns == (MEANT[text],)


QUOTED = pa.schema([(name, pa.int64()) for name in ("user's", '5"', "left.x", "a<=>b", "--")])


@pytest.mark.parametrize(
    ("text", "columns", "constants"),
    [
        (r"`user's` > 0 and s = 'a\\b' and `user's` < 5", ["user's", "s"], [r"'a\b'"]),
        (r"""`5"` > 0 and s = 'a\\b' and `5"` < 5""", ['5"', "s"], [r"'a\b'"]),
        (r"/* it's */ s = 'a\\b' /* it's */", ["s"], [r"'a\b'"]),
        ("s = 'x' -- it's\n and `--` > 0", ["s", "--"], ["'x'"]),
        ("s = '--' and s = '/*' and `--` > 0", ["s", "--"], ["'--'", "'/*'"]),
        ("`left.x` > 0 and `a<=>b` <=> 1", ["left.x", "a<=>b"], []),
    ],
)
def test_what_is_in_quoted_names_and_comments_is_no_text(text, columns, constants):
    """A quote there begins no constant, and left is no side."""
    schema = pa.schema([*QUOTED, pa.field("s", pa.string())])
    found = compile_predicate(text, (schema, pa.schema([])), "where")
    assert [name for _, name in found.columns] == columns
    assert re.findall(r"'[^']*'", found.sql) == constants


REFUSED = {
    "geo.lat > 1": "column 'geo' is on both sides; write left.geo.lat or right.geo.lat",
    "left.geo.lon > 1": "geo has no fields 'lon'; its fields are Lat, in",
    "k.lat > 1": r"k is int64, which has no field 'lat'\. .* `k.lat`",
    "list.lat > 1": "list is list<.*>, which has no field",
    "a.b = 1": "column 'a.b' does not exist; .* contains a dot as `a.b`",
    "left.r = 1": (
        r"column 'left.r' does not exist; the columns of the left side are geo, k, .*\. "
        r"The right side has 'r'$"
    ),
    "left.none = 1": r"left side are geo, k, .*\. Write a name that contains a dot as",
    "left.nothing.lat = 1": "column 'left.nothing.lat' does not exist",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_means_nothing(text):
    with pytest.raises(InvalidRequest, match=REFUSED[text]):
        compile_predicate(text, (LEFT, RIGHT), "where")


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_that_have_no_sides(side):
    """Of results, `left.k` could be a column of the right side that is called so now."""
    schema = pa.schema([("k", pa.int64()), (side, pa.struct([("k", pa.int64())])), ("n", GEO)])
    assert compile_predicate(f"{side}.k > 1", (schema,), "where").columns == ((Side.LEFT, side),)
    rows = schema.remove(1)
    for refused in (
        lambda: compile_predicate(f"{side}.k > 1", (rows,), "where"),
        lambda: compile_column("z", f"{side}.k + 1", rows),
        lambda: compile_aggregate("z", f"sum({side}.k)", rows, []),
    ):
        with pytest.raises(InvalidRequest, match=f"{side}.k' does not exist; .* n. Write k$"):
            refused()


def test_names_have_their_case_if_asked():
    both = pa.schema([("v", pa.int64()), ("V", pa.int64())]), pa.schema([])
    assert compile_predicate("V = 1", both, "where", exact=True).columns == ((Side.LEFT, "V"),)
    with pytest.raises(InvalidRequest, match="geo has no fields 'lat'; its fields are Lat"):
        compile_predicate("left.geo.lat = 1", (LEFT, RIGHT), "where", exact=True)


@pytest.mark.parametrize("exact", [True, False])
def test_fields_that_differ_in_case_alone_are_refused(exact):
    """DuckDB, which evaluates, would take the first of them."""
    kind = pa.struct([("a", pa.int64()), ("A", pa.int64()), ("b", pa.int64())])
    sides = pa.schema([("s", kind)]), pa.schema([])
    for text in ("s.A > 5", "s.a > 5"):
        with pytest.raises(InvalidRequest, match="fields"):
            compile_predicate(text, sides, "where", exact=exact)
    assert compile_predicate("s.b > 5", sides, "where", exact=exact)


def test_fields_of_structs_that_are_null():
    rows = [{"Lat": 2.0, "in": {"x y": 1}}, None, {"Lat": None, "in": None}]
    batch = pa.RecordBatch.from_arrays([pa.array(rows, GEO)], names=["geo"])
    one = pa.schema([("geo", GEO)]), pa.schema([])
    assert passes(compile_predicate("geo.lat > 1", one, "w"), batch).tolist() == [
        True,
        False,
        False,
    ]
    inner = compile_predicate("geo.in.`x y` is null", one, "w")
    assert passes(inner, batch).tolist() == [False, True, True]


def test_an_overflow_is_told_with_the_text_that_the_user_has_written():
    """And what comes after it finds the evaluator as it was."""
    schema, nothing = pa.schema([("n", pa.int64())]), pa.schema([])
    rows = pa.record_batch([[1, (1 << 63) - 1]], schema=schema)
    told = "'n \\+ n > 5' fails for a row: Out of Range Error: .*; use try_cast, or leave such rows"
    with pytest.raises(JoinEngineError, match=told):
        passes(compile_predicate("n + n > 5", (schema, nothing), "where"), rows)
    with pytest.raises(JoinEngineError, match="'n \\+ n' fails for a row: Out of Range Error"):
        computed(compile_column("double", "n + n", schema), rows)
    assert passes(compile_predicate("n - 1 > 5", (schema, nothing), "where"), rows).tolist() == [
        *(False, True)
    ]
