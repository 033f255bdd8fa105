"""`joinengine cache` lists what the commands keep, and removes what nobody is making."""

from __future__ import annotations

import json
import os
import time

import pytest
from click.testing import CliRunner
from filelock import FileLock

from joinengine.lab.cli import cli
from joinengine.lab.tpch import cache as cache_module
from joinengine.lab.tpch.cache import new_log
from joinengine.lab.tpch.generate import build_once
from joinengine.model.errors import InvalidRequest

DAY_S = 86_400


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path))
    (tmp_path / "tables" / "sf0.1").mkdir(parents=True)
    (tmp_path / "tables" / "sf0.1" / "orders.parquet").write_bytes(b"x" * 3_000_000)
    (tmp_path / "tables" / "sf0.1" / ".lock").touch()
    build_once(tmp_path / "streams" / "old", lambda path: path.mkdir())
    (tmp_path / "streams" / "old" / "stream.json").write_text("{}")
    long_ago = time.time() - 8 * DAY_S
    os.utime(tmp_path / "streams" / "old" / "stream.json", (long_ago, long_ago))
    return tmp_path


def typed(*arguments):
    done = CliRunner().invoke(cli, ["cache", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def names(home):
    return {path.name for folder in ("tables", "streams") for path in (home / folder).glob("[!.]*")}


def test_it_lists_path_kind_size_and_age(home, tmp_path):
    lines = typed("--json", tmp_path / "list.json").splitlines()
    assert "3.0 MB" in lines[0]
    assert "TPC-H tables" in lines[0]
    assert str(home / "tables" / "sf0.1") in lines[0]
    assert "8 days" in lines[1]
    assert "recorded stream" in lines[1]
    assert lines[2].startswith(f"2 entries, 3.0 MB in {home}")
    entries = json.loads((tmp_path / "list.json").read_text())["entries"]
    assert [entry["size_bytes"] for entry in entries] == [3_000_000, 2]
    assert names(home) == {"sf0.1", "old"}


def test_it_clears_what_is_old_and_then_all(home):
    assert "removed 1 entry" in typed("--clear", "--older-than", "7d")
    assert names(home) == {"sf0.1"}
    assert "removed 1 entry" in typed("--clear")
    assert names(home) == set()
    assert "removed 0 entries" in typed("--clear")


def test_what_is_being_made_stays(home):
    """The draft of a stream, and tables, while another process holds their locks."""
    draft = home / "streams" / ".new.0123abcd"
    draft.mkdir()
    with (
        FileLock(home / "streams" / ".new.lock"),
        FileLock(home / "tables" / "sf0.1" / ".lock"),
    ):
        assert "kept 2, in use or not removable" in typed("--clear")
    assert draft.exists()
    assert names(home) == {"sf0.1"}
    typed("--clear")
    assert not draft.exists()


def test_what_cannot_be_removed_is_not_said_to_be_gone(home, monkeypatch):
    monkeypatch.setattr(cache_module.shutil, "rmtree", lambda *_, **__: None)
    assert "removed 0 entries, 0.0 MB; kept" in typed("--clear")
    assert names(home) == {"sf0.1", "old"}


def test_a_length_that_is_none_is_refused(home):
    for text in ("10x", "-1 d"):
        with pytest.raises(InvalidRequest):
            typed("--older-than", text)


def test_logs_of_killed_runs_go_after_a_week(home):
    first = new_log()
    assert first.parent == home / "logs"
    assert "log of Spark" in typed()
    long_ago = time.time() - 8 * DAY_S
    os.utime(first, (long_ago, long_ago))
    second = new_log()
    assert not first.exists()
    assert second.exists()
