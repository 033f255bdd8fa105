r"""Translates regular expressions of Java, which Spark takes, for RE2, which DuckDB uses.

Only what both can express is served. A pattern is read letter by letter and written anew: `.` and
`\s` stand for other characters in RE2, and Java's `$` also matches before a last line break.
Everything else is refused by name: RE2 lacks it, or gives it another meaning.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Java's line breaks, which `.` does not match.
_BREAKS = r"\n\r\x{85}\x{2028}\x{2029}"
_SPACES = r"\t\n\x{b}\f\r "
_CLASSES = {"d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W", "s": f"[{_SPACES}]"}
_CLASSES["S"] = f"[^{_SPACES}]"
#: Classes inside brackets.
_INSIDE = {"d": r"\d", "w": r"\w", "s": _SPACES}
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x\{([0-9a-fA-F]{1,6})\}")
_TIMES = re.compile(r"\{(\d+)(,?)(\d*)\}")
_MOST_TIMES = 1000
_GROUPS = {
    "?=": "a lookahead (?=",
    "?!": "a lookahead (?!",
    "?<=": "a lookbehind (?<=",
    "?<!": "a lookbehind (?<!",
    "?>": "an atomic group (?>",
}
_GROUPS_OF_REPLACEMENTS = 9


class Pattern(NamedTuple):
    """A pattern of Java for RE2.

    `groups`: how many groups it has. `may_be_empty`: whether it matches the empty text. `ends`:
    whether it has a `$`. `loops`: whether it repeats a part that may be empty.
    """

    text: str
    groups: int
    may_be_empty: bool
    ends: bool
    loops: bool


def in_re2(pattern: str) -> Pattern:
    r"""The same pattern for RE2. Raises ValueError, with what to write, if RE2 may not have it.

    >>> in_re2(r"^a.\d+$").text
    '^a[^\\n\\r\\x{85}\\x{2028}\\x{2029}]\\d+(?:\\r\\n|[\\n\\r\\x{85}\\x{2028}\\x{2029}])?\\z'
    """
    reader = _Reader(pattern)
    text, empty = reader.alternatives(0)
    if reader.at < len(pattern):
        raise ValueError("an unmatched )")
    return Pattern(text, reader.groups, empty, reader.ends, reader.loops)


def check_replaced(pattern: Pattern) -> None:
    """Raise ValueError if Java and RE2 may replace different stretches of a text."""
    if pattern.may_be_empty:
        raise ValueError("an empty match, which Spark and DuckDB replace differently")
    _check_stretch(pattern)


def check_extracted(pattern: Pattern, group: str) -> None:
    """Raise ValueError if the group does not exist, or if Java and RE2 may fill it differently."""
    if not group.isdigit() or int(group) > pattern.groups:
        raise ValueError(f"group {group}, but the pattern has {pattern.groups} groups")
    if int(group) == 0:
        _check_stretch(pattern)
    elif pattern.loops:
        raise ValueError("a repetition of an expression that may be empty")


def _check_stretch(pattern: Pattern) -> None:
    if pattern.loops:
        raise ValueError("a repetition of an expression that may be empty")
    if pattern.ends:
        raise ValueError("a $, which also matches before a final line break; write \\z")


def replacement_in_re2(text: str, groups: int) -> str:
    r"""A replacement of Java, in which $1 is a group, for RE2. Raises ValueError for others.

    >>> replacement_in_re2(r"<$1\$>", 1)
    '<\\1$>'
    """
    made, at = list[str](), 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\":
            if at == len(text):
                raise ValueError("a \\ at the end of the replacement; write it twice")
            made.append(_in_replacement(text[at]))
            at += 1
        elif letter == "$":
            digit = re.match(r"\d", text[at:])
            number = int(digit[0]) if digit else groups + 1
            if number > groups:
                raise ValueError(f"a $ in the replacement that names none of the {groups} groups")
            at += 1
            while at < len(text) and text[at].isdigit() and int(f"{number}{text[at]}") <= groups:
                number, at = int(f"{number}{text[at]}"), at + 1
            if number > _GROUPS_OF_REPLACEMENTS:
                raise ValueError("a group above $9 in the replacement")
            made.append(f"\\{number}")
        else:
            made.append(_in_replacement(letter))
    return "".join(made)


def _in_replacement(letter: str) -> str:
    return "\\\\" if letter == "\\" else letter


class _Reader:
    """Reads a pattern from the left; methods return (the same for RE2, whether it may be empty)."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0
        self.groups = 0
        self.ends = self.loops = False

    def alternatives(self, depth: int) -> tuple[str, bool]:
        texts, empties = list[str](), list[bool]()
        while True:
            text, empty = self._sequence(depth)
            texts.append(text)
            empties.append(empty)
            if not self._takes("|"):
                return "|".join(texts), any(empties)

    def _sequence(self, depth: int) -> tuple[str, bool]:
        made, all_empty = list[str](), True
        while self.at < len(self._pattern) and self._peek() not in "|)":
            text, empty, repeatable = self._atom(depth)
            times = self._quantifier(empty=empty, repeatable=repeatable)
            made.append(text + times)
            all_empty = all_empty and (empty or times[:1] in ("*", "?") or times[:2] == "{0")
        return "".join(made), all_empty

    def _atom(self, depth: int) -> tuple[str, bool, bool]:
        """(for RE2, may be empty, may be repeated)."""
        letter = self._next()
        match letter:
            case "(":
                text, empty = self._group(depth)
                atom = text, empty, True
            case "[":
                atom = self._brackets(), False, True
            case ".":
                atom = f"[^{_BREAKS}]", False, True
            case "^":
                atom = "^", True, False
            case "$":
                atom = self._end(depth), True, False
            case "\\":
                atom = self._escape()
            case "*" | "+" | "?":
                raise ValueError(f"a {letter} that repeats nothing")
            case "{":
                raise ValueError("a { that starts no count; write \\{")
            case _:
                atom = _literal(letter), False, True
        return atom

    def _group(self, depth: int) -> tuple[str, bool]:
        if self._takes("?:"):
            head = "(?:"
        else:
            for mark, name in sorted(_GROUPS.items(), key=lambda item: -len(item[0])):
                if self._takes(mark):
                    raise ValueError(name)
            if self._takes("?"):
                raise ValueError("a group (?; write (..) or (?:..), and lower(..) instead of (?i)")
            self.groups += 1
            head = "("
        text, empty = self.alternatives(depth + 1)
        if not self._takes(")"):
            raise ValueError("an unmatched (")
        return f"{head}{text})", empty

    def _end(self, depth: int) -> str:
        if depth or (self.at < len(self._pattern) and self._peek() != "|"):
            raise ValueError("a $ before the end of the pattern; write \\z for the end of the text")
        self.ends = True
        return rf"(?:\r\n|[{_BREAKS}])?\z"

    def _escape(self) -> tuple[str, bool, bool]:
        start, letter = self.at, self._next("\\")
        if letter in _CLASSES:
            return _CLASSES[letter], False, True
        if letter in "zA":
            return f"\\{letter}", True, False
        if letter.isdigit() and letter != "0":
            raise ValueError(f"the reference \\{letter} to a group")
        if letter in "bB":
            raise ValueError(f"\\{letter}, which matches different boundaries in Spark and DuckDB")
        self.at = start
        return _literal(self._letter()), False, True

    def _letter(self) -> str:
        """The character that an escape means; `at` is just after the backslash."""
        code = _CODE.match(self._pattern, self.at)
        if code:
            self.at = code.end()
            number = int(next(digits for digits in code.groups() if digits), 16)
            if 0xD800 <= number < 0xE000 or number > 0x10FFFF or not number:
                raise ValueError(f"the escape \\{code[0]}")
            return chr(number)
        letter = self._next("\\")
        if letter in _LETTERS:
            return _LETTERS[letter]
        if letter.isalnum() or ord(letter) > 127:
            raise ValueError(f"the escape \\{letter}")
        return letter

    def _brackets(self) -> str:
        head = "[^" if self._takes("^") else "["
        made, first = list[str](), True
        while first or not self._takes("]"):
            if first and self._peek("]") == "]":
                raise ValueError("a ] at the start of brackets; write \\]")
            first = False
            made.append(self._range())
        return f"{head}{''.join(made)}]"

    def _range(self) -> str:
        """One character, class or range in brackets."""
        low = self._bracketed()
        if len(low) > 1 or not self._pattern.startswith("-", self.at):
            return low if len(low) > 1 else _literal(low)
        if self._pattern.startswith("-]", self.at):
            return _literal(low)
        self.at += 1
        high = self._bracketed()
        if len(high) > 1 or high < low or self._pattern.startswith("-", self.at):
            raise ValueError(f"the range {low}-{high} in brackets")
        return f"{_literal(low)}-{_literal(high)}"

    def _bracketed(self) -> str:
        """A character, or the text of a class, which is longer."""
        letter = self._next("[")
        if letter == "[" or (letter == "&" and self._pattern.startswith("&", self.at)):
            raise ValueError(f"{'[' if letter == '[' else '&&'} in brackets")
        if letter != "\\":
            return letter
        letter = self._peek("\\")
        if letter in _INSIDE:
            self.at += 1
            if self._pattern.startswith("-", self.at):
                raise ValueError(f"a range from \\{letter}")
            return _INSIDE[letter]
        return self._letter()

    def _quantifier(self, *, empty: bool, repeatable: bool) -> str:
        quantifier = self._times()
        if not quantifier:
            return ""
        if not repeatable:
            raise ValueError(f"a {quantifier} that repeats an anchor")
        if self._takes("+"):
            raise ValueError(f"the possessive {quantifier}+")
        self.loops = self.loops or (empty and quantifier != "?")
        quantifier += "?" if self._takes("?") else ""
        if self._times():
            raise ValueError("two repetitions in a row")
        return quantifier

    def _times(self) -> str:
        if self.at < len(self._pattern) and self._peek() in "*+?":
            return self._next()
        match_found = _TIMES.match(self._pattern, self.at)
        if not match_found:
            return ""
        least, most = int(match_found[1]), int(match_found[3] or match_found[1])
        if (
            max(least, most) > _MOST_TIMES
            or most < least
            or (match_found[3] and not match_found[2])
        ):
            raise ValueError(f"the count {match_found[0]}, above the limit of {_MOST_TIMES}")
        self.at = match_found.end()
        return match_found[0]

    def _peek(self, before: str = "") -> str:
        if self.at >= len(self._pattern):
            raise ValueError(f"nothing after {before}")
        return self._pattern[self.at]

    def _next(self, before: str = "") -> str:
        letter = self._peek(before)
        self.at += 1
        return letter

    def _takes(self, text: str) -> bool:
        is_next = self._pattern.startswith(text, self.at)
        self.at += len(text) if is_next else 0
        return is_next


def _literal(letter: str) -> str:
    """A character that stands for itself."""
    return letter if letter.isalnum() or ord(letter) > 127 else rf"\x{{{ord(letter):x}}}"
