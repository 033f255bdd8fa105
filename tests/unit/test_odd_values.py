"""Odd values on the command line are answered in a sentence."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from joinengine.lab.cli import cli
from joinengine.model.errors import InvalidRequest

SIDES = ("run", "--left", "a", "--right", "b")
ODD = {
    "no key": ((*SIDES, "--on", ""), "on: expected key columns"),
    "no delay": (
        (*SIDES, "--on", "k", "--within", "t,u,0 s,1 h", "--delay", ""),
        "delay: expected D or D,D, found ''",
    ),
    "a bound that is no number": ((*SIDES, "--band", "a,b,sNaN,"), "is not a finite number"),
    "keys in lines": ((*SIDES, "--on", "a=b,\nc=d"), "a does not exist"),
    "a file in a place that takes none": (("cache", "--json", "/proc/1/x/y"), "cannot be written"),
    "a starter in such a place": (("new", "/proc/1/x"), "cannot be written"),
    "a statement that is no text": (("sql", "latin1.sql"), "latin1.sql is not UTF-8 text"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_value_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin1.sql").write_bytes(b"select '\xe9'")
    arguments, said = ODD[name]
    done = CliRunner().invoke(cli, arguments)
    assert isinstance(done.exception, InvalidRequest)
    assert said in str(done.exception)


def test_explain_of_a_statement_writes_no_report(tmp_path):
    (tmp_path / "q.sql").write_text("\ufeffselect f.k from f join w on f.k = w.k", encoding="utf-8")
    for name in ("f", "w"):
        pq.write_table(pa.table({"k": [1]}), tmp_path / f"{name}.parquet")
    sources = (f"--source={name}=parquet:{tmp_path}/{name}.parquet" for name in ("f", "w"))
    arguments = ["sql", str(tmp_path / "q.sql"), *sources, "--explain"]
    done = CliRunner().invoke(cli, arguments)
    assert "operator 0: inner join on" in done.output
    done = CliRunner().invoke(cli, [*arguments, "--json", str(tmp_path / "r.json")])
    assert done.exit_code == 2
    assert "--json applies to a run" in done.output
