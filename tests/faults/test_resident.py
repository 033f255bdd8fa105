"""Tasks that stay on executors of their own: what is done to them, and what comes of it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def seen(reported):
    return reported("resident.py")


def test_there_is_a_task_for_each_core_and_each_knows_its_executor(seen):
    found = seen["stay"]
    # On a busy machine a job that has just ended may still seem to wait.
    assert found["by"].count("stay") >= len(found["by"]) - 1 > 1
    assert "tasks: resident: they run from batch to batch" in found["explain"]
    assert len(found["executors"]) == found["slots"] == 2
    assert all(one.startswith("executor_") for one in found["executors"])
    assert found["host"] == "127.0.0.1"
    assert found["right"]


def test_another_job_of_the_session_has_the_slots_within_a_moment(seen):
    found = seen["others"]
    assert found["waited_s"] < 5  # a quarter of a second, on a machine that is not busy
    assert found["counted"]
    assert found["by"][-1] == "jobs: other jobs of the session occupy the slots"
    assert found["right"]


@pytest.mark.parametrize("lost", ["worker", "executor"])
def test_what_is_lost_is_replaced_by_a_job_and_then_tasks_stay_again(seen, lost):
    """Of an executor: without a word from its task, which is paused."""
    found = seen[lost]
    at = found["by"].index("jobs: a resident task was lost")
    assert "stay" in found["by"][at + 1 :]
    assert found["right"]


def test_a_worker_that_is_paused_is_waited_for_and_a_stop_cuts_it_short(seen):
    found = seen["pause"]
    assert found["waits"]
    assert found["stopped_s"] < 20
    assert found["right"]


def test_query_after_query_leaves_no_process_and_no_socket(seen):
    found = seen["many"]
    assert len(set(map(tuple, found["counts"]))) == 1
    assert found["sockets"][0] == found["sockets"][1]


def test_an_address_that_executors_cannot_reach_is_told_once(seen):
    found = seen["unreached"]
    (said,) = (line for line in found["said"] if "resident" in line)
    assert "cannot reach the driver at 127.0.0.77" in said
    assert "spark.driver.host" in said
    assert said.endswith("each step runs as a job")
    assert all("cannot reach the driver" in by for by in found["by"])
    assert "tasks: each step is a Spark job, because executors cannot reach" in found["explain"]
    assert not found["holds"]
    assert found["right"]
