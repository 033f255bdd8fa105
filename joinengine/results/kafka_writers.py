"""Transactional producers of Kafka, kept by tasks: one for each id, with its last token.

A writer begins with `init_transactions`, which shuts out all earlier users of its id and ends their
transactions. Then it reads the newest token of the id. From then on, no other writer can write one,
so the token need not be read again. A task that finds no writer in its process makes one. Even a
late task of an older driver reads the token only after it has shut others out, so it delivers
nothing twice.

Each writer has its own partition in the topic of tokens, so that no open transaction of another
writer delays the reading of its token.

Law: a batch whose number is not above the token of a writer is not sent by it.
Cost: a transaction takes 10 to 30 ms; a message about 2 us, one call of the client each.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from joinengine.model.errors import InvalidRequest
from joinengine.results.kafka_messages import Messages, Shape, messages
from joinengine.results.staging import rows_of
from joinengine.world.kafka_clients import Cluster, is_of_group, library
from joinengine.world.storage import StoredFile
from joinengine.world.world import World

#: How many rows are encoded at a time.
CHUNK_ROWS = 16_384
#: The most KB of messages that wait to be sent, and the most messages.
_WAITING_KB, _WAITING = 65_536, 200_000
#: Seconds for a step that needs the broker's answer: as long as a transaction may take by default.
PATIENCE_S = 60.0
#: How many last offsets of a partition of tokens are searched first.
_TAIL = 64
#: The most writers that a process keeps.
_KEPT = 16
#: Names of errors by which a broker reports that another writer uses the id.
_SHUT_OUT = {
    *("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"),
    "_FATAL",  # the only error of a client that was already shut out
}
#: The errors of messages that are dropped because the transaction has failed.
_DROPPED = {"_PURGE_QUEUE", "_PURGE_INFLIGHT"}
_TOO_LARGE = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}
#: The error of a coordinator that is still ending the previous transaction after a takeover. This
#: may take longer than a client waits, if brokers fail one after the other.
_SETTLING = {"CONCURRENT_TRANSACTIONS"}
#: Errors of a client that may hold on to a dead coordinator, or may have been shut out without
#: having reported it: a new client finds out.
_STUCK = {"_MSG_TIMED_OUT", "_TIMED_OUT", "_STATE"}
DONE, UNKNOWN, SHUT_OUT = "done", "unknown", "shut out"


@dataclass(frozen=True, slots=True)
class DeliverTask:
    """The work of one writer: for each batch, its share of the staged files in `folder`.

    `writer`: its transactional id. `partition`: its own in the topic `tokens`; if `tokens` is
    empty, there are no transactions. `opening`: (generation of the driver, how often it has opened
    the topics); a writer of another opening is shut out. `opens`: a new writer is made.
    """

    cluster: Cluster
    writer: str
    partition: int
    tokens: str
    opening: tuple[int, int]
    opens: bool
    shape: Shape
    folder: str
    batches: tuple[tuple[int, tuple[StoredFile, ...]], ...] = ()


@dataclass(slots=True)
class DeliverReport:
    """The newest token of a writer, the outcome of the delivery, and the client's message."""

    token: int
    outcome: str = DONE
    said: str = ""


class _Gone(Exception):
    """The writer cannot continue; `outcome`: that of its transaction."""

    def __init__(self, outcome: str, said: object) -> None:
        super().__init__(str(said))
        self.outcome = outcome


def deliver(task: DeliverTask, world: World) -> DeliverReport:
    """Carry out one task.

    Raises InvalidRequest for an error that a retry cannot fix, StoreUnreachable for a broker that
    is away, and DamagedState for a staged file that is not what was sealed.
    """
    token = -1
    try:
        writer = _writer_of(task, world)
        token = writer.token
        writer.send(task)
        return DeliverReport(writer.token)
    except _Gone as gone:
        _writers.pop(_which(task), None)
        return DeliverReport(token, gone.outcome, str(gone))
    except BaseException:
        _writers.pop(_which(task), None)
        raise


#: (transactional id, generation) -> its writer in this process.
_writers = OrderedDict[tuple[str, int], "_Writer"]()


def _which(task: DeliverTask) -> tuple[str, int]:
    return task.writer, task.opening[0]


def _writer_of(task: DeliverTask, world: World) -> _Writer:
    """The writer of a task: that of this process if it is of the same opening, else a new one.

    A task may run in another process than before. The writer made there shuts out the one here,
    which no task of this opening may find again. The next opening makes a new one.
    """
    writer = _writers.pop(_which(task), None)
    if writer is None or task.opens or writer.opening != task.opening:
        writer = _Writer(task, world)
    _writers[_which(task)] = writer
    while len(_writers) > _KEPT:
        _writers.popitem(last=False)
    return writer


class _Writer:
    """A producer; `token`: the newest batch that it, or an earlier one with its id, has sent."""

    def __init__(self, task: DeliverTask, world: World) -> None:
        self._world, self.opening = world, task.opening
        self._kafka = library()
        self._cluster = task.cluster
        self._failed: Any = None  # the first error of a message
        self._exactly_once = bool(task.tokens)
        self.token = -1
        config = task.cluster.config(
            enable_idempotence=True,
            queue_buffering_max_kbytes=_WAITING_KB,
            queue_buffering_max_messages=_WAITING,
            compression_type="lz4",
            linger_ms=2,
        )
        config |= {"delivery.report.only.error": True, "on_delivery": self._note}
        if task.tokens:
            config["transactional.id"] = task.writer
        try:
            self._producer = self._kafka.Producer(config)
            if task.tokens:
                self._producer.init_transactions(PATIENCE_S)
                self.token = read_token(task.cluster, task.tokens, task.partition)
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise self._error(error) from None

    def send(self, task: DeliverTask) -> None:
        """Send the batches above the token; then the last batch is the token."""
        left = [(batch, files) for batch, files in task.batches if batch > self.token]
        if not left:
            return
        files = [stored for _, staged in left for stored in staged]
        try:
            if not task.tokens:
                self._produce_all(task, files)
                self._flush()
                return
            self._producer.begin_transaction()
            self._produce_all(task, files)
            content = json.dumps({"batch": left[-1][0]}).encode()
            self._producer.produce(task.tokens, content, task.writer.encode(), task.partition)
            self._commit()
            self.token = left[-1][0]
        except self._kafka.KafkaException as error:
            raise self._error(error) from None
        except _Gone:
            raise
        except BaseException:
            self._abort()
            raise

    def _produce_all(self, task: DeliverTask, files: Iterable[StoredFile]) -> None:
        for chunk in _chunks(task, files, self._world):
            self._produce(messages(chunk, task.shape), task.shape.topic)
            self._producer.poll(0)
            if self._failed is not None:
                raise self._kafka.KafkaException(self._failed)

    def _produce(self, chunk: Messages, topic: str | None) -> None:
        """Produce messages, one per call: the client's batch call is slower and has no headers."""
        nothing = [None] * len(chunk.values)
        columns = [column or nothing for column in chunk]
        if topic is not None:
            columns[2] = [topic] * len(nothing)
        elif None in columns[2]:
            raise InvalidRequest(
                "topic: a row has NULL in column 'topic'; give .option('topic', name), or exclude "
                "such rows with where="
            )
        produce = self._producer.produce
        plain = chunk.partitions is None and chunk.headers is None
        for value, key, to, partition, headers in zip(*columns, strict=True):
            more: dict[str, Any] = {}
            if not plain:
                more |= {} if partition is None else {"partition": partition}
                more |= {} if headers is None else {"headers": headers}
            try:
                produce(to, value, key, **more)
            except BufferError:
                self._wait_and_produce(to, value, key, more)

    def _wait_and_produce(self, topic: str, value: Any, key: Any, more: dict[str, Any]) -> None:
        """Produce a message after others have been sent, because too many are waiting."""
        until = self._world.timer_s() + PATIENCE_S
        while True:
            self._producer.poll(0.1)
            if self._failed is not None:
                raise self._kafka.KafkaException(self._failed)
            with suppress(BufferError):
                self._producer.produce(topic, value, key, **more)
                return
            if self._world.timer_s() > until:
                raise self._kafka.KafkaException(
                    self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT)
                )

    def _note(self, error: Any, message: Any) -> None:
        """Note the first failure; errors of messages that are then dropped mean nothing."""
        if error is not None and self._failed is None and error.name() not in _DROPPED:
            self._failed = error

    def _flush(self) -> None:
        left = self._producer.flush(PATIENCE_S)
        if self._failed is not None or left:
            timeout = self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT)
            raise self._kafka.KafkaException(self._failed or timeout)

    def _commit(self) -> None:
        """Commit. After a timeout, the outcome is unknown, and the call may be repeated."""
        until = self._world.timer_s() + PATIENCE_S
        while True:
            try:
                self._producer.commit_transaction(max(until - self._world.timer_s(), 1.0))
                return
            except self._kafka.KafkaException as error:
                reason = error.args[0]
                if reason.retriable() and self._world.timer_s() < until:
                    continue
                if reason.txn_requires_abort() or reason.name() in _SHUT_OUT:
                    raise
                raise _Gone(UNKNOWN, self._cluster.told(error)) from None

    def _abort(self) -> None:
        """Abort the transaction if the client still can; else the next writer of the id does."""
        with suppress(Exception):
            self._producer.purge()
            self._producer.abort_transaction(PATIENCE_S)

    def _error(self, error: Exception) -> Exception:
        """Abort a transaction after a client's error; the error that tells its outcome."""
        self._producer_poll()
        reason = error.args[0] if error.args else error
        name = getattr(reason, "name", str)()
        if name in _SHUT_OUT:
            return _Gone(SHUT_OUT, self._cluster.told(error))
        cause = self._failed or error
        code = getattr(cause, "name", lambda: name)()
        if name in _SETTLING or (self._exactly_once and code in _STUCK):
            return _Gone(UNKNOWN, self._cluster.told(cause))
        if hasattr(self, "_producer"):
            self._abort()
        if _TOO_LARGE & {name, code}:
            return InvalidRequest(
                f"Kafka at {self._cluster.servers} takes no message as large as one of the results "
                "is; raise max.message.bytes of the topic, and .option('kafka.message.max.bytes', "
                "bytes), or leave out large columns"
            )
        if code == "INVALID_TRANSACTION_TIMEOUT":
            return InvalidRequest(
                f"Kafka at {self._cluster.servers} allows no transaction as long as "
                "kafka.transaction.timeout.ms asks for; lower it, or raise "
                "transaction.max.timeout.ms of the brokers"
            )
        return self._cluster.told(cause)

    def _producer_poll(self) -> None:
        """Let the client report why messages have failed."""
        with suppress(Exception):
            self._producer.poll(0)


def read_token(cluster: Cluster, topic: str, partition: int) -> int:
    """The newest committed token in a partition of the topic of tokens; -1: there is none.

    The caller must have shut out all other writers; otherwise, the token may be outdated.
    """
    kafka = library()
    config = cluster.config(
        isolation_level="read_committed",
        enable_auto_commit=False,
        enable_partition_eof=True,
        fetch_wait_max_ms=10,  # the read ends at the end of the partition
    )
    consumer = kafka.Consumer({**config, "group.id": "joinengine"})
    try:
        place = kafka.TopicPartition(topic, partition)
        low, high = consumer.get_watermark_offsets(place, timeout=PATIENCE_S, cached=False)
        for start in dict.fromkeys((max(low, high - _TAIL), low)):
            consumer.assign([kafka.TopicPartition(topic, partition, start)])
            tokens = [json.loads(content)["batch"] for content in _to_end(consumer, kafka)]
            if tokens:
                return int(max(tokens))
        return -1
    finally:
        consumer.close()


def _to_end(consumer: Any, kafka: Any) -> Iterator[bytes]:
    while True:
        message = consumer.poll(PATIENCE_S)
        if message is None:
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))
        if message.error() is None:
            yield message.value()
        elif message.error().code() == kafka.KafkaError._PARTITION_EOF:
            return
        elif not is_of_group(message.error()):
            raise kafka.KafkaException(message.error())


def _chunks(
    task: DeliverTask, files: Iterable[StoredFile], world: World
) -> Iterator[pa.RecordBatch]:
    storage = world.storage(task.folder)
    for stored in files:
        yield from rows_of(storage, stored, CHUNK_ROWS)
