"""Values that a user names: a word of a fixed set becomes a member of an enum, or is refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from joinengine.model.errors import InvalidRequest

Named = TypeVar("Named", bound=StrEnum)


def one_of(names: type[Named], word: str, what: str) -> Named:
    """The member of `names` that is called `word`; `what`: the setting that names it.

    Raises InvalidRequest for any other word.

    >>> class Colour(StrEnum):
    ...     RED = "red"
    >>> one_of(Colour, "red", "colour")
    <Colour.RED: 'red'>
    """
    try:
        return names(word)
    except ValueError:
        raise InvalidRequest(
            f"{what}: {word!r} is unknown; choose one of {', '.join(names)}"
        ) from None


def meant(word: str, names: Iterable[str]) -> str:
    """A question for the end of a message, about the name most like `word`; else empty.

    >>> meant("Hsh", ["auto", "hash"]), meant("best", ["auto", "hash"])
    (". Did you mean 'hash'?", '')
    """
    spelt = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), spelt, 1)
    return f". Did you mean {spelt[near[0]]!r}?" if near else ""
