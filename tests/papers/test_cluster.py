"""The papers' cluster: what is emulated takes the time it should, and results stay the same."""

from __future__ import annotations

import time

import numpy as np
import pytest

from benchmarks.papers.cluster import Clock, Cluster, seconds_of
from benchmarks.papers.losses import skewed
from joinengine.driver.settings import Settings
from joinengine.lab.emulation.emulating import Emulation
from joinengine.lab.emulation.slow_operator import Work
from joinengine.lab.inline import inline_runs
from joinengine.layouts import Ftlb, Hash, Mixed
from joinengine.model.recovery import Recovery
from tests.harness import two_way

INSTANCES, WORK_S = 4, 1e-3


@pytest.fixture(scope="module")
def frames():
    return [
        [side.slice(0, side.num_rows // 20) for side in frame] for frame in skewed(0.9, 1.0, 0)[:9]
    ]


def records(frames, choice, cluster=None, losses=(), **settings):
    asked = Settings(trial=Emulation(Work(WORK_S), dict(losses)), **settings)
    cluster = cluster or Cluster(INSTANCES)
    return inline_runs.run_on(cluster, two_way(None, INSTANCES), [choice], frames, asked)


def received(found):
    return np.array([record.joins[0].work.received for record in found], float)


def test_a_batch_takes_as_long_as_its_busiest_instance(frames):
    found = records(frames, Hash())
    assert seconds_of(found) == pytest.approx((WORK_S * received(found).max(axis=1)).tolist())


def test_results_are_those_of_one_process(frames):
    found = records(frames, Mixed(intervals=1), checksum=True)
    query, settings = two_way(None, INSTANCES), Settings(checksum=True)
    usual = inline_runs.run(query, Mixed(intervals=1), frames, settings=settings)
    assert sum(one.output_rows for one in found) > 0
    assert sum(one.joins[0].moved.rows for one in found) > 0
    assert [one.checksum for one in found] == [one.checksum for one in usual]


def test_sending_takes_time_while_instances_work(frames):
    sent_s = 0.9 * WORK_S / INSTANCES  # slower than level instances, faster than the busiest here
    found = records(frames, Hash(), Cluster(INSTANCES, sent_s=sent_s))
    rows = received(found)
    expected = np.maximum(WORK_S * rows.max(axis=1), sent_s * rows.sum(axis=1))
    assert seconds_of(found) == pytest.approx(expected.tolist())
    slow = records(frames, Hash(), Cluster(INSTANCES, sent_s=WORK_S))
    assert seconds_of(slow) == pytest.approx((WORK_S * rows.sum(axis=1)).tolist())


def test_backups_cost_what_they_are_told_to(frames):
    choice = Ftlb(spread=1)
    found = records(frames[:3], choice, Cluster(INSTANCES, backed_s=0.5 * WORK_S))
    joins = [record.joins[0] for record in found]
    backed = np.array([join.work.backed for join in joins], float)
    assert backed.min() > 0
    busy = WORK_S * (received(found) - backed) + 0.5 * WORK_S * backed
    assert seconds_of(found) == pytest.approx(busy.max(axis=1).tolist())


def test_moved_tuples_take_time_at_the_instances_that_get_them(frames):
    free, paid = (
        records(frames, Mixed(intervals=1), Cluster(INSTANCES, moved_s=moved_s))
        for moved_s in (0.0, 10 * WORK_S)
    )
    moved = [record.joins[0].moved.rows for record in free]
    assert any(moved)
    before, after = (np.array(seconds_of(found)) for found in (free, paid))
    # At most all come to one instance, which is the busiest without them.
    assert (after >= before - 1e-9).all()
    assert (after <= before + 10 * WORK_S * np.array(moved) + 1e-9).all()
    assert after.sum() > before.sum()


def test_a_loss_waits_for_its_time_out_and_is_sent_again(frames):
    losses = {3: (1,)}
    soon, late, resent = (
        records(
            frames[:6],
            Hash(),
            Cluster(INSTANCES, timeout_s=timeout_s, resent_s=resent_s),
            losses=losses,
            recovery=Recovery.STORE,
        )
        for timeout_s, resent_s in ((0.0, 0.0), (7.0, 0.0), (7.0, WORK_S))
    )
    held = soon[2].joins[0].state.held[1]
    assert held > 0
    more = np.subtract(seconds_of(late), seconds_of(soon))
    assert more.tolist() == pytest.approx([0, 0, 0, 7.0, 0, 0])
    again = np.subtract(seconds_of(resent), seconds_of(late))
    assert again.tolist() == pytest.approx([0, 0, 0, WORK_S * held, 0, 0])


def test_the_clock_counts_work_only_if_it_measures(monkeypatch):
    spent_s = iter(range(100))
    monkeypatch.setattr(time, "process_time", lambda: float(next(spent_s)))
    still, going = Clock(), Clock(measures=True)
    assert still.timer_s() == 0.0
    before_s = going.timer_s()
    with going.stopped():
        next(spent_s)
    assert going.timer_s() - before_s == 2  # a second for each look at it, and none inside
    still.sleep(2.5)
    assert still.timer_s() == 2.5
