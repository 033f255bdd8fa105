"""The queries that joinengine brings along, against DuckDB, in one session."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from joinengine import InvalidRequest
from joinengine.lab.cli import cli
from joinengine.lab.queries import QUERIES, Options
from joinengine.lab.queries.named_query import Events
from joinengine.lab.queries.rounds import run_rounds
from joinengine.lab.queries.runs import Places, SinkPlace
from joinengine.layouts import choose

pytestmark = pytest.mark.spark

SECOND = 1_000_000


@pytest.fixture
def options(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.getbasetemp() / "home"
    monkeypatch.setenv("JOINENGINE_HOME", str(home))
    return Options(scale=0.002, interval_rows=2500)


def layouts(*names, others=()):
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in others]
    return pytest.mark.parametrize("layout", [*names, *slow])


def validated(spark, query, options, places=None):
    report = run_rounds(spark, QUERIES[query], options, places or Places(), validate=True)
    assert report["valid"] is True
    assert report["output_rows"] > 0
    assert report["late_rows"] == 0
    return report


@layouts("mnrt", others=("hash", "shuffle", "pkg", "mixed"))
def test_q5(spark, options, layout):
    report = validated(spark, "q5", replace(options, layout=choose(layout)))
    assert len(report["joins"]) == 7


@pytest.mark.slow
def test_q5_with_late_merges(spark, options):
    changed = replace(
        options, layout=choose("pkg"), aggregators=3, merge_every=2, disorder_us=30 * SECOND
    )
    validated(spark, "q5", changed)


@layouts("pkg", others=("mnrt", "shuffle", "w-choices", "hash"))
def test_topk(spark, options, layout):
    changed = replace(options, layout=choose(layout), zipf=1.2, window_us=240 * SECOND)
    report = validated(spark, "topk", changed)
    assert report["output_rows"] % 10 == 0


@pytest.mark.slow
def test_topk_while_the_topics_change(spark, options):
    changed = replace(options, window_us=90 * SECOND, shift_us=200 * SECOND, merge_every=3)
    validated(spark, "topk", replace(changed, layout=choose("shuffle")))


#: Instances that count a key at most, under layouts of one, two and all candidates.
COUNTED = {"hash": 1, "auto": 8, "pkg": 2, "shuffle": 8, "d-choices": 8}
DIVIDING = ("pkg", "shuffle", "d-choices")


@layouts("pkg", others=("hash", "shuffle", "d-choices", "auto"))
def test_naive_bayes(spark, options, layout):
    report = validated(
        spark, "naive-bayes", replace(options, layout=choose(layout), zipf=1.2, own={"classes": 3})
    )
    assert report["keys"] == report["output_rows"] > 1000
    least = 3 * report["keys"]
    assert least <= report["counters"] <= COUNTED[layout] * least
    assert layout not in DIVIDING or report["counters"] > least, "hot words are divided"
    assert report["accuracy"] > 0.7, "chance is a third"


@layouts("pkg", others=("hash", "shuffle", "d-choices", "auto"))
def test_a_decision_tree(spark, options, layout, tmp_path):
    own = {"depth": 2, "bins": 16}
    changed = replace(options, scale=0.005, interval_rows=10_000, zipf=1.2, own=own)
    changed = replace(changed, layout=choose(layout))
    places = Places(tmp_path / "out", tmp_path / "checkpoint")
    report = validated(spark, "decision-tree", changed, places)
    (first,) = report["earlier"]
    assert first["valid"] is True and len(first["tree"]) == 1, "the root is split"
    assert report["tree"][:1] == first["tree"] and len(report["tree"]) == 3
    assert report["accuracy"] > 0.7, "chance is a half"
    for one in (first, report):
        least = one["keys"]
        assert least <= one["histograms"] <= COUNTED[layout] * least
        assert layout not in DIVIDING or one["histograms"] > least
    rows = pq.read_table(tmp_path / "out" / "level-2").to_pylist()
    assert {row["leaf"] for row in rows} == {2, 3}
    assert all(len(row["spread"]) <= 16 for row in rows)
    again = run_rounds(spark, QUERIES["decision-tree"], changed, places, validate=True)
    assert (again["valid"], again["histograms"], again["tree"]) == (True, 0, report["tree"])


@layouts("auto", others=("mnrt", "hash", "mixed", "readj"))
@pytest.mark.parametrize("window_us", [None, 30 * SECOND])
def test_asof(spark, options, layout, window_us):
    changed = replace(options, layout=choose(layout), zipf=1.2, window_us=window_us)
    report = validated(spark, "asof", changed)
    assert report["output_rows"] > 11_500, "each line item once"


@layouts("mnrt", others=("auto", "hash", "shuffle", "pkg", "bi-k", "ftlb"))
@pytest.mark.parametrize("kept", [False, True])
def test_changes(spark, options, layout, kept, tmp_path):
    """By the net of the files, and by a checksum; wishes and losses change nothing."""
    wishes = ((2, choose("mixed"), None), (4, None, 5)) if layout == "mnrt" else ()
    changed = replace(options, layout=choose(layout), zipf=1.2, events=Events(wishes))
    report = validated(spark, "changes", changed, Places(out=tmp_path) if kept else None)
    assert report["output_rows"] > 8_000
    assert report["result_checksum"].startswith("net:")


def test_changes_are_a_table_by_key_in_the_end(spark, options, tmp_path):
    """Each order is there once, with its customer as it is then, and no other."""
    place = str(tmp_path / "table")
    sink = SinkPlace("delta", {"path": place, "mergeKeys": "o_orderkey"})
    changed, query = replace(options, interval_rows=1500, zipf=1.2), QUERIES["changes"]
    report = validated(spark, "changes", changed, Places(sink=sink))
    table = DeltaTable(place)
    sql = query.oracle(query.stream(changed).record(), changed)
    with duckdb.connect() as db:
        db.execute(f"create table expected as select * exclude _change from ({sql})")
        db.register("found", table.to_pyarrow_table())
        assert db.sql("from expected except all from found").fetchall() == []
        assert db.sql("from found except all from expected").fetchall() == []
        ((count,),) = db.sql("select count(*) from found").fetchall()
    assert 400 < count < report["output_rows"]
    assert table.version() > 3


def test_the_net_of_changes_is_compared(spark, options, tmp_path, monkeypatch):
    """Where DuckDB has other rows, neither the files nor the checksum are called valid."""
    query = QUERIES["changes"]
    oracle = query.oracle
    fewer = lambda *given: f"{oracle(*given)} where o_orderkey <> 1"  # noqa: E731
    monkeypatch.setattr(type(query), "oracle", lambda self, *given: fewer(*given))
    for places in (Places(), Places(out=tmp_path)):
        assert run_rounds(spark, query, options, places, validate=True)["valid"] is False
    with pytest.raises(InvalidRequest, match="window: changes joins all that is there"):
        query.stream(replace(options, window_us=SECOND))


@layouts("mnrt", others=("auto", "hash", "mixed"))
def test_latest(spark, options, layout):
    report = validated(spark, "latest", replace(options, layout=choose(layout), zipf=1.2))
    assert report["output_rows"] > 11_500, "each line item once"
    with pytest.raises(InvalidRequest, match="window: latest has none"):
        QUERIES["latest"].stream(replace(options, window_us=SECOND))


@layouts("qmmp", others=("hash", "dynamic", "bi", "pkg"))
def test_stock(spark, options, layout):
    report = validated(
        spark, "stock", replace(options, layout=choose(layout), disorder_us=SECOND // 2)
    )
    # Half of the trades are buys and half are sells; they are read once.
    assert report["input_rows"] == 12_000


@layouts("dlb-h", others=("hash", "mixed", "lptf"))
def test_first_story(spark, options, layout):
    validated(spark, "first-story", replace(options, layout=choose(layout), disorder_us=SECOND))


@pytest.mark.parametrize(
    ("layout", "relayouts"), [("pkg", ()), ("hash", ((2, choose("pkg"), None),))]
)
def test_choices_call_more_texts_new(spark, options, layout, relayouts, tmp_path):
    """An instance that does not know all texts of a key errs; the report says by how much."""
    changed = replace(options, layout=choose(layout), events=Events(relayouts))
    # With files as without them.
    places = Places(out=tmp_path / "out") if relayouts else Places()
    report = run_rounds(spark, QUERIES["first-story"], changed, places, validate=True)
    assert report["valid"] is None
    assert report["output_rows"] - report["events"] == report["false_alarms"]
    assert report["false_alarms"] > 0.02 * report["events"] > 0


def test_the_words_of_a_text(spark, options, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 300)
    changed = replace(options, text=text, window_us=480 * SECOND, interval_rows=1500)
    changed = replace(changed, layout=choose("pkg"))
    places = Places(tmp_path / "out", tmp_path / "checkpoint")
    report = validated(spark, "topk", changed, places)
    assert report["input_rows"] == 3000
    words = {row["word"] for row in pq.read_table(tmp_path / "out").to_pylist()}
    assert words == set("to be or not that is the question".split())


def test_refusals(options, tmp_path):
    with pytest.raises(InvalidRequest, match=r"none.txt cannot be read"):
        QUERIES["topk"].stream(replace(options, text=tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text("...")
    with pytest.raises(InvalidRequest, match=r"empty.txt contains no words"):
        QUERIES["topk"].stream(replace(options, text=tmp_path / "empty.txt"))
    with pytest.raises(InvalidRequest, match="merge-every: expected at least 1, found 0"):
        replace(options, merge_every=0)
    for query in ("topk", "naive-bayes", "decision-tree"):
        with pytest.raises(InvalidRequest, match="layout bi does not support aggregates"):
            CliRunner().invoke(
                cli, ["run", query, "--layout", "bi", "--scale", "0.001"], catch_exceptions=False
            )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decision-tree", "--bins", "1"], "bins: expected at least 2, found 1"),
        (["decision-tree", "--depth", "0"], "depth: expected at least 1, found 0"),
        (["naive-bayes", "--classes", "1"], "classes: expected at least 2, found 1"),
        (["naive-bayes", "--bins", "8"], "bins: naive-bayes has none, found 8; leave it out"),
        (["topk", "--classes", "2"], "classes: topk has none, found 2; leave it out"),
        (["naive-bayes", "--window", "1 minute"], "window: naive-bayes learns from the whole"),
        (["decision-tree", "--window", "1 minute"], "window: decision-tree learns from the whole"),
    ],
)
def test_options_that_nothing_can_be_learned_with(arguments, message):
    with pytest.raises(InvalidRequest, match=message):
        CliRunner().invoke(cli, ["run", *arguments], catch_exceptions=False)
