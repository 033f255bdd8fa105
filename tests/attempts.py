"""Attempts of tasks without Spark; what they are told passes the codec, as it does on its way."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from joinengine.exchange.exchange import ThroughShuffle
from joinengine.exchange.packets import ShuffleExchange, forwarded, sender
from joinengine.exchange.route import RoutePlan, RouteTask
from joinengine.operators.base import OperatorTask, carry_out
from joinengine.wire.codec import decode


def routed(told, partition, tuples, world, *, sorts=False):
    """The report of a route task, and its exchange. `told`: its instructions as bytes.

    `tuples`: a list of (source, record batch or progress of event time).
    """
    plan = decode(told, RoutePlan)
    exchange = sender(plan.exchange, world)
    task = RouteTask(plan, partition, exchange, world, sorts=sorts)
    for source, batch in tuples:
        if isinstance(batch, float):
            task.report.progress[source] = batch
        else:
            for _ in task.add(source, [batch]):
                pass
    return task.close(), exchange


def carried_out(operator, told, packets, whole, stores, world):
    """The report of an operator's task, and its exchange.

    `packets`: what has arrived through a shuffle; `whole`: all of it has, since no instance is
    lost. `stores`: the run stores of its process.
    """
    task = decode(told, OperatorTask)
    header = task.header
    exchange = sender(header.exchange, world)
    if isinstance(header.exchange, ThroughShuffle):
        exchange = ShuffleExchange(header.exchange.tasks, packets)
        if whole:
            exchange.check([side.rows for side in task.arriving])
        task = replace(task, received=exchange.blocks(len(operator.schemas)))
    store = stores.store_of(
        header.runs.folder,
        header.operator,
        header.driver,
        header.runs.cache_bytes,
        is_behind=header.runs.is_behind,
    )
    return carry_out(operator, task, store, exchange, world), exchange


def sent_by(attempts, rng, mail):
    """Each receiver gets the packets of one attempt, one receiver not of the same as others."""
    if not isinstance(attempts[0], ShuffleExchange):
        return
    sent = [list(exchange.sent()) for exchange in attempts]
    assert all(one == sent[0] for one in sent), "another attempt has sent something else"
    for to in sorted({(packet.operator, packet.task) for packet in sent[0]}):
        chosen = rng.choice(sent)
        mail[to] += [one.content for one in chosen if (one.operator, one.task) == to]


def arrived(operator, tasks, rng, mail):
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
