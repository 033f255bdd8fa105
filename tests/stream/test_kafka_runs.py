"""`joinengine run --source kafka`, after `joinengine load`."""

from __future__ import annotations

import json

import pytest

from tests.stream.cases import called, no_session

pytestmark = pytest.mark.spark

STREAM = ("--scale", 0.002, "--zipf", 1.2, "--seed", 3)


def test_a_query_reads_its_streams_from_topics(joinengine, broker, tmp_path):
    at = ("--servers", broker.servers)
    joinengine("load", "eq5", *at, *STREAM, "--partitions", 3)
    told = ("--validate", "--json", tmp_path / "report.json")
    joinengine("run", "eq5", "--source", "kafka", *at, *STREAM, "--layout", "mnrt", *told)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["source"], report["valid"], report["late_rows"]) == ("kafka", True, 0)
    assert report["output_rows"] > 5000
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
