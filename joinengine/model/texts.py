"""Conditions, sizes and numbers as text, for people and for the accounts of checkpoints."""

from __future__ import annotations

import re

from joinengine.model.conditions import AsOf, Band, Condition, Equi, Multiway
from joinengine.model.durations import describe

#: How many characters of a foreign text a message repeats.
_MOST_SAID = 200
#: The user in a URL, with or without a password; Azure's URLs have a container in this place.
_USER = re.compile(r"(?<!\babfs:)(?<!\babfss:)//([^/@\s:]*:\S*|[^/\s]*)@")
#: What follows the path of a URL, where a signed one has its signature.
_QUERY = re.compile(r"(://[^\s?]*\?)[^\s'\"]+")


def condition_text(condition: Condition) -> str:
    """The condition as SQL.

    >>> condition_text(Equi(("a",), ("b",)))
    'a = b'
    """
    if isinstance(condition, Equi):
        pairs = zip(condition.left, condition.right, strict=True)
        return " and ".join(f"{left} = {right}" for left, right in pairs)
    if isinstance(condition, Band):
        low = "" if condition.lower is None else f"{condition.lower} <= "
        high = "" if condition.upper is None else f" <= {condition.upper}"
        text = f"{low}{condition.right} - {condition.left}{high}"
        return text if condition.equal is None else f"{condition_text(condition.equal)} and {text}"
    if isinstance(condition, Multiway):
        return " and ".join(" = ".join(columns) for columns in zip(*condition.keys, strict=True))
    if isinstance(condition, AsOf):
        by = condition_text(condition.by)
        if condition.is_latest:
            order = f" {condition.times[1][0]}" if condition.times[1] else ""
            return f"{by} and latest{order}"
        (left,), (right,) = condition.times
        strict = "strictly " if condition.strict else ""
        text = f"{strict}{condition.direction} {right} as of {left}"
        if condition.tolerance_us is not None:
            text += f" within {describe(condition.tolerance_us)}"
        return f"{by} and {text}" if by else text
    return condition.predicate


def counted(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> counted(1, "batch"), counted(1200, "batch"), counted(3, "row")
    ('1 batch', '1,200 batches', '3 rows')
    """
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def size_text(size_bytes: float) -> str:
    """A number of bytes in a unit that people read.

    >>> size_text(820), size_text(3_140_000), size_text(20_000_000_000)
    ('820 B', '3.1 MB', '20.0 GB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes:.0f} B"


def quoted(text: object, most: int = _MOST_SAID) -> str:
    """A text of the user's as an error repeats it: in quotes, and cut to `most` characters.

    >>> quoted("a > 3"), quoted("x" * 300, most=4)
    ("'a > 3'", "'xxxx..'")
    """
    written = str(text)
    return repr(written if len(written) <= most else f"{written[:most]}..")


def in_a_line(said: object) -> str:
    """A message of another program, on one line, and cut if it is long."""
    text = " ".join(str(said).split()) or type(said).__name__
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}.."


def without_secrets(text: object) -> str:
    """A text in which URLs have neither a user nor a password nor a query.

    >>> without_secrets("postgresql://me:hunter2@host/db"), without_secrets("https://h/x?sig=hunter2")
    ('postgresql://..@host/db', 'https://h/x?..')
    """
    return _QUERY.sub(r"\1..", _USER.sub("//..@", str(text)))


class Shown(str):
    """Text of several lines that a REPL and a notebook show as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__
