"""Service levels: how many backups the keys of each importance have, under `ftlb`.

Why: if only some keys must survive a loss, you pay for copies of these keys alone; and the few
heaviest keys are worth copies that can take over for balance.

A level names its keys one by one, by a predicate over the key columns, or by their rank of load. It
is written as a mapping, in Python or in a file:
`{"gold": {"keys": [17, 4711], "backups": 3}, "hot": {"top": 20, "backups": 2}}`.

Law: a key that several levels name has the most backups that one of them gives.
Source: Fang et al., World Wide Web 2019, section 3.2 (a table of service levels).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from joinengine.model.arguments import check_count, check_text, kind_of
from joinengine.model.conditions import Predicate
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side

#: How many keys a level may list. Each has an entry in the routing table, which every task gets:
#: with 20,000 keys, a start and its first batch take some seconds each.
MOST_LISTED = 20_000
#: The ways in which a level may name its keys.
_BY = ("keys", "where", "top")
_EXAMPLE = "{'hot': {'top': 20, 'backups': 2}}"
#: Types of the parts of a key.
_VALUES = (str, int, float, Decimal, date, datetime)

#: A key: a value for each of the key columns.
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """The keys that have `backups` backups: one of `keys`, `where` and `top` names them.

    `join`: the number of the join whose keys these are; None: of all joins. `hashes` are those of
    `keys` and `predicate` is `where`, once the level is fitted to a join; until then they are None.
    """

    name: str
    backups: int
    keys: tuple[Key, ...] | None = None
    where: str | None = None
    top: int | None = None
    join: int | None = None
    hashes: tuple[int, ...] | None = None
    predicate: Predicate | None = None

    def __str__(self) -> str:
        if self.top is not None:
            named = f"the {self.top:,} keys of greatest load"
        elif self.where is not None:
            named = f"keys with {self.where}"
        else:
            named = f"{len(self.keys or ()):,} listed keys"
        backups = "1 backup" if self.backups == 1 else f"{self.backups} backups"
        return f"{self.name}: {backups} for {named}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, which `read_levels` reads."""
        written = {
            "name": self.name,
            "backups": self.backups,
            "keys": self.keys and [list(key) for key in self.keys],
            "where": self.where,
            "top": self.top,
            "join": self.join,
            "hashes": None if self.hashes is None else list(self.hashes),
        }
        if self.predicate is not None:
            columns = [[int(side), name] for side, name in self.predicate.columns]
            written["predicate"] = [self.predicate.sql, columns, self.predicate.zone]
        return {field: value for field, value in written.items() if value is not None}


def read_levels(levels: Any) -> tuple[Level, ...]:
    """The levels from a mapping as users write it, from `Level.to_json`, or unchanged.

    Raises InvalidRequest, which names the level, for anything else.
    """
    if isinstance(levels, Mapping):
        return tuple(_written(name, level) for name, level in levels.items())
    if isinstance(levels, list | tuple) and all(map(_is_kept, levels)):
        return tuple(level if isinstance(level, Level) else _kept(level) for level in levels)
    raise InvalidRequest(f"levels: expected a mapping such as {_EXAMPLE}, found {kind_of(levels)}")


def most_backups(levels: Iterable[Level], default: int) -> int:
    """The most backups that any key may have."""
    return max((level.backups for level in levels), default=default)


def _written(name: Any, level: Any) -> Level:
    """A level as users write it."""
    check_text(name, "levels", _EXAMPLE)
    what = f"level {name}"
    if not isinstance(level, Mapping):
        raise InvalidRequest(
            f"{what}: expected a mapping such as in {_EXAMPLE}, found {kind_of(level)}"
        )
    if odd := [field for field in level if field not in (*_BY, "backups", "join")]:
        raise InvalidRequest(
            f"{what}: field {odd[0]!r} is unknown. A level has backups, one of {', '.join(_BY)}, "
            f"and optionally join"
        )
    by = [way for way in _BY if way in level]
    if len(by) != 1:
        named = " and ".join(by) if by else "none"
        raise InvalidRequest(
            f"{what}: expected one of {', '.join(_BY)} for the keys, found {named}"
        )
    if "backups" not in level:
        raise InvalidRequest(f"{what}: backups is missing; give the number of backups, such as 2")
    return Level(
        name,
        _at_least(level["backups"], 1, f"{what}: backups"),
        None if "keys" not in level else _keys(level["keys"], what),
        None if "where" not in level else check_text(level["where"], f"{what}: where", "'a < 5'"),
        None if "top" not in level else _at_least(level["top"], 1, f"{what}: top"),
        None if level.get("join") is None else _at_least(level["join"], 0, f"{what}: join"),
    )


def _at_least(value: Any, least: int, what: str) -> int:
    number = check_count(value, what)
    if number < least:
        raise InvalidRequest(f"{what} must be at least {least}, found {number}")
    return number


def _keys(keys: Any, what: str) -> tuple[Key, ...]:
    """The keys of a list, each as a tuple of its parts in plain values."""
    if not isinstance(keys, Sequence) or isinstance(keys, str) or not keys:
        raise InvalidRequest(
            f"{what}: keys must be a list such as [17, 4711], found {kind_of(keys)}"
        )
    if len(keys) > MOST_LISTED:
        raise InvalidRequest(
            f"{what}: keys must list at most {MOST_LISTED:,} keys, found {len(keys):,}; name them "
            f"by a predicate, as where='customer < 1000'"
        )
    return tuple(
        tuple(_plain(part, what) for part in (key if isinstance(key, list | tuple) else [key]))
        for key in keys
    )


def _plain(part: Any, what: str) -> Any:
    """A part of a key as a value that JSON has."""
    if not isinstance(part, _VALUES):
        raise InvalidRequest(f"{what}: keys must be values of key columns, found {kind_of(part)}")
    if isinstance(part, datetime | date):
        return part.isoformat()
    return str(part) if isinstance(part, Decimal) else part


def _is_kept(level: Any) -> bool:
    return isinstance(level, Level) or (
        isinstance(level, Mapping) and {"name", "backups"} <= level.keys()
    )


def _kept(level: Mapping[str, Any]) -> Level:
    """A level of a manifest."""
    keys, hashes = level.get("keys"), level.get("hashes")
    predicate = None
    if "predicate" in level:
        sql, columns, zone = level["predicate"]
        named = tuple((Side(side), name) for side, name in columns)
        predicate = Predicate(level["where"], sql, named, zone)
    return Level(
        level["name"],
        level["backups"],
        keys and tuple(tuple(key) for key in keys),
        level.get("where"),
        level.get("top"),
        level.get("join"),
        None if hashes is None else tuple(hashes),
        predicate,
    )
