"""A statement of the grammar has the plan of the same query in Python, whatever its parts are."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from joinengine import StreamJoin, band, equi, sql, theta, within
from tests.laws.cases import tries
from tests.sqls import S, plan_of

F, W = S["f"], S["w"]
KEYS = (("k", "k"), ("id", "wid"), ("s", "t"))
#: A predicate of both sides, as SQL has it and as Python has it.
PREDICATES = (
    ("f.x < w.y", "left.x < right.y"),
    ("not (f.s like w.t)", "not (left.s like right.t)"),
    ("coalesce(f.j, w.l) in (1, 2)", "coalesce(left.j, right.l) in (1, 2)"),
    (
        "case when f.x > 1 then w.y else 2 end <> 3",
        "case when left.x > 1 then right.y else 2 end <> 3",
    ),
)
FILTERS = (
    ("f.x > 3", "x > 3"),
    ("f.s in ('a', 'it''s')", "s in ('a', 'it''s')"),
    ("(f.j = 1 or f.j is null)", "(f.j = 1 or f.j is null)".replace("f.", "")),
)
HOWS = ("inner", "left", "right", "full", "left_semi", "left_anti")
JOINS = dict(zip(HOWS, ("", "left", "right", "full outer", "semi", "left anti"), strict=True))


def minutes(count):
    return timedelta(minutes=count)


def interval(first, second, low, high, sign):
    """That low <= second - first <= high, in minutes, in one of four spellings."""
    least, most = f"interval {low} minutes", f"interval '{high}' minute"
    return (
        f"{second} between {first} + {least} and {first} + {most}",
        f"{second} - {first} between {least} and {most}",
        f"{first} <= {second} - {least} and {second} <= {most} + {first}",
        f"{second} - {least} >= {first} and {first} + interval '{high} minutes' >= {second}",
    )[sign]


@st.composite
def statements(draw):
    """(the text, the arguments of `StreamJoin`, the columns of each side)."""
    how = draw(st.sampled_from(HOWS))
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=2))
    low, more = draw(st.integers(-3, 3)), draw(st.integers(0, 4))
    banded = draw(st.booleans())
    timed = how not in ("inner", "left_semi") or draw(st.booleans())
    others = draw(st.lists(st.sampled_from(PREDICATES), unique=True, max_size=2))
    if not (keys or banded or timed):
        others = others or [PREDICATES[0]]
    filtered = draw(st.lists(st.sampled_from(FILTERS), unique=True, max_size=2))
    conditions, on, arguments = [], [], {}
    swapped = draw(st.booleans())
    for left, right in keys:
        conditions.append(f"w.{right} = f.{left}" if swapped else f"f.{left} = w.{right}")
    if keys:
        on.append(equi([left for left, _ in keys], [right for _, right in keys]))
    if banded:
        ends = f"f.j + {low} and f.j + {low + more}"
        conditions.append(f"w.l between {ends}")
        on.append(band("j", "l", lower=low, upper=low + more))
    if timed:
        lower = draw(st.integers(0, 9))
        upper, sign = lower + draw(st.integers(0, 9)), draw(st.integers(0, 3))
        conditions.append(interval("f.ts", "w.at", lower, upper, sign))
        ends = {"lower": minutes(lower), "upper": minutes(upper)}
        arguments["within"] = within("ts", "at", delay="1 minute", **ends)
        if not on:
            on.append(band("ts", "at", **ends))
    conditions += [text for text, _ in others]
    predicate = " and ".join(text for _, text in others) or None
    if not on:
        on, predicate = [theta(predicate)], None
    if predicate is not None:
        arguments["where"] = predicate
    where, before = "", [text for _, text in filtered]
    if filtered and how in ("right", "full"):
        # Of a preserved other side, they may only be conditions of the pair's own side.
        before = before if how == "right" else []
        conditions += [text for text, _ in filtered] if how == "right" else []
    elif filtered:
        where = " where " + " and ".join(text for text, _ in filtered)
    if before:
        arguments["left_where"] = " and ".join(before)
    shown = ["id", "s"] if how.startswith("left_") else ["id", "s", "wid"]
    text = (
        f"select {', '.join(shown)} from f {JOINS[how]} join w on {' and '.join(conditions)}{where}"
    )
    return text, {"on": on[0] if len(on) == 1 else on, "how": how, "select": shown, **arguments}


@tries(100)
@given(statements())
def test_a_statement_has_the_plan_of_python(statement):
    text, arguments = statement
    found = sql(text, S, delay="1 minute", instances=3)
    used = [set(one.schemas[side].names) for one in found.query().operators for side in (0, 1)]
    f, w = (
        stream.select([name for name in stream.delivered.names if name in names])
        for stream, names in zip((F, W), used, strict=True)
    )
    every = [*f.delivered.names, *w.delivered.names]
    if arguments.get("how") in ("left_semi", "left_anti"):
        every = f.delivered.names
    if arguments.get("select") == every:
        del arguments["select"]  # SQL names no columns where it shows all of them
    assert plan_of(found) == plan_of(StreamJoin(f, w, instances=3, **arguments))
