"""Plans in the log: words for people, JSON for tools."""

from __future__ import annotations

import json
import logging

import pytest

from joinengine import StreamAggregate, windows
from joinengine.model.keys import Side
from joinengine.reporting.plan_log import PlanLog, log_plans
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream
from tests.harness import LEFT, LocalQuery, rows, two_way
from tests.laws.cases import CHOICES


@pytest.fixture
def record(tmp_path):
    """A batch after which a hot key is split."""
    query = LocalQuery(tmp_path, two_way(None, 4), "mnrt", choice=CHOICES["mnrt"])
    query.run_tuples(0, [(7, i, 0) for i in range(90)], [(i, i, 0) for i in range(10)])
    return query.records[0]


def test_a_plan_is_logged_in_words(record, caplog):
    with caplog.at_level(logging.INFO, "joinengine"):
        log_plans(record, PlanLog.WORDS, "clicks")
    (line,) = caplog.messages
    assert line.startswith(
        "joinengine: batch 0, operator 0: key 7 carried 91% of the load, 91% of this batch's rows "
        "and 91% of the state, at instance "
    )
    assert caplog.records[0].plan["keys"][0]["key"] == "7"


def test_a_plan_is_logged_as_json(record, caplog):
    with caplog.at_level(logging.INFO, "joinengine"):
        log_plans(record, PlanLog.JSON, "clicks")
    (line,) = caplog.messages
    told = json.loads(line)
    assert told == caplog.records[0].plan
    assert (told["query"], told["batch"], told["operator"]) == ("clicks", 0, 0)
    assert told["replan"] is True
    assert told["words"].startswith("key 7 carried 91%")
    (key,) = (key for key in told["keys"] if key["key"] == "7")
    assert (key["share"], key["state_share"]) == (0.91, 0.91)


def test_loads_that_are_learnt_are_details(tmp_path, caplog):
    query = LocalQuery(tmp_path, two_way(None, 4), "pkg", choice=CHOICES["pkg"])
    query.run_tuples(0, [(7, 1, 0)], [])
    with caplog.at_level(logging.INFO, "joinengine"):
        log_plans(query.records[0], PlanLog.WORDS, None)
    assert caplog.messages == []
    with caplog.at_level(logging.DEBUG, "joinengine"):
        log_plans(query.records[0], PlanLog.WORDS, None)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("form", PlanLog)
def test_the_plan_of_an_aggregate_speaks_of_no_sides(form, tmp_path, caplog):
    source = Stream(None, {"kind": "recorded", "path": "left"}, Reading(LEFT))
    counts = {"aggregates": {"n": "count(*)"}, "window": windows("lt", "10 us", delay="400 us")}
    plan = StreamAggregate(source, by="lk", layout="mnrt", instances=4, **counts)
    choices = [node._choice for node in plan._flat()[0]]
    query = LocalQuery(tmp_path, plan.query(), "mnrt", choices=choices)
    with caplog.at_level(logging.INFO, "joinengine"):
        for batch in range(4):
            query.run(batch, [[(0, rows(Side.LEFT, [(7, i, batch) for i in range(200)]))]])
            log_plans(query.records[-1], form, None)
    words = " ".join(caplog.messages)
    assert "split over instances" in words
    assert "copied to each" not in words
