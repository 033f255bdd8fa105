"""SQL and Python give the same plan; what SQL cannot say is refused where it is written."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from joinengine import (
    StreamAggregate,
    band,
    equi,
    sliding,
    sql,
    theta,
    tumbling,
    windows,
    within,
)
from joinengine.model.conditions import Band
from tests.sqls import BOTH, HOUR, LATE, NEAR, ZERO, S, join, keyed, near, plan_of, select

F, W, T = S["f"], S["w"], S["t"]


def with_itself(stream):
    return join(
        stream,
        stream,
        on=equi("k", "j"),
        left_where="s = 'x'",
        right_where="x > 1",
        select={"one": "left.id", "two": "right.id"},
    )


#: name -> the text, and the same in Python.
PLANS = {
    "equality": (BOTH, keyed),
    "turned round": ("select id, wid from f join w on w.k = f.k", keyed),
    "comma": ("select id, wid from f, w where f.k = w.k", keyed),
    "cross": ("select id, wid from f cross join w where f.k = w.k", keyed),
    "an equality that is asked about": (
        "select id, wid from f join w on f.k = w.k and f.j = w.k is null",
        lambda: join(
            select(F, "id k j"),
            select(W, "wid k"),
            on=equi("k", "k"),
            where="left.j = right.k is null",
            select={"id": "left.id", "wid": "right.wid"},
        ),
    ),
    "using": (
        "select * from f join (select k, wid from w) as w using (k)",
        lambda: join(F, select(W, "wid k"), on="k"),
    ),
    "names in an alias": (
        "with a(k, p) as (select id, k from f) select a.k as id, b.wid from a "
        "join (select k, wid from w) as b(q) on a.p = b.q",
        keyed,
    ),
    "names for expressions": (
        "with a(i, more) as (select id, k + 1 from f) select i as id, wid from a "
        "join (select wid, k + 2 from w) as b(wid, more) on a.more = b.more",
        lambda: join(
            select(F.withColumn("more", "k + 1"), "id k more"),
            select(W.withColumn("more", "k + 2"), "wid k more"),
            on="more",
            select={"id": "left.id", "wid": "right.wid"},
        ),
    ),
    "a stream under other names": (
        "select a.o as id, wid from f as a(o, p) join w on p = w.k",
        keyed,
    ),
    "two keys": (
        "select id, wid from f join w on f.k = w.k and f.s = w.t",
        lambda: keyed(on=equi(["k", "s"], ["k", "t"]), f="id k s", w="wid k t"),
    ),
    "a computed key": (
        "select id, wid from f join w on f.k = w.k + 1",
        lambda: join(
            select(F, "id k"),
            select(W.withColumn("key", "k + 1"), "wid k key"),
            on=equi("k", "key"),
            select={"id": "left.id", "wid": "right.wid"},
        ),
    ),
    "filters": (
        f"{BOTH} and f.x > 3 where w.y < 5 and (f.s = 'a' or f.s like 'it\\'s%')",
        lambda: keyed(
            left_where="(s = 'a' or s like 'it\\'s%') and x > 3",
            right_where="y < 5",
            f="id k x s",
            w="wid k y",
        ),
    ),
    "where": (
        f"{BOTH} and f.x < w.y where f.s <> w.t",
        lambda: keyed(where="left.x < right.y and left.s <> right.t", f="id k x s", w="wid k y t"),
    ),
    "band": (
        "select id, wid from f join w on f.k between w.k - 2 and w.k + 1 and f.s = w.t",
        lambda: keyed(
            on=[equi("s", "t"), band("k", "k", lower=-1, upper=2)], f="id k s", w="wid k t"
        ),
    ),
    "band as a distance": (
        "select id, wid from f join w on abs(f.k - w.k) <= 1",
        lambda: keyed(on=band("k", "k", lower=-1, upper=1)),
    ),
    "band without its ends": (
        "select id, wid from f join w on w.k > f.k and w.k < f.k + 3",
        lambda: keyed(on=band("k", "k", lower=1, upper=2)),
    ),
    "band of dates": (
        "select id, wid from f join w on w.e - f.d <= 7 and w.e >= f.d",
        lambda: keyed(on=band("d", "e", lower="0 s", upper="7 days"), f="id d", w="wid e"),
    ),
    "band of decimals": (
        "select id, wid from f join w on f.m between w.n - 0.5 and w.n + 1.25",
        lambda: keyed(
            on=band("m", "n", lower=Decimal("-1.25"), upper=Decimal("0.5")), f="id m", w="wid n"
        ),
    ),
    "band of floats, as a difference": (
        "select id, wid from f join w on f.x - w.y between -0.5 and 1.5",
        lambda: keyed(
            on=band("x", "y", lower=Decimal("-1.5"), upper=Decimal("0.5")), f="id x", w="wid y"
        ),
    ),
    "floats that are rounded before": (
        "select id, wid from f join w on f.x between w.y - 0.5 and w.y",
        lambda: keyed(on=theta("left.x between right.y - 0.5 and right.y"), f="id x", w="wid y"),
    ),
    "band with one end": (
        "select id, wid from f join w on f.k <= w.k",
        lambda: keyed(on=band("k", "k", lower=0)),
    ),
    "beside a key, an open band is a predicate": (
        f"{BOTH} and f.j <= w.l",
        lambda: keyed(where="left.j <= right.l", f="id k j", w="wid k l"),
    ),
    "any predicate": (
        "select id, wid from f join w on f.s like w.t or f.k = w.k",
        lambda: keyed(
            on=theta("(left.s like right.t or left.k = right.k)"), f="id k s", w="wid k t"
        ),
    ),
    "a number of a type, bytes and a negation": (
        f"{BOTH} and f.x > 1.5D and ! f.x = 2L and X'41' < X'42'",
        lambda: keyed(
            left_where="x > 1.5D and ! x = 2L", where="X'41' < X'42'", f="id k x", w="wid k"
        ),
    ),
    "interval": (f"select id, wid from f join w on {NEAR}", near),
    "interval in two comparisons": (
        f"{BOTH} and f.ts - w.at <= interval '1 hour' and f.ts >= w.at",
        near,
    ),
    "interval, less its ends": (
        f"{BOTH} and w.at > f.ts - interval '60' minutes and w.at < f.ts",
        lambda: keyed(
            within=within(
                "ts", "at", lower="-3599999999 us", upper=timedelta(microseconds=-1), delay=LATE
            ),
            f="id k ts",
            w="wid k at",
        ),
    ),
    "interval alone": (
        "select id, wid from f join w on w.at between f.ts - interval 1 hour and f.ts",
        lambda: keyed(
            on=band("ts", "at", lower=-HOUR, upper=ZERO),
            within=within("ts", "at", lower=-HOUR, upper=ZERO, delay=LATE),
            f="id ts",
            w="wid at",
        ),
    ),
    "an end of its own for each pair": (
        f"{BOTH} and w.at >= f.ts and w.at <= f.ts + interval 1 hour and f.ts < w.until",
        lambda: keyed(
            within=within("ts", "at", lower=ZERO, upper=HOUR, delay=LATE),
            where="left.ts < right.until",
            f="id k ts",
            w="wid k at until",
        ),
    ),
    "left": (
        f"select id, wid from f left join w on {NEAR} and f.x > 1 and w.y > 2 where f.s = 'a'",
        lambda: keyed(
            within=within("ts", "at", lower=-HOUR, upper=ZERO, delay=LATE),
            how="left",
            where="left.x > 1",
            left_where="s = 'a'",
            right_where="y > 2",
            f="id k x s ts",
            w="wid k y at",
        ),
    ),
    "right": (f"select id, wid from f right outer join w on {NEAR}", lambda: near(how="right")),
    "full": (f"select id, wid from f full join w on {NEAR}", lambda: near(how="full")),
    "semi": (
        f"select id from f left semi join w on {NEAR} where f.x > 1",
        lambda: join(
            select(F, "id k x ts"),
            select(W, "k at"),
            on=equi("k", "k"),
            within=within("ts", "at", lower=-HOUR, upper=ZERO, delay=LATE),
            how="left_semi",
            left_where="x > 1",
            select=["id"],
        ),
    ),
    "anti": (
        f"select f.* from f anti join w on {NEAR}",
        lambda: join(
            F,
            select(W, "k at"),
            on=equi("k", "k"),
            within=within("ts", "at", lower=-HOUR, upper=ZERO, delay=LATE),
            how="left_anti",
        ),
    ),
    "a window that both are in": (
        f"{BOTH.replace('wid', 'wid, window_end')} and "
        "tumble(f.ts, interval 1 hour) = tumble(w.at, interval '60' minutes)",
        lambda: keyed(
            within=tumbling("ts", "at", "1 hour", delay=LATE),
            select={"id": "left.id", "wid": "right.wid", "window_end": "window_end"},
            f="id k ts",
            w="wid k at",
        ),
    ),
    "windows that slide": (
        f"{BOTH} and hop(f.ts, interval 1 minute, interval 1 hour) = "
        "hop(w.at, interval 1 minute, interval 1 hour)",
        lambda: keyed(
            within=sliding("ts", "at", "1 hour", "1 minute", delay=LATE), f="id k ts", w="wid k at"
        ),
    ),
    "a self-join": (
        "select a.id as one, b.id as two from f a join f b on a.k = b.j and a.s = 'x' and b.x > 1",
        lambda: with_itself(select(F, "id k j x s")),
    ),
    "three streams": (
        "select id, z from f join w on f.k = w.k join t on t.k = w.wid and t.z <> f.id",
        lambda: join(
            join(
                select(F, "id k"),
                select(W, "wid k"),
                on=equi("k", "k"),
                select={"id": "left.id", "f_k": "left.k", "wid": "right.wid", "w_k": "right.k"},
            ),
            select(T, "k z"),
            on=equi("wid", "k"),
            where="right.z <> left.id",
            select={"id": "left.id", "z": "right.z"},
        ),
    ),
    "three streams, in brackets": (
        "select id, z from f join (w join t on w.wid = t.tid) on f.k = w.wid",
        lambda: join(
            select(F, "id k"),
            join(select(W, "wid"), select(T, "tid z"), on=equi("wid", "tid")),
            on=equi("k", "wid"),
            select={"id": "left.id", "z": "right.z"},
        ),
    ),
    "the latest of two times": (
        "select id, z from f join w on f.id = w.wid and w.at between f.ts - interval 1 hour and "
        "f.ts join t on t.tid = w.wid and t.seen - greatest(f.ts, w.at) "
        "between interval '-1' hour and interval 1 hour",
        lambda: join(
            join(
                select(F, "id ts"),
                select(W, "wid at"),
                on=equi("id", "wid"),
                within=within("ts", "at", lower=-HOUR, upper=ZERO, delay=LATE),
            ),
            select(T, "tid z seen"),
            on=equi("wid", "tid"),
            within=within(["ts", "at"], "seen", lower=-HOUR, upper=HOUR, delay=LATE),
            select={"id": "left.id", "z": "right.z"},
        ),
    ),
    "a subquery": (
        "select double, wid from (select k, x * 2 as double from f where x > 1) q join w "
        "on q.k = w.k",
        lambda: join(
            select(F.withColumn("double", "x * 2"), "k x double"),
            select(W, "wid k"),
            on=equi("k", "k"),
            left_where="x > 1",
            select={"double": "left.double", "wid": "right.wid"},
        ),
    ),
    "common table expressions": (
        "with a as (select k as key, id from f where x > 1), b as (select * from a where id < 9) "
        "select id, wid from b join w on key = w.k",
        lambda: keyed(left_where="x > 1 and id < 9", f="id k x"),
    ),
    "computed before": (
        "select id, w.y + 1 as more from f join w on f.k = w.k",
        lambda: join(
            select(F, "id k"),
            select(W.withColumn("more", "y + 1"), "k y more"),
            on=equi("k", "k"),
            select={"id": "left.id", "more": "right.more"},
        ),
    ),
    "groups": (
        "select s, count(*) as n, max(x + 1) as most, histogram(x, 8) as h, window_start, "
        "window_end from f where k > 3 group by tumble(ts, interval 5 minutes), s",
        lambda: StreamAggregate(
            select(F, "k x s ts").where("k > 3"),
            by="s",
            aggregates={"n": "count(*)", "most": "max(x + 1)", "h": "histogram(x, 8)"},
            window=windows("ts", "5 minutes", delay=LATE),
            instances=4,
        ),
    ),
    "groups of a join": (
        "select s, sum(f.x * w.y) as total, window_start, window_end from f join w on f.id = w.wid "
        "and tumble(f.ts, interval 1 hour) = tumble(w.at, interval 1 hour) "
        "group by s, window_start, window_end",
        lambda: StreamAggregate(
            join(
                select(F, "id x s ts"),
                select(W, "wid y at"),
                on=equi("id", "wid"),
                within=tumbling("ts", "at", "1 hour", delay=LATE),
            ),
            by="s",
            aggregates={"total": "sum(x * y)"},
            instances=4,
        ),
    ),
    "some columns of groups, in another order": (
        "select window_end as until, count(*) as n, s as k, max(x) as m from f "
        "group by tumble(ts, interval 5 minutes), s",
        lambda: StreamAggregate(
            select(F, "x s ts"),
            by="s",
            aggregates={"n": "count(*)", "m": "max(x)"},
            window=windows("ts", "5 minutes", delay=LATE),
            instances=4,
            select={"until": "window_end", "n": "n", "k": "s", "m": "m"},
        ),
    ),
    "groups that slide, of an expression": (
        "select count(*) as n, window_start, window_end from f "
        "group by hop(ts, interval 1 minute, interval 5 minutes)",
        lambda: StreamAggregate(
            select(F, "ts"),
            aggregates={"n": "count(*)"},
            window=windows("ts", "5 minutes", "1 minute", delay=LATE),
            instances=4,
        ),
    ),
}


#: Comparisons of floats, and of floats with integers, that mean something else as a band.
NO_BANDS = [
    "f.x - w.y + 0.1 between 0 and 0.3",
    "f.id + f.k - f.k <= w.k",
    "f.m between w.n - 1e-1 and w.n + 1e-1",
    "f.id between w.k - 1e0 and w.k + 1e0",
    "0.1 + (f.x - w.y) <= 0.3 and f.x - w.y >= -9",
    "f.x - (w.y - 0.1) <= 0.3 and f.x - w.y + 0.1 >= 0",
    "f.x + 0.1 - w.y - 0.1 between 0 and 0.3",
    "f.x + f.x - w.y - f.x between 0 and 0.3",
    "abs(f.x - w.y + 0.1) <= 0.3",
    "f.id - w.y >= 0",
    "w.y - f.id >= 0",
    "f.x - w.wid >= 0",
]


@pytest.mark.parametrize("condition", NO_BANDS)
def test_a_comparison_that_rounds_or_orders_otherwise_is_no_band(condition):
    """Sums with a further number round twice; NaN is the greatest number, and in no band."""
    (join,) = sql(f"select id, wid from f join w on {condition}", S, instances=4).query().operators
    assert not isinstance(join.condition, Band)


@pytest.mark.parametrize("condition", ["f.x - w.y between 0 and 0.3", "abs(-w.y + f.x) <= 0.3"])
def test_a_difference_of_floats_is_a_band(condition):
    (join,) = sql(f"select id, wid from f join w on {condition}", S, instances=4).query().operators
    assert isinstance(join.condition, Band)


@pytest.mark.parametrize(("text", "python"), PLANS.values(), ids=PLANS)
def test_sql_has_the_plan_of_python(text, python):
    found = sql(text, S, delay=LATE, instances=4)
    assert plan_of(found) == plan_of(python())
