"""No Java, another folder, or one that is too old: a sentence that says what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from joinengine.model.errors import InvalidRequest
from joinengine.spark.session.java import check_java, version_of


def java_in(folder, version=None):
    """A program that is called as Java is, with the file beside it that tells its version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(mode=0o755)
    if version is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nOS="Linux"\n')
    return folder


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """A machine on whose PATH is no Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.mark.usefixtures("no_java")
def test_no_java_says_how_to_install_one():
    with pytest.raises(InvalidRequest, match="no java is on the PATH; install Java 17 or 21"):
        check_java()


def test_a_wrong_java_home_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidRequest, match=rf"JAVA_HOME is {tmp_path}, which has no program"):
        check_java()


@pytest.mark.parametrize(
    ("version", "number"), [("1.8.0_392", 8), ("11.0.22", 11), ("17.0.15", 17), ("21", 21)]
)
@pytest.mark.usefixtures("no_java")
def test_a_java_that_is_too_old_is_refused(version, number, monkeypatch, tmp_path):
    home = java_in(tmp_path / "java", version)
    assert version_of(home / "bin" / "java") == number
    monkeypatch.setenv("JAVA_HOME", str(home))
    if number >= 17:
        check_java()
        return
    with pytest.raises(InvalidRequest, match=rf"needs Java 17 or later, but .* is Java {number};"):
        check_java()


@pytest.mark.usefixtures("no_java")
def test_a_java_on_the_path_is_followed_to_its_folder(monkeypatch, tmp_path):
    home, path = java_in(tmp_path / "java", "11.0.1"), tmp_path / "links"
    path.mkdir()
    (path / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(path))
    with pytest.raises(InvalidRequest, match="is Java 11"):
        check_java()
    os.remove(home / "release")
    check_java()  # nobody tells: Spark will


@pytest.mark.usefixtures("no_java")
def test_a_java_8_with_its_compiler_has_its_program_one_folder_deeper(monkeypatch, tmp_path):
    home = java_in(tmp_path / "jdk8", "1.8.0_392")
    java_in(home / "jre")
    monkeypatch.setenv("JAVA_HOME", str(home / "jre"))
    with pytest.raises(InvalidRequest, match="jre/bin/java is Java 8;"):
        check_java()


@pytest.mark.parametrize(("said", "number"), [("1.8.0_392", 8), ("11.0.2", 11), ("21", None)])
@pytest.mark.usefixtures("no_java")
def test_a_wrapper_is_asked(said, number, monkeypatch, tmp_path):
    home = java_in(tmp_path / "java")
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    if number is None:
        check_java()
        return
    with pytest.raises(InvalidRequest, match=rf"bin/java is Java {number};"):
        check_java()


def test_make_names_a_wrong_java_home(tmp_path):
    """Spark would start that one, whatever else is there."""
    tool = Path(__file__).parents[2] / "tools" / "ensure-java"
    wrong = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run([tool], env=wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"JAVA_HOME is {tmp_path}, which has no program bin/java; unset it" in done.stderr
