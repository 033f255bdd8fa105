"""Predicates mean in the evaluator what they mean in Spark: docs/predicates.md, line by line."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joinengine import InvalidRequest
from joinengine.api.sql_text import SqlText
from joinengine.predicates.dialect import FUNCTIONS, compile_predicate
from joinengine.predicates.theta import holds
from joinengine.spark.sources.types import spark_schema

pytestmark = pytest.mark.spark

INSTANT = pa.timestamp("us", "UTC")
LEFT = pa.schema(
    [
        *(("a", pa.int64()), ("s", pa.string()), ("p", pa.decimal128(9, 2)), ("d", pa.date32())),
        *(("g", pa.float32()), ("z", INSTANT), ("n", pa.timestamp("us"))),
        ("geo", pa.struct([("lat", pa.float64()), ("x.y", pa.string()), ("f", pa.float32())])),
    ]
)
RIGHT = pa.schema(
    [
        *(("b", pa.int32()), ("t", pa.string()), ("f", pa.float64()), ("q", pa.bool_())),
        *(("e", pa.date32()), ("y", INSTANT)),
    ]
)


def instant(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)


LEFT_ROWS = [
    (
        *(1, "ab", Decimal("1.50"), dt.date(2024, 2, 29), 0.1),
        *(instant(2024, 3, 30, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29, 1, 2, 3)),
    ),
    (
        *(-7, " Ab c", Decimal("-3.25"), dt.date(1969, 12, 31), -1.5),
        *(instant(1969, 12, 31, 23, 0, 0, 1), dt.datetime(1969, 12, 31, 23, 59)),
    ),
    (None,) * 7,
    (
        *(2**40, "", Decimal("0.00"), dt.date(2000, 1, 1), 2.5),
        *(instant(2000, 1, 1), dt.datetime(2000, 1, 1)),
    ),
]
LEFT_ROWS += [
    (None, text, *[None] * 5)
    for text in ("10%", "10x", "a\nb", "a\\nb", "a_c", "a'b", "\\", "10\\%", "\U0001f600")
]
GEO = [{"lat": 0.5, "x.y": "b", "f": 0.1}, None, {"lat": None, "x.y": "ab", "f": 2.5}]
LEFT_ROWS = [(*row, GEO[number % 3]) for number, row in enumerate(LEFT_ROWS)]
RIGHT_ROWS = [
    (1, "b", 0.5, True, dt.date(2024, 2, 28), instant(2024, 3, 31, 0, 30)),
    (-3, "AB C", float("nan"), False, dt.date(1970, 1, 1), instant(1970, 1, 1)),
    (None,) * 6,
    (7, "a", -2.0, None, dt.date(2000, 1, 3), instant(2000, 1, 2, 12)),
]
PREDICATES = [
    "a = b",
    "a <> b",
    "a != b",
    "a < b and s > t",
    "a <= b or p >= 1.5",
    "not (a > b)",
    "a + b - 2 * a > b / 2",
    "a % 3 = 1",
    "b % 3 = -0",
    "-a < b",
    "abs(a - b) <= 8",
    "a between b and 5",
    "a not between b and 5",
    "b in (1, 7)",
    "b not in (1, 7)",
    "s is null",
    "t is not null",
    "s like '%b%'",
    "s not like 'a_'",
    "lower(s) = ' ' || lower(t)",
    "' ' || upper(t) = upper(s)",
    "length(s) > length(t)",
    "contains(s, t)",
    "greatest(a, b) = a",
    "least(a, b, 0) = 0",
    "coalesce(a, b, 3) = 3",
    "case when a > 0 then q when b > 0 then true else false end",
    "year(d) = 2024 and month(d) = 2 and day(d) = 29",
    "d > date '1999-12-31'",
    "d between date'2000-01-01' and cast('2024-02-28' as date)",
    "f > 0.25",
    "f = f",
    "q",
    "not q or a is null",
    "a is distinct from b",
    "p * 2 > f",
    "p = 1.5",
    "abs(b) % 4 = 3 and mod(a, 3) = -1",
    "a & 3 = 1",
    "(a | (1 & 3)) - (~b) + 1 > b + ~a",
    "b <=> a and q <=> (b = a)",
    "left(s, b) = left(t, 1) or right(s, b) = t or substring(s, 1, b) = t",
    "(left(s, b) is null) = (b is null)",
    "p = '1.5' and b = '1' and f > '0.25'",
    "y - z > interval '1.5' seconds",
    "a | b = -3",
    "~b < 0",
    "g <> 0.1",
    "cast(g as double) > 0.1",
    "g < 0.2 and g > f",
    "floor(p) = -4 or ceil(p) = 2",
    "ceiling(p) = 0",
    "round(p) = 2 or sqrt(abs(p)) < 1.5",
    "sqrt(f) < 1",
    "exp(f) < 1",
    "power(b, 2) = 49 or pow(b, 2) = 9",
    "sin(f) > 0 and cos(f) > 0 and tan(f) > 0",
    "atan(f) < 0 or atan2(f, b) > 0.1",
    "radians(degrees(f)) > 0.1 or pi() < b",
    "ln(b) > 1 or log2(b) = 0",
    "log10(b) is null",
    "isnan(f)",
    "cast(p as int) = -3",
    "cast(p as bigint) + cast(q as int) = 2",
    "cast(b as smallint) = 1 or cast(b as long) > a",
    "try_cast(a as int) is null",
    "coalesce(cast(null as int), b) = 7",
    "cast(b as decimal(12, 3)) < p",
    "cast(a as string) = '-7'",
    "cast(b as boolean)",
    "cast(p as string) || cast(d as string) = '1.502024-02-29'",
    "nullif(b, 7) is null",
    "ifnull(b, 5) = 5",
    "nvl(b, 5) > 5",
    "isnull(b) or isnotnull(a)",
    "if(b > 0, s, t) = 'AB C'",
    "s <=> t",
    "a <=> b",
    "s ilike 'A%'",
    "s rlike 'b.?$'",
    "not s rlike '[a-c]' or t is null",
    "s not rlike 'a' and s regexp '.'",
    "regexp_like(s, r'^\\d') and rlike(t, 'a|b')",
    "regexp(s || 'c', '(a|b)c')",
    "regexp_replace(s, '(a)b?', '<$1>') = '<a>'",
    "regexp_extract(s, '([a-z])(b)', 2) = t",
    "regexp_extract(s, '([a-z])b') = 'a'",
    "geo.lat > 0.25",
    "geo.f > 0.1",
    "GEO.`X.Y` = t",
    "s not ilike '%B'",
    "substring(s, 2, 2) = 'Ab'",
    "substring(s from 2 for 1) = t",
    "substring(s, -2) = 'ab'",
    "substr(s, 0, 1) = t",
    "substr(s, b, 1) = 'b'",
    "left(s, 1) = t",
    "right(s, b) = 'b'",
    "left(s, -1) < t",
    "trim(s) = 'Ab c'",
    "ltrim(s) = 'Ab c' or rtrim(s) = 'ab'",
    "startswith(s, t) or endswith(s, t)",
    "instr(s, 'b') = 2",
    "position('b' in s) = 3",
    "replace(s, 'b', t) = 'aa'",
    "concat(s, t) = 'aba'",
    "concat(s, '-', t) > 'a'",
    "repeat(t, 2) = 'bb'",
    "ascii(s) = 97 or ucase(s) = lcase(s) and locate('a', s) = character_length(s)",
    "char_length(t) = 1",
    "d > e",
    "datediff(d, e) = 1 or date_add(d, 1) > date_sub(e, 1)",
    "d + 1 > e and d - 3 < e",
    "d + interval '1 day' >= e",
    "timestamp_seconds(b * 250000000) > y or timestamp_millis(a) > y or timestamp_micros(a) < z",
    "date_from_unix_date(b) = date '1970-01-08' or date_from_unix_date(b) > e",
    "d < timestamp '2000-01-01 00:00:01'",
    "year(z) = 2024 and quarter(z) = 1",
    "hour(z) = 23 and minute(z) = 59 and second(z) = 59",
    "hour(z) > hour(y)",
    "extract(month from z) = 12",
    "dayofweek(d) = 5",
    "weekday(z) = 2",
    "dayofyear(d) = 60 or weekofyear(d) = 52",
    "last_day(e) = date '2024-02-29'",
    "cast(z as date) < e",
    "cast(n as date) = d",
    "cast(d as timestamp) < y",
    "cast(z as timestamp_ntz) < n",
    "z > n",
    "date_trunc('day', z) < y",
    "date_trunc('month', z) = timestamp '2024-03-01 00:00:00'",
    "z > timestamp '1999-12-31 23:30:00'",
    "z > timestamp '2000-01-01 00:00:00+02:00'",
    "z >= '2000-01-01 00:00:00'",
    "n > timestamp_ntz '2000-01-01 00:00:00'",
    "y - z < interval '90 minutes'",
    "y - z between interval '0' minute and interval '1' day",
    "y < z + interval '10 minutes'",
    "y - z < interval 1500 milliseconds or y - z > interval '1' hour",
    "y > z + interval 1 month - interval '30 minutes'",
    r"s like '10\%'",
    r"s like '10\\%'",
    r"s like '10\\\%'",
    r"s like '10\\\\%'",
    r"s like r'10\%'",
    r"s like 'a\_c'",
    r"s not like '%\%'",
    r"s like '%\\\\%'",
    r"s ilike 'A\_C'",
    r"s not ilike 'A\_C'",
    r"s like 'a\nb'",
    r"s like concat('10', '\\', '%')",
    r"s like replace(t, 'b', '10\\%')",
    r"s = 'a\nb'",
    r"s = 'a\\nb'",
    r"s = r'a\nb'",
    "s = 'a\nb'",
    r"s in ('a\'b', 'a\_c')",
    r"s = 'a''b' or s <> 'a\"b' and s = R'10%'",
    r"s = '\u0061\142' or s = 'a\qb'",
    r"s = '\U0001F600' and s = '\ud83d\uDE00'",
    r"s = 'a' 'b'",
    r"s = '1' r'0\%'",
    r"instr(s, '\\') = 1",
    r"s = '\\' or t = 'it''s -- \'quoted\' left.a'",
    "true",
]


#: Names of functions in a predicate, if they differ from DuckDB's.
WORDS = {"~~": "like", "!~~": "not like", "~~*": "ilike", "!~~*": "not ilike"}
WORDS["date_part"] = "extract"


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


#: Predicates that look at instants, and time zones in which these have other hours than in UTC.
ZONED = [text for text in PREDICATES if {"z", "y"} & set(words(text))]
ELSEWHERE = "Europe/Berlin"


def both():
    """All pairs of rows, as record batches, row numbers, and plain tuples."""
    pairs = list(product(range(len(LEFT_ROWS)), range(len(RIGHT_ROWS))))
    batches = tuple(
        pa.RecordBatch.from_arrays(
            [
                pa.array(column, f.type)
                for column, f in zip(zip(*rows, strict=True), schema, strict=True)
            ],
            schema=schema,
        )
        for rows, schema in ((LEFT_ROWS, LEFT), (RIGHT_ROWS, RIGHT))
    )
    rows = tuple(np.array(column) for column in zip(*pairs, strict=True))
    return batches, rows, [LEFT_ROWS[i] + RIGHT_ROWS[j] for i, j in pairs]


@pytest.fixture(scope="module")
def in_spark(spark, interpreted):
    """Time zone -> predicate -> what Spark finds for each pair; one query for all predicates."""
    rows = both()[2]
    frame = spark.createDataFrame(rows, spark_schema(pa.schema([*LEFT, *RIGHT]))).coalesce(1)
    found = {}
    for zone, texts in (("UTC", PREDICATES), (ELSEWHERE, ZONED)):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            answers = frame.selectExpr(*texts).collect()
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        columns = zip(*answers, strict=True)
        found[zone] = {
            text: [bool(one) for one in column] for text, column in zip(texts, columns, strict=True)
        }
    return found


@pytest.mark.parametrize("text", PREDICATES)
def test_spark_agrees(in_spark, text):
    batches, rows, _ = both()
    found = holds(compile_predicate(text, (LEFT, RIGHT), "theta"), batches, rows)
    expected = in_spark["UTC"][text]
    assert found.tolist() == expected
    if text != "true":
        assert any(expected)
        assert not all(expected)


@pytest.mark.parametrize("text", ZONED)
def test_spark_agrees_in_its_time_zone(in_spark, text):
    batches, rows, _ = both()
    found = holds(compile_predicate(text, (LEFT, RIGHT), "theta", ELSEWHERE), batches, rows)
    assert found.tolist() == in_spark[ELSEWHERE][text]


def test_a_statement_hands_a_predicate_on_as_it_is_written():
    """But for a raw constant right behind another constant, which the parser does not join."""
    served = [text for text in PREDICATES if not re.search(r"' [rR]'", text)]
    assert len(served) == len(PREDICATES) - 1
    for text in served:
        statement = SqlText(f"select a from f where {text} -- so it is")
        assert statement.text_of(statement.statement().args["where"].this, []) == text


def test_time_zones_make_a_difference_and_need_a_name():
    batches, rows, _ = both()
    counts = {
        zone: int(
            holds(
                compile_predicate("cast(z as date) = d", (LEFT, RIGHT), "theta", zone),
                batches,
                rows,
            ).sum()
        )
        for zone in ("UTC", "Europe/Berlin", "-03:00", "Z")
    }
    assert counts == {"UTC": 8, "Europe/Berlin": 4, "-03:00": 4, "Z": 8}
    with pytest.raises(
        InvalidRequest, match=r"timeZone: expected a region .*, found 'Mars/Utopia'"
    ):
        compile_predicate("a = b", (LEFT, RIGHT), "theta", "Mars/Utopia")


def test_division_by_zero_is_null():
    batches, rows, _ = both()
    for text in ("a / (b - 1) is null", "a % (b - 1) is null", "f / (b - 1) is null"):
        found = holds(compile_predicate(text, (LEFT, RIGHT), "where"), batches, rows)
        nothing = [text[0] == "a" and LEFT_ROWS[i][0] is None for i in rows[0]]
        missing = [RIGHT_ROWS[j][0] in (None, 1) for j in rows[1]]
        assert found.tolist() == [a or b for a, b in zip(nothing, missing, strict=True)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "d > date '2024-02-30'",
            "'2024-02-30' is not a valid date; write for example date '2024-02-29'",
        ),
        ("z > timestamp '2024-02-30 00:00:00'", "is not a valid timestamp"),
        (
            "y - z > interval 'a while'",
            "'a while' is not a valid interval; write .* interval '90 minutes'",
        ),
        ("y - z > interval (a) days", "an interval of an expression that is not constant in"),
        ("y - z > interval (random()) days", "an interval of an expression that is not constant"),
        ("s[1] = 'a'", "array_extract in .* is not supported"),
        ("try(a) = 1", "operator_try in .* is not supported"),
        ("cast(s as date) > d", "a cast from varchar to date in .* is not supported"),
        ("s::int > 3", "a cast from varchar to integer in .* is not supported"),
        ("cast(f as decimal(9, 2)) > 3", "a cast from double to decimal in .* is not supported"),
        ("cast(a as decimal) > 3", "a cast to decimal without precision and scale"),
        ("cast(a as float) > 3", "a cast from bigint to float in .* is not supported"),
        ("timestamp_millis(f) > y", "timestamp_millis of double in .* is not supported"),
        ("round(f, 1) = 0.5", "round to digits in .* is not supported"),
        ("extract(dow from d) = 1", "date_part of dow in .* is not supported"),
        ("date_trunc(t, z) = z", "date_trunc of an expression that is not constant in"),
        ("read_text('x') = 'y'", "read_text in .* is not supported"),
        ("trim(both 'a' from s) = 'b'", "trim"),
        (
            "date_part() = 1",
            "date_part of an expression that is not constant in .* is not supported",
        ),
        ("d > '2024-13-01'", "2024-13-01"),
        (r"s = 'a\'", "unterminated text constant"),
        (r"s = r'a\''", "unterminated text constant"),
        (r"s = E'a\n'", "Spark does not support E'"),
        (r"s = 'a\0'", "the character 0 is not supported"),
        (r"s = '\ud83d'", "an escape in .* is not a character"),
        (r"s = '\UFFFFFFFF'", "an escape in .* is not a character"),
        (r"s like 'a\\b'", "the escape character .* To match a backslash, write"),
        (r"s not ilike 'ab\\'", "the escape character .* To match a backslash, write"),
        ("z > 'yesterday at noon'", "yesterday at noon"),
    ],
)
def test_what_is_not_served_is_refused_by_name(text, message):
    with pytest.raises(InvalidRequest, match=message):
        compile_predicate(text, (LEFT, RIGHT), "where")


def test_all_functions_are_tried_and_documented():
    text = " ".join(PREDICATES)
    page = (Path(__file__).parents[2] / "docs" / "predicates.md").read_text().replace("\\|", "|")
    for name in FUNCTIONS:
        word = WORDS.get(name, name)
        assert word in text
        assert f"`{word}" in page, word
