"""What SQL over streams cannot say is refused where it is written, in one sentence."""

from __future__ import annotations

import re

import pytest

from joinengine import InvalidRequest, StreamAggregate, StreamJoin, equi, sql
from tests.sqls import BOTH, LATE, NEAR, S

REFUSED = {
    "select 1\nunion select 2": "line 2, column 14: UNION is not supported; run a query for each",
    " \n": "sql: expected one SELECT, found no text",
    "select 1; select 2": "sql: expected one SELECT, found 2 statements",
    "insert into f select 1": "expected one SELECT, found insert",
    "hi": "expected one SELECT, found hi",
    "selec a from": "expected one SELECT, found selec",
    "select a from f where\n x = 'abc": "sql: line 2, column 6: ' is not closed",
    "select count(*) as n from f group by window(ts, '10 minutes')": "write TUMBLE or HOP",
    "select `a from f": "sql: line 1, column 8: ` is not closed",
    "select /* a from f": "the text cannot be read",
    "select 1 as one": "FROM is missing",
    "select * from no join w on no.k = w.k": "stream 'no' is unknown; the streams are f, w, t",
    "select f.no from f join w on f.k = w.k": "line 1, column 8: column 'no' of f does not exist",
    "select f.idd from f join w on f.k = w.k": "Did you mean 'id'?",
    "select widd from f join w on f.k = w.k": "Did you mean 'wid'?",
    "select no from f join w on f.k = w.k": "column 'no' does not exist; the columns are id,",
    "select q.k from f join w on f.k = w.k": "'q' names no entry of FROM; the entries are f, w",
    "select q.* from f join w on f.k = w.k": "'q' names no entry of FROM",
    "select k from f join w on f.k = w.k": "column 'k' is in f, w; write f.k",
    f"{BOTH} order by 1": "ORDER BY is not supported",
    f"{BOTH}\n  limit 10": "line 2, column 9: LIMIT is not supported",
    f"{BOTH} offset 10": "OFFSET is not supported",
    "select distinct id from f join w on f.k = w.k": "DISTINCT is not supported",
    f"{BOTH} qualify row_number() over () = 1": "QUALIFY is not supported",
    f"{BOTH} tablesample (10 rows)": "SAMPLE is not supported here",
    "select id, sum(x) over () as s from f join w on f.k = w.k": "line 1, column 12: OVER is not",
    "select id, rand() as r from f join w on f.k = w.k": "rand in 'rand()' is not supported",
    f"{BOTH} and uuid() = 'a'": "line 1, column 47: a condition: uuid in",
    "select upper(f.k) + 1 as z from f join w on f.k = w.k": "line 1, column 8: z: 'upper(k) + 1'",
    "select f.x % as z from f join w on f.k = w.k": "valid SQL near 'as': something is missing",
    f"{BOTH} where mine(f.x) > 3": "line 1, column 49: a condition: mine in",
    "select sum(x) as s from f join w on f.k = w.k": "an aggregate needs a window",
    f"{BOTH} where f.k in (select k from t)": "subqueries in conditions and expressions",
    f"{BOTH} and exists (select 1 from t)": "subqueries in conditions and expressions",
    "select id from f left join w on f.k = w.k": "LEFT JOIN needs a window, because without one a",
    f"{BOTH} having f.k > 3": "HAVING needs GROUP BY",
    "select id from f": "one stream is not a query",
    f"select id from f left join w on {NEAR} where random() > w.y": "where: random in",
    f"{BOTH} where 1 = 1": "WHERE compares columns of streams",
    "select id from f natural join w": "NATURAL JOIN is not supported",
    "select id from f cross join w": "line 1, column 29: a join needs a condition",
    "select id, wid from f join w on f.k = w.k join t as F on f.k = w.k": "is the name of two",
    "select id, count(*) as n from f group by id": "line 1, column 42: GROUP BY needs a window;",
    "select id, count(*) from f group by id, tumble(ts, interval 1 hour)": "a name of its own",
    "select id, s, count(*) as n from f group by id, tumble(ts, interval 1 hour)": (
        "line 1, column 12: s is neither in GROUP BY nor an aggregate"
    ),
    "select id from f group by id, tumble(ts, interval 1 hour)": "GROUP BY needs an aggregate",
    "select count(distinct k) as n from f group by tumble(ts, interval 1 hour)": (
        "expected count, sum, min, max, avg or histogram"
    ),
    "select count(*) as n from f group by tumble(ts, interval 1 month)": "a window is TUMBLE(",
    "select count(*) as n from f group by tumble(ts, interval 99999999999 days)": "a billion days",
    "select count(*) as n from f group by tumble(x, interval 1 hour)": "must be a timestamp",
    "select count(*) as n from f group by tumble(ts, interval 1 day), tumble(ts, interval 1 day)": (
        "GROUP BY takes one window"
    ),
    "select count(*) as n from f group by 1, tumble(ts, interval 1 hour)": "GROUP BY takes columns",
    f"{BOTH} and tumble(f.ts, interval 1 hour) = tumble(w.at, interval 1 day)": "both sides need",
    f"{BOTH.replace('wid ', 'wid, window_start ')}": "window_start needs a window",
    f"{BOTH} and w.at <= f.ts + interval 1 day and w.until >= f.ts - interval 1 day": (
        "two conditions bound event time"
    ),
    "with recursive a as (select k from f) select a.k from a join w on a.k = w.k": "RECURSIVE",
    "select a.k from (select f.k from f join w on f.k = w.k) a join t on a.k = t.k": (
        "a subquery that joins is not supported"
    ),
    "select a.k from (select k from f) join w on a.k = w.k": "a subquery needs a name",
    "select a.k from (select k, count(*) as n from f group by k) a join w on a.k = w.k": "GROUP",
    "select a.k from (select k + 1 from f) a join w on a.k = w.k": "an expression needs a name",
    "select id, x as id from f join w on f.k = w.k": "two columns are called 'id'",
    "select id from f asof join w on f.k = w.k and w.at >= f.ts and w.at <= f.ts - interval 3 "
    "second": "no distance of ts and at lies within the bounds",
    "select id from f asof join w on f.k = w.k and w.at < f.ts and w.at > f.ts - interval 0 "
    "second": "no distance of ts and at lies within the bounds",
    "select f.x + w.y as a, wid as A from f join w on f.k = w.k": "column 8: ambiguous column",
    "select k * 2 as n, sum(x) as t from f group by k, j + 1, tumble(ts, interval 1 hour) having "
    "j > 3": "j is neither in GROUP BY nor an aggregate",
    "select * from f join w on f.k = w.k": "two columns are called",
    "select * except (k) from f join w on f.k = w.k": "* takes no EXCEPT",
    "select w.k from f left join w using (k)": "USING has made one column of 'k'",
    "select id from f, lateral (select 1) x": "FROM takes streams, joins, and subqueries",
    "select id from f(1) join w on f.k = w.k": "FROM takes",
    "with a as (select * from f), a as (select * from w) select 1 from a": "WITH has 2 queries ca",
    "with a(p, q) as (select id from f) select p from a join w on p = k": "a has 1 columns, and 2",
    "select 1 from (select id, k from f) a(p, p) join w on p = w.k": "two columns are called 'p'",
    "select 1 from (select *, k + 1 as K from f) a join w on a.k = w.k": "two columns are called",
    "select id from (select * from f) a tablesample (1 percent) join w on a.k = w.k": "TABLESAMPLE",
    "select id from (f join w on f.k = w.k) tablesample (1 percent)": "TABLESAMPLE is not",
    "select id from (f join w on f.k = w.k) pivot (count(*) for j in (1))": "PIVOT is not",
    "select id from f cross join w on f.k = w.k": "CROSS JOIN takes no ON; write JOIN",
    f"{BOTH} and f.x - w.y between symmetric 3 and 1": "BETWEEN SYMMETRIC is not supported",
    f"{BOTH} and f.s like any ('a', 'b')": "ANY is not supported; write OR, or IN",
    f"{BOTH} and f.m - w.n between 3 and 1": "no distance of m and n lies within the bounds",
    **{
        f"select {what} as n from f group by tumble(ts, interval {size} hour), k{how}": said
        for what, size, how, said in (
            ("count(*) filter (where x > 5)", 1, "", "FILTER is not supported; write count(CASE"),
            ("sum(x) within group (order by x)", 1, "", "WITHIN GROUP is not supported"),
            ("max(x) ignore nulls", 1, "", "NULLS of an aggregate are always ignored"),
            ("count(f.*)", 1, "", "f.* is not supported here; write *"),
            ("count(*)", 1, " with rollup", "ROLLUP is not supported here"),
            ("count(*)", 1, " with cube", "CUBE is not supported here"),
            ("count(*)", 1, " with totals", "WITH TOTALS is not supported here"),
            ("count(*)", 1, ", rollup (j)", "GROUP BY takes one set of groups; name its columns"),
            ("count(*)", 1, ", grouping sets ((j))", "GROUP BY takes one set of groups"),
            ("count(*)", 0, "", "size 0 s must be positive"),
            ("count(*)", -1, "", "size -60 min must be positive"),
        )
    },
    "select id from f a(b) join w on f.k = w.k": "'f' names no entry of FROM; the entries are a, w",
    "select id from f join w on f.s = w.k": "cannot be compared; cast one of them",
    "select id from f anti join w on f.k = w.k": "needs a window",
    "select id from f left join w on f.k = w.k and at > ts + interval 1 day": "Bound two event",
    "select id from f join w on f.x = w.y": "Cast the key to decimal or integer",
    **{
        f"select id from f asof join w on f.k = w.k and f.ts {sign} w.at "
        f"asof join w as v on f.k = v.k and {time} >= v.at": said
        for sign, time, said in (
            (
                ">=",
                "w.at",
                "at is not the event time of as-of joined rows, which is",
            ),
            ("<=", "f.ts", "bound the distance, as in AND w.ts <= f.ts + INTERVAL 1 HOUR"),
        )
    },
}
#: Words of a program, which a statement does not have.
PYTHON = re.compile(
    r"(within|keep|how)=|within\(|equi\(|asof\(|'left'|'inner'|: (on|within|windows|aggregates): "
)


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_cannot_be_said_is_refused_in_a_sentence(text, said):
    with pytest.raises(InvalidRequest) as refused:
        sql(text, S, delay=LATE, instances=4)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not PYTHON.search(str(refused.value))


def test_no_delay_is_refused_where_the_window_is_needed():
    with pytest.raises(
        InvalidRequest, match=r"line 1, column 28: the delay of ts is missing; give sql\(.*--delay"
    ):
        sql(f"select id, wid from f join w on {NEAR}", S, instances=4)


@pytest.mark.parametrize("word", ["SELEC", "slect", "FROM"])
def test_the_first_word_is_what_is_wrong_with_it(word):
    with pytest.raises(InvalidRequest, match=f"sql: expected one SELECT, found {word}"):
        sql(f"{word} user_id FROM f", S, delay=LATE, instances=4)


@pytest.mark.parametrize("more", ["(" * 3000 + "f.x > 3" + ")" * 3000, "f.x > 1 and " * 3000])
def test_a_statement_that_is_nested_too_deeply_is_refused(more):
    with pytest.raises(InvalidRequest, match="is nested too deeply"):
        sql(f"{BOTH} and {more} f.x > 2", S, delay=LATE, instances=4)


@pytest.mark.parametrize(
    "fed",
    [
        lambda query: StreamJoin(query, S["t"], on=equi("id", "tid"), instances=2),
        lambda query: StreamJoin(S["t"], query, on=equi("tid", "id"), instances=2),
        lambda query: StreamAggregate(query, by="id", aggregates={"n": "count"}),
    ],
    ids=["left", "right", "aggregate"],
)
def test_a_query_that_spark_transforms_is_no_input(fed):
    """The operator behind it would get its rows as they were before."""
    join = sql(f"select id, w.at from f left join w on {NEAR}", S, delay=LATE, instances=4)
    with pytest.raises(InvalidRequest, match="whose results Spark transforms"):
        fed(join.transform(lambda frame: frame.limit(1)))
