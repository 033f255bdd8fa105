"""Service levels: what is refused, and which keys a list names."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from joinengine import InvalidRequest, band, equi
from joinengine.balancing.reasons import Cause, KeyChange
from joinengine.driver.layout_fit import Naming, fitted
from joinengine.lab.queries.level_files import read_file
from joinengine.layouts import Chosen, Ftlb
from joinengine.model.keys import Placement, Side
from joinengine.model.query import FromSource, JoinType
from joinengine.operators.join.join_operator import Join
from joinengine.reporting.words import key_change_words
from tests.harness import two_way

KINDS = {
    "text": pa.string(),
    "number": pa.int32(),
    "price": pa.decimal128(12, 2),
    "day": pa.date32(),
    "at": pa.timestamp("us", tz="UTC"),
    "part": pa.float64(),
    "flag": pa.bool_(),
}
VALUES = {
    "text": "17",
    "number": 17,
    "price": "17.50",
    "day": "2024-02-29",
    "at": "2024-02-29T12:00:00+00:00",
    "part": 0.5,
    "flag": True,
}


def join_on(*columns, right=None):
    """A join on columns of the types of KINDS; `right`: their types on the right side."""
    left = pa.schema([(name, KINDS[name]) for name in columns])
    other = pa.schema([(f"r_{name}", (right or KINDS)[name]) for name in columns])
    on = equi(tuple(columns), tuple(other.names))
    inputs = FromSource(0), FromSource(1)
    return Join(0, on, None, JoinType.INNER, inputs, (left, other), (), 4)


def fit(levels, operator=None, operators=1):
    choice = Ftlb(levels=levels)
    return fitted(choice, operator or two_way().operators[0], operators, Naming()).levels


@pytest.mark.parametrize(
    ("levels", "refusal"),
    [
        ([1], "levels: expected a mapping such as {'hot': {'top': 20, 'backups': 2}}, found [1]"),
        (
            [{"top": 1}],
            "levels: expected a mapping such as {'hot': {'top': 20",
        ),
        (7, "levels: expected a mapping such as {'hot': {'top': 20, 'backups': 2}}, found 7"),
        ({1: {}}, "levels: 1 (int) is not text"),
        (
            {"a": 3},
            "level a: expected a mapping such as in {'hot': {'top': 20, 'backups': 2}}, found 3",
        ),
        (
            {"a": {"backups": 2}},
            "level a: expected one of keys, where, top for the keys, found none",
        ),
        (
            {"a": {"top": 3, "where": "lk = 1", "backups": 2}},
            "level a: expected one of keys, where, top for the keys, found where and top",
        ),
        ({"a": {"top": 3}}, "level a: backups is missing"),
        ({"a": {"top": 3, "backups": 0}}, "level a: backups must be at least 1, found 0"),
        ({"a": {"top": 3, "backups": "2"}}, "level a: backups: '2' (str) is not a whole number"),
        ({"a": {"top": 0, "backups": 2}}, "level a: top must be at least 1, found 0"),
        ({"a": {"top": 1, "backups": 2, "join": -1}}, "level a: join must be at least 0, found -1"),
        ({"a": {"top": 1, "copies": 2}}, "level a: field 'copies' is unknown"),
        (
            {"a": {"keys": [], "backups": 2}},
            "level a: keys must be a list such as [17, 4711], found [] (list)",
        ),
        (
            {"a": {"keys": "17", "backups": 2}},
            "level a: keys must be a list such as [17, 4711], found '17' (str)",
        ),
        (
            {"a": {"keys": list(range(20_001)), "backups": 2}},
            "level a: keys must list at most 20,000 keys, found 20,001",
        ),
        (
            {"a": {"keys": [None], "backups": 2}},
            "level a: keys must be values of key columns, found None",
        ),
        ({"a": {"where": 3, "backups": 2}}, "level a: where: 3 (int) is not text"),
    ],
)
def test_what_is_no_level_is_refused_where_it_is_written(levels, refusal):
    with pytest.raises(InvalidRequest) as raised:
        Ftlb(levels=levels)
    assert str(raised.value).startswith(refusal)


@pytest.mark.parametrize(
    ("level", "refusal"),
    [
        (
            {"keys": ["x"]},
            "level a: join 0: key 'x' is not a value of column lk, whose type is int64",
        ),
        ({"keys": [1.5]}, "level a: join 0: key 1.5 is not a value of column lk"),
        ({"keys": [True]}, "level a: join 0: key True is not a value of column lk"),
        ({"keys": [1 << 70]}, "level a: join 0: key 1180591620717411303424 is not a value"),
        ({"keys": [[1, 2]]}, "level a: join 0: key [1, 2] has 2 parts, but the key columns are lk"),
        (
            {"where": "lv = 3"},
            "level a: join 0: where: column 'lv' does not exist; the columns are",
        ),
        ({"where": "lk +"}, "level a: join 0: where: 'lk +' is not a valid predicate"),
        (
            {"where": "lk + 1"},
            "level a: join 0: where: expected a predicate, found 'lk + 1' of type",
        ),
        ({"top": 2, "join": 3}, "level a: join 3 does not exist; give one from 0 to 0"),
    ],
)
def test_a_level_that_does_not_fit_the_join_is_refused(level, refusal):
    with pytest.raises(InvalidRequest) as raised:
        fit({"a": {"backups": 2, **level}})
    assert str(raised.value).startswith(refusal)
    if "where" in level and "lv" in level["where"]:
        assert str(raised.value).endswith("(a level may use the key columns only: lk, rk)")


def test_single_keys_of_a_band_are_refused():
    operator = two_way(on=band("lv", "rv", lower=0, upper=3)).operators[0]
    with pytest.raises(InvalidRequest, match="level a: join 0 is a band"):
        fit({"a": {"keys": [1], "backups": 2}}, operator)
    with pytest.raises(InvalidRequest, match="level a: join 0 is a band"):
        fit({"a": {"where": "lk = 1", "backups": 2}}, operator)
    assert len(fit({"a": {"top": 5, "backups": 2}}, operator)) == 1


def test_copies_of_instances_have_no_levels():
    with pytest.raises(InvalidRequest, match="ftlb: levels copy single keys"):
        Ftlb(standby=True, levels={"a": {"top": 1, "backups": 2}})
    assert Ftlb(standby=True, levels={}).standby


def test_more_copies_than_instances_are_refused():
    choice = Ftlb(levels={"a": {"top": 1, "backups": 3}})
    with pytest.raises(InvalidRequest) as raised:
        choice.check(equi("a", "b"), 3)
    assert str(raised.value) == "level a: 3 backups need at least 4 instances, found 3"
    choice.check(equi("a", "b"), 4)


@pytest.mark.parametrize("name", KINDS)
def test_a_listed_key_has_the_hash_that_tuples_have(name):
    operator = join_on(name)
    column = pa.array([VALUES[name]]).cast(KINDS[name])
    batch = pa.RecordBatch.from_arrays([column], names=[name])
    hashes = operator.keying.stored(Side.LEFT, batch) >> np.uint64(24)
    (level,) = fit({"a": {"keys": [VALUES[name]], "backups": 2}}, operator)
    assert level.hashes == tuple(hashes.tolist())


@pytest.mark.parametrize("name", KINDS)
def test_a_key_is_of_the_type_of_its_column(name):
    operator = join_on(name)
    others = {"text": [17, True, 0.5], "flag": [1, "true"], "price": ["x", True]}
    for value in others.get(name, ["x", True, *([17] if name in ("day", "at") else [])]):
        with pytest.raises(InvalidRequest, match=f"key {value!r} is not a value of column {name}"):
            fit({"a": {"keys": [value], "backups": 2}}, operator)


def test_a_key_of_sides_with_different_types_has_the_wider_one():
    operator = join_on("number", right={"number": pa.int64()})
    (level,) = fit({"a": {"keys": [1 << 40], "backups": 2}}, operator)
    assert level.hashes is not None


def test_keys_of_several_columns_are_lists():
    operator = join_on("text", "number")
    (level,) = fit({"a": {"keys": [["x", 1], ["y", 2]], "backups": 2}}, operator)
    assert len(set(level.hashes)) == 2
    with pytest.raises(InvalidRequest, match="key 'x' has 1 parts, but the key columns are text"):
        fit({"a": {"keys": ["x"], "backups": 2}}, operator)


def test_listed_keys_have_their_backups_from_the_first_batch_and_at_any_size():
    levels = fit({"a": {"keys": [1, 5], "backups": 3}})
    choice = Ftlb(levels=levels)
    start = choice.start(5)
    for layout in (start, choice.resized(start, 7), choice.resized(start, 4)):
        copies = {hash_: layout.place(hash_).holders for hash_ in levels[0].hashes}
        assert all(len(set(some)) == len(some) == 4 for some in copies.values())


def test_a_level_of_another_join_is_left_out():
    levels = {
        "a": {"keys": ["no number"], "backups": 2, "join": 1},
        "b": {"top": 1, "backups": 2},
    }
    assert [level.name for level in fit(levels, operators=2)] == ["b"]


def test_values_that_json_lacks_are_kept_as_text():
    keys = [[date(2024, 2, 29), Decimal("1.50"), datetime(2024, 1, 2, tzinfo=UTC)]]
    (level,) = Ftlb(levels={"a": {"keys": keys, "backups": 2}}).levels
    assert level.keys == (("2024-02-29", "1.50", "2024-01-02T00:00:00+00:00"),)


def test_a_manifest_keeps_the_levels():
    levels = {
        "a": {"keys": [1, 5], "backups": 3},
        "b": {"where": "lk < 5", "backups": 2},
        "c": {"top": 4, "backups": 2, "join": 0},
    }
    chosen = Chosen.start(Ftlb(levels=fit(levels)), 5)
    assert Chosen.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    assert len(chosen.layout.table.placements) == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", "[hot]\ntop = 3\nbackups = 2\n"), ("a", '{"hot": {"top": 3, "backups": 2}}')],
)
def test_a_file_is_toml_or_json(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_file(tmp_path / name) == {"hot": {"top": 3, "backups": 2}}


@pytest.mark.parametrize(
    ("name", "content", "refusal"),
    [
        ("a.toml", b"a = = 3", "is neither JSON nor TOML: Invalid value"),
        ("a.json", b"{", "is neither JSON nor TOML: Expecting property name"),
        ("a.toml", b"\xff\xfe\xfd", "cannot be read: it is not UTF-8 text"),
        ("a.toml", b"# nothing", "has no level; write for example {"),
        ("a.json", b"[1]", "has no level"),
        ("other", None, "cannot be read: No such file or directory"),
    ],
)
def test_what_is_no_file_of_levels_is_refused(tmp_path, name, content, refusal):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest) as raised:
        read_file(tmp_path / name)
    assert refusal in str(raised.value)
    assert str(raised.value).startswith(f"levels: {tmp_path / name} ")


def test_words_of_a_key_that_changes_its_level():
    less, more = Placement.whole(1, (2,)), Placement.whole(1, (2, 4))
    change = KeyChange(7, Cause.LEVELS, less, more, None, None)
    assert key_change_words(change) == (
        "now has more backups; home at instance 1, backups at instances 2, 4"
    )
    change = KeyChange(7, Cause.LEVELS, more, less, None, None)
    assert key_change_words(change) == (
        "now has fewer backups; home at instance 1, backup at instance 2"
    )
