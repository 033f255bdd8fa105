"""What Spark and DuckDB's parser read in two ways is refused; parentheses say which is meant."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine import InvalidRequest
from joinengine.predicates.dialect import Translation, compile_predicate
from joinengine.predicates.precedence import check_precedence

LEFT = pa.schema(
    [
        *(("a", pa.int64()), ("s", pa.string()), ("p", pa.decimal128(9, 2))),
        ("z", pa.timestamp("us", "UTC")),
    ]
)
RIGHT = pa.schema(
    [
        *(("b", pa.int32()), ("t", pa.string()), ("f", pa.float64()), ("q", pa.bool_())),
        ("y", pa.timestamp("us", "UTC")),
    ]
)

BYTES = ("s = X'C3A9'", "s in (t, X'61')", "s between X'61' and t", "s || X'61' = t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a ^ 2 = 1", r"\^ in .* is not supported"),
        ("count(*) > 1", "count_star in .* is not supported"),
        ("rank() over () > 1", "rank in .* is not supported"),
        ("a in (select 1)", "subquery in .* is not supported"),
        ("random() < 0.5", "random in .* is not supported"),
        ("a | 1 & 3 = 1", r"which of \| and & comes first\? Put one of them into parentheses"),
        ("~b + 1 = 2", r"which of ~ and \+ comes first"),
        ("b <=> a = q", "which of <=> and = comes first"),
        ("q <=> f is null", "which of <=> and is comes first"),
        ("q = b in (1, 2)", "which of = and in comes first"),
        ("q <> b not in (1, 2)", "which of <> and in comes first"),
        ("s like 'a' = q", "which of like and = comes first"),
        ("b in (1) in (q)", "which of in and in comes first"),
        ("s || b + 1 = t", r"which of \|\| and \+ comes first"),
        ("s || a & 3 = t", r"which of & and \|\| comes first|which of \|\| and & comes first"),
        ("s || f = t", r"\|\| of double in .* is not supported"),
        ("concat(s, z) = t", "concat of timestamp with time zone in .* is not supported"),
        ("p = '1.499'", r"a value of type DECIMAL\(9,2\) beside the text '1.499' in"),
        ("p between '1.504' and '2'", "beside the text '1.504' in"),
        ("b in ('1', '1.7')", "a value of type INTEGER beside the text '1.7' in"),
        ("coalesce(b, '1.7') = 1", "a value of type INTEGER beside the text '1.7' in"),
        ("nullif(p, '1.499') is null", r"DECIMAL\(9,2\) beside the text '1.499' in"),
        ("if(q, '1.7', b) = 2", "a value of type INTEGER beside the text '1.7' in"),
        ("case when q then b when not q then '1.7' end = 2", "INTEGER beside the text '1.7' in"),
        ("coalesce(b, if(q, b, '1.7')) = 2", "INTEGER beside the text '1.7' in"),
        ("greatest(b, '1.7') = 2", "INTEGER beside the text '1.7' in"),
        ("nvl(b, '1.7') = 2", "INTEGER beside the text '1.7' in"),
        ("b + '1.7' = 3", "INTEGER beside the text '1.7' in"),
        ("b = t", "INTEGER beside a text of any value"),
        ("p in (1, t || '9')", r"DECIMAL\(9,2\) beside a text of any value"),
        ("cast(q as decimal(3, 1)) = 1", "a cast from boolean to decimal in"),
        ("cast(cast(0.5 as decimal(2, 2)) as string) = t", r"a cast from decimal\(2,2\) to string"),
        ("y - z > interval 1.5 hours", "an interval of a fraction in"),
        ("s = N'a'", "Spark does not support N'..'; write '..'"),
        *((text, "text beside bytes .write bytes as X'61'. in") for text in BYTES),
        ("s = $$a$$", r"Spark does not support \$\$..\$; write"),
        ("s isnull", "Spark does not support isnull behind a value; write IS NULL"),
        ("s NotNull and q", "NotNull behind a value; write IS NOT NULL"),
        ("a = 1.5F", "the number 1.5F is not supported; write 1.5 for a decimal, 1.5D for a"),
        ("a = 2bd", "the number 2BD is not supported"),
        ("a > 1.5L", "the number 1.5L is not supported"),
        ("a < 128Y", "out of range"),
        (
            "s not like 'a!_' escape '!'",
            "is not supported. Leave ESCAPE out, and write a backslash",
        ),
        ("z > to_timestamp(s)", "Write timestamp '2024-02-29 12:00:00' for a constant"),
        ("z < to_date('2024-01-02')", "Write date '2024-02-29' for a constant"),
        ("z < add_months(z, 1)", r"Write d \+ interval 1 month"),
    ],
)
def test_what_means_something_else_in_spark_is_refused(text, message):
    with pytest.raises(InvalidRequest, match=message):
        compile_predicate(text, (LEFT, RIGHT), "where")


@pytest.mark.parametrize(
    "text",
    [
        *("a | (b & 3)", "(a | 1) & 3", "a | b | 3", "a & -1", "a + b | 3", "a * -1 | 3"),
        *("(~a) + 1", "b + ~a", "~a", "-~a", "~(a + 1)", "f(~a, b + 1)"),
        *("s || (a + 1)", "s || t || 'x & y | z'"),
        *("a <=> b and c <=> d", "a <=> (b = c)", "not a <=> b", "a = b <> c"),
        *("a | 1 = b & 3", "a in (b | 1, b & 2)", "case when a | 1 = b then b & 3 else ~c end"),
        *("s like '%|&%' or a | 1 = 2", '"a|b" & 3', "`~` + 1", "a -- | b & c\n & 1"),
        *("a = 1 and b in (2)", "not a in (1) and b = 2", "(a = b) in (c)", "a not in (b = 1)"),
        *(
            "a = b is null",
            "a in (1) is not null",
            "left.geo.in.x = 1",
            "a = b and c not like 'x' or d between 1 and 2",
        ),
        *(
            "case when a = 1 then b in (2) else c like 'd' end",
            "not a = b",
            "a = 1 and not b in (2)",
        ),
        *("x between a | 1 and b & 3", "a[b | 1] & 3", "s !~~ 'a' and a | 1 = 2"),
    ],
)
def test_what_has_one_reading_passes(text):
    check_precedence(text)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("a > 1 or a * 2 + b > 3 or a in (4, 5) or b between a and 7 or f = -a / 2", 1),
        ("s = 'x' or s = t", 4),
    ],
)
def test_types_are_asked_for_only_where_text_may_stand(text, most, monkeypatch):
    """Each question takes longer than reading a comparison."""
    asked, real = [], Translation._type_of
    monkeypatch.setattr(Translation, "_type_of", lambda *of: asked.append(of) or real(*of))
    compile_predicate(text, (LEFT, RIGHT), "where")
    assert len(asked) <= most
