"""`joinengine run --source kafka`, after `joinengine load`."""

from __future__ import annotations

import json

import pytest

from tests.brokers import fresh_topic, produce
from tests.stream.cases import called, no_session

pytestmark = pytest.mark.spark

STREAM = ("--scale", 0.002, "--zipf", 1.2, "--seed", 3, "--interval-rows", 2000)


def test_a_query_reads_its_streams_from_topics(joinengine, broker, tmp_path):
    at = ("--servers", broker.servers)
    joinengine("load", "eq5", *at, *STREAM, "--partitions", 3)
    told = ("--validate", "--json", tmp_path / "report.json")
    told += ("--checkpoint", tmp_path / "checkpoint")
    joinengine("run", "eq5", "--source", "kafka", *at, *STREAM, "--layout", "mnrt", *told)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["source"], report["valid"], report["late_rows"]) == ("kafka", True, 0)
    assert report["output_rows"] > 5000
    # Only topics have a first place that is kept: the files of the stream are there, too.
    assert len(list((tmp_path / "checkpoint").rglob("sources/*/start.json"))) == 4
    assert len(report["batches"]) > 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("eq5", "--source", "kafka"), "--source kafka needs the brokers"),
        (("eq5", "--servers", "127.0.0.1:1"), "--servers applies to --source kafka"),
        (("q5", "--source", "kafka", "--servers", "127.0.0.1:1"), "q5 aggregates windows"),
    ],
)
def test_what_does_not_go_together_is_refused(home, options, sentence):
    done = called(home, no_session, "run", *options, code=2)
    assert sentence in done.stderr


def test_topics_of_another_stream_are_not_taken(joinengine, broker):
    at = ("--source", "kafka", "--servers", broker.servers)
    done = joinengine("run", "eq5", *at, "--scale", 0.002, "--seed", 11, code=2)
    assert "joinengine load eq5" in done.stderr


#: A side as messages, and the same as the options of the command line.
CLICKS = [{"user": n % 40, "at": f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z"} for n in range(600)]
BUYS = [{"buyer": n % 40, "bought": f"2026-01-01T00:0{n % 10}:30Z"} for n in range(100)]
COLUMNS = (
    *("--left-schema", "user int, at timestamp"),
    *("--right-schema", "buyer int, bought timestamp"),
)
JOIN = ("--on", "user=buyer", "--within", "at,bought,0 s,5 minutes", "--delay", "1 hour")


@pytest.fixture
def own(broker):
    """(left, right): two topics of one's own."""
    names = fresh_topic(broker, 2), fresh_topic(broker)
    for name, rows in zip(names, (CLICKS, BUYS), strict=True):
        produce(broker, name, [json.dumps(row) for row in rows])
    return ("--left", f"kafka:{names[0]}", "--right", f"kafka:{names[1]}")


def test_topics_of_ones_own_are_joined_and_compared(joinengine, broker, own, tmp_path):
    told = ("--servers", broker.servers, "--validate", "--json", tmp_path / "report.json")
    joinengine("run", *own, *COLUMNS, *JOIN, *told)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["valid"] is True
    assert report["input_rows"] == 700
    assert report["output_rows"] > 500


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((*COLUMNS, *JOIN), "needs the brokers; give --servers"),
        (("--servers", "127.0.0.1:1", *JOIN), "needs the columns of its messages"),
    ],
)
def test_a_topic_of_ones_own_that_cannot_be_read_is_refused(home, options, sentence):
    sides = ("--left", "kafka:clicks", "--right", "kafka:buys")
    assert sentence in called(home, no_session, "run", *sides, *options, code=2).stderr


def test_what_topics_of_ones_own_do_not_serve(home, broker, own):
    at = ("--servers", broker.servers)
    for more, sentence in (
        (("--how", "left"), "will never match"),
        (("--asof", "at,bought", "--delay", "1 hour"), "what is nearest to its last rows"),
        (("--right", "/tmp", "--right-schema", "x int"), "--right-schema applies to kafka:TOPIC"),
    ):
        options = (*own, *COLUMNS[:2], *JOIN, *at, *more)
        options = options if "--right-schema" in options else (*options, *COLUMNS[2:])
        if "--asof" in options:
            options = tuple(one for one in options if one not in JOIN[2:4])
        assert sentence in called(home, no_session, "run", *options, code=2).stderr
    folders = ("--left", "/tmp", "--right", "/tmp", *JOIN, *at)
    assert "--servers applies to" in called(home, no_session, "run", *folders, code=2).stderr
    for options in (own, ("eq5", "--source", "kafka", *at)):
        refused = called(home, no_session, "explain", *options, code=2)
        assert "explain reads no topics, as it starts no Spark" in refused.stderr


@pytest.mark.slow
def test_layouts_are_compared_over_topics(joinengine, broker, own, tmp_path):
    at, layouts = ("--servers", broker.servers), ("--layouts", "hash,mnrt")
    joinengine("load", "eq5", *at, *STREAM, "--partitions", 2, "--replace")
    for name, options, rows in (
        ("query", ("eq5", "--source", "kafka", *STREAM), 10_000),
        ("own", (*own, *COLUMNS, *JOIN), 700),
    ):
        told = ("--json", tmp_path / f"{name}.json")
        joinengine("compare", *options, *at, *layouts, *told)
        runs = json.loads((tmp_path / f"{name}.json").read_text())["runs"]
        assert [run["layout"].partition(":")[0] for run in runs] == ["hash", "mnrt"]
        assert [run["valid"] for run in runs] == [True, True]
        assert runs[0]["input_rows"] == runs[1]["input_rows"] >= rows
        assert runs[0]["result_checksum"] == runs[1]["result_checksum"]
