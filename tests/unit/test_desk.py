"""A task's desk: emulated work, which instances do side by side, and the results of all."""

from __future__ import annotations

import pyarrow as pa
import pytest

from joinengine.exchange.exchange import FileExchange, ThroughFiles
from joinengine.exchange.task_results import Results
from joinengine.kernels.hashing import multiset_checksum
from joinengine.model.keys import Side
from joinengine.operators.desk import Desk, Emulation, RunFolder, TaskHeader
from joinengine.results.targets import Discard
from joinengine.state.run import RunStore
from joinengine.wire.reports import OperatorReport
from joinengine.world.memory import MemoryWorld

#: Readings of the clock beside the work: a millisecond each.
READINGS_S = 0.1


def worked(received, work_s, results=(), result_work_s=0.0):
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
        emulation=Emulation(work_s, result_work_s),
    )
    exchange = FileExchange(world.storage("exchange"), world)
    begin = world.timer_s()
    store = RunStore(world.storage("runs"))
    desk = Desk(header, pa.schema([]), store, exchange, world, memory_bytes=1 << 20)
    made = [*results, *(0 for _ in received[len(results) :])]
    for instance, ((left, right), rows) in enumerate(zip(received, made, strict=True)):
        with desk.at(instance) as here:
            here.received[Side.LEFT], here.received[Side.RIGHT] = left, right
            desk.results.rows += rows
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


def test_work_for_results_is_beside_that_for_tuples():
    received = [(1, 2), (5, 0), (0, 0), (2, 2)]
    report, took = worked(received, work_s=1.0, results=[4, 0, 7, 1], result_work_s=2.0)
    busy = [one.busy_s for one in report.instances.values()]
    assert busy == pytest.approx([11, 5, 14, 6], abs=READINGS_S)
    assert took == pytest.approx(14, abs=READINGS_S)


def test_work_for_results_alone_is_waited_for():
    report, took = worked([(1, 2), (5, 0)], work_s=0.0, results=[0, 3], result_work_s=2.0)
    assert took == pytest.approx(6, abs=READINGS_S)
    assert report.seconds["emulated"] == pytest.approx(6, abs=READINGS_S)


@pytest.mark.parametrize("most_bytes", [1, 40, 1 << 20], ids=["each", "some", "all"])
def test_the_checksum_is_of_all_results_however_they_come(most_bytes):
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    pieces = [[pa.array([1, 2]), pa.array(["a", None])], [pa.array([3]), pa.array(["ccc"])]] * 2
    given = {"checksum": multiset_checksum, "most_bytes": most_bytes}
    results = Results(Discard(), schema, None, MemoryWorld(), **given)
    for piece in pieces:
        results.add(piece)
    report = OperatorReport(0)
    results.close(report)
    whole = [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)]
    assert (report.result_checksum, report.result_rows) == (multiset_checksum(whole), 6)
