"""The feed of a topic of Kafka: how far its partitions can be read, and how far a batch reads.

A place is partition -> next offset; a partition that it lacks is read from its beginning. The first
place is resolved once, at the first start of a query, and kept in its checkpoint. After that,
manifests say where the query continues. Consumer groups and their offsets are not used.

Law: a batch reads only committed messages: no place is beyond the last stable offset. Messages that
were removed before they were read are never passed over silently.
Cost: a look is one request, of a millisecond or so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from typing_extensions import override

from joinengine.model.errors import DataLost, InvalidRequest, JoinEngineError, StoreUnreachable
from joinengine.sources.feeds import Feed, Rest
from joinengine.sources.kafka_planning import Offsets, in_proportion, planned
from joinengine.sources.places import OffsetRange
from joinengine.world.kafka_clients import PATIENCE_S, Cluster, library
from joinengine.world.world import MACHINE

_log = logging.getLogger("joinengine")
#: Seconds between looks that also ask for partitions, first offsets, and the topic's identity.
_TOPIC_S = 2.0
#: Seconds for which brokers may be away before the query ends.
_AWAY_S = 60.0
#: Seconds for which brokers may report that the topic does not exist.
_UNKNOWN_S = 10.0
_KEPT = "start.json"
#: Why a range is skipped.
GONE = "was removed before it was read"


@dataclass(frozen=True)
class Topic:
    """What a stream reads: a topic of a cluster, from where, and how much of it in a batch.

    `start`: earliest, latest, partition -> offset, or a time in milliseconds. `loses`: offsets that
    are gone are counted and passed over; otherwise they end the query. `idle_us`: after so long
    without a message, a partition does not hold the watermark up. `until`: if the topic is read
    first, the offsets up to which it is read before others, even if they do not exist yet.
    """

    cluster: Cluster
    name: str
    start: str | int | Offsets = "latest"
    max_rows: int = 1_000_000
    loses: bool = False
    idle_us: int = 10_000_000
    until: Offsets = field(default_factory=dict)


@dataclass
class _There:
    """The result of the last look: partition -> its first offset, and its last stable offset."""

    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    #: the topic's id, which differs if a topic of the same name is created later
    identity: str = ""


class _Plan(NamedTuple):
    start: Offsets
    end: Offsets
    until_ms: int


class KafkaFeed(Feed):
    """A topic as a stream of ranges of offsets; `log`: keeps its start; None: it is not kept."""

    def __init__(self, topic: Topic, log: str | None) -> None:
        self._topic = topic
        self._storage = None if log is None else MACHINE.storage(log)
        self._admin: Any = None
        self._there = _There()
        self._begin: dict[int, int] | None = None
        self._identity = ""
        self._asked_s = self._heard_s = -1e9
        self._is_away = False
        #: the last plan that did not reach the end: start, end, and the moment of its end
        self._plan = _Plan({}, {}, 0)

    @override
    def discover(self, *, wait: Rest | None = None) -> None:
        """Ask how far partitions can be read.

        Raises StoreUnreachable if no broker has answered for a minute, InvalidRequest if the topic
        is gone, and DataLost if another topic has its name.
        """
        now_s = MACHINE.timer_s()
        try:
            self._look(whole=wait is not None or now_s - self._asked_s >= _TOPIC_S)
        except (StoreUnreachable, InvalidRequest) as error:
            # A broker that has just started may not know its topics yet.
            patience_s = _AWAY_S if isinstance(error, StoreUnreachable) else _UNKNOWN_S
            if wait is not None or now_s - self._heard_s > patience_s:
                raise
            if not self._is_away:
                _log.warning("joinengine: %s; waiting for it", error)
            self._is_away = True
            return
        self._heard_s, self._is_away = now_s, False

    def _look(self, *, whole: bool) -> None:
        if whole:
            self._look_at_topic()
            self._there.begins = self._offsets(self._there.ends, "earliest")
            self._asked_s = MACHINE.timer_s()
        self._there.ends |= self._offsets(self._there.ends, "latest")

    def _look_at_topic(self) -> None:
        """Ask which partitions there are, and whether this is still the same topic."""
        kafka, name = library(), self._topic.name
        names = kafka.TopicCollection([name])
        described = self._asked(
            self._client().describe_topics(names, request_timeout=PATIENCE_S)[name].result
        )
        there = self._there
        there.identity = str(described.topic_id)
        numbers = sorted(partition.id for partition in described.partitions)
        there.ends = {number: there.ends.get(number, 0) for number in numbers}
        if self._identity and there.identity != self._identity:
            raise DataLost(
                f"topic {name!r} was deleted and made again since the query began; start the query "
                "with a new checkpointLocation"
            )

    def _offsets(self, partitions: Iterable[int], at: str | int) -> dict[int, int]:
        """Partition -> an offset: `earliest`, `latest` (stable), or the first at or after a time.

        A time after all messages gives the end.
        """
        kafka = library()
        spec = kafka.admin.OffsetSpec
        kinds = {"earliest": spec.earliest, "latest": spec.latest}
        wanted = spec.for_timestamp(at) if isinstance(at, int) else kinds[at]()
        asked = {kafka.TopicPartition(self._topic.name, number): wanted for number in partitions}
        committed = kafka.IsolationLevel.READ_COMMITTED
        futures = self._client().list_offsets(
            asked, isolation_level=committed, request_timeout=PATIENCE_S
        )
        offsets = {
            partition.partition: self._asked(future.result).offset
            for partition, future in futures.items()
        }
        return {
            number: self._there.ends[number] if to < 0 else to for number, to in offsets.items()
        }

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """The answer to a request. Raises the client's error as one of the engine's."""
        try:
            return ask()
        except library().KafkaException as error:
            reason = self._topic.cluster.told(error, self._topic.name)
            if isinstance(reason, StoreUnreachable):
                self._admin = None  # it would keep waiting for a controller that is gone
            raise reason from None

    def _client(self) -> Any:
        if self._admin is None:
            self._admin = library().admin.AdminClient(self._topic.cluster.config())
        return self._admin

    @override
    def check(self) -> None:
        """Raise the errors of a start: no broker, no topic, a start that is missing, data lost."""
        self._resolve()
        self._check_partitions("latest: until", self._topic.until)

    @override
    def take_over(self, generation: int) -> None:
        """Store where the query begins, unless that is stored already."""
        self._resolve()
        if self._storage is not None and not self._storage.exists(_KEPT):
            self._storage.make()
            content = {"identity": self._identity, "offsets": self._begin}
            if not self._storage.create(_KEPT, json.dumps(content).encode()):
                self._begin = None  # another driver was faster
                self._resolve()

    def _resolve(self) -> None:
        """Find the place where the query begins."""
        if self._begin is not None:
            return
        if self._storage is not None and self._storage.exists(_KEPT):
            kept = json.loads(self._storage.get(_KEPT))
            self._identity = kept["identity"]
            self._reach()
            self._begin = {int(number): at for number, at in kept["offsets"].items()}
        else:
            self._reach()
            self._identity = self._there.identity
            self._begin = self._started()

    def _reach(self) -> None:
        """Look for the first time. Raises InvalidRequest if no broker answers."""
        cluster = self._topic.cluster
        cluster.check_reachable([self._topic.name])
        self._look(whole=True)
        self._heard_s = MACHINE.timer_s()

    def _started(self) -> dict[int, int]:
        """The offsets that `start` means now."""
        start, there = self._topic.start, self._there
        if start == "latest":
            return dict(there.ends)
        if start == "earliest":
            return dict(there.begins)
        if isinstance(start, Mapping):
            return there.begins | self._checked(start)
        assert isinstance(start, int)
        return self._offsets(there.ends, start)

    def _check_partitions(self, option: str, offsets: Offsets) -> None:
        ends = self._there.ends
        for number in offsets:
            if number not in ends:
                raise InvalidRequest(
                    f"{option}: topic {self._topic.name!r} has no partition {number}; it has "
                    f"{len(ends)}"
                )

    def _checked(self, start: Offsets) -> dict[int, int]:
        there, name = self._there, self._topic.name
        self._check_partitions("start", start)
        for number, at in start.items():
            if not there.begins[number] <= at <= there.ends[number]:
                raise InvalidRequest(
                    f"start: partition {number} of {name!r} has the offsets "
                    f"{there.begins[number]} to {there.ends[number]}; found {at}"
                )
        return dict(start)

    @override
    def close(self) -> None:
        """Close the client."""
        self._admin = None

    @override
    def begin(self) -> dict[int, int]:
        self._resolve()
        assert self._begin is not None
        return dict(self._begin)

    @override
    def end(self) -> dict[int, int]:
        self._resolve()
        return dict(self._there.ends)

    @override
    def awaited(self) -> dict[int, int]:
        return self.later(self.end(), self._topic.until)

    @override
    def advance(self, position: Offsets) -> dict[int, int]:
        start = self._full(position)
        end = {number: max(to, start[number]) for number, to in self.end().items()}
        last = self._plan
        if start == last.start and last.end:
            return dict(last.end)  # later messages do not change the plan
        low = last.until_ms if start == last.end else 0
        times, most = (low, int(MACHINE.now_s() * 1e3) + 1), self._topic.max_rows
        try:
            reached, until = planned(start, end, most, times, lambda time: self._offsets(end, time))
        except StoreUnreachable:  # the tasks wait for the broker when they fetch the messages
            reached, until = in_proportion(start, end, most), low
        if reached != end:
            self._plan = _Plan(start, reached, until)
        return dict(reached)

    def _full(self, position: Offsets) -> dict[int, int]:
        """A place with newer partitions added, at their first offsets."""
        first = self._there.begins
        return {number: position.get(number, first.get(number, 0)) for number in self.end()}

    @override
    def is_beyond(self, position: Offsets, other: Offsets) -> bool:
        start = self._full(other)
        return any(to > start.get(number, 0) for number, to in position.items())

    @override
    def later(self, position: Offsets, other: Offsets) -> dict[int, int]:
        return {
            number: max(to, other.get(number, 0))
            for number, to in (dict(other) | dict(position)).items()
        }

    @override
    def earlier(self, position: Offsets, other: Offsets) -> dict[int, int]:
        """The earlier offset of each partition in both; a partition in only one is too new."""
        return {
            number: min(to, other[number]) for number, to in position.items() if number in other
        }

    @override
    def check_reaches(self, position: Offsets) -> None:
        """Raise DataLost if a partition ends before a place, or has lost the next messages."""
        self._resolve()
        there, name = self._there, self._topic.name
        for number, at in position.items():
            if number not in there.ends or at > there.ends[number]:
                self._look(whole=True)  # another driver may have read on
            if number not in there.ends or at > there.ends[number]:
                raise DataLost(
                    f"topic {name!r}: partition {number} ends at offset "
                    f"{there.ends.get(number, 0)}, and the query has read up to {at}: the topic "
                    "was made again, or has lost messages; start the query with a new "
                    "checkpointLocation"
                )
            if at < there.begins.get(number, 0) and not self._topic.loses:
                raise lost(name, number, at, there.begins[number])

    @override
    def pieces(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """The ranges between two places; lost offsets form separate ranges, with the reason."""
        ranges, name, first = list[OffsetRange](), self._topic.name, self._full(start)
        for number in sorted(end):
            at, to, begin = first.get(number, 0), end[number], self._there.begins.get(number, 0)
            if at < begin and at < to:
                if not self._topic.loses:
                    raise lost(name, number, at, begin)
                gone, at = at, min(begin, to)
                ranges.append(OffsetRange(name, number, gone, at, GONE))
            if at < to:
                ranges.append(OffsetRange(name, number, at, to))
        return ranges

    @override
    def behind(self, position: Offsets) -> tuple[dict[int, int], int]:
        place = self._full(position)
        waiting = {number: max(to - place[number], 0) for number, to in self.end().items()}
        return waiting, self._topic.idle_us


def lost(topic: str, partition: int, first: int, begin: int) -> JoinEngineError:
    """The error for messages that were removed before they were read."""
    return DataLost(
        f"topic {topic!r}: offsets {first} to {begin - 1} of partition {partition} were removed "
        "before they were read; give the topic a longer retention, or pass over what is lost with "
        "fail_on_data_loss=False"
    )
