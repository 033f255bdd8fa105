"""Plans of how far a batch reads in each partition."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from joinengine.model.errors import InvalidRequest, StoreUnreachable
from joinengine.sources.kafka_feed import KafkaFeed, Topic
from joinengine.sources.kafka_planning import planned
from joinengine.sources.places import OffsetRange, shared
from joinengine.sources.positions import RowGroup
from joinengine.world.kafka_clients import Cluster


def offsets_in(times):
    """What a broker answers; `times`: partition -> the times of its messages, sorted."""
    return lambda time: {one: bisect_left(of, time) for one, of in times.items()}


TIMES = st.dictionaries(
    st.integers(0, 3), st.lists(st.integers(0, 1000), max_size=40).map(sorted), min_size=1
)


@given(TIMES, st.integers(1, 50))
def test_batch_after_batch_all_is_read_in_step_and_each_moves_on(times, most):
    end = {one: len(of) for one, of in times.items()}
    at, low = dict.fromkeys(end, 0), 0
    while at != end:
        to, until = planned(at, end, most, (low, 1001), offsets_in(times))
        rows = {one: to[one] - at[one] for one in end}
        assert all(0 <= n for n in rows.values())
        assert all(to[one] <= end[one] for one in end)
        assert 0 < sum(rows.values()) <= most + len(end)
        if to != end and all(to[one] == offsets_in(times)(until)[one] for one in end):
            # in step: nothing that is left is older than anything that was read
            read = [t for one in end for t in times[one][at[one] : to[one]]]
            left = [t for one in end for t in times[one][to[one] :]]
            assert max(read) <= min(left)
        at, low = to, until if to != end else 0


def test_a_slow_partition_is_not_left_behind():
    """One partition has 1,000 messages in the time in which the other has 10."""
    times = {0: list(range(1000)), 1: list(range(0, 1000, 100))}
    to, until = planned({0: 0, 1: 0}, {0: 1000, 1: 10}, 300, (0, 1000), offsets_in(times))
    assert 150 <= sum(to.values()) <= 300
    assert to[1] == -(-until // 100)


def test_one_moment_with_more_than_a_batch_is_divided():
    times = {0: [5] * 100, 1: [5] * 50}
    to, _ = planned({0: 0, 1: 0}, {0: 100, 1: 50}, 30, (0, 1000), offsets_in(times))
    assert to == {0: 20, 1: 10}


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_tasks_share_a_hot_partition(parts):
    pieces = [(0, OffsetRange("t", 0, 10, 90_010)), (1, OffsetRange("t", 1, 0, 10_000))]
    cut = shared(pieces, parts)
    for source, whole in pieces:
        ours = [one for at, one in cut if at == source and one.partition == whole.partition]
        assert [ours[0].first, *(one.end for one in ours)] == sorted(
            {whole.first, *(one.first for one in ours), whole.end}
        )
        assert all(one.end == other.first for one, other in pairwise(ours))
    assert max(one.rows for _, one in cut) <= -(-100_000 // parts)


def test_row_groups_and_short_ranges_stay_whole():
    pieces = [(0, RowGroup("f", 0, 100_000)), (1, OffsetRange("t", 0, 0, 100))]
    assert shared(pieces, 4) == pieces
    assert shared(pieces[1:], 4) == pieces[1:]


def test_a_broker_that_is_away_does_not_end_a_query_that_lags(monkeypatch):
    """Only partitions are then read in proportion, and not up to the same time."""

    def away(*_):
        raise StoreUnreachable("Kafka does not answer")

    feed = KafkaFeed(Topic(Cluster("host:1"), "clicks", max_rows=10), None)
    feed._begin = {0: 0, 1: 0}
    feed._there.begins, feed._there.ends = {0: 0, 1: 0}, {0: 30, 1: 10}
    monkeypatch.setattr(feed, "_offsets", away)
    assert feed.advance({0: 0, 1: 0}) == {0: 8, 1: 3}
    monkeypatch.setattr(feed, "_offsets", lambda *_: pytest.fail("its plan is kept"))
    assert feed.advance({0: 0, 1: 0}) == {0: 8, 1: 3}


def test_a_client_whose_broker_has_gone_is_replaced():
    """It would go on asking a controller that is no more."""
    feed = KafkaFeed(Topic(Cluster("host:1"), "clicks"), None)

    def fails(code):
        raise KafkaException(KafkaError(code, "Failed while waiting for controller"))

    for code, kind, stays in [
        (KafkaError._TIMED_OUT, StoreUnreachable, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, InvalidRequest, True),
    ]:
        feed._admin = client = object()
        with pytest.raises(kind):
            feed._asked(lambda code=code: fails(code))
        assert (feed._admin is client) is stays
