"""One join of two tables as SQL for DuckDB, from its definition and not from how it is run.

The columns of a side are called l0, l1, .. and r0, r1, .., and those of the results c0, c1, ..: so
no user's names collide, or are invalid in SQL. Windows with edges follow docs/joins.md: each row
occurs once for each window that holds it, and the windows are columns of the join. Stretches of
time, as further such columns, keep DuckDB fast if a window is short.
Predicates are in the dialect of the engine, whose functions the connection must have
(predicates.engine.furnish). The tables hold tuples as the streams read them (`queries.folders`): a
type that DuckDB would find for itself in files and names of folders may be another one.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

from joinengine.model.conditions import Band, Predicate, equality
from joinengine.model.keys import PAIR, Side
from joinengine.model.query import WINDOW_START, JoinType, OutputColumn
from joinengine.model.windows import Sliding
from joinengine.operators import AsOfJoin, Join

_LETTERS = {Side.LEFT: "l", Side.RIGHT: "r"}
_KINDS = {
    JoinType.INNER: "join",
    JoinType.LEFT: "left join",
    JoinType.RIGHT: "right join",
    JoinType.FULL: "full join",
    JoinType.LEFT_SEMI: "semi join",
    JoinType.LEFT_ANTI: "anti join",
}
_MICROSECOND = timedelta(microseconds=1)
#: The length of a window, in stretches of time.
STRETCHES = 4


def join_sql(join: Join) -> str:
    """SQL with the columns and the rows of `join` over the tables of both sides (`numbered`).

    It is right for tuples that are on time: which tuples are late depends on the batches.
    """
    left, right = (_side(join, side) for side in PAIR)
    columns = ", ".join(f"{_shown(join, column)} as c{i}" for i, column in enumerate(join.output))
    conditions = " and ".join(_conditions(join)) or "true"
    return f"select {columns} from ({left}) l {_KINDS[join.how]} ({right}) r on {conditions}"


def table_of(side: Side) -> str:
    """The table of a side in the SQL of `join_sql`."""
    return f"{side.name.lower()}_tuples"


def numbered(join: Join | AsOfJoin, side: Side) -> pa.Schema:
    """The columns of the table of a side: those of its tuples, by their numbers."""
    letter = _LETTERS[side]
    return pa.schema([(f"{letter}{i}", field.type) for i, field in enumerate(join.schemas[side])])


def entering(join: Join | AsOfJoin, side: Side) -> str:
    """SQL of the rows of one side that pass its filter."""
    rows, letter, chosen = f"from {table_of(side)}", _LETTERS[side], join.filters[side]
    if chosen is None:
        return rows
    plain = ", ".join(f"{letter}{i}" for i in range(len(join.schemas[side])))
    given = _named(join, chosen, side)
    return f"select {plain} from (select *, {given} from ({rows})) where {_expression(chosen)}"


def _side(join: Join, side: Side) -> str:
    """The rows of one side that enter the join, once for each window that holds them."""
    letter, rows = _LETTERS[side], entering(join, side)
    if join.predicate is not None and any(
        side_named is side for side_named, _ in join.predicate.columns
    ):
        rows = f"select *, {_named(join, join.predicate, side)} from ({rows})"
    if isinstance(join.window, Sliding):
        size, slide = join.window.size_us, join.window.slide_us
        time = time_of(join, side)
        first, last = floored(f"{time} - {size}", slide), floored(time, slide)
        rows = f"select *, unnest(generate_series({first} + 1, {last})) as {letter}k from ({rows})"
    elif _has_stretches(join):
        rows = f"select *, {_stretches(join, side)} as {letter}k from ({rows})"
    return rows


def _has_stretches(join: Join) -> bool:
    """Whether rows are also joined by stretches of time.

    Otherwise DuckDB would compare all rows of a key, and check their times afterwards. A right row
    is in all stretches where its partners may be, a left row in one: so no pair is found twice.
    Right rows must not be results by themselves.
    """
    window = join.window
    if window is None or isinstance(window, Sliding):
        return False
    closed = window.lower_us is not None and window.upper_us is not None
    return closed and join.how not in (JoinType.RIGHT, JoinType.FULL)


def _stretches(join: Join, side: Side) -> str:
    """SQL of the stretches of a row."""
    assert join.window is not None
    assert not isinstance(join.window, Sliding)
    lower, upper, time = join.window.lower_us, join.window.upper_us, time_of(join, side)
    assert lower is not None
    assert upper is not None
    length = max((upper - lower) // STRETCHES, 1)
    if side is Side.LEFT:
        return floored(time, length)
    first, last = (floored(f"{time} - {bound}", length) for bound in (upper, lower))
    return f"unnest(generate_series({first}, {last}))"


def _conditions(join: Join) -> list[str]:
    """What a pair must fulfil."""
    equal, conditions = equality(join.condition), list[str]()
    for left, right in zip(equal.left, equal.right, strict=True):
        conditions.append(
            f"{column_of(join, Side.LEFT, left)} = {column_of(join, Side.RIGHT, right)}"
        )
    if isinstance(join.condition, Band):
        conditions += _band(join, join.condition)
    if join.predicate is not None:
        conditions.append(_expression(join.predicate))
    if isinstance(join.window, Sliding) or _has_stretches(join):
        conditions.append("lk = rk")
    if join.window is not None and not isinstance(join.window, Sliding):
        lead = f"{time_of(join, Side.RIGHT)} - {time_of(join, Side.LEFT)}"
        conditions += _bounds(lead, join.window.lower_us, join.window.upper_us)
    return conditions


def _band(join: Join, band: Band) -> list[str]:
    left, right = column_of(join, Side.LEFT, band.left), column_of(join, Side.RIGHT, band.right)
    kinds = [join.schemas[0].field(band.left).type, join.schemas[1].field(band.right).type]
    lower, upper = (
        bound // _MICROSECOND if isinstance(bound, timedelta) else bound
        for bound in (band.lower, band.upper)
    )
    if any(pa.types.is_temporal(kind) for kind in kinds):
        return _bounds(f"epoch_us({right}) - epoch_us({left})", lower, upper)
    if any(pa.types.is_floating(kind) for kind in kinds):  # NaN matches nothing
        left, right = f"{left}::double", f"{right}::double"
        numbers = [f"not isnan({left})", f"not isnan({right})"]
        return numbers + _bounds(f"{right} - {left}", lower, upper)
    if all(pa.types.is_integer(kind) for kind in kinds):
        left, right = f"{left}::hugeint", f"{right}::hugeint"
    return _bounds(f"{right} - {left}", lower, upper)


def _bounds(lead: str, lower: object, upper: object) -> list[str]:
    """Lower <= lead <= upper; None: that end is open."""
    least = [] if lower is None else [f"{lead} >= {lower}"]
    return least + ([] if upper is None else [f"{lead} <= {upper}"])


def _shown(join: Join, column: OutputColumn) -> str:
    if column.side is None:
        assert isinstance(join.window, Sliding)
        number = "coalesce(lk, rk)" if join.how.makes_pairs else "lk"
        time = f"{number} * {join.window.slide_us}"
        if column.column != WINDOW_START:
            time += f" + {join.window.size_us}"
        field = join.schemas[0].field(join.window.times[0][0])
        return f"make_timestamp{'tz' if field.type.tz else ''}({time})"
    own = column_of(join, column.side, column.column)
    if column.instead is None:
        return own
    return f"coalesce({own}, {column_of(join, column.side.other, column.instead)})"


def column_of(join: Join | AsOfJoin, side: Side, name: str) -> str:
    """A column of a side, by its number."""
    return f"{_LETTERS[side]}{join.schemas[side].get_field_index(name)}"


def time_of(join: Join | AsOfJoin, side: Side) -> str:
    """SQL of the event time of a row of a side, in microseconds."""
    (name,) = join.condition.times[side] if isinstance(join, AsOfJoin) else join.times(side)
    return f"epoch_us({column_of(join, side, name)})"


def _named(join: Join | AsOfJoin, predicate: Predicate, side: Side) -> str:
    """The columns of `side` under the names (c0, c1, ..) that the predicate has for them."""
    columns_named = [
        (number, name)
        for number, (side_named, name) in enumerate(predicate.columns)
        if side_named is side
    ]
    kinds = {name: join.schemas[side].field(name).type for _, name in columns_named}
    wide = {name for name, kind in kinds.items() if pa.types.is_floating(kind)}
    columns = [
        f"{column_of(join, side, name)}{'::double' if name in wide else ''} as c{number}"
        for number, name in columns_named
    ]
    return ", ".join(columns or ["null as c"])


def _expression(predicate: Predicate) -> str:
    return predicate.sql.removeprefix("SELECT ").removesuffix(" from pairs")


def floored(number: str, by: int) -> str:
    """SQL of a whole division that rounds down; SQL's own rounds towards zero."""
    return f"((({number}) - ((({number}) % {by}) + {by}) % {by}) // {by})"
