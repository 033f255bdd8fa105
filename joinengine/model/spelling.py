"""Escapes in names that would otherwise disturb a terminal, a log or a page.

Why: columns, keys and files have the names that somebody gave them. A name may hold characters that
control a terminal, or reverse the direction of all text that follows.
"""

from __future__ import annotations

import logging


def printable(text: str, kept: str = "") -> str:
    r"""The text with an escape for each character that is not printed and not among `kept`.

    >>> printable("a\u202eb\n")
    'a\\u202eb\\n'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in kept else repr(character)[1:-1]
        for character in text
    )


def printed_lines(text: str) -> str:
    r"""The same of a text that may have several lines, such as a predicate.

    >>> printed_lines("a\u202eb\n")
    'a\\u202eb\n'
    """
    return printable(text, kept="\n\t")


def print_arguments(record: logging.LogRecord) -> bool:
    """A logging filter that makes the arguments of a record printable; it passes all records."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            printed_lines(argument) if isinstance(argument, str) else argument
            for argument in record.args
        )
    return True
