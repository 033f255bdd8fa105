"""Checks the columns, conditions and join types of a join before Spark starts. No Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from joinengine.api.comparable import check_equality, distance
from joinengine.model.arguments import check_count, check_names, check_text, kind_of
from joinengine.model.columns import of_side, refuse_doubles, require_column, require_of
from joinengine.model.conditions import (
    AsOf,
    Band,
    Columns,
    Condition,
    Distance,
    Equi,
    Predicate,
    Theta,
    equality,
)
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import WINDOW_END, WINDOW_START, JoinType, OutputColumn
from joinengine.model.windows import INT_MAX, Sliding, Window
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.names import resolve

JOIN_TYPES = tuple(one.value for one in JoinType)
#: How many windows may hold one tuple of an outer, semi or anti join: each makes an entry.
MOST_WINDOWS = 1 << 12
#: How many windows may hold one tuple of any join or aggregate: each makes a result. This allows
#: windows of a day that start every second.
MOST_RESULTS = 1 << 17
_SPARK_NAMES = {
    "leftouter": "left",
    "left_outer": "left",
    "rightouter": "right",
    "right_outer": "right",
    "outer": "full",
    "fullouter": "full",
    "full_outer": "full",
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "anti": "left_anti",
    "leftanti": "left_anti",
}


def join_type(how: str) -> JoinType:
    """The join type that `how`, any of Spark's names for it, means."""
    check_text(how, "how", "'left'")
    name = _SPARK_NAMES.get(how.lower().replace(" ", ""), how.lower())
    if name not in JOIN_TYPES:
        raise InvalidRequest(f"how: expected one of {', '.join(JOIN_TYPES)}, found {how!r}")
    return JoinType(name)


def found_columns(
    on: Condition, schemas: tuple[pa.Schema, pa.Schema], *, exact: bool = False
) -> Condition:
    """The condition with the names that its columns have; `exact`: names have their case.

    Raises InvalidRequest, which names the side, for a column that is not there.
    """

    def name(side: Side, written: str, what: str) -> str:
        if not (isinstance(on, Equi) and on.using):
            return str(require_of(schemas, side, written, what, exact=exact).name)
        try:
            field = require_column(schemas[side], written, what, of=of_side(side), exact=exact)
        except InvalidRequest as error:
            raise InvalidRequest(f"{error}. {_two_names(on)}") from None
        return str(field.name)

    if isinstance(on, Equi):
        left = tuple(name(Side.LEFT, column, "on") for column in on.left)
        return replace(
            on, left=left, right=tuple(name(Side.RIGHT, column, "on") for column in on.right)
        )
    if isinstance(on, Band):
        equal = None if on.equal is None else found_columns(on.equal, schemas, exact=exact)
        assert equal is None or isinstance(equal, Equi)
        ends = name(Side.LEFT, on.left, "band"), name(Side.RIGHT, on.right, "band")
        return replace(on, left=ends[0], right=ends[1], equal=equal)
    if isinstance(on, AsOf):
        by = found_columns(on.by, schemas, exact=exact)
        assert isinstance(by, Equi)
        left, right = (tuple(name(side, t, "asof") for t in on.times[side]) for side in PAIR)
        return replace(on, by=by, times=(left, right))
    return on


def _two_names(on: Equi) -> str:
    """Advice on what to write in place of names that both sides should have."""
    text = on.left[0] if len(on.left) == 1 else " = ".join(on.left)
    left, right = Theta(text).equated or ("a", "b")
    return (
        f"For columns with different names, write equi({left!r}, {right!r}), or {left}={right} "
        "at a shell"
    )


def check_condition(on: Condition, schemas: tuple[pa.Schema, pa.Schema]) -> Distance | None:
    """The band in the units of its columns; None: no band. Refuses columns that do not fit."""
    equal = equality(on)
    for left, right in zip(equal.left, equal.right, strict=True):
        check_equality(schemas[0].field(left), schemas[1].field(right), equal.floats)
    if not isinstance(on, Band):
        return None
    return distance(on, schemas[0].field(on.left), schemas[1].field(on.right))


def check_predicate(
    on: Condition,
    where: str | None,
    schemas: tuple[pa.Schema, pa.Schema],
    zone: str,
    *,
    exact: bool = False,
) -> Predicate | None:
    """The predicate that a pair must fulfil beside keys, band and window."""
    if where is not None:
        check_text(where, "where", "where='left.a < b'")
    if isinstance(on, Theta):
        text = on.predicate if where is None else f"({on.predicate}) and ({where})"
        return compile_predicate(text, schemas, "theta", zone, exact=exact)
    if where is None:
        return None
    return compile_predicate(where, schemas, "where", zone, exact=exact)


def check_filter(
    text: str | None,
    side: Side,
    schema: pa.Schema,
    zone: str,
    what: str | None = None,
    *,
    exact: bool = False,
) -> Predicate | None:
    """A predicate over the tuples of one side; `what`: the argument, if not `left_where`, .."""
    if text is None:
        return None
    what, none = what or f"{side.name.lower()}_where", pa.schema([])
    check_text(text, what, f"{what}='a > 3'")
    schemas = (schema, none) if side is Side.LEFT else (none, schema)
    return compile_predicate(text, schemas, what, zone, exact=exact)


def check_schema(schema: pa.Schema, what: str = "an input") -> pa.Schema:
    """Refuse an input, or other `what`, with two columns of one name."""
    refuse_doubles(schema.names, what)
    return schema


def check_as_of(
    name: str, how: JoinType, window: Window | None, where: str | None, table: Side | None
) -> None:
    """Refuse arguments that an as-of join, or one with `latest`, does not take; `name`: which."""
    if how not in (JoinType.INNER, JoinType.LEFT):
        raise InvalidRequest(
            f"how: {how.value!r} is not for {name}, which has a result for each left row; use "
            f"'inner' or 'left'"
        )
    if window is not None:
        raise InvalidRequest(
            f"within: {name} takes no window, since the row that it looks for may be of any age; "
            f"a bound is asof(.., tolerance=..)"
        )
    if where is not None:
        raise InvalidRequest(
            f"where: {name} looks among all rows of a key; filter the rows of a side before, with "
            f"left_where or right_where"
        )
    if table is Side.LEFT:
        raise InvalidRequest(
            "asof: the left side is a table, whose rows no stream can be nearest to for good; "
            "put the stream on the left side"
        )


def check_type(how: JoinType, window: Window | None, table: Side | None) -> None:
    """Refuse join types with results that could never be known, or would be too many."""
    if how is JoinType.INNER:
        if isinstance(window, Sliding):
            check_slide("sliding", window.size_us, window.slide_us)
        return
    if table is not None:
        shown = Side.LEFT if how is JoinType.RIGHT else Side.RIGHT
        if how is JoinType.FULL or shown is not table:
            raise InvalidRequest(
                f"how: {how.value!r} keeps unmatched rows of the table on the "
                f"{table.name.lower()} side, but the stream may bring a match at any time. Use "
                f"'inner', or keep the unmatched rows of the stream: 'left', 'left_semi' or "
                f"'left_anti' with the stream on the left, 'right' with the stream on the right"
            )
    elif window is None and how is not JoinType.LEFT_SEMI:
        raise InvalidRequest(
            f"how: {how.value!r} needs a window, because without one a match may arrive at any "
            f"time; give within="
        )
    endless = None if window is None else window.endless
    if endless is not None and endless in how.watched:
        name, bound = endless.name.lower(), ("upper", "lower")[endless]
        raise InvalidRequest(
            f"how: {how.value!r} needs the {bound} bound of the interval, because without it a "
            f"match for a row of the {name} side may arrive at any time. Give within(.., "
            f"{bound}=..), or both sides in keep=(left, right)"
        )
    if isinstance(window, Sliding) and window.most_windows > MOST_WINDOWS:
        raise InvalidRequest(
            f"how: {how.value!r} allows at most {MOST_WINDOWS} windows for each row, found "
            f"{window.most_windows}; make the slide larger"
        )


def check_cap(most: int | None, on: Condition, how: JoinType) -> int | None:
    """The cap, checked. Refuses one where a pair has several keys, or results lack the key."""
    if most is None:
        return None
    if check_count(most, "max_pairs_per_key") < 1:
        raise InvalidRequest(f"max_pairs_per_key: expected at least 1, found {most}")
    if isinstance(on, AsOf):
        raise InvalidRequest(
            "max_pairs_per_key: an as-of join, or one with latest, makes one result of each left "
            "row; leave it out"
        )
    if not isinstance(on, Equi):
        raise InvalidRequest(
            "max_pairs_per_key: expected a join on equal columns alone, because in a band or theta "
            "join a row meets rows of other keys. Leave it out, or write the rest as where="
        )
    if how is not JoinType.INNER:
        raise InvalidRequest(
            f"max_pairs_per_key: how={how.value!r} shows which rows have no match, and a row whose "
            f"pairs are left out would seem to have none. Leave it out, or use 'inner'"
        )
    return min(most, INT_MAX)


def check_slide(what: str, size_us: int, slide_us: int) -> None:
    """Refuse windows of which too many hold one tuple: making their results would not end."""
    count = -(-size_us // slide_us)
    if count > MOST_RESULTS:
        raise InvalidRequest(
            f"{what}: expected at most {MOST_RESULTS} windows for each row, found {count} with "
            f"size {describe(size_us)} and slide {describe(slide_us)}. Make the slide larger or "
            f"the size smaller"
        )


def output_columns(
    schemas: tuple[pa.Schema, pa.Schema],
    on: Condition,
    suffixes: tuple[str, str] | None,
    how: JoinType = JoinType.INNER,
    window: Window | None = None,
) -> tuple[OutputColumn, ...]:
    """All columns of left, then all of right; a USING column once; the window's edges.

    Semi and anti joins have the columns of left only. Refuses two columns of one name.
    """
    _check_suffixes(suffixes)
    equal = equality(on)
    shared = dict(zip(equal.left, equal.right, strict=True)) if equal.using else {}
    edges = (WINDOW_START, WINDOW_END) if isinstance(window, Sliding) else ()
    sides = PAIR if how.makes_pairs else (Side.LEFT,)
    names = [
        (side, name)
        for side in sides
        for name in schemas[side].names
        if side is Side.LEFT or name not in shared.values()
    ]
    lower = [name.lower() for _, name in names] + list(edges)
    clashing = {name for name in lower if lower.count(name) > 1}
    if clashing and suffixes is None:
        owners = "both sides have" if clashing.isdisjoint(edges) else "a side and the window have"
        raise InvalidRequest(
            f"ambiguous output column names: {owners} {', '.join(sorted(clashing))}; "
            f"rename them on one side, or give suffixes=('_l', '_r') (--suffixes _l,_r)"
        )
    columns = list[OutputColumn]()
    for side, name in names:
        suffix = suffixes[side] if suffixes and name.lower() in clashing else ""
        instead = shared.get(name) if side is Side.LEFT and how.may_lack_left else None
        columns.append(OutputColumn(name + suffix, side, name, instead))
    columns += [OutputColumn(edge, None, edge) for edge in edges]
    refuse_doubles([column.name for column in columns], "the output")
    return tuple(columns)


def selected_columns(
    select: Columns | Mapping[str, str],
    schemas: tuple[pa.Schema, pa.Schema],
    on: Condition,
    how: JoinType,
    window: Window | None,
    *,
    exact: bool,
) -> tuple[OutputColumn, ...]:
    """The columns that `select` names, in its order, under its names.

    A column of one side may have the side before it; a USING column and the window's edges have
    none. Refuses columns that are not there, and two columns of one name.
    """
    named = named_columns(select)
    equal = equality(on)
    merged = {
        left.lower(): (left, right) for left, right in zip(equal.left, equal.right, strict=True)
    }
    edges = (WINDOW_START, WINDOW_END) if isinstance(window, Sliding) else ()
    columns = list[OutputColumn]()
    for name, written in named.items():
        left, right = merged.get(written.lower(), ("", "")) if equal.using else ("", "")
        if left:
            columns.append(
                OutputColumn(name, Side.LEFT, left, right if how.may_lack_left else None)
            )
        elif written in edges:
            columns.append(OutputColumn(name, None, written))
        else:
            reference = resolve(_parts(written), schemas, "select", exact=exact)
            if reference.side is Side.RIGHT and not how.makes_pairs:
                raise InvalidRequest(
                    f"select: a {how.value} join shows columns of the left side, found {written!r}"
                )
            columns.append(OutputColumn(name, reference.side, reference.column))
    refuse_doubles([column.name for column in columns], "select")
    return tuple(columns)


def named_columns(select: Any) -> dict[str, str]:
    """Column of the results -> the column that it shows, as written in `select`.

    Raises InvalidRequest for anything but a list or a mapping of names, and for an empty one.
    """
    example = "select=['a', 'b'], or select={'id': 'left.id'}"
    if isinstance(select, Mapping):
        named = {name: check_text(c, "select: a column", example) for name, c in select.items()}
    else:
        names = list(check_names(select, "select", example))
        refuse_doubles(names, "select")
        named = {name: name for name in names}
    if not named:
        raise InvalidRequest("select: no column is named; name at least one")
    return named


def _parts(written: str) -> list[str]:
    """The parts of a name: its side, if it has one, and its column."""
    side, dot, name = written.partition(".")
    return [side, name] if dot and side.lower() in ("left", "right") else [written]


def _check_suffixes(suffixes: Any) -> None:
    pair = isinstance(suffixes, (tuple, list)) and len(suffixes) == len(PAIR)
    if suffixes is not None and not (pair and all(isinstance(suffix, str) for suffix in suffixes)):
        raise InvalidRequest(
            f"suffixes: expected a pair of texts such as ('_l', '_r'), found {kind_of(suffixes)}"
        )
