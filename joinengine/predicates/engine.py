"""DuckDB, which evaluates SQL in vectors, with the functions that Spark has and DuckDB lacks.

It is locked in: one thread, no files, no network, settings that nobody can change.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import duckdb

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.model.texts import in_a_line, quoted

#: The most characters of a text that `repeat` makes.
MOST_REPEATED = 1_000_000
#: Whether s would be too long once its parts are replaced by t, and the error if so.
_TOO_LONG = f"(length(s) + 1) * length(t)::hugeint > {100 * MOST_REPEATED}"
_MAKES = f" makes a text of more than {100 * MOST_REPEATED} characters"
_SETTINGS = {"threads": "1", "enable_external_access": "false"}
#: Spark's functions that DuckDB lacks, or has with another meaning: name -> macro. Division by zero
#: is NULL here. In Spark it is an error, which would end a running query; in DuckDB, infinity.
FORMS = {
    "/": "(x, y) as x / nullif(y, 0)",
    "%": "(x, y) as x % nullif(y, 0)",
    "mod": "(x, y) as x % nullif(y, 0)",
    "ln": "(x) as ln(case when x > 0 then x end)",
    "log2": "(x) as log2(case when x > 0 then x end)",
    "log10": "(x) as log10(case when x > 0 then x end)",
    "atan2": "(y, x) as atan2(y + 0.0::double, x + 0.0::double)",  # no -0.0, which is at the edge
    "concat": ", ".join(
        f"({', '.join(names)}) as {' || '.join(names)}"
        for names in ("abcdefghij"[:n] for n in range(2, 11))
    ),
    "startswith": "(s, t) as starts_with(s, t)",
    "endswith": "(s, t) as ends_with(s, t)",
    "substring": (
        "(s, p) as substring(s, case when p = 0 then 1 else p end), "
        "(s, p, n) as substring(s, case when p = 0 then 1 else p end, "
        "case when n < 0 then 0 else n end)"
    ),
    "left": "(s, n) as left(s, case when n < 0 then 0 else n end)",
    "right": "(s, n) as right(s, case when n < 0 then 0 else n end)",
    "trim": "(s) as trim(s, ' ')",
    "ltrim": "(s) as ltrim(s, ' ')",
    "rtrim": "(s) as rtrim(s, ' ')",
    # A short filter may not fill the memory of driver and workers.
    "repeat": (
        f"(s, n) as case when s is null or n is null then null "
        f"when length(s) * n::hugeint > {MOST_REPEATED} "
        f"then error('repeat makes a text of more than {MOST_REPEATED} characters') "
        f"else repeat(s, least(n, {MOST_REPEATED} // greatest(length(s), 1))) end"
    ),
    # DuckDB folds constants before CASE chooses, so that no branch may build the refused text.
    "replace": (
        f"(s, f, t) as case when {_TOO_LONG} then error('replace{_MAKES}') "
        f"else replace(case when {_TOO_LONG} then '' else s end, f, t) end"
    ),
    "nvl": "(x, y) as coalesce(x, y)",
    "isnull": "(x) as x is null",
    "isnotnull": "(x) as x is not null",
    "isnan": "(x) as coalesce(isnan(x), false)",
    "datediff": "(e, s) as date_diff('day', s, e)",
    "date_add": "(d, n) as d::date + n::integer",
    "date_sub": "(d, n) as d::date - n::integer",
    "ucase": "(s) as upper(s)",
    "lcase": "(s) as lower(s)",
    "character_length": "(s) as length(s)",
    "locate": "(t, s) as instr(s, t)",
    "dayofweek": "(d) as dayofweek(d) + 1",
    "weekday": "(d) as isodow(d) - 1",
    "date_from_unix_date": "(n) as date '1970-01-01' + n::integer",
}
#: Functions that turn a whole number into an instant, and the microseconds of their units.
EPOCHS = {"timestamp_seconds": 1_000_000, "timestamp_millis": 1_000, "timestamp_micros": 1}
FORMS |= {
    name: f"(n) as make_timestamp(n::bigint * {unit}) at time zone 'UTC'"
    for name, unit in EPOCHS.items()
}
FORMS["substr"] = FORMS["substring"]
#: LIKE and its kin, whose patterns have `\` as the escape character in Spark.
PATTERNS = {"~~": "like", "!~~": "not_like", "~~*": "ilike", "!~~*": "not_ilike"}
FORMS |= {name: f"(s, p) as {word}_escape(s, p, '\\')" for name, word in PATTERNS.items()}
#: Functions that take regular expressions, and how many arguments they have.
MATCHES = {"rlike": {2}, "regexp": {2}, "regexp_like": {2}, "regexp_replace": {3}}
MATCHES["regexp_extract"] = {2, 3}
FORMS |= {name: "(s, p) as regexp_matches(s, p)" for name in ("rlike", "regexp", "regexp_like")}
FORMS["regexp_replace"] = (
    f"(s, p, t) as case when {_TOO_LONG} then error('regexp_replace{_MAKES}') "
    f"else regexp_replace(case when {_TOO_LONG} then '' else s end, p, t, 'g') end"
)
FORMS["regexp_extract"] = "(s, p) as regexp_extract(s, p, 1), (s, p, n) as regexp_extract(s, p, n)"
#: Functions that are refused -> what to write instead.
INSTEAD = {
    **dict.fromkeys(
        ("like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape"),
        "Leave ESCAPE out, and write a backslash before % and _ that stand for themselves",
    ),
    "to_date": "Write date '2024-02-29' for a constant; compute others before the query",
    "to_timestamp": "Write timestamp '2024-02-29 12:00:00' for a constant; compute others before "
    "the query",
    "add_months": "Write d + interval 1 month",
}
_OFFSET = re.compile(r"[+-]\d{1,2}(:\d{2})?")


def form(name: str) -> str:
    """DuckDB's name of the macro for one of FORMS.

    >>> form("startswith")
    'spark_startswith'
    """
    return "spark_" + ({"/": "divided", "%": "rest"} | PATTERNS).get(name, name)


@cache
def engine(zone: str = "UTC") -> duckdb.DuckDBPyConnection:
    """The connection of this process for a time zone, in which instants have dates and hours.

    Raises InvalidRequest if the zone is not known.
    """
    opened = duckdb.connect(config=_SETTINGS)
    try:
        furnish(opened, zone)
    except InvalidRequest:
        opened.close()
        raise
    opened.execute("set lock_configuration = true")
    atexit.register(_close, opened)
    return opened


@cache
def keywords() -> frozenset[str]:
    """Words, in lower case, that mean something else than a column if they stand alone."""
    rows = engine().sql("select keyword_name from duckdb_keywords()").fetchall()
    return frozenset(word for (word,) in rows)


def furnish(opened: duckdb.DuckDBPyConnection, zone: str) -> None:
    """Set the time zone of a connection, and add the functions that translated predicates call.

    Raises InvalidRequest if the zone is not known.
    """
    known = f"GMT{zone}" if _OFFSET.fullmatch(zone) else {"Z": "UTC"}.get(zone, zone)
    try:
        opened.execute(f"set timezone = '{known}'")
    except duckdb.Error:
        raise InvalidRequest(
            f"spark.sql.session.timeZone: expected a region such as Europe/Berlin or an offset "
            f"such as +02:00, found {zone!r}"
        ) from None
    for name, macro in FORMS.items():
        opened.execute(f"create macro {form(name)}{macro}")


@contextmanager
def over(name: str, table: Any, zone: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """The connection of a time zone, with `table` under a name for as long as the block runs."""
    database = engine(zone)
    database.register(name, table)
    try:
        yield database
    finally:
        database.unregister(name)


@contextmanager
def over_pairs(table: Any, text: str, zone: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """As `over`, to evaluate what the user has written as `text`; the table is called `pairs`.

    Raises JoinEngineError if the evaluation fails for a row.
    """
    with over("pairs", table, zone) as database:
        try:
            yield database
        except duckdb.Error as error:
            raise JoinEngineError(
                f"{quoted(text)} fails for a row: {reason_of(error)}; use try_cast, or leave such "
                "rows out by a filter of the stream"
            ) from None


def reason_of(error: duckdb.Error) -> str:
    """The message of a DuckDB error, without the SQL that it quotes."""
    return in_a_line(str(error).partition("\n")[0])


def _close(opened: duckdb.DuckDBPyConnection) -> None:
    engine.cache_clear()
    opened.close()
