"""What instances did in a batch, summed over the reports of tasks."""

from __future__ import annotations

import numpy as np

from joinengine.wire.reports import InstanceReport, OperatorReport, work_of

ONE = InstanceReport([1, 2], [3, 4], [5, 6], 7, 8, 9, 10, 11)
OTHER = InstanceReport([10, 20], [30, 40], [50, 60], 70, 80, 90, 100, 110)


def test_each_figure_is_at_its_instance():
    work = work_of([OperatorReport(0, {2: ONE}), OperatorReport(1, {0: OTHER})], 3)
    assert work.received.tolist() == [[10, 0, 1], [20, 0, 2]]
    assert work.stored.tolist() == [[30, 0, 3], [40, 0, 4]]
    assert work.backed.tolist() == [[50, 0, 5], [60, 0, 6]]
    assert work.probe_copies.tolist() == [70, 0, 7]
    assert work.unbacked.tolist() == [80, 0, 8]
    assert work.probed.tolist() == [90, 0, 9]
    assert work.candidates.tolist() == [100, 0, 10]
    assert work.results.tolist() == [110, 0, 11]


def test_what_only_watches_is_left_out_and_tasks_add_up():
    reports = [OperatorReport(0, {0: ONE, 3: OTHER}), OperatorReport(1, {0: OTHER})]
    assert work_of(reports, 2).received.tolist() == [[11, 0], [22, 0]]


def test_a_batch_without_reports_did_nothing():
    work = work_of([], 4)
    assert work.stored.shape == (2, 4)
    assert not np.concatenate([one.ravel() for one in work]).any()
