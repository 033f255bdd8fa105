"""What a statement may contain: all else is refused where it stands, rather than ignored."""

from __future__ import annotations

from typing import Any

from joinengine.api.sql_package import exp
from joinengine.api.sql_text import SqlText

#: Clauses of a query -> what to write instead.
_CLAUSES = {
    "distinct": "DISTINCT is not supported; use a SEMI JOIN, or GROUP BY with a window",
    "order": "ORDER BY is not supported, because a stream has no end; leave it out",
    "limit": "LIMIT is not supported, because a stream has no end; leave it out",
    "offset": "OFFSET is not supported, because a stream has no end; leave it out",
    "qualify": "QUALIFY is not supported; write top= of StreamAggregate for the greatest groups",
}
#: Clauses that are served.
_SERVED = ("expressions", "from_", "joins", "where", "group", "having", "with_")
#: Parts of a statement -> what each may contain; all else would be ignored.
_PARTS = {
    exp.With: {"expressions", "recursive"},
    exp.CTE: {"this", "alias", "materialized"},
    exp.TableAlias: {"this", "columns"},
    exp.Table: {"this", "db", "catalog", "alias", "joins"},
    exp.Subquery: {"this", "alias", "joins"},
    exp.Join: {"this", "on", "using", "method", "side", "kind"},
    exp.Group: {"expressions"},
    exp.Between: {"this", "low", "high"},
}
#: Names of the parser -> words of SQL, where they differ.
_WORDS = {
    **{"sample": "TABLESAMPLE", "pivots": "PIVOT", "totals": "WITH TOTALS"},
    **{"all": "GROUP BY ALL", "symmetric": "BETWEEN SYMMETRIC"},
}
#: Expressions that are not served, and what the error says of each.
_REFUSED = (
    ((exp.Query,), "subqueries in conditions and expressions are not supported; write a join"),
    ((exp.Window,), "OVER is not supported; write GROUP BY with a window"),
    (
        (exp.Filter,),
        "FILTER is not supported; write count(CASE WHEN .. THEN 1 END), or sum(CASE ..)",
    ),
    ((exp.WithinGroup,), "WITHIN GROUP is not supported; leave it out"),
    ((exp.IgnoreNulls, exp.RespectNulls), "NULLS of an aggregate are always ignored; leave it out"),
    (
        (exp.Rollup, exp.Cube, exp.GroupingSets),
        "GROUP BY takes one set of groups; name its columns",
    ),
    ((exp.Any,), "ANY is not supported; write OR, or IN"),
)


def check_parts(text: SqlText, statement: Any) -> None:
    """Refuse what a part of a statement, other than SELECT, contains and we would ignore."""
    for node in statement.find_all(*_PARTS):
        known = next(names for kind, names in _PARTS.items() if isinstance(node, kind))
        for name, value in node.args.items():
            if value and name not in known:
                word = _WORDS.get(name, name.strip("_").upper())
                raise text.refusal(node, f"{word} is not supported here; leave it out")


def check_clauses(text: SqlText, select: Any, but: tuple[str, ...] = ()) -> None:
    """Refuse clauses that no query may have; `but`: further ones that this query may not have."""
    for name, value in select.args.items():
        if value and (name not in _SERVED or name in but):
            where = value[0] if isinstance(value, list) else value
            clause = name.strip("_").upper()
            said = f"{clause} is not supported here; leave it out"
            raise text.refusal(
                where if isinstance(where, exp.Expression) else select, _CLAUSES.get(name, said)
            )


def check_expressions(text: SqlText, node: Any) -> None:
    """Refuse an expression that contains what is not served."""
    for kinds, said in _REFUSED:
        if (refused := node.find(*kinds)) is not None:
            raise text.refusal(refused, said)
