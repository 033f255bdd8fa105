"""What is emulated: work that instances do side by side, losses, and what options ask for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from joinengine import StreamAggregate, top, windows
from joinengine.api.trials import trial_of
from joinengine.balancing.costs import PRICED, Amounts, Costs, Load
from joinengine.driver.settings import Settings
from joinengine.driver.trial import Trial
from joinengine.exchange.exchange import FileExchange, ThroughFiles
from joinengine.exchange.task_results import ResultColumns
from joinengine.lab.emulation.emulating import Emulation
from joinengine.lab.emulation.slow_operator import Work, slowed
from joinengine.lab.inline.inline_jobs import InlineJobs
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.model.recovery import Recovery
from joinengine.model.speeds import Speed
from joinengine.operators.desk import Desk, RunFolder, TaskHeader
from joinengine.results.targets import Discard
from joinengine.sources.readings import Reading
from joinengine.spark.jobs.spark_jobs import step_of
from joinengine.spark.sources.inputs import Stream
from joinengine.state.run import RunStore
from joinengine.world.memory import MemoryWorld
from tests.harness import LEFT, LocalQuery, two_way

#: Readings of the clock beside the work: a millisecond each.
READINGS_S = 0.1
(JOIN,) = two_way(None, 4).operators


class Receiving:
    """An operator whose instances receive so many tuples, and emit so many rows."""

    def __init__(self, received, results):
        self.received, self.results = received, [*results, *(0 for _ in received[len(results) :])]

    def carry_out(self, task, desk):
        for instance, ((left, right), rows) in enumerate(
            zip(self.received, self.results, strict=True)
        ):
            with desk.at(instance) as here:
                here.received[Side.LEFT], here.received[Side.RIGHT] = left, right
                desk.results.rows += rows


def worked(received, work, results=()):
    """The report of a task whose instances receive so many tuples, and the seconds it took.

    `results`: how many rows each instance emits.
    """
    world = MemoryWorld()
    header = TaskHeader(
        operator=0,
        batch=0,
        task=0,
        generation=1,
        hosted=tuple(range(len(received))),
        files={},
        watermark=0.0,
        counted=None,
        target=Discard(),
        checksum=False,
        runs=RunFolder("runs"),
        exchange=ThroughFiles("exchange"),
        driver="driver",
    )
    exchange = FileExchange(world.storage("exchange"), world)
    begin = world.timer_s()
    store = RunStore(world.storage("runs"))
    desk = Desk(header, ResultColumns(pa.schema([])), store, exchange, world, memory_bytes=1 << 20)
    slowed(Receiving(received, results), work, {}).carry_out(SimpleNamespace(facts={}), desk)
    report = desk.close()
    return report, world.timer_s() - begin


def test_instances_of_a_task_work_side_by_side():
    report, took = worked([(1, 2), (5, 0), (0, 0), (2, 2)], Work(1.0))
    busy = [one.busy_s for one in report.instances.values()]
    assert busy == pytest.approx([3, 5, 0, 4], abs=READINGS_S)
    assert took == pytest.approx(5, abs=READINGS_S)
    assert report.seconds["emulated"] == pytest.approx(5, abs=READINGS_S)


def test_nothing_is_waited_for_if_no_work_is_emulated():
    report, took = worked([(1, 2), (5, 0)], Work())
    assert took < READINGS_S
    assert "emulated" not in report.seconds


def test_work_for_results_is_beside_that_for_tuples():
    received = [(1, 2), (5, 0), (0, 0), (2, 2)]
    report, took = worked(received, Work(1.0, 2.0), results=[4, 0, 7, 1])
    busy = [one.busy_s for one in report.instances.values()]
    assert busy == pytest.approx([11, 5, 14, 6], abs=READINGS_S)
    assert took == pytest.approx(14, abs=READINGS_S)


def test_work_for_results_alone_is_waited_for():
    report, took = worked([(1, 2), (5, 0)], Work(per_result_s=2.0), results=[0, 3])
    assert took == pytest.approx(6, abs=READINGS_S)
    assert report.seconds["emulated"] == pytest.approx(6, abs=READINGS_S)


def test_planners_weigh_the_work_and_nothing_else_changes():
    slow = slowed(JOIN, Work(1.0, 2.0), {})
    assert slow.policy.further == Amounts(routed=1.0, results=2.0)
    plain, weighed = Costs().prices(), Costs().prices(slow.policy.further)
    more = {name: one for name, one in zip(PRICED, weighed - plain, strict=True) if one}
    assert more == {"routed": pytest.approx(1.0), "results": pytest.approx(2.0)}
    assert np.array_equal(Costs().prices(JOIN.policy.further), plain)
    assert (slow.kind, slow.index, slow.account()) == ("join", 0, JOIN.account())
    assert step_of(slow) == step_of(JOIN) == "join 0 on lk = rk"


def test_the_work_of_tuples_is_that_of_the_first_stage():
    plan = StreamAggregate(
        Stream(None, {"kind": "recorded", "path": "left"}, Reading(LEFT)),
        by="lk",
        aggregates={"n": "count(*)"},
        window=windows("lt", "130 us", delay="400 us"),
        top=top(1, by="n"),
        instances=4,
    )
    trial, stages = Emulation(Work(1.0, 2.0)), plan.query().operators
    further = [trial.carried(one).policy.further for one in stages]
    assert [(one.routed, one.results) for one in further] == [(1, 2), (0, 2), (0, 2)]
    idle = Emulation(Work(1.0))
    assert [idle.carried(one) is one for one in stages] == [False, True, True]


def loads_of(settings, folder):
    """What planners have seen of a batch that has hardly any work but that of its tuples."""
    query = LocalQuery(folder, two_way(None, 4), "mnrt", jobs=InlineJobs(2), settings=settings)
    query.run_tuples(0, [(n % 3, n, 0) for n in range(90)], [(n, n, 0) for n in range(4)])
    (counts,) = query.runner._counts.values()
    return counts.work


def test_work_reaches_the_loads_of_planners(tmp_path):
    """Instances that each have a machine do not wait for those of their task."""
    slow = loads_of(Settings(trial=Emulation(Work(1e-3, 2e-3))), tmp_path / "slow")
    plain = loads_of(Settings(), tmp_path / "plain")
    more = dict(zip(PRICED, slow.costs - plain.costs, strict=True))
    assert more == pytest.approx(dict.fromkeys(PRICED, 0.0) | {"routed": 1e-3, "results": 2e-3})
    assert (slow.hosts, plain.hosts) == (0, 2)
    counted = Settings(load=Load.TUPLES, trial=Emulation(Work(1e-3)))
    assert loads_of(counted, tmp_path / "counted") is None


@pytest.mark.parametrize(
    ("options", "trial"),
    [
        ({}, Trial()),
        ({"recovery": "store", "storeLocation": "/there"}, Trial()),
        ({"recovery": "store"}, Emulation(speed=Speed())),
        ({"storeRate": "1 GB/s, 1 ms"}, Emulation(speed=Speed(1e9, 1e-3))),
        ({"workPerTuple": "5 ms"}, Emulation(Work(5e-3))),
        ({"workPerResult": "20 us"}, Emulation(Work(0.0, 2e-5))),
    ],
)
def test_options_ask_for_a_trial(options, trial):
    assert trial_of(options, {}) == trial


def test_losses_ask_for_a_trial():
    trial = trial_of({}, {3: (1, 2)})
    assert trial == Emulation(losses={3: (1, 2)})
    assert trial.planned == [(3, "the loss of instance 1"), (3, "the loss of instance 2")]


def test_an_emulated_store_is_kept_though_nobody_recovers_from_it():
    kept = Settings(trial=Emulation(speed=Speed())), Settings(recovery=Recovery.STORE)
    assert all(one.keeps_store for one in kept)
    assert not Settings(trial=Emulation(Work(1.0))).keeps_store


def test_an_instance_that_is_not_there_cannot_fail(tmp_path):
    settings = Settings(recovery=Recovery.STORE, trial=Emulation(losses={2: (1, 4)}))
    with pytest.raises(InvalidRequest, match="fail: batch 2: join 0: instance 4 does not exist"):
        LocalQuery(tmp_path, two_way(None, 4), "hash", settings=settings)
