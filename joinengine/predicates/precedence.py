"""Refuses operators that Spark and DuckDB bind in different orders, unless parentheses decide.

Why: DuckDB's parser makes the tree, which does not show any more where parentheses stood. In Spark
`~` binds before all others, `&` before `|`, `||` as `+` does, and `<=>` as `=` does, before IN,
LIKE and BETWEEN. In DuckDB the first four bind alike, after `+`; the operator that replaces `<=>`
binds last; and IN, LIKE and BETWEEN bind before `=`.
Law: text that passes has one reading in both. Source: Spark's SqlBaseParser.g4; DuckDB's gram.y.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from joinengine.predicates.tokens import LEFT_ALONE, TEXT

#: Words behind which another operand of AND, OR, NOT or CASE begins.
_PARTS = ("and", "or", "not", "case", "when", "then", "else", "end", "escape")
_TESTS = ("in", "like", "ilike", "rlike", "regexp", "between")
_COMPARING = ("is", *_TESTS)
_TOKENS = re.compile(
    rf"""(?P<skipped>{LEFT_ALONE}|{TEXT})"""
    rf"""|(?P<part>(?<!\.)\b(?:{"|".join(_PARTS)})\b|!(?![=~])|,)|(?P<open>[(\[])|(?P<close>[)\]])"""
    rf"""|(?P<compare>(?<!\.)\b(?:{"|".join(_COMPARING)})\b|<=>|<>|!?~~~?\*?|[<>=!]=?=?)"""
    r"""|(?P<operator>\|\||[|&~+\-*/%])|(?P<other>[^\s])""",
    re.IGNORECASE | re.DOTALL,
)
_SAME = "<=>"
#: Operators with two readings beside another comparison.
_FIRST = {_SAME, *_TESTS}
#: These bind alike for DuckDB, and one after the other in Spark.
_ALIKE = {"|", "&", "||"}


@dataclass
class _Level:
    """The operators between two brackets: those of a comparison, and of its present operand."""

    comparisons: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)
    is_behind_operand: bool = False

    def part(self) -> None:
        """Another part of AND, OR or CASE begins."""
        self.comparisons.clear()
        self.operand()

    def operand(self) -> None:
        """Another operand of a comparison begins."""
        self.operators.clear()
        self.is_behind_operand = False


def check_precedence(text: str) -> None:
    """Raise ValueError for operators side by side that Spark binds in another order.

    >>> check_precedence("(a | 1) & 3 = b and ~c = -1")
    >>> check_precedence("a | 1 & 3 = b")
    Traceback (most recent call last):
        ...
    ValueError: which of | and & comes first? Put one of them into parentheses
    """
    levels = [_Level()]
    for match in _TOKENS.finditer(text):
        level, kind = levels[-1], match.lastgroup
        if kind == "part":
            if not (level.is_behind_operand and match[0].lower() == "not"):  # of NOT IN
                level.part()
        elif kind == "open":
            level.is_behind_operand = True
            levels.append(_Level())
        elif kind == "close":
            levels[1:] = levels[1:-1]
        elif kind == "compare":
            level.comparisons.append(match[0].lower())
            if len(level.comparisons) > 1 and _has_two_readings(set(level.comparisons)):
                raise _unclear(*level.comparisons[:2])
            level.operand()
        elif kind == "operator":
            _note(level, match[0])
        else:
            level.is_behind_operand = True


def _has_two_readings(comparisons: set[str]) -> bool:
    if "is" in comparisons:
        return _SAME in comparisons
    return bool(_FIRST & comparisons)


def _note(level: _Level, operator: str) -> None:
    """Take note of an operator; a sign is not an operator."""
    if operator in "+-" and not level.is_behind_operand:
        return
    level.is_behind_operand = False
    for other in sorted(level.operators - {operator}):
        pair = {operator, other}
        if other == "~" or pair <= _ALIKE or ("||" in pair and pair & {"+", "-"}):
            raise _unclear(other, operator)
    level.operators.add(operator)


def _unclear(first: str, second: str) -> ValueError:
    return ValueError(
        f"which of {first} and {second} comes first? Put one of them into parentheses"
    )
