"""The hottest keys of a batch are what they are told to be, and so is what `hash` would do."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from joinengine.driver.hot_keys import MOST_KEPT
from joinengine.driver.settings import Settings
from joinengine.exchange.keying import Keying
from joinengine.kernels.hashing import hash_columns, key_hash, make_words
from joinengine.kernels.probing import group_keys
from joinengine.layouts import LAYOUTS
from joinengine.layouts.key_based import KeyBased
from joinengine.model.conditions import band, theta
from joinengine.model.keys import Side
from joinengine.operators import hot
from joinengine.state.run import OpenRun, Run
from joinengine.state.run_file import Page
from tests.harness import LocalQuery, two_way
from tests.laws.cases import CHOICES, EACH_ROUTER, each_router, enough, relaxed, streams

KEYED = [name for name, choice in LAYOUTS.items() if isinstance(choice().start(4), KeyBased)]
COUNTED = [name for name in KEYED if CHOICES[name].counts_keys]


def told(query):
    """The heat of the last batch."""
    return query.records[-1].joins[0].heat


def brought(left, right):
    """Key -> how many tuples that can match a batch brings."""
    return Counter(str(key) for key, _, _ in [*left, *right] if key is not None)


@pytest.mark.parametrize("layout", EACH_ROUTER)
@relaxed
@given(batches=streams())
def test_keys_are_told_with_their_tuples(layout, batches):
    """Each tuple once, however many copies are stored."""
    with tempfile.TemporaryDirectory() as folder:
        instances = enough(layout, 3)
        query = LocalQuery(folder, two_way(None, instances), layout, choice=CHOICES[layout])
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
            heat, true = told(query), brought(left, right)
            assert len(heat.keys) == min(len(true), MOST_KEPT)
            assert {key.text: key.rows for key in heat.keys}.items() <= true.items()
            least = min((key.rows for key in heat.keys), default=0)
            others = true.keys() - {key.text for key in heat.keys}
            assert all(true[key] <= least for key in others)
            assert heat.tuples == true.total()
            shares = [key.rows / true.total() for key in heat.keys]
            assert [key.share for key in heat.keys] == pytest.approx(shares)


@pytest.fixture
def few_heavy_keys(monkeypatch):
    """A key is light below a quarter of what a side stores, and then not counted by itself."""
    monkeypatch.setattr("joinengine.layouts.layout.HEAVY_PART", 4)


@pytest.mark.usefixtures("few_heavy_keys")
@pytest.mark.parametrize("layout", each_router(COUNTED))
@relaxed
@given(batches=streams())
def test_the_model_of_hash_is_what_hash_does(layout, batches):
    """The same batches under `hash` have the load that is modelled."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        query = LocalQuery(folder, two_way(None, 3), layout, choice=CHOICES[layout])
        base = CHOICES[layout].base
        choice = replace(LAYOUTS["hash"](), base=base)
        twin = LocalQuery(beside, two_way(None, 3), "hash", choice=choice)
        for number, (left, right) in enumerate(batches):
            query.run_tuples(number, left, right)
            twin.run_tuples(number, left, right)
            heat = told(query)
            assert (heat.under_hash or 0) == told(twin).greatest
            assert told(twin).under_hash is None
            assert heat.greatest == max(query.records[-1].joins[0].work.received)


def test_a_split_key_is_told_as_split_and_saves_what_hash_lacks(tmp_path):
    """A key with most of the tuples: split after the first batch, and told so in the second."""
    query = LocalQuery(tmp_path, two_way(None, 4), "mnrt", choice=CHOICES["mnrt"])
    for number in range(2):
        left = [(7, 5000 * number + i, 0) for i in range(3000)]
        query.run_tuples(number, left, [(i, i, 0) for i in range(2000)])
    first, second = (record.joins[0].heat for record in query.records)
    assert (first.keys[0].text, first.keys[0].listed) == ("7", False)
    assert (second.keys[0].text, second.keys[0].listed) == ("7", True)
    assert len(second.keys[0].placement.homes) > 1
    assert second.greatest < second.under_hash == first.greatest
    # The only listed key saves all that is saved; shares of u are those of tuples but for chance.
    assert len(query.layout.table.placements) == 1
    assert second.keys[0].saved_rows == pytest.approx(second.under_hash - second.greatest, rel=0.05)


def test_values_can_be_kept_from_reports(tmp_path):
    """Under showKeys=hash no report has a value."""
    settings = Settings(show_keys=False)
    query = LocalQuery(tmp_path, two_way(None, 2), "mnrt", settings=settings)
    query.run_tuples(0, [(7, 1, 0)], [(7, 2, 0)])
    (key,) = told(query).keys
    assert (key.text, key.rows) == (None, 2)
    words = make_words(hash_columns([pa.array([7])]), np.zeros(1, np.uint64))
    assert key.hash_ == int(key_hash(words)[0])


@pytest.mark.parametrize("instances", [1, 6])
def test_light_keys_are_not_named(instances, tmp_path):
    """Of many keys with one tuple each none is hot; with a 64th of a side one is."""
    query = LocalQuery(tmp_path, two_way(None, instances), "hash")
    light = [(100 + i, i, 0) for i in range(1000)]
    query.run_tuples(0, [*light, *[(7, 5000 + i, 0) for i in range(40)]], light)
    assert {key.text for key in told(query).keys} == {"7"}


def test_long_values_are_cut(monkeypatch, tmp_path):
    monkeypatch.setattr(hot, "MOST_TEXT", 4)
    query = LocalQuery(tmp_path, two_way(None, 2), "hash")
    query.run_tuples(0, [(1234, 1, 0), (123456, 1, 0)], [])
    assert {key.text for key in told(query).keys} == {"1234", "123…"}


def test_a_cell_of_a_band_is_told_by_a_value_in_it(tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 2, on=band("lk", "rk", lower=-5, upper=5)), "hash")
    query.run_tuples(0, [(100, i, 0) for i in range(9)], [(100, 1, 0)])
    assert told(query).keys[0].text == "near 100"


def test_a_join_on_any_predicate_has_no_keys(tmp_path):
    query = LocalQuery(tmp_path, two_way(None, 2, on=theta("lk < rk")), "shuffle")
    query.run_tuples(0, [(1, 1, 0)], [(2, 1, 0)])
    assert told(query).keys == ()


ODD = {
    "timestamps": (pa.timestamp("us"), [1 << 62, -(1 << 62), 0]),
    "sentinel": (pa.timestamp("us", "Europe/Berlin"), [253402300799000000, 0]),
    "dates": (pa.date32(), [2**31 - 1, -(2**31), 0]),
    "nanoseconds": (pa.timestamp("ns"), [2**62 + 1, 0]),
    "not-utf8": (pa.string(), [b"caf\xff\xe9", b"a\n\x1b[31m", b"", "a\u202eb".encode()]),
}


@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_no_value_of_a_key_makes_a_task_fail(values):
    """Values that Python has not, or cannot print, are told as far as that goes."""
    kind, plain = values
    if kind == pa.string():
        column = pa.array(plain, pa.binary()).view(pa.string())
    else:
        column = pa.array(plain, pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
    words = make_words(hash_columns([column]), np.zeros(len(column), np.uint64))
    order = np.argsort(words)
    columns = pa.record_batch({"k": column.take(pa.array(order))})
    run = OpenRun(Run("f", 0, Side.LEFT, 0, 0, len(column), 0, 0), Page(words[order], columns))
    keys = hot.HotKeys(named=True)
    texts = hot.texts_in(Keying((("k",), ("k",))), [[run], []])
    keys.see([group_keys(words[order]), group_keys(words[:0])], texts)
    told = [key.text for key in keys.heaviest()]
    assert len(told) == len(column)
    assert all(text is None or text.isprintable() for text in told)
    assert any(text is not None for text in told)
    if kind == pa.string():
        assert "caf\\xff\\xe9" in told


def test_an_aggregation_over_all_tuples_has_no_keys():
    none = Keying(((), ()), groups=True)
    assert hot.texts_at(none, np.zeros(1, np.int64), np.zeros(1, np.uint64), []) is None
    assert hot.texts_in(none, [[], []]) is None
