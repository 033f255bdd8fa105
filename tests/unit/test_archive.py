"""The class-data archive: which file is used, and which never."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from joinengine.lab.cli import cli
from joinengine.model.errors import JoinEngineError
from joinengine.spark.session import archive


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JOINENGINE_HOME", str(tmp_path / "a cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    folder = archive.archive_folder()
    folder.mkdir(parents=True)
    return folder


def put(cache, size, stated=None, key=None):
    path = cache / f"{key or archive.archive_key()}-{stated or size}.jsa"
    path.write_bytes(b"x" * size)
    return path


def test_without_an_archive_a_jvm_starts_without_one():
    assert archive.use_options() == ""


def test_a_whole_archive_is_used(cache):
    path = put(cache, 100)
    assert archive.use_options().startswith(f'"-XX:SharedArchiveFile={path}" ')


def test_half_an_archive_would_crash_the_jvm_and_is_not_used(cache):
    put(cache, 50, stated=100)
    assert archive.use_options() == ""


def test_an_archive_that_is_gone_is_not_used(cache):
    (cache / f"{archive.archive_key()}-100.jsa").symlink_to(cache / "gone")
    assert archive.use_options() == ""


def test_another_java_has_another_archive(cache, tmp_path, monkeypatch):
    put(cache, 100)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert archive.use_options() == ""
    mine = put(cache, 70)
    assert str(mine) in archive.use_options()


def test_a_java_that_fails_is_told_and_leaves_nothing(cache, tmp_path, monkeypatch):
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with pytest.raises(JoinEngineError, match="archive: Java wrote no archive"):
        cli(["archive"], standalone_mode=False)
    assert not list(cache.iterdir())


def test_without_a_java_the_command_says_so(tmp_path):
    environment = os.environ | {"JAVA_HOME": str(tmp_path / "none")}
    command = [sys.executable, "-m", "joinengine", "archive"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "which has no program bin/java" in done.stderr
