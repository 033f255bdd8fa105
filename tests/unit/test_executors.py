"""What executors are asked before a query starts; a double takes the part of their machines."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from joinengine.model.errors import InvalidRequest
from joinengine.spark.session import executors
from joinengine.spark.session.executors import check_executors
from tests.objects import environment


class Executors:
    """A session whose tasks run in this process, each as if on a machine of its own.

    `blind`: host -> the folder that is not there for it; `trace`: of a job that fails;
    `captured`: PySpark has made an error of its own of it.
    """

    def __init__(self, blind=None, *, master="spark://host:7077", trace=None, captured=False):
        self.captured = captured
        self.blind, self.trace = blind or {"one": "-"}, trace
        self.sparkContext = self
        self.master, self.defaultParallelism = master, len(self.blind)
        self.looked_for = None

    def parallelize(self, numbers, n_tasks):
        assert len(numbers) == n_tasks == len(self.blind)
        return SimpleNamespace(mapPartitions=self._job)

    def _job(self, look):
        self.looked_for = look.paths
        return SimpleNamespace(collect=lambda: self._collect(look))

    def _collect(self, look):
        if self.trace is not None:
            if self.captured:
                raise PySparkException(self.trace)
            failed = Py4JJavaError.__new__(Py4JJavaError)
            failed.java_exception = self.trace
            raise failed
        there = os.path.lexists
        answers = []
        for host, folder in self.blind.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(executors.socket, "gethostname", lambda host=host: host)
                patch.setattr(
                    executors.os.path,
                    "lexists",
                    lambda path, folder=folder: there(path) and not path.startswith(folder),
                )
                answers += look(iter([0]))
        return answers


@pytest.fixture
def places(tmp_path):
    """A checkpoint that is not made yet, an output and an input; nothing stays in them."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    yield tmp_path
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "out"]


def check(spark, places):
    written = {"checkpointLocation": places / "a" / "checkpoint", "path": places / "out"}
    check_executors(spark, written, [places / "in"])


def test_folders_that_all_see_are_passed(places):
    spark = Executors({"one": "-", "two": "-"})
    check(spark, places)
    assert len(spark.looked_for) == 3


def test_the_message_names_the_folder_and_who_does_not_see_it(places):
    blind = {"good": "-"} | {f"host-{n}": str(places / "out") for n in range(5)}
    with pytest.raises(InvalidRequest) as refused:
        check(Executors(blind), places)
    assert str(refused.value) == (
        f"path: executors on host-0, host-1, host-2 and 2 more do not see {places / 'out'}; give "
        f"a folder that the driver and all executors share under this path, or a place in an "
        f"object store"
    )


def test_a_folder_that_is_still_to_be_made_is_looked_for_by_its_parent(places):
    with pytest.raises(InvalidRequest, match=r"^checkpointLocation: .* do not see .*/a/checkpoint"):
        check(Executors({"one": f"{places}/.joinengine-"}), places)


def test_an_input_is_looked_for_too(places):
    with pytest.raises(InvalidRequest, match=r"^parquet_stream: .* do not see .*/in"):
        check(Executors({"one": str(places / "in")}), places)


def test_a_local_master_is_not_asked(places):
    spark = Executors(master="local[2]")
    check(spark, places)
    assert spark.looked_for is None


def test_a_checkpoint_beside_its_state_belongs_to_the_driver(places):
    spark = Executors()
    written = {"checkpointLocation": places / "a", "stateLocation": places / "out"}
    check_executors(spark, written, [])
    (marker,) = spark.looked_for
    assert marker.startswith(str(places / "out"))


def test_stores_are_asked_and_what_they_refuse_is_told(places, objects, bucket):
    from joinengine.world import buckets  # noqa: PLC0415

    with environment(objects):
        spark = Executors()
        check_executors(spark, {"path": f"{bucket}/out"}, [f"{bucket}/in"])
        assert spark.looked_for == ()
        with pytest.raises(InvalidRequest) as refused:
            check_executors(spark, {"stateLocation": "s3://no-such-bucket/x"}, [])
    buckets.store_of.cache_clear()
    assert str(refused.value).startswith(
        "stateLocation: executors on one cannot read s3://no-such-bucket/x: bucket "
    )


def test_a_package_that_is_not_there_is_named(places, monkeypatch):
    monkeypatch.setattr(executors, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(InvalidRequest) as refused:
        check(Executors(), places)
    assert "the Python of the executors on one lacks no_such_package; install" in str(refused.value)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (
            "..\nModuleNotFoundError: No module named 'joinengine.spark'\n\tat org..",
            "the Python of the executors lacks joinengine; install joinengine on them",
        ),
        (
            "..RuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: "
            "3.10 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "Python in worker has different version: 3.10 than that in driver: 3.11; set",
        ),
    ],
)
@pytest.mark.parametrize("captured", [False, True])
def test_a_python_that_cannot_read_the_question_is_told_in_a_sentence(
    places, trace, message, captured
):
    with pytest.raises(InvalidRequest) as refused:
        check(Executors(trace=trace, captured=captured), places)
    assert str(refused.value).startswith(message)


def test_other_failures_are_not_hidden(places):
    with pytest.raises(Py4JJavaError):
        check(Executors(trace="java.io.IOException: no space left"), places)
