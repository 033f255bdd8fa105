"""An as-of join of two tables as SQL for DuckDB, in the names of `queries.oracle`.

DuckDB's ASOF JOIN finds the nearest row before a left row, or the one after it. Of both, `nearest`
takes the closer one. Of right rows of one key and time DuckDB takes any; joinengine takes the one
that was read last, which no SQL can know (`tied_sql`).
"""

from __future__ import annotations

from joinengine.lab.queries.oracle import column_of, entering, time_of
from joinengine.model.conditions import Direction
from joinengine.model.keys import Side
from joinengine.model.query import JoinType, OutputColumn
from joinengine.operators import AsOfJoin

#: Direction -> where the nearest row may be: alias of the right side, comparison, distance.
_BEFORE = ("b", ">=", "lt - b.rt")
_AFTER = ("a", "<=", "a.rt - lt")
_PLACES = {
    Direction.BACKWARD: (_BEFORE,),
    Direction.FORWARD: (_AFTER,),
    Direction.NEAREST: (_BEFORE, _AFTER),
}


def asof_sql(join: AsOfJoin) -> str:
    """SQL with the columns and the rows of `join` over the tables of both sides (`numbered`).

    It is right for tuples that are on time, if no two right tuples tie.
    """
    places, on = _PLACES[join.condition.direction], join.condition
    rows = "l"
    for alias, compared, _ in places:
        sign = compared.removesuffix("=") if on.strict else compared
        equal = [f"{left} = {alias}.{right}" for left, right in _keys(join)]
        rows += f" asof left join r {alias} on {' and '.join([*equal, f'lt {sign} {alias}.rt'])}"
    chosen = _chosen(join)
    columns = ", ".join(
        f"{_shown(join, column, chosen)} as c{n}" for n, column in enumerate(join.output)
    )
    some = "" if join.how is JoinType.LEFT else f" where {' or '.join(chosen.values())}"
    left, right = (
        f"select *, {time_of(join, side)} as {letter}t from ({entering(join, side)})"
        for side, letter in ((Side.LEFT, "l"), (Side.RIGHT, "r"))
    )
    # The table of a side can be read once.
    return (
        f"with l as ({left}), r as materialized (from ({right}) where rt is not null) "
        f"select {columns} from {rows}{some}"
    )


def tied_sql(join: AsOfJoin) -> str:
    """SQL with a row if right rows of one key and time differ in columns of the results."""
    group = [time_of(join, Side.RIGHT), *(right for _, right in _keys(join))]
    names = [f"g{n}" for n in range(len(group))]
    columns = [f"{text} as {name}" for text, name in zip(group, names, strict=True)]
    shown = [column.column for column in join.output if column.side is Side.RIGHT]
    columns += [column_of(join, Side.RIGHT, name) for name in shown]
    distinct = f"select distinct {', '.join(columns)} from ({entering(join, Side.RIGHT)})"
    tied = f"group by {', '.join(names)} having count(*) > 1"
    there = " and ".join(f"{name} is not null" for name in names)
    return f"select 1 from ({distinct}) where {there} {tied} limit 1"


def _keys(join: AsOfJoin) -> list[tuple[str, str]]:
    """The key columns of both sides."""
    by = join.condition.by
    return [
        (column_of(join, Side.LEFT, left), column_of(join, Side.RIGHT, right))
        for left, right in zip(by.left, by.right, strict=True)
    ]


def _chosen(join: AsOfJoin) -> dict[str, str]:
    """Alias of the right side -> SQL of whether its row is the match; the first true one counts."""
    conditions = dict[str, str]()
    for alias, _, distance in _PLACES[join.condition.direction]:
        tolerance = join.condition.tolerance_us
        near = f"{alias}.rt is not null"
        conditions[alias] = near if tolerance is None else f"{near} and {distance} <= {tolerance}"
    if len(conditions) > 1:
        conditions["b"] += f" and (a.rt is null or {_BEFORE[2]} <= {_AFTER[2]})"
    return {alias: f"({text})" for alias, text in conditions.items()}


def _shown(join: AsOfJoin, column: OutputColumn, chosen: dict[str, str]) -> str:
    assert column.side is not None
    if column.side is Side.LEFT:  # of a key that both have, the left one is that of every result
        return column_of(join, Side.LEFT, column.column)
    own = column_of(join, Side.RIGHT, column.column)
    return (
        f"case {' '.join(f'when {near} then {alias}.{own}' for alias, near in chosen.items())} end"
    )
