"""Which chains of joins become one operator, and how its parts are named."""

from __future__ import annotations

from contextlib import nullcontext

import pyarrow as pa
import pytest

from joinengine import StreamAggregate, StreamJoin, asof, equi, tumbling, windows, within
from joinengine.lab.commands.showing import served
from joinengine.layouts import LAYOUTS, choose
from joinengine.model.conditions import AsOf, Multiway
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, FromSource
from joinengine.operators import AsOfJoin, Join, MultiwayJoin
from joinengine.operators.multiway.nearness import Bound, Nearness
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.laws.cases import CHOICES

TIME = pa.timestamp("us", "UTC")
HOUR = 3_600_000_000


def stream(name, kind=None):
    kinds = [(f"{name}k", kind or pa.int64()), (f"{name}n", pa.int64()), (f"{name}t", TIME)]
    return Stream(None, {"kind": "recorded", "path": name}, Reading(pa.schema(kinds)))


def joined(left, right, on, **settings):
    return StreamJoin(left, right, on=on, **{"layout": "hash", "instances": 4} | settings)


def hours(left, right, lower=0, upper=1, **late):
    bounds = {"lower": f"{lower} hours", "upper": f"{upper} hours", "delay": "5 minutes"}
    return within(left, right, **bounds | late)


def chain(on=("ak", "bk"), then=("ak", "ck"), first=None, second=None, **both):
    ab = joined(stream("a"), stream("b"), equi(*on), **(first or {}), **both)
    return joined(ab, stream("c"), equi(*then), **(second or {}), **both)


def kinds(plan):
    return [type(one) for one in plan.query().operators]


def test_a_chain_on_one_key_is_one_operator():
    query = chain(then=("bk", "ck")).query()
    (one,) = query.operators
    assert isinstance(one, MultiwayJoin)
    assert one.condition.keys == (("ak",), ("bk",), ("ck",))
    assert one.inputs == tuple(map(FromSource, range(3)))
    assert [(c.name, c.side, c.column) for c in one.output] == [
        (f"{name}{what}", side, f"{name}{what}")
        for side, name in zip(Side, "abc", strict=False)
        for what in "knt"
    ]


def test_the_columns_of_results_keep_their_names():
    ab = joined(stream("a"), stream("b"), equi("ak", "bk"), select={"x": "ak", "y": "right.bn"})
    plan = joined(ab, stream("c"), equi("x", "ck"), select={"p": "y", "q": "ck", "y": "x"})
    (one,) = plan.query().operators
    assert [(c.name, c.side, c.column) for c in one.output] == [
        ("p", Side.RIGHT, "bn"),
        ("q", Side.THIRD, "ck"),
        ("y", Side.LEFT, "ak"),
    ]
    assert plan.query().operators[0].output_schema.names == plan.schema.names


def test_several_keys_may_be_named_in_any_order():
    on = equi(["ak", "an"], ["bk", "bn"])
    ab = joined(stream("a"), stream("b"), on)
    (one,) = joined(ab, stream("c"), equi(["bn", "ak"], ["ck", "cn"])).query().operators
    assert one.condition.keys == (("an", "ak"), ("bn", "bk"), ("ck", "cn"))


def test_a_tree_of_joins_is_one_operator_with_its_streams_in_order():
    ab = joined(stream("a"), stream("b"), equi("ak", "bk"), within=hours("at", "bt"))
    cd = joined(stream("c"), stream("d"), equi("ck", "dk"), within=hours("ct", "dt", 1, 2))
    plan = joined(ab, cd, equi("bk", "dk"), within=hours("bt", "ct", -1, 3))
    (one,) = plan.query().operators
    assert one.condition.keys == (("ak",), ("bk",), ("ck",), ("dk",))
    assert set(one.nearness.bounds) == {
        Bound(Side.LEFT, Side.RIGHT, 0, HOUR),
        Bound(Side.THIRD, Side.FOURTH, HOUR, 2 * HOUR),
        Bound(Side.RIGHT, Side.THIRD, -HOUR, 3 * HOUR),
    }
    assert one.chain == (0, 1, 2)


def test_a_join_before_and_operators_after_a_chain_stay_and_are_numbered_anew():
    on, near = equi("sk", "rk"), hours("st", "rt")
    semi = joined(stream("s"), stream("r"), on, how="left_semi", within=near)
    first = joined(semi, stream("b"), equi("sk", "bk"), within=hours("st", "bt"))
    plan = joined(first, stream("c"), equi("sk", "ck"), within=hours("bt", "ct"))
    window = windows("ct", "1 hour")
    settings = {"layout": "hash", "instances": 2, "window": window}
    total = StreamAggregate(plan, by="sk", aggregates={"n": "count(*)"}, **settings)
    operators = total.query().operators
    assert [type(one) for one in operators[:2]] == [Join, MultiwayJoin]
    assert operators[1].inputs[0] == FromOperator(0)
    assert [one.index for one in operators] == list(range(len(operators)))
    assert all(one.inputs[0] == FromOperator(one.index - 1) for one in operators[1:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_under_layouts_that_keep_tuples_apart_the_chain_stays(layout):
    plan = chain(layout=CHOICES[layout])
    served = CHOICES[layout].meets_all
    assert kinds(plan) == ([MultiwayJoin] if served else [Join, Join])


NEAR, NEAR_C = {"within": hours("at", "bt")}, {"within": hours("bt", "ct")}
STAY = {
    "another key": lambda: chain(then=("an", "ck")),
    "one key of two": lambda: chain(on=(["ak", "an"], ["bk", "bn"])),
    "an outer join first": lambda: chain(first=NEAR | {"how": "left"}),
    "an outer join then": lambda: chain(first=NEAR, second=NEAR_C | {"how": "full"}),
    "a semi join": lambda: chain(second={"how": "left_semi"}),
    "a predicate first": lambda: chain(first={"where": "an < bn"}),
    "a predicate then": lambda: chain(second={"where": "an < cn"}),
    "a filter of joined rows": lambda: chain(second={"left_where": "an > 0"}),
    "a cap": lambda: chain(second={"max_pairs_per_key": 9}),
    "one window": lambda: chain(first={"within": hours("at", "bt")}),
    "windows in which both count": lambda: chain(
        first={"within": tumbling("at", "bt", "1 hour", delay="0 s")},
    ),
    "both times": lambda: chain(
        first={"within": hours("at", "bt")}, second={"within": hours(["at", "bt"], "ct")}
    ),
    "other idle times": lambda: chain(
        first={"within": hours("at", "bt", idle_after="9 s")},
        second={"within": hours("bt", "ct")},
    ),
    "other layouts": lambda: chain(first={"layout": "mixed"}),
    "other settings": lambda: chain(first={"layout": "mixed:beta=1.2"}, second={"layout": "mixed"}),
    "other instances": lambda: chain(first={"instances": 5}),
    "if the user says so": lambda: chain(second={"multiway": False}),
}


@pytest.mark.parametrize("why", STAY)
def test_a_chain_stays(why):
    assert kinds(STAY[why]()) == [Join, Join]


def test_keys_of_other_types_stay_apart():
    ab = joined(stream("a"), stream("b"), equi("ak", "bk"))
    plan = joined(ab, stream("c", pa.int32()), equi("ak", "ck"))
    assert kinds(plan) == [Join, Join]


def test_a_table_or_a_nearest_row_ends_a_chain():
    ab = joined(stream("a"), stream("b"), equi("ak", "bk"), within=hours("at", "bt"))
    nearest = asof("at", "ct", by=equi("ak", "ck"), delay="0 s")
    assert kinds(joined(ab, stream("c"), nearest)) == [Join, AsOfJoin]


def test_up_to_eight_streams_are_joined_at_once():
    plan = stream("a")
    for name in "bcdefghi":
        plan = joined(plan, stream(name), equi("ak", f"{name}k"))
    query = plan.query()
    assert [type(one) for one in query.operators] == [MultiwayJoin, Join]
    assert len(query.operators[0].inputs) == 8


def test_the_distance_of_any_two_follows_from_the_bounds():
    near = Nearness(
        (("a",), ("b",), ("c",)),
        (Bound(Side.LEFT, Side.RIGHT, 0, 10), Bound(Side.RIGHT, Side.THIRD, -5, 20)),
        (0, 0, 0),
    )
    assert near.most_us == ((0, 10, 30), (0, 0, 20), (5, 5, 0))
    assert near.span_us == 30
    assert [near.last_needed_us(side) for side in list(Side)[:3]] == [30, 20, 5]
    assert near.lag_us([Side.LEFT]) == 30
    assert near.lag_us([Side.RIGHT]) == 20
    assert near.lag_us([Side.THIRD]) == 5
    assert near.lag_us([Side.LEFT, Side.THIRD]) == 5 or near.lag_us([Side.LEFT, Side.THIRD]) == 10


def test_explain_says_what_has_become_one():
    plan = chain(first={"within": hours("at", "bt")}, second={"within": hours("bt", "ct", -1, 2)})
    text = plan.explain()
    assert "multiway inner join on ak = bk = ck" in text
    assert "made of 2 joins on one key: each side is stored once" in text
    assert ": a row is kept until the watermark passes ct + 60 min" in text
    assert "the newest third row - 5 min" in text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_say_whether_they_serve_it(layout):
    choice, on = CHOICES[layout], Multiway((("a",), ("b",), ("c",)))
    refused = nullcontext() if choice.meets_all else pytest.raises(InvalidRequest, match=layout)
    with refused:
        choice.check(on, 4)
    assert ("multiway" in served(choice)) == choice.meets_all


def test_a_layout_that_cannot_hold_several_streams_is_refused_by_their_name():
    with pytest.raises(InvalidRequest, match=r"does not support multiway; .*, or multiway=False"):
        choose("dynamic").check(Multiway((("k",), ("k",), ("k",))), 4)
    with pytest.raises(InvalidRequest, match="does not support asof; use auto"):
        choose("dynamic").check(AsOf((("a",), ("b",)), equi("k", "k")), 4)
