"""Kafka as a target: a fixed number of transactional writers for each query, in tasks.

The checkpoint keeps the number of writers, the cluster and the topic: with other ids, or in another
cluster, the earlier tokens would not be found, and the last batch would be delivered again.

With one writer a batch is one transaction, which readers see whole. With n a batch is n
transactions, and a reader may see some of them before the others. Each result is still there once,
and all results of a batch precede those of the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from typing_extensions import override

from joinengine.model.errors import CheckpointMismatch, DamagedState, JoinEngineError
from joinengine.results.kafka_messages import Shape
from joinengine.results.kafka_writers import (
    PATIENCE_S,
    SHUT_OUT,
    UNKNOWN,
    DeliverReport,
    DeliverTask,
)
from joinengine.results.showings import Held
from joinengine.results.sinks import check_staged, is_handed_over, note_handed_over
from joinengine.results.token_sinks import NOTHING, OutcomeUnknown, ShutOut, Target
from joinengine.state.checkpoint import Checkpoint, read_note, write_note
from joinengine.world.kafka_clients import Cluster, library

#: The note of a checkpoint.
NOTE = "kafka.json"
#: Settings of the topic of tokens: the newest record of each id stays for ever.
_COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
#: Runs tasks; returns their reports in the order of the tasks.
CarryOut = Callable[[Sequence[DeliverTask]], Sequence[DeliverReport]]


class Guarantee(StrEnum):
    """How often a result is delivered."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True)
class Writers:
    """`count` writers, each exactly once by transactions, or at least once without."""

    count: int = 1
    exactly_once: bool = True


@dataclass(eq=False, repr=False)
class KafkaTarget(Target):
    """The topics of a query. If not `exactly_once`, the checkpoint notes the last batch sent."""

    checkpoint: Checkpoint
    query: str
    cluster: Cluster
    shape: Shape
    writers: Writers
    carry_out: CarryOut
    _opening: tuple[int, int] = field(default=(0, 0), init=False)
    _token: int = field(default=NOTHING, init=False)
    _furthest: int = field(default=NOTHING, init=False)
    _is_first: bool = field(default=True, init=False)

    @property
    def tokens(self) -> str:
        """The topic of the query's tokens; empty without transactions."""
        return f"joinengine-{self.query}-tokens" if self.writers.exactly_once else ""

    @property
    @override
    def name(self) -> str:
        return f"topic {self.shape.topic}" if self.shape.topic else "Kafka"

    @override
    def may_hold(self) -> bool:
        """As in Target: True if the checkpoint notes writers with transactions, or has tokens.

        An old copy of a checkpoint may lack the note, but its tokens are in their topic.
        """
        if not self.writers.exactly_once:
            return False
        kafka = library()
        return noted(self.checkpoint) is not None or self._has_tokens(
            kafka.admin.AdminClient(self.cluster.config()), kafka
        )

    @override
    def open(self, generation: int) -> None:
        """Begin new transactions under all ids, which shuts others out; then read their tokens."""
        if self.writers.exactly_once:
            self._take()
        self._opening = generation, self._opening[1] + 1
        reports = self._run((), opens=True)
        tokens = [report.token for report in reports]
        self._token, self._furthest = min(tokens), max(tokens)

    @override
    def token(self) -> int:
        return self._token

    @override
    def furthest(self) -> int:
        """As in Target: some writers may have delivered a batch before others were killed."""
        return self._furthest

    @override
    def commit(self, batches: Held) -> None:
        results, last = self.checkpoint.results, batches[-1]
        exactly = self.writers.exactly_once
        # Even under `exactly_once`, an earlier start may have delivered the batch at least once.
        if is_handed_over(results, *last):
            return
        if self._is_first:
            check_staged(results, [stored for _, files in batches for stored in files])
        self._is_first = False
        self._run(batches, opens=False)
        if exactly:
            self._token = self._furthest = last[0]
        else:
            note_handed_over(results, *last)

    @override
    def close(self) -> None:
        """Do nothing: writers stay in the tasks' processes, and end with them."""

    def _run(self, batches: Held, *, opens: bool) -> Sequence[DeliverReport]:
        """Let every writer deliver its share. Raises ShutOut or OutcomeUnknown if one says so."""
        count = self.writers.count
        reports = self.carry_out(
            [
                DeliverTask(
                    self.cluster,
                    f"{self.query}-{number}",
                    number,
                    self.tokens,
                    self._opening,
                    opens,
                    self.shape,
                    self.checkpoint.results.folder,
                    dealt(batches, number, count),
                )
                for number in range(count)
            ]
        )
        for number, report in enumerate(reports):
            if report.outcome == SHUT_OUT:
                raise ShutOut(
                    f"Kafka at {self.cluster.servers} refuses transactional id "
                    f"{self.query}-{number} ({report.said}): another program uses it, perhaps "
                    "with a copy of this checkpoint, or a batch takes longer than "
                    "kafka.transaction.timeout.ms; stop the other one, or raise the timeout"
                )
        for report in reports:
            if report.outcome == UNKNOWN:
                raise OutcomeUnknown(
                    f"Kafka has not said whether results were delivered ({report.said}); start "
                    "the query again, which looks first and delivers nothing twice"
                )
        return reports

    def _take(self) -> None:
        """Create the topic of tokens and note the writers, unless that is done."""
        if noted(self.checkpoint) is not None:
            return
        self._make_tokens()
        about = {
            "cluster": id_of_cluster(self.cluster),
            "topic": self.shape.topic,
            "producers": self.writers.count,
        }
        write_note(self.checkpoint, NOTE, about)

    def _make_tokens(self) -> None:
        """Create the topic of tokens, unless it exists.

        Kafka refuses a user without permission to create topics even if the topic exists.
        """
        kafka = library()
        admin = kafka.admin.AdminClient(self.cluster.config())
        try:
            copies = self._copies(admin)
            new = kafka.admin.NewTopic(self.tokens, self.writers.count, copies, config=_COMPACTED)
            admin.create_topics([new])[self.tokens].result(PATIENCE_S)
        except kafka.KafkaException as error:
            exists = error.args[0].code() == kafka.KafkaError.TOPIC_ALREADY_EXISTS
            if not exists and not self._has_tokens(admin, kafka):
                raise self._untaken(error) from None

    def _copies(self, admin: Any) -> int:
        """How many replicas the results have; -1: the brokers' default, if rows name their topics.

        With fewer replicas of the tokens, delivery would stop when a single broker is away.
        """
        topic = self.shape.topic
        if topic is None:
            return -1
        partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        return max((len(part.replicas) for part in partitions.values()), default=-1)

    def _has_tokens(self, admin: Any, kafka: Any) -> bool:
        try:
            seen = admin.list_topics(self.tokens, timeout=PATIENCE_S).topics[self.tokens]
        except kafka.KafkaException:
            return False
        return seen.error is None

    def _untaken(self, error: Exception) -> JoinEngineError:
        why = self.cluster.told(error, self.tokens)
        return type(why)(
            f"{why}. Exactly-once delivery keeps its place in topic {self.tokens}; make it, with "
            f"{self.writers.count} as its number of partitions and cleanup.policy=compact, and "
            "start again, or give .option('delivery', 'at_least_once')"
        )


def dealt(batches: Held, number: int, count: int) -> Held:
    """For each batch, the files that writer `number` of `count` delivers, chosen by their names."""
    return tuple(
        (batch, tuple(f for f in files if zlib.crc32(f.name.encode()) % count == number))
        for batch, files in batches
    )


def noted(checkpoint: Checkpoint) -> dict[str, object] | None:
    """The checkpoint's note of its writers; None: nothing was delivered with transactions."""
    names = "which names the topic of the results"
    return read_note(checkpoint, NOTE, names, "cluster", "topic", "producers")


def check_note(
    checkpoint: Checkpoint, query: str, cluster: Cluster, topic: str | None, count: int | None
) -> int:
    """How many writers the query has; `count`: how many the user asks for; None: not given.

    Raises CheckpointMismatch if the checkpoint delivers elsewhere or with another number of
    writers, DamagedState if its tokens are gone.
    """
    about, there = noted(checkpoint), checkpoint.location
    tokens = f"joinengine-{query}-tokens"
    listing = library().admin.AdminClient(cluster.config()).list_topics(tokens, timeout=PATIENCE_S)
    held = listing.topics[tokens]
    if about is not None:
        writers = int(str(about["producers"]))
    elif held.error is None:  # the note is gone, but each writer has a partition of the tokens
        writers = len(held.partitions)
    else:
        return count or 1
    if count not in (None, writers):
        raise CheckpointMismatch(
            f"producers: checkpoint {there} delivers with {writers}, and {count} are "
            "asked for; leave the option out, or start with a new checkpointLocation"
        )
    if about is None:
        return writers
    if topic != about["topic"]:
        raise CheckpointMismatch(
            f"topic: checkpoint {there} delivers to {about['topic']!r}, and {topic!r} is asked "
            "for; give the same topic, or start with a new checkpointLocation"
        )
    if id_of_cluster(cluster) != about["cluster"]:
        raise CheckpointMismatch(
            f"kafka.bootstrap.servers: checkpoint {there} delivers to cluster "
            f"{about['cluster']}, and {cluster.servers} belong to another one; give the same "
            "cluster, or start with a new checkpointLocation"
        )
    if held.error is not None:
        raise DamagedState(
            f"topic {tokens}, which says what was delivered, is gone; restore it, or start with a "
            "new checkpointLocation and another topic"
        )
    return writers


def id_of_cluster(cluster: Cluster) -> str:
    """The permanent id of a cluster. Raises as `Cluster.told` if no broker answers."""
    kafka = library()
    try:
        listing = kafka.admin.AdminClient(cluster.config()).list_topics(timeout=PATIENCE_S)
    except kafka.KafkaException as error:
        raise cluster.told(error) from None
    return str(listing.cluster_id)
