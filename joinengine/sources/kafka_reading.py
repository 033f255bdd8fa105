"""How the messages of a topic are read and become tuples, in the tasks.

A task reads ranges of offsets with a client of its own, without a consumer group, chunk by chunk.
Not every offset has a message: transactions leave markers, and compaction leaves gaps. So a range
ends with the first message behind it, or where the client says that the partition ends.

Clients stay open between batches, since to connect takes longer than a small batch. One that stands
where the next range begins goes on with what it has fetched.

Law: of a range each committed message is read once; none is passed over without a word.
Cost: a chunk holds at most CHUNK_ROWS messages or CHUNK_BYTES.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
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
#: Messages are asked for so many at a time: those of more fall out of the processor's caches.
_CALL_ROWS = 1 << 12
#: So long a client waits for a message before it looks whether a partition has ended, in seconds.
_WAIT_S = 0.01
#: So long nothing may come before the broker counts as away, in seconds.
_AWAY_S = 60.0
#: How a client fetches ahead: up to 16 MB, and at once when there is room again. Unless it is told
#: so, it looks for room once a second, and stands still for most of the time.
_FETCHING = {
    "queued.max.messages.kbytes": 16_384,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
}
#: A client that nobody has used for so long is closed, in seconds.
_IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class KafkaReading(Projection):
    """How the messages of a topic are read: from where, and how a value becomes columns.

    `loses`: offsets that are gone are told and passed over. `time`: the column of event time, of
    which each partition's greatest is told; None: there is none. `ahead_us`: times further ahead of
    the clock do not count for that; None: all do.
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
        """The tuples of ranges, at most one for each partition, and what has become none.

        Raises UnreadableMessage for a value that cannot be decoded and is not to be skipped,
        DataLost for offsets that are gone, StoreUnreachable if no broker answers.
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
                    # Filters take no part: a partition has come as far as what it has brought.
                    self._see(seen, kept if self._computes_time else batch, messages)
                if kept.num_rows:
                    yield conform(kept, self.schema)

    @property
    def _computes_time(self) -> bool:
        return any(isinstance(step, Computed) and step.name == self.time for step in self.steps)

    def _see(self, seen: Seen, batch: pa.RecordBatch, messages: Sequence[Any]) -> None:
        """Note how far a partition has come; chunks hold messages of one partition."""
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
    """A consumer without a group, and where it stands."""

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
        except self._kafka.KafkaException as error:  # settings that a consumer alone looks at
            raise reading.cluster.told(error, reading.topic) from None
        #: partition -> the offset that comes next, and messages that nobody has asked for yet
        self.next = dict[int, int]()
        self._early = dict[int, list[Any]]()
        #: partition -> up to where the client has said that it has handed over all
        self._handed = dict[int, int]()

    def stand(self, at: Mapping[int, int]) -> None:
        """Go on at these offsets."""
        if self.next == at:
            return
        self._early.clear()
        self._handed.clear()
        self.next = dict(at)
        self._consumer.assign([self._at(number, to) for number, to in at.items()])

    def chunks(self, ends: Mapping[int, int], gone: list[Skipped]) -> Iterator[list[Any]]:
        """The messages before these ends, each chunk of one partition, in order.

        `gone` gets what was removed before it was read, if that is to be passed over.
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
        """Messages in runs of one partition, without errors unless all `are_all` messages."""
        known = self._kafka.Message
        messages = fetched if are_all else filterfalse(known.error, fetched)
        for partition, run in groupby(messages, known.partition):
            yield partition, list(run)

    def _taken(self, partition: int, messages: list[Any], left: dict[int, int]) -> list[Any]:
        """Those of some messages that the range has; others wait, and the range may be over."""
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
        """End a range behind which no message comes that the client knows of.

        It says so once, perhaps in an earlier range, or before the messages of this one came.
        """
        if self._handed.get(partition, -1) >= left.get(partition, math.inf):
            self.next[partition] = left.pop(partition)

    def _heed(self, said: Any, left: dict[int, int], gone: list[Skipped]) -> None:
        """What the client says in place of a message: that a partition ends, or what is wrong."""
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
        """Go on behind what was removed meanwhile. Raises DataLost if that is not to be."""
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
        """Let go of the connections."""
        self._consumer.close()


#: Clients that nobody uses at the moment, by what they read.
_free = dict[tuple[str, str, str], list[_Client]]()
_lock = Lock()
_timer: Timer | None = None


@contextmanager
def _lent(reading: KafkaReading, at: Mapping[int, int]) -> Iterator[_Client]:
    """A client that stands at these offsets; if it was used without an error it is kept."""
    options = repr(sorted(reading.cluster.options.items()))
    key = reading.cluster.servers, options, f"{reading.topic} {reading.loses}"
    with _lock:
        there = _free.get(key, [])
        fitting = [client for client in there if client.next == at]
        known = (fitting or there)[:1]
        for client in known:
            there.remove(client)
    client = known[0] if known else _Client(reading)
    client.stand(at)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    with _lock:  # meanwhile the list may have gone with its clients
        _free.setdefault(key, []).append(client)
    _close_later()


def _close_later() -> None:
    global _timer  # noqa: PLW0603 # one for all clients of a process
    if _timer is not None:
        _timer.cancel()
    _timer = Timer(_IDLE_S, close_clients)
    _timer.daemon = True
    _timer.start()


def close_clients() -> None:
    """Close the clients of this process that nobody uses."""
    with _lock:
        gone = [client for ours in _free.values() for client in ours]
        _free.clear()
    for client in gone:
        client.close()
