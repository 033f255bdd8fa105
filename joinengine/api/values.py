"""The values that options take: how their text is read, and how a page describes them.

Law: an invalid text is refused with the option's name, the text, and what to give.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from joinengine.model.durations import describe, microseconds
from joinengine.model.errors import InvalidRequest
from joinengine.model.named import one_of

#: Above all counts; Python would not even read thousands of digits.
_MOST_DIGITS = 18
#: Above all sizes.
_MOST_BYTES = 1 << 60
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
#: Spark's names of codecs -> Arrow's.
_CODECS = {
    **{"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip"},
    **{"zstd": "zstd", "lz4_raw": "lz4"},
}


@dataclass(frozen=True, slots=True)
class Value:
    """What an option takes. `words`: its description on a page. `read`: (text, name) -> its value.

    `names`: all valid texts, if they are few. `metavar`: its name in the command line's help.
    `read` raises InvalidRequest for an invalid text.
    """

    words: str
    read: Callable[[str, str], Any]
    names: tuple[str, ...] = ()
    metavar: str = "TEXT"


def _boolean(text: str, name: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"{name}: expected true or false, found {text!r}")
    return text.lower() == "true"


TEXT = Value("text", lambda text, name: text)
BOOLEAN = Value("true or false", _boolean)


def count(unit: str, most: int = 10**_MOST_DIGITS) -> Value:
    """A positive whole number of `unit`, `most` at most.

    >>> count("rows").read("12", "capacity")
    12
    """

    def read(text: str, name: str) -> int:
        if not (text.isascii() and text.isdigit() and text.strip("0")):
            raise InvalidRequest(
                f"{name}: expected a whole number of {unit} above 0, found {text!r}"
            )
        if len(text) > _MOST_DIGITS or int(text) > most:
            raise InvalidRequest(f"{name}: expected at most {most:,} {unit}, found {text!r}")
        return int(text)

    return Value(f"a number of {unit}", read, metavar=unit.upper())


def size(least: int = 1) -> Value:
    """Bytes, or a number with a unit of them; `least` at least.

    >>> size().read("128 MB", "targetFileSize")
    134217728
    """

    def read(text: str, name: str) -> int:
        match = _SIZE.fullmatch(text.strip().lower())
        if not match:
            raise InvalidRequest(
                f"{name}: expected a number of bytes or a size such as '128 MB', found {text!r}"
            )
        wanted_bytes = float(match[1]) * 1024 ** _POWERS[match[2]]
        if wanted_bytes > _MOST_BYTES:
            raise InvalidRequest(f"{name}: expected at most {_MOST_BYTES:,} bytes, found {text!r}")
        size_bytes = int(wanted_bytes)
        if size_bytes < least:
            raise InvalidRequest(f"{name}: expected at least {least:,} bytes, found {text!r}")
        return size_bytes

    return Value("a size, such as `128 MB`", read, metavar="SIZE")


def choice(names: type[StrEnum], into: Callable[[Any], Any] = lambda member: member) -> Value:
    """A word of a fixed set; the value is what `into` makes of it."""
    words = ", ".join(f"`{member}`" for member in names)
    texts = tuple(member.value for member in names)
    return Value(words, lambda text, name: into(one_of(names, text, name)), texts)


def _work_s(text: str, name: str) -> float:
    work = microseconds(text, name)
    if work < 0:
        raise InvalidRequest(f"{name}: expected a duration of 0 or more, found {describe(work)}")
    return work / 1e6


def _rest_s(text: str, name: str) -> float:
    rest = microseconds(text, name)
    if rest <= 0:
        raise InvalidRequest(f"{name}: expected a duration above 0, such as '5 s', found {text!r}")
    return rest / 1e6


#: Durations, in seconds: one that may be 0, and one that may not.
WORK = Value("a duration, such as `20 us`", _work_s, metavar="DURATION")
REST = Value("a duration, such as `5 s`", _rest_s, metavar="DURATION")


def _mode(text: str, name: str) -> int:
    """The mode of folders for files of the mode `text`.

    Whoever may read or write the files may enter the folder.
    """
    if not re.fullmatch("0?6[046]{2}", text):
        raise InvalidRequest(
            f"{name}: expected three digits, for owner, group and others, found {text!r}. The "
            f"first is 6; each of the others is 0 (no access), 4 (read) or 6 (read and write)"
        )
    mode = int(text, 8)
    return mode | (mode & 0o444) >> 2


MODE = Value("three digits, such as `640`", _mode)


def _codec(text: str, name: str) -> str:
    if text.lower() not in _CODECS:
        raise InvalidRequest(f"{name}: expected one of {', '.join(_CODECS)}, found {text!r}")
    return _CODECS[text.lower()]


#: By Spark's names; the value is Arrow's name.
CODEC = Value(", ".join(f"`{one}`" for one in _CODECS), _codec)
