"""Errors for a statement: SQL in place of the Python arguments that messages name."""

from __future__ import annotations

import re

_BOUNDS = "two event times, as in w.ts BETWEEN f.ts AND f.ts + INTERVAL 1 HOUR"
#: What errors say to users of Python -> the same for a statement, which has no such names.
_IN_SQL = {
    r"^(on|within|windows|aggregates|withColumn): ": "",
    r"how: 'left'": "LEFT JOIN",
    r"how: 'right'": "RIGHT JOIN",
    r"how: 'full'": "FULL JOIN",
    r"how: 'left_semi'": "SEMI JOIN",
    r"how: 'left_anti'": "ANTI JOIN",
    r"Use 'inner', or keep (.*): 'left', 'left_semi' or 'left_anti' with (.*), 'right' with": (
        r"Use JOIN, or keep \1: LEFT, SEMI or ANTI JOIN with \2, RIGHT JOIN with"
    ),
    r"use 'inner' or 'left'": "use ASOF JOIN or ASOF LEFT JOIN",
    r"give within=": f"bound {_BOUNDS}",
    r"Give within\(.*keep=\(left, right\)": f"Bound {_BOUNDS}",
    r"give asof\(\.\., tolerance=\.\.\)": (
        "bound the distance, as in AND w.ts <= f.ts + INTERVAL 1 HOUR"
    ),
    r"Give that join a window, or leave within out": (
        "Bound the event times of that join, too, or leave the bound here out"
    ),
    r"leave within out": "leave the bound out",
    r", or write equi\(.*to compare as Spark does": "",
    r"^window: the source has no windows; .*": (
        "GROUP BY needs a window; add TUMBLE(ts, INTERVAL 10 MINUTES), with the column of event "
        "time"
    ),
}


def in_sql(message: str) -> str:
    """An error message with parts of a statement in place of names and calls of Python.

    >>> in_sql("Use 'inner', or keep a: 'left', 'left_semi' or 'left_anti' with b, 'right' with c")
    'Use JOIN, or keep a: LEFT, SEMI or ANTI JOIN with b, RIGHT JOIN with c'
    """
    for python, statement in _IN_SQL.items():
        message = re.sub(python, statement, message)
    return message
