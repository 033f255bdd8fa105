"""Rewrites text constants and names of sides from Spark's spelling to that of DuckDB's parser.

Why: a backslash begins an escape in Spark's constants and is a letter in DuckDB's, and the words
left and right are functions of DuckDB.
"""

from __future__ import annotations

import re

#: Text constants as Spark writes them: `r'..'` has no escapes, and neighbours are one constant.
TEXT = r"""(?:\b[rR]'[^']*'|'(?:[^'\\]|\\.|'')*')"""
#: Marks the pattern of a GLOB that stands for Spark's RLIKE, since both have the same precedence.
MATCH = "\x02"
#: Names in quotes, and comments: they stay as they are.
LEFT_ALONE = r""""(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"""
_TOKENS = re.compile(
    rf"""{LEFT_ALONE}|\b(?:rlike|regexp)\s+(?P<match>{TEXT}(?:\s*{TEXT})*)"""
    rf"""|(?P<dialect>\b(?:[enb]|u&)'|(?<!\w)\$\w*\$)|(?P<bytes>\bx'[^']*')"""
    rf"""|(?P<text>{TEXT}(?:\s*{TEXT})*)|(?P<open>')"""
    r"""|\b(?P<side>left|right)\s*\.|(?P<same><=>)|(?P<bang>!(?![=~]))"""
    r"""|(?<![\w.])(?P<number>(?:\d+\.?\d*|\.\d+)(?P<power>e[+-]?\d+)?)(?P<suffix>bd|[lsydf])\b"""
    r"""|(?<!\.)\b(?P<test>isnull|notnull)\b(?!\s*\()""",
    re.IGNORECASE | re.DOTALL,
)
#: Suffix of a whole number in Spark -> its type.
_WHOLE = {"l": "bigint", "s": "smallint", "y": "tinyint"}
#: DuckDB's tests of NULL that Spark lacks -> what to write.
_TESTS = {"isnull": "IS NULL", "notnull": "IS NOT NULL"}
_ESCAPES = re.compile(
    r"''|\\(?:u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<octal>[01][0-7]{2})|(?P<one>.))",
    re.DOTALL,
)
_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


def in_duckdb(text: str) -> str:
    """The same predicate for DuckDB's parser.

    Raises ValueError for constants that Spark does not have, and for an empty text.
    """
    if not text:
        raise ValueError("the expression is empty; write one, or leave it out")
    return _TOKENS.sub(_plain, text)


def _plain(match: re.Match[str]) -> str:
    """A piece of text as DuckDB's parser wants it. Raises ValueError if Spark has no such piece."""
    if match["dialect"]:
        written = f"{match[0]}..{match[0][-1]}"
        raise ValueError(f"Spark does not support {written}; write '..', where \\n is a new line")
    if match["test"]:
        raise ValueError(
            f"Spark does not support {match[0]} behind a value; write {_TESTS[match[0].lower()]}"
        )
    if match["suffix"]:
        return _number(match["number"], match["suffix"].lower(), has_power=bool(match["power"]))
    if match["bang"]:
        return " not "
    if match["open"]:
        raise ValueError("unterminated text constant; write a quote as \\', a backslash as \\\\")
    if match["match"]:
        return f"glob {_constant(match['match'], MATCH)}"
    if match["text"]:
        return _constant(match["text"])
    if match["same"]:
        return " is not distinct from "
    return f'"{match["side"].lower()}".' if match["side"] else match[0]


def _number(written: str, suffix: str, *, has_power: bool) -> str:
    """A number of a type, for DuckDB's parser. Raises ValueError for types that are not served.

    >>> _number("1", "l", has_power=False), _number("2.5", "d", has_power=False)
    ('cast(1 as bigint)', '2.5e0')
    """
    if suffix == "d":
        return written if has_power else f"{written}e0"
    if suffix not in _WHOLE or not written.isdigit():
        raise ValueError(
            f"the number {written}{suffix.upper()} is not supported; write 1.5 for a decimal, 1.5D "
            "for a double, and 1, 1L, 1S or 1Y for a whole number"
        )
    return f"cast({written} as {_WHOLE[suffix]})"


def _constant(written: str, mark: str = "") -> str:
    """A text constant of one or more pieces, for DuckDB's parser, behind a mark."""
    whole = "".join(_meaning(piece) for piece in re.findall(TEXT, written, re.DOTALL))
    return "'" + mark + whole.replace("'", "''") + "'"


def _meaning(constant: str) -> str:
    r"""The text that one constant, quotes included, means in Spark.

    >>> _meaning(r"'it\'s\u0020\%'"), _meaning(r"r'\n'") == _meaning(r"'\\n'")
    ("it's \\%", True)
    """
    if constant[0] in "rR":
        return constant[2:-1]
    try:
        meaning = _ESCAPES.sub(_unescaped, constant[1:-1])
        # Two halves of a surrogate pair are one character.
        meaning = meaning.encode("utf-16", "surrogatepass").decode("utf-16")
    except (ValueError, OverflowError):
        raise ValueError(f"an escape in {constant} is not a character") from None
    if "\0" in meaning:
        raise ValueError("a text constant with the character 0 is not supported")
    return meaning


def _unescaped(match: re.Match[str]) -> str:
    if match[0] == "''":
        return "'"
    digits = match["short"] or match["long"]
    if digits or match["octal"]:
        return chr(int(digits, 16) if digits else int(match["octal"], 8))
    letter = match["one"]
    return match[0] if letter in "%_" else _LETTERS.get(letter, letter)
