"""Attempts of tasks without Spark; instructions and reports pass the codec, as under Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from joinengine.exchange.exchange import Exchange, ThroughShuffle
from joinengine.exchange.packets import ShuffleExchange, forwarded, sender
from joinengine.exchange.route import RoutePlan, RouteTask
from joinengine.operators.base import Operator, OperatorTask, carry_out
from joinengine.state.run import RunStores
from joinengine.wire.codec import decode
from joinengine.wire.reports import OperatorReport, RouteReport
from joinengine.world.world import World

#: What one route task sees: tuples of a source, or the progress of its event time.
Seen = Sequence[tuple[int, pa.RecordBatch | float]]
#: Operator and task -> the packets that a shuffle has for it.
Mail = MutableMapping[tuple[int, int], list[bytes]]


def routed(
    instructions: bytes, partition: int, seen: Seen, world: World, *, sorts: bool = False
) -> tuple[RouteReport, Exchange]:
    """The report of a route task, and its exchange. `instructions` are encoded.

    `sorts`: its input may come in any order.
    """
    plan = decode(instructions, RoutePlan)
    exchange = sender(plan.exchange, world)
    task = RouteTask(plan, partition, exchange, world, sorts=sorts)
    for source, batch in seen:
        if isinstance(batch, float):
            task.report.progress[source] = batch
        else:
            for _ in task.add(source, [batch]):
                pass
    return task.close(), exchange


def carried_out(
    operator: Operator,
    instructions: bytes,
    packets: Iterable[bytes],
    whole: bool,
    stores: RunStores,
    world: World,
) -> tuple[OperatorReport, Exchange]:
    """The report of an operator's task, and its exchange. `instructions` are encoded.

    `packets`: what has arrived through a shuffle; `whole`: all of it has, since no instance is
    lost. `stores`: the run stores of its process.
    """
    task = decode(instructions, OperatorTask)
    header = task.header
    exchange: Exchange = sender(header.exchange, world)
    if isinstance(header.exchange, ThroughShuffle):
        shuffle = exchange = ShuffleExchange(header.exchange.tasks, packets)
        if whole:
            shuffle.check([side.rows for side in task.arriving])
        task = replace(task, received=shuffle.blocks(len(operator.schemas)))
    runs = header.runs
    store = stores.store_of(runs.folder, header.operator, header.driver, runs.storage)
    return carry_out(operator, task, store, exchange, world), exchange


def sent_by(attempts: Sequence[Exchange], rng: random.Random, mail: Mail) -> None:
    """Give each receiver the packets of one attempt, chosen at random for each receiver."""
    shuffles = [attempt for attempt in attempts if isinstance(attempt, ShuffleExchange)]
    if not shuffles:
        return
    sent = [list(exchange.sent()) for exchange in shuffles]
    assert all(packets == sent[0] for packets in sent), "another attempt has sent something else"
    for to in sorted({(packet.operator, packet.task) for packet in sent[0]}):
        chosen = rng.choice(sent)
        mail[to] += [packet.content for packet in chosen if (packet.operator, packet.task) == to]


def arrived(
    operator: Operator, tasks: Sequence[OperatorTask], rng: random.Random, mail: Mail
) -> tuple[list[list[bytes]], bool]:
    """Per task its packets, in no particular order, and whether they are whole."""
    if not isinstance(tasks[0].header.exchange, ThroughShuffle):
        return [[] for _ in tasks], True
    own = [mail[operator.index, task.header.task] for task in tasks]
    lost = {instance for task in tasks for instance in task.stored.lost}
    if lost:
        own, before = [[] for _ in own], own
        for content in chain.from_iterable(before):
            for packet in forwarded(content, lost, len(tasks)):
                own[packet.task].append(packet.content)
    return [rng.sample(packets, len(packets)) for packets in own], not lost
