"""docs/metrics.md names every figure that joinengine gives, and no other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from joinengine.driver.hot_keys import Heat, HotKey
from joinengine.driver.records import (
    BatchRecord,
    OperatorRecord,
    StateRecord,
    Worked,
    latency_s,
)
from joinengine.lab.comparison import tables
from joinengine.lab.queries import QUERIES
from joinengine.lab.queries import runs as running
from joinengine.lab.queries.named_query import Options
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement
from joinengine.reporting import progress
from joinengine.reporting.run_report import BATCH_SCHEMA, STEPS, batch_rows, run_report
from joinengine.state.partitions import Partitions
from tests.unit.metrics import PAGE, named, same

#: What `running.run` adds.
RUN = ("valid", "made_by", "slowest_instance_s", "busiest_s", "cores", "hot_key", "story")


@pytest.fixture
def record():
    seconds = dict.fromkeys(("elapsed_s", *STEPS), 1.0)
    work = Worked(received=[1, 2], stored=[1, 2], busy_s=[0.1, 0.2])
    operator = OperatorRecord(2, work=work, state=StateRecord(held=[1, 2]))
    return BatchRecord(0, 0.0, seconds, joins=[operator], input_rows=3)


def test_the_columns_of_metrics(record):
    same(named("Metrics of a batch"), BATCH_SCHEMA.names)
    same(BATCH_SCHEMA.names, batch_rows(record))


def test_the_keys_of_the_report(record):
    report = run_report([record])
    head = running._head(QUERIES["eq5"], Options())
    assert head["zipf"] == 0.8
    assert running._head(QUERIES["nexmark-q3"], Options())["zipf"] is None
    same(named("Report"), {*report, *head, *RUN})
    same(named("Figures of an operator"), report["joins"][0])


def test_a_batch_in_which_nothing_arrives_counts_for_what_its_tasks_do(record):
    late = Worked([0, 0], busy_s=[0.0, 0.5], compared=[0, 4], made=[0, 3])
    record.joins[0].work.made = [5, 0]
    record.joins[0].work.compared = [6, 0]
    quiet = replace(record, batch=1, joins=[OperatorRecord(2, work=late)])
    (told,) = run_report([record, quiet])["joins"]
    assert told["results_per_instance"] == [5, 3]
    assert told["candidates_per_instance"] == [6, 4]
    assert told["busy_s_per_instance"] == [0.1, 0.7]
    assert told["stored_per_instance"] == [1, 2]
    assert told["load_skew"]["busy"]["run"] == pytest.approx(4 / 3)


def test_the_latency_of_a_run_is_that_of_all_its_results(record):
    slow = replace(record, batch=1, left_at=[(5.0, 2), (3.0, 1)])
    quick = replace(record, left_at=[(1.0, 97)])
    assert run_report([record])["latency_s"] == {"p50": None, "p99": None}
    told = run_report([slow, quick])
    assert told["latency_s"] == {"p50": 1.0, "p99": 5.0}, "by results, not by batches"
    assert [batch["latency_s"]["p50"] for batch in told["batches"]] == [5.0, 1.0]
    assert latency_s([slow, quick], 0.98) == 3.0


def test_the_titles_of_the_table():
    run = tables.summary_table([])
    titles = {column.header for column in run.columns} | {"slowest s", "run s"}
    same(named("Table of the command line", ticked=False), titles)


def test_the_fields_of_progress(record):
    outline = progress.outline({"id": "a", "runId": "b", "name": None}, record)
    told = progress.filled(outline, record, None, ["joinengine join 0"])
    changed = [name for name, value in told.items() if value != outline.get(name)]
    # Two are filled in part, and one is filled if it is known.
    parts = {"sink": "sink.numOutputRows", "observedMetrics": 'observedMetrics["joinengine"]'}
    filled = {parts.get(name, name) for name in [*changed, "sink", "eventTime", "sources"]}
    same(named("Progress"), filled)
    (state,) = told["stateOperators"]
    same(named("Progress", 1), state)
    text = PAGE.read_text()
    same(progress.CUSTOM, state["customMetrics"])
    assert all(
        f"`{name}`" in text.split("| `customMetrics` |")[1].split("\n")[0]
        for name in progress.CUSTOM
    )
    assert "latency_s_p50" in told["observedMetrics"]["joinengine"]


def test_a_watermark_is_told_once_all_operators_with_a_window_have_one(record):
    record.joins = [
        OperatorRecord(2, watermark=9e6, timed=True),
        OperatorRecord(2),
        OperatorRecord(2, watermark=math.inf, timed=True),
    ]
    assert "watermark 1970-01-01T00:00:09.000Z" in progress.batch_line(record)
    record.joins[2].watermark = -math.inf
    assert "watermark" not in progress.batch_line(record)


def test_a_batch_names_its_busiest_instance(record):
    record.joins[0].layout = "mnrt"
    row = batch_rows(record)
    assert row["load_skew"] == pytest.approx(4 / 3)
    assert (row["busiest_instance"], row["busiest_s"], row["layouts"]) == (1, 0.2, ["mnrt"])
    assert row["busiest_share"] == pytest.approx(2 / 3)
    busiest = "instance 1 received 67% of the rows and was busy for 0.20 s"
    assert f"layout mnrt, load skew 1.33 ({busiest})" in progress.batch_line(record)
    record.joins.append(OperatorRecord(2, work=Worked([0, 9], busy_s=[0.0, 0.5])))
    assert batch_rows(record)["busiest_s"] == 0.5  # of the operator that received most
    record.joins = [OperatorRecord(2, work=Worked([0, 0]))]
    assert batch_rows(record)["load_skew"] is None
    assert "busiest" not in progress.batch_line(record)


@pytest.mark.parametrize(
    ("behind", "read", "seconds"),
    [
        ({0: 0, 1: 0}, {}, 0.0),
        ({0: 5, 1: 7}, {0: 190.0, 1: 180.0}, 20.0),
        ({0: 5, 1: 0}, {1: 180.0}, None),
        ({0: 5, 1: 7}, {1: 180.0}, 20.0),
    ],
)
def test_how_old_the_oldest_message_is_say_partitions_of_which_it_is_known(behind, read, seconds):
    told = Partitions(10.0, {0: (9e6, 1.0), 1: (9e6, 1.0)}, behind, read)
    assert BatchRecord(0, 200.0, partitions={0: told}).behind_s == seconds


def test_a_line_of_progress_names_the_hottest_split_keys(record):
    halves = Fragment(0, 0, U_ONE // 2), Fragment(1, U_ONE // 2, U_ONE)
    split, whole = Placement(Mode.SPLIT, halves), Placement.whole(1)

    def hot(hash_, text, placement, rows=9.0):
        return HotKey(hash_, text, rows, 0.1, placement, listed=True, saved_rows=None)

    (join,) = record.joins
    assert "split" not in progress.batch_line(record)
    join.split_keys = 1
    assert ", 1 split key, layout" in progress.batch_line(record)
    join.heat = Heat((hot(5, "moved", whole), hot(7, "a", split), hot(8, None, None)))
    assert ", 1 split key (a), layout" in progress.batch_line(record)
    join.split_keys = 5
    keys = (hot(7, "a", split, 1.0), *(hot(n, None, split, float(n)) for n in (16, 17)))
    join.heat = Heat(keys)
    told = "5 split keys (#0000000011, #0000000010, a, ..)"
    assert told in progress.batch_line(record)
    join.heat = Heat((*keys, hot(3, "cold", split, 0.5)))
    assert told in progress.batch_line(record)
