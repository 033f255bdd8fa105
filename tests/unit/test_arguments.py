"""Arguments of a wrong kind are refused where they are written, with what to write."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from joinengine import (
    InvalidRequest,
    StreamAggregate,
    StreamJoin,
    asof,
    band,
    equi,
    last,
    parquet_stream,
    session_windows,
    sliding,
    theta,
    top,
    tumbling,
    windows,
    within,
)
from joinengine.lab.commands.own_joins import OWN
from joinengine.lab.commands.own_joins import condition_of as of_command_line
from joinengine.layouts import LAYOUTS, Mnrt
from joinengine.model.arguments import check_timeout
from joinengine.model.columns import require_column
from joinengine.model.conditions import Equi, Floats
from joinengine.sources.readings import Reading
from joinengine.spark.session.session import check_classic
from joinengine.spark.sources.inputs import Stream

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema([("User_Id", pa.int64()), ("a", pa.string()), ("lt", TIME), ("g", pa.float64())])
RIGHT = pa.schema(
    [
        *(("user_id", pa.int32()), ("b", pa.string()), ("rt", TIME), ("f", pa.float32())),
        ("s", pa.struct([("x", pa.int64())])),
    ]
)


def stream(schema):
    return Stream(None, {"kind": "recorded", "path": "x"}, Reading(schema))


SIDES = stream(LEFT), stream(RIGHT)
SETTINGS = {"on": equi("user_id", "USER_ID"), "instances": 2, "suffixes": ("_l", "_r")}


class Column:
    """As Spark's: it cannot be iterated."""


JOINS = {
    "on: None is not a condition; write on='k'": {"on": None},
    r"on: 5 \(int\) is not a condition": {"on": 5},
    "on: joinengine cannot read a Spark Column; write equi": {"on": Column()},
    r"on: \[\('a', 'b'\)\] are pairs; write equi\('a', 'b'\)": {"on": [("a", "b")]},
    r"pairs; write equi\(\['a', 'c'\], \['b', 'd'\]\)": {"on": [("a", "b"), ("c", "d")]},
    "on: .* is not a column name or a list of names": {"on": ["a", 5]},
    "on: column 'user' of the left side does not exist; .* left side are User_Id": {"on": "user"},
    "on: column 'a' of the right side does not exist; .* right side are user_id": {"on": "a"},
    r"column 'lt' of the right side does not .*; the columns of the right side are [^.;]*\. For": {
        "on": "lt"
    },
    "on: g of the left side is double, .* floats='normalised'": {"on": equi("g", "f")},
    "on: g of the left side is double, .* Cast the key to decimal or integer$": {
        "on": equi("g", "user_id")
    },
    r"'user' of the left .*\. For columns with different names, .*\('a', 'b'\)": {"on": "user"},
    r"\. For columns with different names, write equi\('a', 'rt'\)": {"on": ("a", "rt")},
    r"\. For columns with different names, write equi\('lt', 'rt'\)": {"on": "lt = rt"},
    r"support theta joins; .*\. Or write the equality as equi\('user_id', 'b'\), .* first$": {
        "on": theta("right.b == Left.user_id "),
        "layout": "mnrt",
    },
    "support theta joins; use auto, dynamic, bi or shuffle$": {
        "on": theta("lt = rt or a = b"),
        "layout": "mnrt",
    },
    "on: g of the left side is double and user_id of the right side is int32, .* cast": {
        "on": equi("g", "user_id", floats="normalised")
    },
    "how: None is not text; write for example 'left'": {"how": None},
    "where: 5 .* is not text": {"where": 5},
    "left_where: 5 .* is not text": {"left_where": 5},
    r"instances: '4' \(str\) is not a whole number": {"instances": "4"},
    "instances: True .* is not a whole number": {"instances": True},
    "instances: 4.0 .* is not a whole number": {"instances": 4.0},
    "layout: expected a name or an object such as .*, found 3": {"layout": 3},
    r"layout: expected a name or an object such as Mnrt\(\), found the class Mnrt": {
        "layout": Mnrt
    },
    "suffixes: expected a pair of texts .*, found '_x'": {"suffixes": "_x"},
    "suffixes: expected a pair of texts": {"suffixes": ("_x",)},
    "within: '1 hour' .* write for example within=within": {"within": "1 hour"},
    "within: windows.* belongs to a StreamAggregate": {"within": windows("lt", "1 s")},
    "within: session_windows.* belongs to a StreamAggregate": {
        "within": session_windows("lt", "1 s")
    },
    "max_pairs_per_key: expected at least 1, found 0": {"max_pairs_per_key": 0},
    "max_pairs_per_key: how='left' shows": {
        "max_pairs_per_key": 9,
        "how": "left",
        "within": within("lt", "rt", lower="0 s", upper="1 s", delay="0 s"),
    },
    "max_pairs_per_key: expected a join on equal columns alone": {
        "max_pairs_per_key": 9,
        "on": theta("lt < rt"),
        "layout": "dynamic",
    },
    "max_pairs_per_key: an as-of join, or one with latest, makes one": {
        "max_pairs_per_key": 9,
        "on": asof("lt", "rt", by=equi("user_id", "user_id"), delay="0 s"),
    },
    "keep: an as-of join, or one with latest, keeps what may be nearest": {
        "keep": "9 s",
        "on": asof("lt", "rt", by=equi("user_id", "user_id"), delay="0 s"),
    },
    "within: last.* belongs to a StreamAggregate": {"within": last("lt", 9)},
    "within: column 'x' of the right side does not exist": {
        "within": within("lt", "x", lower="0 s", delay="0 s")
    },
}


@pytest.mark.parametrize("message", JOINS)
def test_joins(message):
    StreamJoin(*SIDES, **SETTINGS)
    with pytest.raises(InvalidRequest, match=message):
        StreamJoin(*SIDES, **SETTINGS | JOINS[message])


def test_an_equality_of_columns_is_recognised():
    assert theta("user_id = buyer_id").equated == ("user_id", "buyer_id")
    assert theta("right.b=left.a").equated == ("a", "b")
    assert theta("a <= b").equated is theta("a = 5").equated is theta("a = b + 1").equated is None


@pytest.mark.parametrize("made", [parquet_stream, lambda *swapped: check_classic(swapped[0])])
def test_what_is_no_session(made):
    with pytest.raises(InvalidRequest, match=r"a Spark session, not 'clicks' \(str\)"):
        made("clicks", object())


def test_sides_that_are_frames_of_pandas():
    with pytest.raises(InvalidRequest, match=r"found a pandas DataFrame\. Make a table"):
        StreamJoin(SIDES[0], pd.DataFrame({"k": [1]}), on="k", instances=2)


COUNTED = {"aggregates": {"n": "count(*)"}, "window": windows("LT", "1 s", delay="0 s")}
AGGREGATES = {
    r"window: .*Sliding.* write for example windows": {"window": tumbling("lt", "lt", "1 s")},
    "top: 5 .* has the wrong type; write for example top": {"top": 5},
    "aggregates: .* has the wrong type; write for example": {"aggregates": ["count(*)"]},
    "aggregates: r: 5 .* is not text": {"aggregates": {"r": 5}},
    "aggregates: a name: 5": {"aggregates": {5: "count(*)"}},
    "by: None is not a column name": {"by": None},
    "by: column 'x' does not exist": {"by": "x"},
    "by: s is struct.*, which cannot name a group": {"by": "s", "source": SIDES[1]},
    "by: d is duration.*, which cannot name a group": {
        "by": "d",
        "source": stream(LEFT.append(pa.field("d", pa.duration("us")))),
    },
    "ambiguous column names: the result has m twice": {
        "aggregates": {"m": "count(*)", "M": "sum(g)"}
    },
    "aggregators: '2' .* is not a whole number": {"aggregators": "2"},
    "merge_every: 1.5 .* is not a whole number": {"merge_every": 1.5},
    "select: no column is named; name at least one": {"select": []},
    "select: column 'no' does not exist; the columns are": {"select": {"n": "no"}},
    "select: 5 .* is not a column name": {"select": 5},
}


@pytest.mark.parametrize("message", AGGREGATES)
def test_aggregates(message):
    settings = {"source": SIDES[0], "by": "USER_ID", "instances": 2} | COUNTED
    assert StreamAggregate(**settings).schema.names[0] == "User_Id"
    settings |= AGGREGATES[message]
    if settings["source"] is SIDES[1]:
        settings["window"] = windows("rt", "1 s", delay="0 s")
    with pytest.raises(InvalidRequest, match=message):
        StreamAggregate(**settings)


def test_a_stream_says_how_late_its_tuples_may_be():
    left = SIDES[0].withWatermark("LT", "5 minutes").select("lt", "User_Id").where("lt is not null")
    right = SIDES[1].withWatermark("rt", "0 s")
    window = within("lt", "rt", lower="0 s", upper="1 s")
    joined = StreamJoin(left, right, on="user_id", within=window, instances=2)
    assert joined._window.delays_us == (300_000_000, 0)
    with pytest.raises(InvalidRequest, match=r"the delay of rt is missing\. Give .* withWatermark"):
        StreamJoin(left, SIDES[1], on="user_id", within=window, instances=2)


def test_a_replay_has_no_bound_against_the_clock():
    """Whether it is joined at once, or its times come through another operator."""
    left, right = (replace(one, feed={"kind": "folder", "path": "/now"}) for one in SIDES)
    old = replace(right, feed={"kind": "recorded", "path": "/old"})
    ends = {"lower": "0 s", "upper": "1 s", "delay": "0 s"}
    bounded = within("lt", "rt", **ends, max_ahead="1 hour")
    on = {"on": equi("user_id", "user_id"), "instances": 2, "suffixes": ("_l", "_r")}
    assert StreamJoin(left, right, within=bounded, **on)._window.ahead_us == 3_600_000_000
    message = "within: max_ahead needs current event times, but /old is a recorded stream"
    with pytest.raises(InvalidRequest, match=message):
        StreamJoin(left, old, within=bounded, **on)
    joined = StreamJoin(left, old, within=within("lt", "rt", **ends), **on)
    settings = {"source": joined, "by": "g", "aggregates": {"n": "count(*)"}, "instances": 2}
    window = windows(("lt", "rt"), "1 s", max_ahead="0 s")
    with pytest.raises(InvalidRequest, match=message.replace("within", "windows")):
        StreamAggregate(**settings, window=window)
    found = StreamAggregate(**settings, window=windows(("lt", "rt"), "1 s"))
    assert found.schema.names[0] == "g"


BUILT = {
    "withWatermark: event time must be a timestamp, and a is string; write timestamps": lambda: (
        SIDES[0].withWatermark("a", "1 s")
    ),
    "withWatermark: column 'x' does not exist": lambda: SIDES[0].withWatermark("x", "1 s"),
    "withWatermark: delay '-1 s' is negative": lambda: SIDES[0].withWatermark("lt", "-1 s"),
    "equi: 1 .* is not a column name": lambda: equi(1, 2),
    "equi: floats: 'any' is unknown; choose one of refused": lambda: equi("a", "b", floats="any"),
    "theta: None is not text": lambda: theta(None),
    "band: a column: 1 .* is not text": lambda: band(1, 2, lower=0),
    r"band: lower \[1\] is not a finite number": lambda: band("a", "b", lower=[1]),
    r"band: lower 'a' .*; if the columns hold numbers, give a number, such as lower=5": lambda: (
        band("a", "b", lower="a")
    ),
    "a window: 1 .* is not a column name": lambda: within(1, 2, lower="0 s"),
    "within: delay .* has 3 parts": lambda: within("a", "b", lower="0 s", delay=("0 s",) * 3),
    "sliding: size 5 is not a duration; write a number and a unit": lambda: sliding("a", "b", 5, 5),
    "top: '5' .* is not a whole number": lambda: top("5", by="n"),
    "top: by: None is not text": lambda: top(5, by=None),
    "select: 5 .* is not a column name": lambda: SIDES[0].select(5),
    "select: no column is named; name at least one": lambda: SIDES[0].select([]),
    r"select: no column is named; name at least one(?#2)": SIDES[0].select,
    r"select: no column is named; name at least one(?#3)": lambda: StreamJoin(
        *SIDES, on=theta("a < b"), select=[], instances=2
    ),
    "select: column '' does not exist": lambda: SIDES[0].select(""),
    "Stream.where: '': the expression is empty": lambda: SIDES[0].where(""),
    "select: column 'x' does not exist": lambda: SIDES[0].select("a", "x"),
    "Stream.where: 5 .* is not text": lambda: SIDES[0].where(5),
    "Stream.where: column 'usr' does not exist": lambda: SIDES[0].where("usr = 'user-1'"),
}


@pytest.mark.parametrize("message", BUILT)
def test_what_is_given_to_them(message):
    with pytest.raises(InvalidRequest, match=message):
        BUILT[message]()


@pytest.mark.parametrize("on", ["a=b", "a = b, c=d", "k"])
def test_float_keys_of_the_command_line(on):
    none = dict.fromkeys(name for name, _, _ in OWN)
    given = none | {"on": on, "floats": "normalised"}
    names = [part.split("=") for part in on.replace(" ", "").split(",")]
    left, right = (tuple(part[n] for part in names) for n in (0, -1))
    normalised = Equi(left, right, using=on == "k", floats=Floats.NORMALISED)
    assert of_command_line(given) == normalised
    assert of_command_line(given | {"floats": None}) == replace(normalised, floats=Floats.REFUSED)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_settings_of_every_layout(name):
    layout = LAYOUTS[name]
    for one in fields(layout):
        if one.name == "levels":  # tests/unit/test_levels.py
            continue
        kind, _, none = one.type.partition(" | ")
        assert kind in ("int", "float", "str", "bool")
        for wrong in ("0.1", True, [1], *([] if none else [None])):
            if type(wrong).__name__ == kind:
                continue
            with pytest.raises(
                InvalidRequest,
                match=f"{name}: {one.name}:? .*(not (a whole num|a num|a bool|text)|be a whole)",
            ):
                layout(**{one.name: wrong})
        if kind not in ("str", "bool"):
            number = 1 if one.name == "backup_work" else 2  # a backup works no more than a home
            of_numpy = layout(**{one.name: np.int64(number)})
            assert json.dumps(getattr(of_numpy, one.name)) in (f"{number}", f"{number}.0")


def test_names_are_found_whatever_their_case():
    joined = StreamJoin(
        *SIDES,
        on="USER_ID",
        within=within("LT", "Rt", lower="0 s", delay="0 s"),
        where="A = B and Left.LT <= rT",
        left_where="uSER_id > 3",
        instances=2,
    )
    assert joined._condition == Equi(("User_Id",), ("user_id",), using=True)
    assert joined._window.times == (("lt",), ("rt",))
    assert joined.schema.names == ["User_Id", "a", "lt", "g", "b", "rt", "f", "s"]
    assert SIDES[0].select("LT", "a").schema.names == ["lt", "a"]
    assert SIDES[0].select(["A"]).where("USER_ID > 3 and a = 'b'").schema.names == ["a"]


def test_names_have_their_case_in_a_session_that_asks_for_it():
    schema = pa.schema([("v", pa.int64()), ("V", pa.int64()), ("w", pa.int64())])
    assert require_column(schema, "V", "on", exact=True).name == "V"
    with pytest.raises(
        InvalidRequest, match="column 'V' is ambiguous: the columns are v, V; rename"
    ):
        require_column(schema, "V", "on")
    with pytest.raises(InvalidRequest, match="column 'W' does not exist"):
        require_column(schema, "W", "on", exact=True)


def test_an_expression_is_no_column_and_the_error_says_what_to_do():
    schema = pa.schema([("v", pa.int64()), ("w", pa.int64())])
    computed = r"column 'upper\(V\)' does not exist; .* first: .withColumn\('key', 'upper\(V\)'\)$"
    with pytest.raises(InvalidRequest, match=computed):
        require_column(schema, "upper(V)", "on")
    for name in ("no", "no(x)", "left.v"):
        with pytest.raises(InvalidRequest, match=r"does not exist; the columns are v, w$"):
            require_column(schema, name, "on")


@pytest.mark.parametrize("value", [float("nan"), np.float32("nan"), True, "1", None])
def test_what_is_no_number_is_no_time_limit(value):
    """A limit that is NaN never passes."""
    with pytest.raises(InvalidRequest, match=r"timeout: (.* is not a number|NaN is no length)"):
        check_timeout(value, "timeout")
    assert check_timeout(np.float32(0.5), "timeout") == 0.5
