"""`/metrics` of a query that runs in Spark, as Prometheus asks for it."""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from joinengine import StreamJoin, parquet_stream

pytestmark = pytest.mark.spark
TOKEN = "0123456789abcdef0123"


def run(spark, root):
    """A start of the query over all files that are there, with a page; its handle."""
    left, right = (parquet_stream(spark, root / side) for side in ("left", "right"))
    writer = StreamJoin(left, right, on="key", instances=2).writeStream.format("noop")
    query = (
        writer.queryName("scraped")
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def scrape(live, token=TOKEN):
    where = urlsplit(live.url)
    request = urllib.request.Request(f"{where.scheme}://{where.netloc}/metrics")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        said = answer.read().decode()
    samples = [sample for family in parse(said) for sample in family.samples]
    assert {sample.labels["query"] for sample in samples} == {"scraped"}
    return {sample.name: sample.value for sample in samples}


def test_counters_go_on_over_a_restart(spark, tmp_path):
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
    found = []
    for start, rows in enumerate((100, 30)):
        for side in ("left", "right"):
            keys = range(1000 * start, 1000 * start + rows)
            pq.write_table(pa.table({"key": keys}), tmp_path / side / f"{start}.parquet")
        query = run(spark, tmp_path)
        live = query.live(token=TOKEN)
        for wrong in (None, "f" * len(TOKEN)):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                scrape(live, wrong)
        found.append(scrape(live))
        live.close()
    assert [one["joinengine_up"] for one in found] == [0, 0]  # it has read all there was
    assert [one["joinengine_input_rows_total"] for one in found] == [200, 260]
    assert [one["joinengine_output_rows_total"] for one in found] == [100, 130]
    assert [one["joinengine_state_rows"] for one in found] == [200, 260]
    assert found[1]["joinengine_batches_total"] > found[0]["joinengine_batches_total"] > 0
