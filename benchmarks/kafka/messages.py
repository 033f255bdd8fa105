"""Clicks and purchases as JSON, of which one user has a part; after SHIFT_S it is another one.

    python -m benchmarks.kafka.messages SERVERS TOPIC SIDE RATE SECONDS PART

sends a side in real time, RATE messages a second, whose event time is the time of sending; one user
has PART of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Producer

SIDES = ("clicks", "purchases")
#: The columns of a side, as `kafka_stream` and Spark take them.
COLUMNS = {
    "clicks": "user_id bigint, clicked_at timestamp, page int",
    "purchases": "buyer_id bigint, bought_at timestamp, amount int",
}
#: (key column, time column, value column) of a side.
NAMES = {
    "clicks": ("user_id", "clicked_at", "page"),
    "purchases": ("buyer_id", "bought_at", "amount"),
}
#: Clicks for each purchase; the hot user's part of both; the number of users.
CLICKS_PER_PURCHASE, PART, USERS = 5, 0.03, 100_000
SHIFT_S = 20
#: A purchase matches a click of the same user that is at most so long before it, in seconds.
WINDOW_S = 5
#: Event time of a stream that is sent at once begins here.
BEGIN_US = 1_700_000_000_000_000
#: How many messages are drawn at a time.
_DRAWN = 10_000


class Message(NamedTuple):
    """A message before it is sent; `time_ms`: its event time."""

    key: bytes
    value: bytes
    time_ms: int


def hot_user(time_us: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    """(n,) the hot user at each time."""
    return USERS + time_us // (SHIFT_S * 1_000_000) % 1000


def drawn(
    side: str, times_us: np.ndarray[Any, Any], rng: np.random.Generator, part: float = PART
) -> Iterator[Message]:
    """Messages of a side at these times, of which the hot user has `part`."""
    key, time_name, value = NAMES[side]
    is_hot = rng.random(len(times_us)) < part
    users = np.where(is_hot, hot_user(times_us), rng.integers(0, USERS, len(times_us)))
    texts = np.datetime_as_string(times_us.astype("datetime64[us]"), unit="us")
    numbers = rng.integers(0, 1000, len(times_us))
    rows = zip(users.tolist(), texts.tolist(), numbers.tolist(), times_us.tolist(), strict=True)
    for user, text, number, time_us in rows:
        content = f'{{"{key}":{user},"{time_name}":"{text}Z","{value}":{number}}}'
        yield Message(str(user).encode(), content.encode(), time_us // 1000)


def recorded(side: str, count: int, seconds: float) -> Iterator[Message]:
    """A whole side: `count` messages over `seconds` of event time."""
    rng = np.random.default_rng(SIDES.index(side))
    for first in range(0, count, _DRAWN):
        numbers = np.arange(first, min(first + _DRAWN, count))
        yield from drawn(side, BEGIN_US + (numbers * (seconds / count * 1e6)).astype(np.int64), rng)


def producer(servers: str) -> Producer:
    """A producer that sends its messages within 5 ms."""
    waiting = {"queue.buffering.max.messages": 1_000_000, "linger.ms": 5}
    return Producer({"bootstrap.servers": servers, "compression.type": "lz4", **waiting})


def send(servers: str, topic: str, messages: Iterator[Message]) -> int:
    """Send all messages, by key; returns their number."""
    client, count = producer(servers), 0
    for message in messages:
        while len(client) > 500_000:
            client.poll(0.05)
        client.produce(topic, message.value, message.key, timestamp=message.time_ms)
        count += 1
        if count % 1000 == 0:
            client.poll(0)
    assert client.flush(60) == 0, f"{topic}: messages were not acknowledged"
    return count


def send_live(servers: str, topic: str, side: str, rate: float, seconds: float, part: float) -> int:
    """Send a side as it happens: every 10 ms the messages of the time that has passed."""
    client, rng = producer(servers), np.random.default_rng()
    begin, sent = time.time(), 0
    while (now := time.time()) - begin < seconds:
        due = int((now - begin) * rate) - sent
        times = np.full(due, int(now * 1e6), np.int64)
        for message in drawn(side, times, rng, part):
            client.produce(topic, message.value, message.key, timestamp=message.time_ms)
        sent += due
        client.poll(0)
        time.sleep(max(0.0, 0.01 - (time.time() - now)))
    assert client.flush(60) == 0, f"{topic}: messages were not acknowledged"
    return sent


if __name__ == "__main__":
    told = sys.argv[1:]
    print(send_live(told[0], told[1], told[2], *map(float, told[3:])))
