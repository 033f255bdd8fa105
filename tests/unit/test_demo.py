"""`make demo`, without its runs: what it says of its files."""

from __future__ import annotations

import json
from subprocess import CompletedProcess

from click.testing import CliRunner

from benchmarks.demo import __main__ as demo
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
    done = CliRunner().invoke(demo.main, ["--out", str(tmp_path)])
    assert done.exception is None
    picture = asked[asked.index("--figure") + 1]
    assert picture != str(tmp_path / "demo.png")
    assert (tmp_path / "demo.png").exists()
    files = [line for line in done.output.splitlines() if str(tmp_path) in line]
    assert files == [f"picture of all of them: {tmp_path / 'demo.png'}"]
