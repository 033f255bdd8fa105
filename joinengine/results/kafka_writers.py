"""Transactional producers of Kafka, as tasks keep them: one for each id, with the token it wrote.

A writer is made in three steps. `init_transactions` shuts out all who have used the id before, and
ends what they have begun. Then the newest token of the id is read. From then on nobody else can
have written one, so it is known without being read again. A task that finds no writer in its
process makes one: whatever a late task of an older driver does, it reads the token after it has
shut others out, and delivers nothing twice.

Each writer has a partition of its own in the topic of tokens, so nobody else's open transaction
keeps its token from being read.

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

#: Rows that are encoded at a time.
CHUNK_ROWS = 16_384
#: Bytes of messages that wait to be sent, in KB, and their number, at most.
_WAITING_KB, _WAITING = 65_536, 200_000
#: Seconds for a step that needs the broker's answer: as long as a transaction may take by default.
PATIENCE_S = 60.0
#: Offsets at the end of a partition of tokens in which one is looked for first.
_TAIL = 64
#: Writers that a process keeps.
_KEPT = 16
#: Names of errors by which a broker says that another one uses the id.
_SHUT_OUT = {
    *("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"),
    "_FATAL",  # a client that was shut out before says no more
}
#: What becomes of messages that are not sent any more, since the transaction has failed.
_DROPPED = {"_PURGE_QUEUE", "_PURGE_INFLIGHT"}
_TOO_LARGE = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}
#: A coordinator that has just taken over is still ending the transaction before: for longer than
#: a client waits if brokers go one after the other.
_SETTLING = {"CONCURRENT_TRANSACTIONS"}
#: A client may hold on to a coordinator that has died while others answer, or have been shut out
#: without having said so yet: another client asks.
_STUCK = {"_MSG_TIMED_OUT", "_TIMED_OUT", "_STATE"}
DONE, UNKNOWN, SHUT_OUT = "done", "unknown", "shut out"


@dataclass(frozen=True, slots=True)
class DeliverTask:
    """What one writer delivers: of each batch its share of the staged files in `folder`.

    `writer`: its transactional id. `partition`: its own in the topic `tokens`; empty: there are no
    transactions, and no tokens. `opening`: (generation of the driver, how often it has opened the
    topics), and a writer of another opening is shut out. `opens`: a writer is made anew.
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
    """The newest token of a writer, how the delivery went, and what the client said."""

    token: int
    outcome: str = DONE
    said: str = ""


class _Gone(Exception):
    """The writer can do no more: `outcome` says what became of its transaction."""

    def __init__(self, outcome: str, said: object) -> None:
        super().__init__(str(said))
        self.outcome = outcome


def deliver(task: DeliverTask, world: World) -> DeliverReport:
    """Carry one task out.

    Raises InvalidRequest for what no repetition mends, StoreUnreachable for a broker that is away,
    DamagedState for a staged file that is not what was sealed.
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
    """The writer of a task, made anew unless this process has it from the same opening.

    A task may run in another process than the one before. The writer that is made there shuts out
    the one here, which no task of this opening must find again; the next opening makes another.
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
        """Send the batches above the token; then the token is the last one."""
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
        """One call a message: the client's call for many takes longer, and has no headers."""
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
        """Too much waits to be sent: let some of it go first."""
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
        """Note the first failure; messages that wait behind one are dropped, which says nothing."""
        if error is not None and self._failed is None and error.name() not in _DROPPED:
            self._failed = error

    def _flush(self) -> None:
        left = self._producer.flush(PATIENCE_S)
        if self._failed is not None or left:
            timeout = self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT)
            raise self._kafka.KafkaException(self._failed or timeout)

    def _commit(self) -> None:
        """Commit. A timeout may be asked again, and says nothing about the outcome."""
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
        """End the transaction, if the client still can; else the next writer with this id does."""
        with suppress(Exception):
            self._producer.purge()
            self._producer.abort_transaction(PATIENCE_S)

    def _error(self, error: Exception) -> Exception:
        """What became of a transaction that an error of the client has ended; it is aborted."""
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
        """Let the client say why messages have failed."""
        with suppress(Exception):
            self._producer.poll(0)


def read_token(cluster: Cluster, topic: str, partition: int) -> int:
    """The newest committed token in a partition of the topic of tokens; -1: there is none.

    Whoever reads has shut out all who write there; else it is only what was true once.
    """
    kafka = library()
    config = cluster.config(
        isolation_level="read_committed",
        enable_auto_commit=False,
        enable_partition_eof=True,
        fetch_wait_max_ms=10,  # its end is what is waited for
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
