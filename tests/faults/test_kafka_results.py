"""Results reach a topic once, whatever is killed, asleep or away; read back by another client."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from joinengine.driver.settings import Settings
from joinengine.model.errors import CheckpointMismatch, DamagedState, InvalidRequest, TakenOver
from joinengine.results import kafka_writers
from joinengine.results.kafka_messages import Shape, Value
from joinengine.results.kafka_target import KafkaTarget, Writers, check_note, noted
from joinengine.results.kafka_writers import DeliverReport, DeliverTask, deliver, read_token
from joinengine.results.token_sinks import ShutOut, TokenSink
from joinengine.state.checkpoint import write_note
from joinengine.wire.codec import decode, encode
from joinengine.world.kafka_clients import Cluster
from joinengine.world.world import MACHINE
from tests.brokers import consume, fresh_topic
from tests.harness import Killed, LocalQuery, two_way
from tests.laws.cases import matched, skewed_batches, usable

BATCHES = [(left[:24], right[:24]) for left, right in skewed_batches(5)]
ONE = Writers()
#: What happens in a delivery, in this order; the first two once for a driver.
STEPS = ("opening", "opened", "delivering", "sent", "committed", "delivered")


class ToKafka(LocalQuery):
    """A query whose results go to a topic, as JSON; its tasks run here."""

    def __init__(self, folder, servers, topic, writers=ONE, every_s=0.0, query="q", **more):
        self.servers, self.topic, self.writers, self.every_s = servers, topic, writers, every_s
        self.id = query
        super().__init__(folder, two_way(None, 2), "hash", settings=Settings(**more))

    def _sink(self):
        broker = Cluster(self.servers)
        target = KafkaTarget(
            *(self.checkpoint, self.id, broker, Shape(Value.JSON, self.topic)),
            *(self.writers, self.carried_out),
        )
        return TokenSink(self.checkpoint, target, self.every_s)

    def carried_out(self, tasks):
        opens = tasks[0].opens
        self.jobs.step("opening" if opens else "delivering")
        reports = []
        for task in tasks:
            with stepping(self.jobs.step):
                report = deliver(decode(encode(task), DeliverTask), MACHINE)
            reports.append(decode(encode(report), DeliverReport))
        self.jobs.step("opened" if opens else "delivered")
        return reports


_COMMIT = kafka_writers._Writer._commit


@contextmanager
def stepping(step):
    """Steps around the commit of a transaction, inside a task."""

    def stepped(writer):
        step("sent")
        _COMMIT(writer)
        step("committed")

    before, kafka_writers._Writer._commit = kafka_writers._Writer._commit, stepped
    try:
        yield
    finally:
        kafka_writers._Writer._commit = before


def id_of(topic):
    return topic.replace("-", "")


def start(tmp_path, broker, topic, *args, **more):
    return ToKafka(tmp_path, broker.servers, topic, *args, query=id_of(topic), **more)


def delivered(broker, topic):
    """The results in a topic, as readers of committed transactions see them."""
    rows = [json.loads(message.value()) for message in consume(broker, topic)]
    return Counter(tuple(row[name] for name in ("lk", "lv", "rk", "rv")) for row in rows)


def truth(batches=BATCHES):
    """The columns of `matched` that are no times."""
    found = Counter()
    for row, count in matched(*usable(batches, None), None).items():
        found[row[0], row[1], row[3], row[4]] += count
    assert found
    return found


def go_on(query, most=5):
    first = max(query.runner.manifest.batch, 0)
    for number in range(first, min(first + most, len(BATCHES))):
        query.run_tuples(number, *BATCHES[number])


def dies_at(name, batch, seen):
    """A step that kills once, from the delivery of a batch on."""

    def step(at, query):
        if at == name and query.runner.manifest.batch >= batch and not seen:
            seen.append(at)
            raise Killed

    return step


@pytest.mark.parametrize("every_s", [0.0, 3600.0])
@pytest.mark.parametrize("count", [1, 2])
def test_a_driver_is_killed_at_every_step(tmp_path, broker, count, every_s):
    topic = fresh_topic(broker, partitions=2)
    query = start(tmp_path, broker, topic, Writers(count), every_s)
    go_on(query, 1)
    for batch, name in enumerate(STEPS[2:], start=1):
        seen = []
        step = dies_at(name, batch, seen)
        query.jobs.step = partial(step, query=query)
        with pytest.raises(Killed):
            query.run_tuples(batch, *BATCHES[batch])
            query.runner.finish()  # what was gathered
        for again in STEPS[:2]:  # and who takes over dies, too
            dead = []
            query.jobs.step = partial(kill_at, name=again, dead=dead)
            with pytest.raises(Killed):
                query.restart()
        query.jobs.step = lambda at: None
        query.restart()
        assert seen
    query.runner.finish()
    assert delivered(broker, topic) == truth()


def kill_at(at, name, dead):
    if at == name and not dead:
        dead.append(at)
        raise Killed


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("where", STEPS)
def test_a_driver_sleeps_and_another_takes_over(tmp_path, broker, where, count):
    """The older driver wakes up when the newer one has delivered all of it, or nothing yet."""
    topic, asleep = fresh_topic(broker), []
    after = 0 if where in STEPS[:2] else 1
    first = start(tmp_path, broker, topic, Writers(count))

    def step(name):
        if name == where and not asleep and first.runner.manifest.batch >= after:
            asleep.append(start(tmp_path, broker, topic, Writers(count)))
            go_on(asleep[0], 2)

    if after:
        go_on(first, after)
    first.jobs.step = step
    with suppress(TakenOver):
        go_on(first)
    assert asleep
    go_on(asleep[0])
    assert delivered(broker, topic) == truth()


def outage(broker, seconds):
    """Take a broker away, and bring it back."""

    def away():
        broker.stop()
        time.sleep(seconds)
        broker.start()

    thread = threading.Thread(target=away)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, 20])
def test_a_broker_that_comes_back_has_each_result_once(tmp_path, broker, seconds):
    topic, threads = fresh_topic(broker), []
    query = start(tmp_path, broker, topic)

    def step(name):
        if name == "sent" and query.runner.manifest.batch == 2 and not threads:
            threads.append(outage(broker, seconds))
            time.sleep(1)

    query.jobs.step = step
    try:
        go_on(query)
    finally:
        threads[0].join()
    assert delivered(broker, topic) == truth()


PROGRAM = """
import os, signal, sys
from tests.faults.test_kafka_results import ToKafka, go_on, id_of
folder, servers, topic = sys.argv[1:]
query = ToKafka(folder, servers, topic, query=id_of(topic))
def step(name):
    if name in ("sent", "committed") and query.runner.manifest.batch == 2:
        print(name, flush=True)
        if name == sys.stdin.readline().strip():
            os.kill(os.getpid(), signal.SIGKILL)
query.jobs.step = step
go_on(query)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sent", "committed"])
def test_a_process_is_killed(tmp_path, broker, where):
    topic = fresh_topic(broker)
    told = [sys.executable, "-c", PROGRAM, str(tmp_path), broker.servers, topic]
    done = subprocess.run(
        told, input=f"{where}\n" * 2, text=True, check=False, capture_output=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    query = start(tmp_path, broker, topic)
    go_on(query)
    assert delivered(broker, topic) == truth()


def test_another_program_with_the_same_id_is_named(tmp_path, broker):
    """A copy of the checkpoint runs elsewhere, and shuts this one out each time."""
    topic = fresh_topic(broker)
    query = start(tmp_path, broker, topic)
    go_on(query, 1)

    def step(name):
        if name == "sent":
            config = {"bootstrap.servers": broker.servers, "log_level": 0}
            other = kafka_writers.library().Producer(
                {**config, "transactional.id": f"{id_of(topic)}-0"}
            )
            other.init_transactions(30)

    query.jobs.step = step
    with pytest.raises(ShutOut, match=r"refuses transactional id .*: another program uses it"):
        query.run_tuples(1, *BATCHES[1])
    query.jobs.step = lambda name: None
    query.restart()
    go_on(query)
    assert delivered(broker, topic) == truth()


@pytest.mark.parametrize("ways", ["ABAABBAAB", "ABABABABA", "BAABBBABA"])
def test_tasks_may_run_in_another_process_each_time(tmp_path, broker, monkeypatch, ways):
    """A process may hold a writer that one in the other has shut out since."""
    topic, way = fresh_topic(broker), iter(ways)
    query = start(tmp_path, broker, topic)
    held = {name: kafka_writers.OrderedDict() for name in "AB"}

    def step(name):
        if name in ("opening", "delivering"):
            monkeypatch.setattr(kafka_writers, "_writers", held[next(way, "A")])

    query.jobs.step = step
    go_on(query)
    assert next(way, None) is None
    assert delivered(broker, topic) == truth()


def test_a_transaction_that_takes_too_long_is_done_again_or_named(tmp_path, broker):
    topic = fresh_topic(broker)
    task = DeliverTask(
        Cluster(broker.servers, {"transaction.timeout.ms": "99999999"}),
        *("late-0", 0, "tokens", (1, 1), True, Shape(Value.JSON, topic), str(tmp_path)),
    )
    with pytest.raises(InvalidRequest, match="allows no transaction as long as"):
        deliver(task, MACHINE)


def test_a_message_that_is_too_large_is_named_and_nothing_of_its_batch_is_seen(tmp_path, broker):
    topic = fresh_topic(broker, max_message_bytes=100)
    query = start(tmp_path, broker, topic)
    with pytest.raises(InvalidRequest, match="takes no message as large as one of the results"):
        go_on(query)
    assert not consume(broker, topic)
    broker_allows(broker, topic, 1_000_000)
    query.restart()
    go_on(query)
    assert delivered(broker, topic) == truth()


def broker_allows(broker, topic, most):
    """Raise the limit of a topic."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # noqa: PLC0415

    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topic, incremental_configs=[entry])
    for one in broker.admin.incremental_alter_configs([resource]).values():
        one.result(30)


def test_a_guarantee_that_becomes_exact_repeats_nothing(tmp_path, broker):
    topic = fresh_topic(broker)
    query = start(tmp_path, broker, topic, Writers(1, exactly_once=False))
    for number in range(2):
        query.run_tuples(number, *BATCHES[number])
    query.writers = ONE
    query.restart()
    assert delivered(broker, topic) == truth(BATCHES[:2])
    go_on(query)
    assert delivered(broker, topic) == truth()


def test_a_guarantee_that_becomes_exact_again_repeats_nothing(tmp_path, broker):
    """Its token is then that of a batch long before."""
    topic = fresh_topic(broker)
    query = start(tmp_path, broker, topic, ONE)
    query.run_tuples(0, *BATCHES[0])
    query.writers = Writers(1, exactly_once=False)
    query.restart()
    query.run_tuples(1, *BATCHES[1])
    before = delivered(broker, topic)
    assert before.keys() == truth(BATCHES[:2]).keys()
    query.writers = ONE
    query.restart()
    assert delivered(broker, topic) == before


def test_at_least_once_needs_no_transaction_and_may_repeat(tmp_path, broker):
    topic, seen = fresh_topic(broker), []
    query = start(tmp_path, broker, topic, Writers(1, exactly_once=False))
    query.jobs.step = partial(dies_at("delivered", 1, seen), query=query)
    with pytest.raises(Killed):
        go_on(query)
    query.jobs.step = lambda at: None
    query.restart()
    go_on(query)
    found = delivered(broker, topic)
    assert found > truth()  # batch 1 came twice
    assert found.keys() == truth().keys()
    query.restart()
    assert delivered(broker, topic) == found, "after a clean end nothing comes twice"
    assert f"joinengine-{id_of(topic)}-tokens" not in broker.admin.list_topics(timeout=30).topics


@pytest.mark.parametrize("writers", [ONE, Writers(1, exactly_once=False)])
def test_results_that_wait_for_the_sink_before_are_refused(tmp_path, broker, writers):
    query = start(tmp_path, broker, fresh_topic(broker), writers)
    query._sink = partial(LocalQuery._sink, query)  # of Parquet
    query.restart()
    query.run_tuples(0, *BATCHES[0])
    del query._sink
    with pytest.raises(CheckpointMismatch, match="staged for the sink that the checkpoint had"):
        query.restart()


def test_what_a_checkpoint_has_delivered_to_is_kept(tmp_path, broker):
    topic = fresh_topic(broker)
    query = start(tmp_path, broker, topic, Writers(2))
    go_on(query, 2)
    there, here, name = query.checkpoint, Cluster(broker.servers), id_of(topic)
    tokens = f"joinengine-{name}-tokens"
    assert [read_token(here, tokens, n) for n in range(2)] == [1, 1]
    assert check_note(there, name, here, topic, None) == check_note(there, name, here, topic, 2)
    with pytest.raises(CheckpointMismatch, match="delivers with 2, and 3 are asked for"):
        check_note(there, name, here, topic, 3)
    with pytest.raises(CheckpointMismatch, match="and 'other' is asked for"):
        check_note(there, name, here, "other", None)
    about = {**noted(there)}
    write_note(there, "kafka.json", {**about, "cluster": "other"})
    with pytest.raises(CheckpointMismatch, match="belong to another one"):
        check_note(there, name, here, topic, None)
    there.storage.put("kafka.json", b'{"clus')
    with pytest.raises(DamagedState, match=r"kafka.json, which names the topic of the results, is"):
        check_note(there, name, here, topic, None)
    write_note(there, "kafka.json", about)
    broker.admin.delete_topics([tokens])[tokens].result(30)
    time.sleep(0.5)
    with pytest.raises(DamagedState, match="which says what was delivered, is gone"):
        check_note(there, name, here, topic, None)


def test_a_copy_of_before_the_first_delivery_is_refused(tmp_path, broker):
    topic = fresh_topic(broker)
    go_on(start(tmp_path, broker, topic), 2)
    for part in ("kafka.json", "manifest", "boundary"):
        subprocess.run(["rm", "-r", tmp_path / "joinengine" / part], check=True)
    with pytest.raises(DamagedState, match="holds results of this query up to batch 1, and the ne"):
        go_on(start(tmp_path, broker, topic), 2)
