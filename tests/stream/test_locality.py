"""Tasks go back to the executors that have their run files."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import RDD
from pyspark.serializers import NoOpSerializer

from joinengine.spark.jobs import locality
from joinengine.spark.jobs.locality import Locality
from joinengine.world import buckets
from joinengine.world.world import MACHINE
from tests.objects import environment, make_bucket, s3_server

pytestmark = pytest.mark.spark

#: Runs a join of the arguments' bucket through each exchange, on executors of one core each.
PROGRAM = """
import json, os, sys
from joinengine import StreamJoin, parquet_stream, session

bucket, root = sys.argv[1:]
access = {f"spark__executorEnv__{name}": value
          for name, value in os.environ.items() if name.startswith("AWS_")}
# Spark starts with both, and a task may wait for its executor however slow the machine is.
spark = session(master="local-cluster[2,1,512]", spark__executor__memory="512m",
                spark__cores__max="2", spark__scheduler__minRegisteredResourcesRatio="1",
                spark__scheduler__maxRegisteredResourcesWaitingTime="300s",
                spark__locality__wait="300s", **access)
spark.sparkContext.setLogLevel("ERROR")
told = {}
for exchange in ("files", "shuffle"):
    left, right = (parquet_stream(spark, f"{bucket}/in/{side}", rows_per_interval=3000)
                   for side in ("left", "right"))
    joined = StreamJoin(left, right, on="key", layout="hash", instances=4)
    query = (joined.writeStream.format("noop").option("exchange", exchange)
             .option("checkpointLocation", f"{root}/{exchange}")
             .option("stateLocation", f"{bucket}/{exchange}").trigger(availableNow=True).start())
    query.awaitTermination()
    told[exchange] = [[row[name] for name in ("run_files", "fetched_files", "output_rows", "tasks")]
                      for row in query.metrics().to_pylist()]
json.dump(told, open(f"{root}/told.json", "w"))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    root = tmp_path_factory.mktemp("driver")
    with s3_server() as values, environment(values):
        bucket = make_bucket(values)
        for side in ("left", "right"):
            # More than is inlined.
            columns = {"key": [n * 7 % 9001 for n in range(30_000)], side: list(range(30_000))}
            with MACHINE.storage(bucket).output(f"in/{side}/first.parquet") as sink:
                pq.write_table(pa.table(columns), sink, row_group_size=3000)
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, bucket, str(root)],
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | values,
        )
    buckets.store_of.cache_clear()
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads((root / "told.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["files", "shuffle"])
def test_tasks_find_their_files_where_they_run(told, exchange):
    """But for a batch in which a task goes to an executor that was busy at first, for its share.

    Without locality a task misses its files in every other batch.
    """
    batches = told[exchange]
    assert len(batches) == 10 and sum(rows for _, _, rows, _ in batches)
    assert all(files >= 2 for files, *_ in batches[1:])
    assert sum(fetched > 0 for _, fetched, *_ in batches) <= 1


@pytest.mark.slow
def test_tasks_that_stay_are_given_the_orders_whose_files_they_have(told):
    """Nearly always: what is done before all have connected is done by whoever has."""
    by = [tasks for *_, tasks in told["files"]]
    assert by.count("stay") >= 8
    assert all("exchange 'shuffle' runs in jobs" in tasks for *_, tasks in told["shuffle"])


LOCATIONS = ("executor_here_1", None, "executor_there_2")


def preferred(context, rdd):
    found = [context._jsc.sc().getPreferredLocs(rdd, number) for number in range(3)]
    return [one.mkString(",") for one in found]


def test_partitions_have_their_locations_and_keep_what_they_hold(spark):
    context = spark.sparkContext
    located, wanted = Locality(context), ["executor_here_1", "", "executor_there_2"]
    assert preferred(context, located.located(0, LOCATIONS)._jrdd.rdd()) == wanted
    contents = [[b"a", b"bc"], [], [b"d", b""]]
    rdd = context.parallelize(range(3), 3).mapPartitionsWithIndex(lambda i, _: contents[i])
    rdd._bypass_serializer = True
    found = located.at(0, LOCATIONS, RDD(rdd._jrdd, context, NoOpSerializer()))
    assert preferred(context, found._jrdd.rdd()) == wanted
    assert found.glom().collect() == contents


def test_a_wait_is_short_while_jobs_want_it_unless_the_user_has_set_it(spark):
    conf = spark.sparkContext._jsc.sc().conf()
    name = "spark.locality.wait.process"

    def now():
        return conf.get(name, "as Spark has it")

    with locality.short_wait(spark.sparkContext, LOCATIONS):
        with locality.short_wait(spark.sparkContext, LOCATIONS):
            assert now() == "50ms"
        assert now() == "50ms"
    outer, inner = (
        locality.short_wait(spark.sparkContext, LOCATIONS, wait) for wait in ("50ms", "3s")
    )
    outer.__enter__()
    with inner:
        outer.__exit__(None, None, None)
        assert now() == "50ms"
    assert now() == "as Spark has it"
    with locality.short_wait(spark.sparkContext, None):
        assert now() == "as Spark has it"
    conf.set(name, "7s")
    try:
        with locality.short_wait(spark.sparkContext, LOCATIONS):
            assert now() == "7s"
        assert now() == "7s"
    finally:
        conf.remove(name)
