"""Emulated work: each instance has its own, and the instances of a task do it side by side."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine.exchange.exchange import FileExchange, ThroughFiles
from joinengine.exchange.results import Discard
from joinengine.model.keys import Side
from joinengine.operators.desk import Desk, TaskHeader
from joinengine.state.run import RunStore
from tests.worlds import MemoryWorld

#: Readings of the clock beside the work: a millisecond each.
READINGS_S = 0.1


def worked(received, work_s):
    """The report of a task whose instances receive so many tuples, and the seconds it took."""
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
        runs_folder="runs",
        exchange=ThroughFiles("exchange"),
        driver="driver",
        work_s=work_s,
    )
    exchange = FileExchange(world.storage("exchange"), world)
    begin = world.timer_s()
    desk = Desk(header, pa.schema([]), RunStore(world.storage("runs")), exchange, world)
    for instance, (left, right) in enumerate(received):
        with desk.at(instance) as here:
            here.received[Side.LEFT], here.received[Side.RIGHT] = left, right
    report = desk.close()
    return report, world.timer_s() - begin


def test_instances_of_a_task_work_side_by_side():
    report, took = worked([(1, 2), (5, 0), (0, 0), (2, 2)], work_s=1.0)
    busy = [one.busy_s for one in report.instances.values()]
    assert busy == pytest.approx([3, 5, 0, 4], abs=READINGS_S)
    assert took == pytest.approx(5, abs=READINGS_S)
    assert report.seconds["emulated"] == pytest.approx(5, abs=READINGS_S)


def test_nothing_is_waited_for_if_no_work_is_emulated():
    report, took = worked([(1, 2), (5, 0)], work_s=0.0)
    assert took < READINGS_S
    assert "emulated" not in report.seconds
