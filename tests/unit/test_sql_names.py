"""What SQL means by event time, USING and layouts; `select=`, which it uses; the closest row."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from joinengine import (
    InvalidRequest,
    StreamAggregate,
    StreamJoin,
    asof,
    equi,
    session_windows,
    sql,
)
from joinengine.model.conditions import Equi
from tests.sqls import BOTH, FACTS, HOUR, LATE, NEAR, S, keyed, plan_of, select, stream_of

F, W = S["f"], S["w"]


def test_the_layout_is_that_of_all_operators():
    found = sql(BOTH, S, layout="mnrt", instances=4)
    assert plan_of(found) == plan_of(keyed(layout="mnrt"))


def test_event_time_is_what_the_streams_say():
    """Without an INTERVAL, if streams name it; and a column that none names is not."""
    said = {"f": F.withWatermark("ts", LATE), "w": W.withWatermark("at", LATE)}
    found = sql(f"{BOTH} and f.ts <= w.at", said, instances=4)
    assert found.query().operators[0].window.lower_us == 0
    found = sql(f"{BOTH} and f.ts <= w.at", S, instances=4)
    assert found.query().operators[0].window is None
    other = f"{BOTH} and w.until between f.ts and f.ts + interval 1 hour"
    found = sql(other, said, instances=4).query().operators[0]
    assert (found.window, found.distance.upper) == (None, 3_600_000_000)


def test_using_shows_one_column():
    text = "select k, id, wid from f {} join w using (k) where f.id > 3"
    assert sql(text.format(""), S, instances=4).schema.names == ["k", "id", "wid"]
    (found,) = sql(text.format(""), S, instances=4).query().operators
    assert found.condition == Equi(("k",), ("k",), using=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("select id, f.x + w.y as more from f join w on f.k = w.k", ["id", "more"]),
        (f"select coalesce(w.y, 0) as more, id from f left join w on {NEAR}", ["more", "id"]),
        ("select f.x + w.y as x, x as y from f join w on f.k = w.k", ["x", "y"]),
        ("select 5 as five from f join w on f.k = w.k", ["five"]),
    ],
)
def test_what_no_side_has_alone_is_computed_of_the_results(text, names):
    found = sql(text, S, delay=LATE, instances=4)
    assert found.schema.names == names
    assert "  then  with " in found.explain()


@pytest.mark.parametrize(
    ("items", "group", "having", "steps"),
    [
        ("s, sum(x) as x", "s", "x > 5", ["where x > 5"]),
        ("s as k, sum(x) as x", "s", "k > 'a' and sum(x) < 9", ["where `s` > 'a' and `x` < 9"]),
        ("k * 2 + 1 as n, sum(x) as t", "k*2", "t > 1", ["with n = `key` + 1", "where t > 1"]),
        ("k + 1 + j as n, sum(x) as t", "K  + 1, j", "t > 1", ["with n = `key` + `j`"]),
        ("count(*) as n", "s", "sum(x) > 2 and max(x) < 9", ["where `aggregate` > 2 and `_agg"]),
        ("sum(x)+max(x) as q, count(*) as aggregate", "s", "q > 1", ["with q = `_aggregate`+`__"]),
        ("(k+1) * 3 as n, count(*) as m", "k + 1", "k + 1 > m", ["with n = (`key`) * 3"]),
    ],
)
def test_groups_inside_expressions(items, group, having, steps):
    text = f"select {items} from f group by {group}, tumble(ts, interval 1 hour) having {having}"
    plan = sql(text, S, delay=LATE, instances=4).explain()
    assert [line for line in steps if f"  then  {line}" not in plan] == []


def test_a_keyword_behind_a_dropped_alias_stands_in_backticks():
    columns = {"k": pa.int64(), "order": pa.int64(), "geo": pa.struct([("x.y", pa.int64())])}
    streams = {"a": stream_of("/a", columns), "w": W}
    text = 'select a.order + 1 as o, a.geo."x.y" + 1 as g, wid from a join w on a.k = w.k'
    found = sql(f"{text} where w.at is not null and a.order > 3", streams, instances=4)
    assert found._output_schema().names == ["o", "g", "wid"]


@pytest.mark.parametrize("whole", ["f.*", "q.*"])
def test_all_columns_are_those_of_the_stream_and_not_what_another_part_computes(whole):
    entry = "f" if whole == "f.*" else "(select * from f) q"
    text = (
        "with a as (select id as aid, x * 2 as x2 from f) "
        f"select {whole}, aid from a join {entry} on aid = {whole[0]}.id"
    )
    assert sql(text, S, instances=4).schema.names == [*FACTS, "aid"]


def test_the_package_does_not_load_sqlglot():
    code = "import sys, joinengine, joinengine.lab.cli; sys.exit('sqlglot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_named_whichever_module_is_loaded_first():
    code = (
        "import sys; sys.modules['sqlglot'] = None\n"
        "import joinengine\n"
        "try: joinengine.sql\n"
        'except joinengine.InvalidRequest as error: sys.exit("joinengine[sql]" not in str(error))\n'
        "sys.exit(2)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_select_names_the_columns_of_a_join():
    f, w = select(F, "id k"), select(W, "wid k")
    by_name = StreamJoin(f, w, on="k", select=["wid", "k"], instances=1)
    assert by_name._output_schema().names == ["wid", "k"]
    for select_, said in (
        ({"a": "right.id"}, "select: column 'right.id' does not exist"),
        (["k"], "is on both sides"),
        (["id", "id"], "select has id twice"),
        ({"a": "left.id", "A": "left.k"}, "select has a twice"),
        (3, "is not a column name or a list of names"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            StreamJoin(f, w, on=equi("k", "k"), select=select_, instances=1)
    with pytest.raises(InvalidRequest, match="suffixes has no effect beside select"):
        StreamJoin(f, w, on="k", select=["k"], suffixes=("_a", "_b"), instances=1)


@pytest.mark.parametrize(
    ("comparison", "direction", "strict", "tolerance"),
    [
        ("f.ts >= w.at", "backward", False, None),
        ("w.at < f.ts", "backward", True, None),
        ("f.ts <= w.at", "forward", False, None),
        ("f.ts < w.at", "forward", True, None),
        ("w.at between f.ts - interval 1 hour and f.ts", "backward", False, HOUR),
        ("w.at between f.ts and f.ts + interval 1 hour", "forward", False, HOUR),
    ],
)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_closest_row(how, comparison, direction, strict, tolerance):
    nearest = asof(
        *("ts", "at"),
        **{"by": equi("k", "k"), "direction": direction, "tolerance": tolerance},
        **{"strict": strict, "delay": LATE},
    )
    python = StreamJoin(
        select(F, "id k ts"),
        select(W, "wid k at"),
        **{"on": nearest, "how": how, "select": {"id": "left.id", "wid": "right.wid"}},
        instances=4,
    )
    kind = "" if how == "inner" else "left "
    text = f"select id, wid from f asof {kind}join w on f.k = w.k and {comparison}"
    assert plan_of(sql(text, S, delay=LATE, instances=4)) == plan_of(python)


def test_sessions():
    text = "select id, count(*) as n from f group by session(ts, interval 5 minutes), id"
    sessions = session_windows("ts", gap="5 minutes", delay=LATE)
    python = StreamAggregate(
        select(F, "id ts"),
        by="id",
        aggregates={"n": "count(*)"},
        window=sessions,
        instances=4,
        select=["id", "n"],
    )
    assert plan_of(sql(text, S, delay=LATE, instances=4)) == plan_of(python)


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("f.k = w.k", "takes equalities and one comparison"),
        ("f.ts >= w.at", "takes equalities and one comparison"),
        ("f.k = w.k and f.ts >= w.at and f.x > 3", "takes equalities and one comparison"),
        ("f.k = w.k and f.ts >= w.at + interval 1 hour", "without an INTERVAL"),
    ],
)
def test_another_condition_of_the_closest_row_is_refused(on, said):
    with pytest.raises(InvalidRequest, match=said):
        sql(f"select id, wid from f asof join w on {on}", S, delay=LATE, instances=4)


@pytest.mark.parametrize(
    "text",
    [
        "select f.id * 2 as twice, f.id as i, q.z from f join "
        "(select y + 1 as z, k from w as {0}) q on f.k = q.k",
        "select f.id, q.z from f join (select y + 1 as z, k + 1 as k2 from w {0}) q "
        "on f.k + 1 = q.k2",
        "with q as (select y + 1 as z, k from w {0}) "
        "select f.id * 2 as twice, q.z from f join q on f.k = q.k",
    ],
)
def test_a_name_inside_a_subquery_means_nothing_outside(text):
    other, same = (sql(text.format(alias), S, instances=4) for alias in ("v", "f"))
    assert plan_of(same) == plan_of(other)
    assert [one.schemas for one in same.query().operators] == [
        one.schemas for one in other.query().operators
    ]


@pytest.mark.parametrize(
    ("interval", "upper_us"),
    [
        ("'-1 hour 55 minutes'", -5 * 60_000_000),
        ("'1 hour -55 minutes'", 5 * 60_000_000),
        ("'1 hour 55 minutes'", 115 * 60_000_000),
    ],
)
def test_the_sign_of_an_interval_is_that_of_its_unit(interval, upper_us):
    text = f"{BOTH} and w.at between f.ts - interval 3 hours and f.ts + interval {interval}"
    (found,) = sql(text, S, delay=LATE, instances=4).query().operators
    assert found.window.upper_us == upper_us


def test_a_time_without_zone_beside_an_instant_is_compared_as_the_zone_says():
    """How far they are apart differs with the day, so no window may say it."""
    plain = stream_of("/plain", {"id": pa.int64(), "k": pa.int64(), "ts": pa.timestamp("us")})
    condition = "p.ts >= w.at and p.ts <= w.at + interval 1 hour"
    text = f"select id, wid from p join w on p.k = w.k and {condition}"
    (join,) = sql(text, {**S, "p": plain}, instances=4).query().operators
    assert join.window is None
    assert "INTERVAL" in join.predicate.text.upper()


def test_streams_whose_names_differ_in_case_alone():
    both = {"f": S["f"], "F": S["w"]}
    joined = sql("select id, wid from f join F as v on f.k = v.k", both, instances=4)
    assert [source.place for source in joined._flat()[1]] == ["/facts", "/words"]
