"""From a message to its matches in the topic of the results, at a steady rate."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kafka.broker import Broker
from benchmarks.kafka.messages import CLICKS_PER_PURCHASE, COLUMNS, NAMES, SIDES, WINDOW_S
from benchmarks.kafka.sending import sent_live
from benchmarks.kafka.topics import make, reader
from joinengine import StreamJoin, equi, kafka_stream, session, within

#: Matches of the first seconds are left out: the first batch starts processes.
WARM_S = 5.0
PARTITIONS, INSTANCES = 2, 8
#: Messages a second of the hot user.
_HOT = 60.0


class Watcher(threading.Thread):
    """Reads a topic of matches as it grows; notes when each came, and how late."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        #: of each match, when it came and how late; one list, since other threads read it
        self.matches = list[tuple[float, float]]()
        self.newest = ""
        self._consumer, _ = reader(servers, topic)
        self._is_over = False

    def run(self) -> None:
        """Read until it is over."""
        while not self._is_over:
            received = [
                message for message in self._consumer.consume(5000, 0.02) if message.error() is None
            ]
            now_s = time.time()
            for message in received:
                row = json.loads(message.value())
                last = max(row[NAMES[side][1]] for side in SIDES).rstrip("Z")
                sent_us = np.datetime64(last, "us").astype(np.int64)
                self.matches.append((now_s, now_s - float(sent_us) / 1e6))
            if received:
                self.newest = received[-1].value().decode()
        self._consumer.close()

    def end(self) -> None:
        """Stop reading, once what is committed by now is read."""
        seen = -1
        while seen != len(self.matches):
            seen = len(self.matches)
            time.sleep(0.5)
        self._is_over = True
        self.join()

    def late_ms(self, *percent: float, after_s: float = 0.0) -> list[float]:
        """How late matches came, of those after a time: percentiles in milliseconds."""
        late_s = [late_s for came_s, late_s in list(self.matches) if came_s >= after_s]
        return [float(ms) for ms in np.percentile(late_s, percent) * 1e3]


def matches_of(servers: str, topics: dict[str, str]) -> StreamJoin:
    """The join of both sides; side -> its topic."""
    spark = session()
    left, right = (
        kafka_stream(spark, servers, topics[side], schema=COLUMNS[side]) for side in SIDES
    )
    window = within("clicked_at", "bought_at", lower="0 s", upper=f"{WINDOW_S} s", delay="2 s")
    on = equi("user_id", "buyer_id")
    return StreamJoin(left, right, on=on, within=window, instances=INSTANCES)


def measured(broker: Broker, rate: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Send `rate` messages a second over both sides, join them, and read the matches."""
    topics = {side: f"{side}-{rate:.0f}" for side in SIDES}
    target = f"matches-{rate:.0f}"
    make(broker, PARTITIONS, *topics.values(), target)
    writer = matches_of(broker.servers, topics).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", broker.servers).option("topic", target)
    query = writer.option("checkpointLocation", str(folder)).start()
    watcher = Watcher(broker.servers, target)
    watcher.start()
    begin_s = time.time()
    clicks = rate * CLICKS_PER_PURCHASE / (CLICKS_PER_PURCHASE + 1)
    # Twice the rate makes four times the matches of a user, which must be sent, too; hence _HOT.
    sent = sent_live(broker.servers, topics, clicks, seconds, part=_HOT / rate)
    query.processAllAvailable()
    query.stop()
    watcher.end()
    p50, p90, p99 = watcher.late_ms(50, 90, 99, after_s=begin_s + WARM_S)
    late = {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99}
    return {"rate": rate, "sent": sum(sent), "matches": len(watcher.matches), **late}
