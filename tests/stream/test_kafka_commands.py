"""Topics by the command line: where a run puts its results, and both ends of a statement."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.brokers import consume, fresh_topic, produce

pytestmark = pytest.mark.spark


def test_results_of_a_run_go_to_a_topic(joinengine, broker, tmp_path):
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        pq.write_table(
            pa.table({"k": range(5), side: list("abcde")}), tmp_path / side / "0.parquet"
        )
    topic = fresh_topic(broker)
    joinengine(
        *("run", "--left", tmp_path / "left", "--right", tmp_path / "right", "--on", "k"),
        *("--instances", 2, "--sink", f"kafka:{topic}", "--servers", broker.servers),
    )
    found = [json.loads(one.value()) for one in consume(broker, topic)]
    assert sorted((one["k"], one["left"], one["right"]) for one in found) == [
        (k, letter, letter) for k, letter in enumerate("abcde")
    ]


def test_a_statement_joins_topics_into_a_topic(joinengine, broker, tmp_path):
    names = fresh_topic(broker, 2), fresh_topic(broker)
    produce(broker, names[0], [json.dumps({"k": n % 5, "a": n}) for n in range(20)])
    (tmp_path / "q.sql").write_text("select l.a as one, r.a as two from l join l r on l.k = r.k")
    joinengine(
        *("sql", tmp_path / "q.sql", "--servers", broker.servers, "--instances", 2),
        *("--source", f"l=kafka:{names[0]}", "--columns", "l=k int, a int"),
        *("--sink", f"kafka:{names[1]}", "--checkpoint", tmp_path / "state"),
    )
    found = {tuple(json.loads(one.value()).values()) for one in consume(broker, names[1])}
    assert found == {(a, b) for a in range(20) for b in range(20) if a % 5 == b % 5}
