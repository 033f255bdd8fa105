"""SQL text as a syntax tree whose parts know their places, and parts as text again.

Why places: a part goes on to the dialect of predicates (docs/predicates.md) as the user has written
it, with only the names of columns replaced. A generator of SQL could change its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from joinengine.api.checks import NoDelay
from joinengine.api.sql_package import errors, exp, parser, sqlglot, tokens
from joinengine.api.sql_words import in_sql
from joinengine.model.errors import InvalidRequest
from joinengine.model.texts import in_a_line

#: The offsets in the text where a part begins and ends.
_SPAN = "span"
_QUOTED = re.compile(r"""('(?:[^'\\]|\\.)*'|`[^`]*`|"[^"]*")""", re.DOTALL)


class _Parser(parser.Parser):  # type: ignore[misc]
    """Notes where each part of a condition, and each item of a list, begins and ends."""

    #: Functions stay calls of their names.
    FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012

    def _noted(self, parse: Callable[..., Any], *given: Any, **named: Any) -> Any:
        first, node = self._curr, parse(*given, **named)
        if node is not None and first is not None:
            node.meta[_SPAN] = first.start, self._prev.end + 1
        return node

    def _parse_assignment(self, *given: Any, **named: Any) -> Any:
        return self._noted(super()._parse_assignment, *given, **named)

    def _parse_disjunction(self, *given: Any, **named: Any) -> Any:
        return self._noted(super()._parse_disjunction, *given, **named)

    def _parse_equality(self, *given: Any, **named: Any) -> Any:
        return self._noted(super()._parse_equality, *given, **named)

    def _parse_comparison(self, *given: Any, **named: Any) -> Any:
        return self._noted(super()._parse_comparison, *given, **named)

    def _parse_unary(self, *given: Any, **named: Any) -> Any:
        return self._noted(super()._parse_unary, *given, **named)

    def _parse_bitwise(self, *given: Any, **named: Any) -> Any:
        return self._noted(super()._parse_bitwise, *given, **named)


class _Dialect(sqlglot.Dialect):  # type: ignore[misc]
    """Names in backticks or double quotes, and text constants as Spark has them."""

    class Tokenizer(tokens.Tokenizer):  # type: ignore[misc]
        QUOTES = ["'"]  # noqa: RUF012
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012
        STRING_ESCAPES = ["'", "\\"]  # noqa: RUF012
        RAW_STRINGS = [("r'", "'"), ("R'", "'")]  # noqa: RUF012
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012
        NUMERIC_LITERALS = {  # noqa: RUF012
            **{"L": "BIGINT", "S": "SMALLINT", "Y": "TINYINT"},
            **{"D": "DOUBLE", "F": "FLOAT", "BD": "DECIMAL"},
        }
        STRING_ESCAPES_ALLOWED_IN_RAW_STRINGS = False
        #: SESSION is a function here.
        KEYWORDS = {  # noqa: RUF012
            word: kind for word, kind in tokens.Tokenizer.KEYWORDS.items() if word != "SESSION"
        }

    Parser = _Parser


@dataclass(frozen=True, eq=False)
class SqlText:
    """The text of one statement."""

    text: str

    def statement(self) -> Any:
        """The syntax tree. Raises InvalidRequest if the text is not one SELECT."""
        begin = re.match(r"\s*(\w+)", self.text)
        try:
            statements = [
                parsed for parsed in sqlglot.parse(self.text, read=_Dialect) if parsed is not None
            ]
        except errors.TokenError as error:
            raise self._unclosed(error) from None
        except errors.ParseError as error:
            first = error.errors[0]
            if begin is not None and begin[1].upper() not in ("SELECT", "WITH"):
                raise InvalidRequest(f"sql: expected one SELECT, found {begin[1]}") from None
            is_spark = re.search(r"\bwindow\s*\(", self.text, re.IGNORECASE) is not None
            raise InvalidRequest(
                f"sql: line {first['line']}, column {first['col']}: the text is not valid SQL near "
                f"{first['highlight']!r}: {_as_told(first['description'])}"
                f"{'. In place of window(..) write TUMBLE or HOP (docs/sql.md)' * is_spark}"
            ) from None
        if not statements:
            raise InvalidRequest("sql: expected one SELECT, found no text")
        if len(statements) > 1:
            raise InvalidRequest(f"sql: expected one SELECT, found {len(statements)} statements")
        (statement,) = statements
        if isinstance(statement, exp.SetOperation):
            kind = statement.key.upper()
            said = f"{kind} is not supported; run a query for each SELECT, into one sink"
            raise self.refusal(statement.expression, said)
        if not isinstance(statement, exp.Select):
            word = statement.key.upper() if begin is None else begin[1]
            raise self.refusal(statement, f"expected one SELECT, found {word}")
        return statement

    def refusal(self, node: Any, said: str) -> InvalidRequest:
        """The error for a part, with the line and the column where it begins."""
        return self._refusal_at(self._start(node), said)

    def _refusal_at(self, start: int, said: str) -> InvalidRequest:
        line = self.text.count("\n", 0, start) + 1
        column = start - self.text.rfind("\n", 0, start)
        return InvalidRequest(f"sql: line {line}, column {column}: {said}")

    def _unclosed(self, error: Exception) -> InvalidRequest:
        """The error for a text that ends inside a name, a constant or a comment."""
        opened = re.match(r"Missing (.+) from \d+:(\d+)", str(error.__cause__))
        if opened is None:
            said = f"{in_a_line(error)}; close every quote and comment"
            return InvalidRequest(f"sql: the text cannot be read: {said}")
        return self._refusal_at(int(opened[2]), f"{opened[1]} is not closed")

    @contextmanager
    def at(self, node: Any) -> Iterator[None]:
        """Give an InvalidRequest raised inside the place of `node`, unless it has a place."""
        try:
            yield
        except NoDelay as error:
            raise self.refusal(
                node,
                f"the delay of {error.column} is missing; give sql(.., delay='5 minutes'), or "
                "--delay '5 minutes' at a shell",
            ) from None
        except InvalidRequest as error:
            if str(error).startswith("sql: line"):
                raise
            raise self.refusal(node, in_sql(str(error))) from None

    def text_of(self, node: Any, pieces: Sequence[tuple[int, int, str]]) -> str:
        """A part as it is written, but for `pieces`: (begin, end, the text in their place)."""
        at, end = self.place(node)
        made = list[str]()
        for first, last, text in sorted(pieces):
            made += [self.text[at:first], text]
            at = last
        return "".join([*made, self.text[at:end]])

    def place(self, node: Any) -> tuple[int, int]:
        """The offsets in the text where a part begins and ends.

        Raises InvalidRequest for a part inside one that is not served.
        """
        if not self.is_placed(node):
            around = node.parent or node
            raise self.refusal(around, f"{around.key.upper()} is not supported here; leave it out")
        if _SPAN not in node.meta:  # the first operands of more than one operator
            return self.place(node.this)[0], self.place(node.expression)[1]
        first, last = node.meta[_SPAN]
        return int(first), int(last)

    def is_placed(self, node: Any) -> bool:
        """Whether the place of a part is known."""
        if _SPAN in node.meta or not isinstance(node, exp.Binary):
            return _SPAN in node.meta
        return self.is_placed(node.this) and self.is_placed(node.expression)

    def _start(self, node: Any) -> int:
        if _SPAN in node.meta:
            return int(node.meta[_SPAN][0])
        marks = [part.meta.get(_SPAN, (part.meta.get("start"),))[0] for part in node.walk()]
        return int(min((mark for mark in marks if mark is not None), default=0))


def _as_told(description: str) -> str:
    """What the parser says is wrong, without the names of its classes."""
    return "something is missing" if "<class" in description else in_a_line(description)


def conjuncts(node: Any) -> list[Any]:
    """The conditions that AND joins."""
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    if isinstance(node, exp.Paren) and isinstance(node.this, exp.And):
        return conjuncts(node.this)
    return [node]


def ticked(name: str) -> str:
    """A name in backticks.

    >>> ticked("page.url"), ticked("a`b")
    ('`page.url`', '`a``b`')
    """
    return "`" + name.replace("`", "``") + "`"


def without_space(text: str) -> str:
    """An expression without the space and the case that mean nothing in it.

    >>> without_space(" K +1 and 'a  b' "), without_space("a b")
    ("k+1 and'a  b'", 'a b')
    """
    parts = _QUOTED.split(text.strip())
    parts[::2] = [
        re.sub(r" ?([^\w ]) ?", r"\1", re.sub(r"\s+", " ", part)).lower() for part in parts[::2]
    ]
    return re.sub(r"(?<=\w) (?=')|(?<=') (?=\w)", "", "".join(parts))


def bare(node: Any) -> Any:
    """An expression without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def is_under(node: Any) -> bool:
    """Whether an equality is the operand of IS, as in `a = b IS NULL`.

    The parser gives IS only the last operand, in parentheses of its own making, which have no place
    in the text. DuckDB and Spark give IS the equality, and predicates are read as they do.
    """
    return isinstance(node.expression, exp.Paren) and _SPAN not in node.expression.meta


def called(node: Any) -> str:
    """The name of the function that is called, in lower case; empty: no call."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    return ""
