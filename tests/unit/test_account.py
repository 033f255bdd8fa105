"""Whose checkpoint it is, and with which columns a query may go on."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from joinengine import equi, within
from joinengine.driver.account import account_of, check_types, kept_columns
from joinengine.driver.account import claim as examine
from joinengine.exchange.finishing import Finish, Selected
from joinengine.model.errors import CheckpointMismatch, DamagedState
from joinengine.model.keys import Side
from joinengine.model.query import OutputColumn
from joinengine.operators.accounts import in_words, key_schema
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint, read_account, write_account
from joinengine.state.manifests import name_of
from tests.harness import two_way


def with_columns(query, *fields):
    """The query with more columns, or others of the same name, on its left side."""
    (join,) = query.operators
    left = {field.name: field for field in (*join.schemas[0], *fields)}
    return replace(
        query, operators=(replace(join, schemas=(pa.schema(left.values()), join.schemas[1])),)
    )


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint.below(tmp_path / "checkpoint")


def claim(checkpoint, *accounts):
    return examine(checkpoint, *accounts).take(checkpoint)


def test_a_claim_writes_nothing_before_it_is_taken(checkpoint, tmp_path):
    query = two_way(None, 3)
    first = examine(checkpoint, account_of(query), {0: "left"})
    assert not list(tmp_path.iterdir())
    assert first.take(checkpoint) == examine(checkpoint, account_of(query)).query
    more = with_columns(query, pa.field("more", pa.string()))
    again = examine(checkpoint, account_of(more), {0: "more"}, account_of(query))
    assert kept_columns(checkpoint, query.sources) == {0: "left"}
    assert again.take(checkpoint) == first.query
    assert kept_columns(checkpoint, query.sources) == {0: "more"}


def test_of_two_starts_at_the_same_moment_the_first_has_the_checkpoint(checkpoint):
    """Else it would go on under the id of the other one, and not know its own results."""
    wanted = account_of(two_way(None, 3))
    first, second = examine(checkpoint, wanted), examine(checkpoint, wanted)
    assert first.take(checkpoint) == first.query
    with pytest.raises(CheckpointMismatch, match="another start has begun it at the same moment"):
        second.take(checkpoint)
    assert examine(checkpoint, wanted).query == first.query != second.query
    assert first.take(checkpoint) == first.query  # a store may repeat a request


def test_a_session_in_another_time_zone_is_warned(checkpoint, caplog):
    """Keys that are days of instants would be others from here on."""
    query, more = two_way(None, 3), with_columns(two_way(None, 3), pa.field("more", pa.string()))
    claim(checkpoint, account_of(query), None, None, "Asia/Tokyo")
    claim(checkpoint, account_of(query), None, None, "Asia/Tokyo")
    claim(checkpoint, account_of(more), None, account_of(query), "Asia/Tokyo")
    assert not caplog.messages
    claim(checkpoint, account_of(more), None, None, "UTC")
    (message,) = caplog.messages
    assert "begun in time zone Asia/Tokyo, and this session has UTC" in message


def test_a_checkpoint_keeps_the_columns_of_streams(checkpoint):
    query = two_way(None, 3)
    assert kept_columns(checkpoint, query.sources) == {}
    first = claim(checkpoint, account_of(query), {0: "left", 1: "right"})
    assert kept_columns(checkpoint, query.sources) == {0: "left", 1: "right"}
    assert claim(checkpoint, account_of(query), {0: "other"}) == first
    assert kept_columns(checkpoint, query.sources) == {0: "left", 1: "right"}
    assert kept_columns(checkpoint, ["left", "another"]) == {}


def test_more_columns_are_taken_in_only_over_the_query_as_it_was(checkpoint):
    query = two_way(None, 3)
    more = with_columns(query, pa.field("more", pa.string()))
    first = claim(checkpoint, account_of(query), {0: "left"})
    with pytest.raises(CheckpointMismatch, match="its left of operator 0 is"):
        claim(checkpoint, account_of(more), {0: "more"})
    other = account_of(two_way(None, 3, how="full"))
    with pytest.raises(CheckpointMismatch, match="its how of operator 0 is inner"):
        claim(checkpoint, account_of(more), {0: "more"}, other)
    assert claim(checkpoint, account_of(more), {0: "more"}, account_of(query)) == first
    assert kept_columns(checkpoint, query.sources) == {0: "more"}
    assert claim(checkpoint, account_of(more), {0: "more"}) == first


def test_another_query_is_told_in_words(checkpoint):
    """Neither Python's objects nor bytes, and first what the user has written."""
    query = two_way(None, 3)
    (join,) = query.operators
    shown = replace(query, operators=(replace(join, is_selected=True),))
    claim(checkpoint, account_of(two_way(None, 3)))
    told = "select of operator 0 is all columns, and this query has lk, lv, lt, rk, rv, rt; use"
    with pytest.raises(CheckpointMismatch, match=told):
        claim(checkpoint, account_of(shown))
    assert in_words("select", [str(OutputColumn("it's", Side.LEFT, "lk"))]) == "it's"
    other = two_way(None, 3, on=equi("lv", "rv"))
    with pytest.raises(CheckpointMismatch, match="its on of operator 0 is "):
        claim(checkpoint, account_of(other))
    account = account_of(two_way(None, 3))
    wide = account["joins"][0] | {"key_schema": key_schema([pa.field("lk", pa.string())])}
    told = "is lk: int64, and this query has lk: string; use"
    with pytest.raises(CheckpointMismatch, match=told):
        claim(checkpoint, account | {"joins": [wide]})


def test_steps_behind_an_operator_are_in_the_account(checkpoint):
    """An earlier version had Spark compute what came then, or called a selection otherwise."""
    query = two_way(None, 3)
    (join,) = query.operators
    named = Selected((("k", "lk"), ("lv", "lv")))
    asked = account_of(replace(query, operators=(replace(join, finish=Finish((named,))),)))
    old = account_of(query)
    without = old | {"joins": [{k: v for k, v in old["joins"][0].items() if k != "steps"}]}
    first = claim(checkpoint, without)
    assert claim(checkpoint, old) == first
    told = "its steps of operator 0 is none, and this query has select lk as k, lv; use"
    with pytest.raises(CheckpointMismatch, match=told):
        claim(checkpoint, asked)
    selected = without["joins"][0] | {"select": ["lk as k", "lv as lv"]}
    write_account(checkpoint, read_account(checkpoint) | {"query": without | {"joins": [selected]}})
    one = {k: v for k, v in asked["joins"][0].items() if k != "select"}  # as aggregates have it
    assert claim(checkpoint, asked | {"joins": [one]}) == first
    write_account(checkpoint, read_account(checkpoint) | {"query": old})
    with pytest.raises(CheckpointMismatch, match=told):
        claim(checkpoint, asked)


def test_a_chain_that_cannot_be_one_operator_again_is_told(checkpoint):
    kept = account_of(two_way(None, 3))
    one = kept["joins"][0] | {"how": "multiway inner", "others": []}
    claim(checkpoint, kept | {"joins": [one]})
    with pytest.raises(CheckpointMismatch, match="keeps several joins on one key as one operator"):
        claim(checkpoint, kept | {"joins": kept["joins"] * 2})


def test_keys_keep_their_type_and_payload_need_not():
    query = two_way(None, 3)
    check_types(query, with_columns(query, pa.field("lv", pa.decimal128(20, 0))))
    with pytest.raises(CheckpointMismatch, match="'lk' is int64 in the"):
        check_types(query, with_columns(query, pa.field("lk", pa.decimal128(20, 0))))


def test_manifests_that_are_gone_are_damage_and_not_another_driver(checkpoint):
    account = account_of(two_way(None, 3))
    first = claim(checkpoint, account)
    fence.claim(checkpoint)
    fence.raise_boundary(checkpoint, 6)
    checkpoint.manifests.put(name_of(7), b"")
    assert claim(checkpoint, account) == first
    checkpoint.manifests.delete(name_of(7))
    checkpoint.manifests.put(name_of(6), b"")  # an old one that is still to be removed
    with pytest.raises(DamagedState, match="no manifest after batch 6"):
        claim(checkpoint, account)


def test_lengths_are_compared_to_the_last_microsecond(checkpoint):
    """Accounts of earlier versions have six digits, and so are theirs compared."""

    def account(upper):
        return account_of(two_way(within("lt", "rt", lower="0 s", upper=upper, delay="0 s"), 3))

    first = claim(checkpoint, account("239.999999 s"))
    with pytest.raises(CheckpointMismatch, match="belongs to another query"):
        claim(checkpoint, account("240 s"))
    with pytest.raises(CheckpointMismatch, match="belongs to another query"):
        claim(checkpoint, account("239.999998 s"))
    kept = read_account(checkpoint)
    del kept["exact"]
    write_account(checkpoint, kept | {"query": account("240 s"), "exact": True})
    with pytest.raises(CheckpointMismatch, match="belongs to another query"):
        claim(checkpoint, account("239.999999 s"))
    write_account(checkpoint, kept)
    old = json.loads(json.dumps(kept).replace("239.999999 s", "240 s"))
    assert old != kept
    write_account(checkpoint, old)
    for upper in ("239.999999 s", "240 s"):
        assert claim(checkpoint, account(upper)) == first
    with pytest.raises(CheckpointMismatch, match="belongs to another query"):
        claim(checkpoint, account("241 s"))


def test_another_join_type_is_told_before_the_columns_that_follow_from_it(checkpoint):
    account = account_of(two_way(None, 3))
    claim(checkpoint, account)
    ((join,), sources) = account["joins"], account["sources"]
    other = {"joins": [{**join, "output": ["a"], "how": "left_semi"}], "sources": sources}
    with pytest.raises(CheckpointMismatch, match="its how of operator 0 is inner, and this query"):
        claim(checkpoint, other)
