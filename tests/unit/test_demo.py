"""`make demo`, without its runs: what it says of its files."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import timedelta
from functools import reduce
from subprocess import CompletedProcess

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from benchmarks.demo import __main__ as demo
from benchmarks.demo import peers, stream
from joinengine.kernels.hashing import multiset_checksum
from joinengine.reporting.run_report import checksum_text
from tests.unit.stories import report


def test_each_file_is_told_once(tmp_path, monkeypatch):
    """`joinengine compare` tells its picture and its page; the demo drew over that picture."""
    asked = list[str]()

    def compare(command, **kwargs):
        asked.extend(command)
        runs = [
            report(3, 8, layout=layout)
            | {"valid": True, "elapsed_s": 1.0, "output_rows": 5, "busy_s_per_instance": [1.0] * 8}
            for layout in demo.LAYOUTS
        ]
        (tmp_path / "demo.json").write_text(json.dumps({"runs": runs}))
        return CompletedProcess(command, 0)

    monkeypatch.setattr(demo.subprocess, "run", compare)
    monkeypatch.setattr(demo, "record", lambda folder: None)
    told = {"files": demo.SPARK_FILES, "seconds": 9.0, "results": 1}
    monkeypatch.setattr(demo, "_peer", lambda name, folder: told | {"name": demo._PEERS[name]})
    monkeypatch.setattr(demo, "_check_answers", lambda reports, folder: None)
    done = CliRunner().invoke(demo.main, ["--out", str(tmp_path)])
    assert done.exception is None
    picture = asked[asked.index("--figure") + 1]
    assert picture != str(tmp_path / "demo.png")
    assert (tmp_path / "demo.png").exists()
    files = [line for line in done.output.splitlines() if str(tmp_path) in line]
    assert files == [f"picture of all of them: {tmp_path / 'demo.png'}"]


def test_the_first_query_of_a_jvm_is_not_counted(monkeypatch, capsys):
    asked = []

    def join(folder, files, way):
        asked.append((files, way))
        return {"seconds": 9.0 / len(asked), "results": files}

    monkeypatch.setattr(peers, "spark_join", join)
    monkeypatch.setattr(peers.sys, "argv", ["peers", "salted", "out", "4"])
    monkeypatch.setattr(peers.os, "_exit", lambda code: None)
    peers.main()
    assert asked == [(1, "salted"), (4, "salted")]
    assert json.loads(capsys.readouterr().out) == {"seconds": 4.5, "results": 4}


@pytest.mark.parametrize("lost", [0, 1])
def test_results_are_compared_with_what_the_condition_says(lost, tmp_path, monkeypatch):
    """A small stream of the same kind; DuckDB answers it in cells, and Arrow here by all pairs."""
    monkeypatch.setattr(stream, "FILES", 3)
    monkeypatch.setattr(stream, "FILE_ROWS", {"views": 300, "purchases": 60})
    monkeypatch.setattr(stream, "WINDOW_S", 20)
    monkeypatch.setattr(stream, "NEAR", 0.05)
    monkeypatch.setattr(stream, "PRICES", "abs(v_price - p_price) < 0.05")
    stream.record(tmp_path)
    views, purchases = (ds.dataset(tmp_path / name).to_table() for name in stream.FILE_ROWS)
    pairs = views.append_column("all", pa.array([0] * len(views))).join(
        purchases.append_column("all", pa.array([0] * len(purchases))), "all", join_type="inner"
    )
    near = pc.less(pc.abs(pc.subtract(pairs["v_price"], pairs["p_price"])), 0.05)
    same = pc.equal(pairs["v_product"], pairs["p_product"])
    later = pc.greater_equal(pairs["p_time"], pairs["v_time"])
    reach = pa.scalar(timedelta(seconds=stream.WINDOW_S))
    soon = pc.less_equal(pairs["p_time"], pc.add(pairs["v_time"], reach))
    columns = [*views.column_names, *purchases.column_names]
    found = pairs.filter(reduce(pc.and_, [near, same, later, soon])).select(columns)
    assert found.num_rows > 50
    total = multiset_checksum(found.slice(lost).combine_chunks().to_batches()[0].columns)
    runs = [{"layout": "hash", "result_checksum": checksum_text(found.num_rows - lost, total)}]
    with pytest.raises(click.ClickException) if lost else nullcontext():
        demo._check_answers(runs, tmp_path)
