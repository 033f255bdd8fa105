"""Reads the messages of a topic in tasks, and makes tuples from them.

A task reads ranges of offsets with its own client, without a consumer group, chunk by chunk. Not
every offset has a message: transactions leave markers, and compaction leaves gaps. So a range is
over at the first message beyond it, or when the client reports the end of the partition.

Clients stay open between batches, since connecting takes longer than a small batch. A client that
is at the start of the next range continues with the messages that it has already fetched.

Law: each committed message of a range is read once, and none is passed over silently.
Cost: a chunk holds at most CHUNK_ROWS messages or CHUNK_BYTES.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import filterfalse, groupby
from threading import Lock, Timer
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from joinengine.model.conditions import Computed
from joinengine.model.errors import StoreUnreachable
from joinengine.model.skipped import Skipped
from joinengine.sources.kafka_feed import GONE, lost
from joinengine.sources.kafka_values import Decoding, decoded
from joinengine.sources.places import OffsetRange, Seen
from joinengine.sources.projection import Projection
from joinengine.sources.readings import conform
from joinengine.sources.transforms import needed, stepped
from joinengine.world.kafka_clients import Cluster, is_of_group, library
from joinengine.world.world import MACHINE

CHUNK_ROWS, CHUNK_BYTES = 1 << 16, 64 << 20
#: The most messages of one call: more of them would not fit into the processor's caches.
_CALL_ROWS = 1 << 12
#: Seconds that a client waits for a message before it checks whether a partition has ended.
_WAIT_S = 0.01
#: Seconds without any message after which the broker counts as away.
_AWAY_S = 60.0
#: Settings by which a client fetches ahead up to 16 MB, and again as soon as there is room. By
#: default, it looks for room only once a second, and is idle for most of the time.
_FETCHING = {
    "queued.max.messages.kbytes": 16_384,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
}
#: Seconds after which an unused client is closed. Until then, it asks for messages a hundred times
#: a second, which soon takes it and the broker more than a new connection.
_IDLE_S = 5.0


@dataclass(frozen=True, slots=True)
class KafkaReading(Projection):
    """How the messages of a topic are read: from where, and how a value becomes columns.

    `loses`: offsets that are gone are reported and passed over. `time`: the column of event time,
    whose greatest value is reported for each partition; None: there is none. `ahead_us`: times
    further ahead of the clock do not count for that; None: all count.
    """

    cluster: Cluster = field(default_factory=lambda: Cluster(""))
    topic: str = ""
    decoding: Decoding = field(default_factory=Decoding)
    loses: bool = False
    time: str | None = None
    ahead_us: int | None = None

    @override
    def batches(
        self,
        groups: Sequence[OffsetRange],
        skipped: list[Skipped] | None = None,
        seen: Seen | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The tuples of ranges, at most one range for each partition; also refused messages.

        Raises UnreadableMessage for a value that cannot be decoded and may not be skipped, DataLost
        for offsets that are gone, and StoreUnreachable if no broker answers.
        """
        ends = {group.partition: group.end for group in groups}
        asked = needed(self.columns, self.steps, self.schema)
        with _lent(self, {group.partition: group.first for group in groups}) as client:
            for messages in client.chunks(ends, [] if skipped is None else skipped):
                refused = list[pa.RecordBatch]()
                batch = decoded(messages, self.decoding, asked, skipped, refused)
                yield from refused
                kept = stepped(batch, self.steps, self.columns)
                if seen is not None:
                    # Before filters: all messages of a partition count for its event time.
                    self._see(seen, kept if self._computes_time else batch, messages)
                if kept.num_rows:
                    yield conform(kept, self.schema)

    @property
    def _computes_time(self) -> bool:
        return any(isinstance(step, Computed) and step.name == self.time for step in self.steps)

    def _see(self, seen: Seen, batch: pa.RecordBatch, messages: Sequence[Any]) -> None:
        """Note how far the partition of a chunk has come."""
        last = messages[-1]
        partition, (kind, stamp) = last.partition(), last.timestamp()
        if kind:
            seen.stamps[partition] = stamp
        if not batch.num_rows or self.time not in batch.schema.names:
            return
        times = batch.column(self.time).cast(pa.timestamp("us")).cast(pa.int64())
        if self.ahead_us is not None:
            latest = round(MACHINE.now_s() * 1e6) + self.ahead_us
            times = times.filter(pc.less_equal(times, latest))
        newest = pc.max(times).as_py()
        if newest is not None:
            seen.times[partition] = max(newest, seen.times.get(partition, newest))


class _Client:
    """A consumer without a group, with its present offsets."""

    def __init__(self, reading: KafkaReading) -> None:
        self._kafka = library()
        self._reading = reading
        config = reading.cluster.config(
            group_id="joinengine",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
            auto_offset_reset="error",
            **_FETCHING,
        )
        try:
            self._consumer = self._kafka.Consumer(config)
        except self._kafka.KafkaException as error:  # settings that only a consumer checks
            raise reading.cluster.told(error, reading.topic) from None
        #: partition -> its next offset; and messages beyond the range, fetched early
        self.next = dict[int, int]()
        self._early = dict[int, list[Any]]()
        #: partition -> the offset up to which the client has reported the end
        self._handed = dict[int, int]()
        self._rest: Timer | None = None

    def rest(self, close: Callable[[_Client], None]) -> None:
        """Call `close` with this client, unless it works again before it has been idle too long."""
        self._rest = Timer(_IDLE_S, close, (self,))
        self._rest.daemon = True
        self._rest.start()

    def work(self) -> None:
        """End the rest."""
        if self._rest is not None:
            self._rest.cancel()

    def stand(self, at: Mapping[int, int]) -> None:
        """Continue at these offsets."""
        if self.next == at:
            return
        self._early.clear()
        self._handed.clear()
        self.next = dict(at)
        self._consumer.assign([self._at(number, to) for number, to in at.items()])

    def chunks(self, ends: Mapping[int, int], gone: list[Skipped]) -> Iterator[list[Any]]:
        """The messages before these ends, in order, in chunks of one partition each.

        `gone` gets the ranges that were removed before they were read, if these are passed over.
        """
        parts, size = dict[int, list[Any]](), 0
        left, silent_s = dict(ends), MACHINE.timer_s()
        for number in ends:
            if early := self._early.pop(number, None):
                parts[number] = self._taken(number, early, left)
                size += sum(map(len, parts[number]))
            self._end_range(number, left)
        while left:
            wanted = sum(to - self.next[number] for number, to in left.items())
            fetched = self._consumed(min(max(wanted, 1), _CALL_ROWS))
            if fetched:
                silent_s = MACHINE.timer_s()
            elif MACHINE.timer_s() - silent_s > _AWAY_S:
                raise StoreUnreachable(
                    f"Kafka at {self._reading.cluster.servers} has sent nothing for {_AWAY_S:.0f} s"
                    f", and topic {self._reading.topic!r} has more; start the query again when it "
                    "answers"
                )
            said = list(filter(self._kafka.Message.error, fetched))
            for partition, messages in self._by_partition(fetched, are_all=not said):
                taken = self._taken(partition, messages, left)
                parts.setdefault(partition, []).extend(taken)
                size += sum(map(len, taken))
            for error in said:
                self._heed(error, left, gone)
            self._drop_early(left)
            if size >= CHUNK_BYTES or sum(map(len, parts.values())) >= CHUNK_ROWS:
                yield from filter(None, parts.values())
                parts, size = {}, 0
        yield from filter(None, parts.values())

    def _drop_early(self, left: Mapping[int, int]) -> None:
        """Stop fetching a partition that runs ahead while others are still read."""
        for number, early in list(self._early.items()):
            if number not in left and len(early) > CHUNK_ROWS:
                self._consumer.incremental_unassign([self._at(number, 0)])
                del self._early[number], self.next[number]

    def _at(self, partition: int, offset: int) -> Any:
        return self._kafka.TopicPartition(self._reading.topic, partition, offset)

    def _consumed(self, most: int) -> list[Any]:
        try:
            messages: list[Any] = self._consumer.consume(most, _WAIT_S)
        except self._kafka.KafkaException as error:
            raise self._reading.cluster.told(error, self._reading.topic) from None
        return messages

    def _by_partition(
        self, fetched: Sequence[Any], *, are_all: bool
    ) -> Iterator[tuple[int, list[Any]]]:
        """Fetched messages in stretches of one partition, without errors.

        `are_all`: there are no errors among them.
        """
        known = self._kafka.Message
        messages = fetched if are_all else filterfalse(known.error, fetched)
        for partition, run in groupby(messages, known.partition):
            yield partition, list(run)

    def _taken(self, partition: int, messages: list[Any], left: dict[int, int]) -> list[Any]:
        """The messages that belong to the range; keeps later ones, and may end the range."""
        end = left.get(partition)
        if end is None or messages[0].offset() >= end:
            count = 0
        elif messages[-1].offset() < end:
            count = len(messages)
        else:
            count = bisect_left(messages, end, key=lambda message: message.offset())
        if count < len(messages):
            self._early.setdefault(partition, []).extend(messages[count:])
        if end is not None:
            last = messages[-1].offset()
            self.next[partition] = min(last + 1, end)
            if last >= end - 1:
                del left[partition]
        return messages[:count]

    def _end_range(self, partition: int, left: dict[int, int]) -> None:
        """End a range if the client has reported that no message follows in it.

        It reports this once, perhaps in an earlier range, or before it hands over the messages.
        """
        if self._handed.get(partition, -1) >= left.get(partition, math.inf):
            self.next[partition] = left.pop(partition)

    def _heed(self, said: Any, left: dict[int, int], gone: list[Skipped]) -> None:
        """Handle an event in place of a message: the end of a partition, or an error."""
        kafka, reading, error = self._kafka.KafkaError, self._reading, said.error()
        partition = said.partition()
        if error.code() == kafka._PARTITION_EOF:
            self._handed[partition] = said.offset()
            self._end_range(partition, left)
        elif error.code() in (kafka._AUTO_OFFSET_RESET, kafka.OFFSET_OUT_OF_RANGE):
            if partition in left:
                self._pass_over(partition, left, gone)
        elif error.fatal() or not error.retriable():
            away = kafka._TRANSPORT, kafka._ALL_BROKERS_DOWN, kafka._RESOLVE
            if error.code() not in away and not is_of_group(error):
                raise reading.cluster.told(error, reading.topic)

    def _pass_over(self, partition: int, left: dict[int, int], gone: list[Skipped]) -> None:
        """Continue after removed messages. Raises DataLost if they may not be passed over."""
        at, end, topic = self.next[partition], left[partition], self._reading.topic
        try:
            begin, _ = self._consumer.get_watermark_offsets(self._at(partition, at), _AWAY_S)
        except self._kafka.KafkaException as error:
            raise self._reading.cluster.told(error, topic) from None
        if not self._reading.loses or begin <= at:
            raise lost(topic, partition, at, max(begin, at + 1))
        to = min(begin, end)
        gone.append(Skipped(OffsetRange(topic, partition, at, to).told, GONE))
        self.next[partition] = to
        if to == end:
            del left[partition]
        self._consumer.incremental_unassign([self._at(partition, at)])
        self._consumer.incremental_assign([self._at(partition, to)])

    def close(self) -> None:
        """Close the connections."""
        self.work()
        self._consumer.close()


#: The clients that are not in use, by what they read.
_free = dict[tuple[str, str, str], list[_Client]]()
_lock = Lock()


@contextmanager
def _lent(reading: KafkaReading, at: Mapping[int, int]) -> Iterator[_Client]:
    """A client at these offsets; it is kept after the block unless that raises an error."""
    options = repr(sorted(reading.cluster.options.items()))
    key = reading.cluster.servers, options, f"{reading.topic} {reading.loses}"
    with _lock:
        there = _free.get(key, [])
        fitting = [client for client in there if client.next == at]
        known = (fitting or there)[:1]
        for client in known:
            there.remove(client)
            client.work()
    client = known[0] if known else _Client(reading)
    client.stand(at)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    with _lock:  # in the meantime, the list may have been removed with its clients
        _free.setdefault(key, []).append(client)
        client.rest(_close_unused)


def _close_unused(client: _Client) -> None:
    """Close a client that is still not in use."""
    with _lock:
        lists = [ours for ours in _free.values() if client in ours]
        for ours in lists:
            ours.remove(client)
    if lists:
        client.close()


def close_clients() -> None:
    """Close the clients of this process that are not in use."""
    with _lock:
        gone = [client for ours in _free.values() for client in ours]
        _free.clear()
    for client in gone:
        client.close()
