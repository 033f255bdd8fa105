"""`joinengine load`: generated streams in topics."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import duckdb
import pytest
from click.testing import CliRunner

from joinengine.lab.cli import cli
from joinengine.lab.queries import find
from joinengine.lab.queries.named_query import Options
from joinengine.lab.queries.topics import check_loaded, messages_of, topic_of
from joinengine.model.errors import InvalidRequest
from joinengine.world.kafka_clients import Cluster
from tests.brokers import consume, produce

SMALL = ("--scale", "0.001")


def loaded(broker, *more):
    return CliRunner().invoke(cli, ["load", "eq5", "--servers", broker.servers, *SMALL, *more])


@pytest.fixture(scope="module")
def stream(broker):
    assert loaded(broker, "--partitions", "3").exit_code == 0
    return find("eq5").stream(Options(scale=0.001)).record()


def test_each_row_is_one_message_in_turn_over_the_partitions(broker, stream):
    found = consume(broker, topic_of(stream, "lineitem"))
    assert Counter(one.partition() for one in found).most_common(1)[0][1] == 2002
    rows = [json.loads(one.value()) for one in found]
    sent = Counter(
        (row["l_orderkey"], row["l_linenumber"], row["l_extendedprice"], one.timestamp()[1])
        for row, one in zip(rows, found, strict=True)
    )
    columns = "l_orderkey, l_linenumber, l_extendedprice::varchar, epoch_us(l_ts) // 1000"
    recorded = duckdb.sql(f"select {columns} from '{stream.files('lineitem')}'").fetchall()
    assert sent == Counter(recorded)
    assert len(recorded) == 6005
    times = [datetime.fromisoformat(row["l_ts"]) for row in rows]
    since = [(one - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) for one in times]
    assert since == [one.timestamp()[1] for one in found]


def test_a_stream_that_is_there_is_not_sent_again(broker, stream):
    topic = topic_of(stream, "lineitem")
    before = messages_of(Cluster(broker.servers), topic)
    assert loaded(broker).exit_code == 0
    assert messages_of(Cluster(broker.servers), topic) == before == stream.rows["lineitem"]
    check_loaded(stream, Cluster(broker.servers), "eq5")


def test_a_topic_with_other_messages_is_refused_and_replaced_when_that_is_asked_for(broker, stream):
    topic = topic_of(stream, "region")
    produce(broker, topic, [b"{}"])
    refused = loaded(broker)
    assert isinstance(refused.exception, InvalidRequest)
    assert "--replace" in str(refused.exception)
    with pytest.raises(InvalidRequest, match="has 6 messages of 5; load it anew"):
        check_loaded(stream, Cluster(broker.servers), "eq5")
    assert loaded(broker, "--replace").exit_code == 0
    check_loaded(stream, Cluster(broker.servers), "eq5")


def test_topics_that_are_not_there_and_a_broker_that_is_not(broker):
    other = find("eq5").stream(Options(scale=0.001, seed=7)).record()
    with pytest.raises(InvalidRequest, match="joinengine load eq5 --servers"):
        check_loaded(other, Cluster(broker.servers), "eq5")
    done = CliRunner().invoke(cli, ["load", "eq5", "--servers", "127.0.0.1:1", *SMALL])
    assert "does not answer" in str(done.exception)
