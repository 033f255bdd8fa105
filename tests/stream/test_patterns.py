"""Regular expressions match, replace and extract in the evaluator what they do in Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from joinengine import InvalidRequest
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.theta import holds

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("s", pa.string()), ("x", pa.string())])
TEXTS = [
    *("", "a", "b", "ab", "aab", "abc", "a.c", "a-b", "A", "ab\n", "ab\r\n", "ab\r", "ab\n\n"),
    *("a\nb", "a\rb", "a\u2028b", "a\u0085b", "a\x0bb", "a b", "a\tb", "é", "\U0001f600", "10%"),
    *("a1b22", "[x]", "x{2}", "xx", "a_b", "\\", "$", "a$b", "a|b", "(a)", "user-17", "Ka", None),
    *("ab\u2028", "ab\x0b"),
]
#: What is searched; each is also replaced and extracted if that is served.
PATTERNS = [
    *(
        "",
        "a",
        "a.b",
        "^a",
        "b$",
        "^ab$",
        "a|b$",
        r"\d",
        r"\d+",
        r"\D",
        r"\w+",
        r"\W",
        r"\s",
        r"\S",
    ),
    *(r"a\sb", r"^[\s]*$", r"[a-c]+", r"[^a-c]", r"[\d_]", r"[\w.-]+", "[-a]", "[a-]", "[a^]"),
    *("a{2}", "a{1,2}b", "a{2,}", "x{1}", "a*?b", "a+?", "(a+?)(b*)", "(?:ab)+", "(a)|(b)"),
    "a||b",
    *(r"\.", r"\[x\]", r"x\{2\}", r"\\", r"\$", r"\(a\)", "é", r"\x61", r"é", r"\U0001f600"),
    *(r"\t", r"\n", r"\Aab\z", r"ab\z", r"[\n\r]", r"^.$", r"^..$", r"[^\n]$", "a.*", "(.*)", "a?"),
    *(r"user-(\d+)", r"[[]", "(a*)*", "(a*)+b", r"a$b", r"[a&b]", "[a&&b]", "x}", "]", "K", ".+$"),
]


def served(text):
    """The comparison of an expression with column x; None: it is refused."""
    try:
        return compile_predicate(f"{text} <=> x", (SCHEMA, pa.schema([])), "where")
    except InvalidRequest as refused:
        assert "docs/predicates.md" in str(refused)
        return None


def calls():
    for pattern in PATTERNS:
        yield f"cast(s rlike r'{pattern}' as string)"
        yield f"regexp_replace(s, r'{pattern}', '<$0>')"
        yield f"regexp_extract(s, r'{pattern}')"
        yield f"regexp_extract(s, r'{pattern}', 0)"
    yield r"regexp_replace(s, '(\\w)b', '\\$$1\\\\')"
    yield "regexp_replace(s, '(.)(.)', '$2$1')"


def test_patterns_mean_what_they_mean_in_spark(spark, interpreted):
    compiled = {text: served(text) for text in calls()}
    compiled = {text: one for text, one in compiled.items() if one is not None}
    assert {text.split("(")[0] for text in compiled} == {"cast", "regexp_replace", "regexp_extract"}
    frame = spark.createDataFrame([(text,) for text in TEXTS], "s string").coalesce(1)
    answers = frame.selectExpr(*compiled).collect()
    nothing, different = np.arange(len(TEXTS)), {}
    for (text, one), column in zip(compiled.items(), zip(*answers, strict=True), strict=True):
        expected = pa.array(column, pa.string())
        both = pa.RecordBatch.from_arrays([pa.array(TEXTS, pa.string()), expected], schema=SCHEMA)
        wrong = np.flatnonzero(~holds(one, (both, both), (nothing, nothing)))
        if len(wrong):
            different[text] = [(TEXTS[i], column[i]) for i in wrong]
    assert different == {}
    assert len(compiled) > 150


REFUSED = {
    "a lookahead": "a(?=b)",
    "a lookahead [(][?]!": "a(?!b)",
    "a lookbehind": "(?<=a)b",
    "a lookbehind [(][?]<!": "(?<!a)b",
    "an atomic group": "(?>a)b",
    r"a group \(\?; .* lower": "(?i)a",
    "the possessive": "a++b",
    r"the reference \\1": r"(a)\1",
    r"\\b, which matches different boundaries": r"\ba",
    r"the escape \\p": r"\p{L}",
    "a [$] before the end of the pattern; write": "a$b",
    r"an unmatched \(": "(a",
    r"an unmatched \)": "a)",
    r"\[ in brackets": "[a[b]]",
    "&& in brackets": "[a&&b]",
    "nothing after": "[a",
    "a [*] that repeats nothing": "*a",
    "two repetitions": "a{2}{3}",
    "the count": "a{2000}",
    "repeats an anchor": "^*a",
    "a { that starts no count": "a{x",
    "the range b-a": "[b-a]",
    "a ] at the start of brackets": "[]a]",
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_engines_read_differently_is_refused(message):
    with pytest.raises(InvalidRequest, match=message):
        compile_predicate(f"s rlike r'{REFUSED[message]}'", (SCHEMA, pa.schema([])), "where")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regexp_replace(s, 'a*', 'x') = s", "an empty match"),
        ("regexp_replace(s, 'a$', 'x') = s", "final line break; write"),
        ("regexp_replace(s, 'a', '$1') = s", "names none of the 0 groups"),
        ("regexp_replace(s, 'a', r'x\\') = s", "at the end of the replacement"),
        ("regexp_extract(s, '(a)', 2) = s", "group 2, but the pattern has 1"),
        ("regexp_extract(s, '(a*)*b', 1) = s", "a repetition of an expression that may be empty"),
        ("s rlike t", "is not a valid predicate"),
        ("rlike(s, s)", "rlike with a pattern or group that is not constant"),
        ("rlike(s, null)", "rlike with a pattern or group that is not constant"),
        ("regexp_replace(s, 'a') = s", "regexp_replace with 2 arguments"),
        ("s similar to 'a'", "regexp_full_match in .* is not supported"),
        ("s glob 'a'", "~~~ in .* is not supported"),
        ("s ~ 'a'", "regexp_matches in .* is not supported"),
    ],
)
def test_other_uses_are_refused(text, message):
    with pytest.raises(InvalidRequest, match=message):
        compile_predicate(text, (SCHEMA, pa.schema([])), "where")
