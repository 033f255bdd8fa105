"""What `--validate` says of a run: as DuckDB has it, other than it, or nothing to compare."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from joinengine.lab.queries import runs
from joinengine.layouts import choose


@pytest.fixture
def judged(monkeypatch):
    """Judge a run of so many results without files, where DuckDB has so many."""

    def judge(results, expected, layout="pkg", **query):
        said = []
        ran = SimpleNamespace(
            query=SimpleNamespace(generated=True, oracle=lambda *_: "select", **query),
            options=SimpleNamespace(layouts=[choose(layout)]),
            joined=SimpleNamespace(schema=None),
            **{"places": runs.Places(), "resumed": False, "recorded": None},
        )
        ran.joined.query = lambda: SimpleNamespace(operators=[SimpleNamespace(is_changelog=False)])
        monkeypatch.setattr(runs.types, "arrow_schema", lambda _: pa.schema([]))
        monkeypatch.setattr(runs, "oracle_checksum", lambda *_, **__: f"{expected}:0")
        monkeypatch.setattr(runs, "_known", {})
        report = {"valid": None, "output_rows": results, "result_checksum": f"{results}:0"}
        runs._validate(report, ran, said.append)
        return report["valid"], said[1:]

    return judge


def test_a_layout_that_divides_keys_may_find_more_and_not_less(judged):
    assert judged(15, 10, whole_keys=True) == (
        None,
        ["5 false alarms (33.3%): the layout divides keys"],
    )
    assert judged(9, 10, whole_keys=True) == (False, ["DuckDB has 10 rows, and the run 9"])
    assert judged(9, 10, "hash", whole_keys=True)[0] is False


def test_no_results_are_no_proof(judged):
    valid, said = judged(0, 0, whole_keys=False)
    assert valid
    assert said == ["no row to compare: neither the run nor DuckDB has results"]
    assert judged(4, 4, whole_keys=False) == (True, [])
