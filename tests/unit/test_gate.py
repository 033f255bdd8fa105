"""The gate of speed: its verdict, from seconds that are made up, and which versions it takes."""

from __future__ import annotations

import json
import subprocess

import pytest
from click import ClickException
from click.testing import CliRunner

from benchmarks import keeping
from benchmarks.gate import __main__ as gate
from benchmarks.gate.verdict import LIMIT, compared

BASE = [1.0, 1.02, 0.98, 1.0, 1.01]


def test_a_ratio_beyond_the_limit_and_the_noise_is_slower():
    found = compared("sort", BASE, [1.2 * one for one in BASE])
    assert found.ratio == pytest.approx(1.2)
    assert found.spread == pytest.approx(0)
    assert found.is_slower
    assert not compared("sort", BASE, [1.09 * one for one in BASE]).is_slower
    assert not compared("sort", BASE, [0.5 * one for one in BASE]).is_slower


def test_noise_excuses_what_it_explains():
    noisy = compared("sort", BASE, [0.9, 1.2, 1.5, 1.0, 1.4])
    assert noisy.ratio > LIMIT
    assert not noisy.is_slower
    assert "noise" in noisy.words
    assert compared("sort", BASE, [1.9, 2.2, 2.5, 2.0, 2.4]).is_slower, "but not more than that"


def test_one_disturbed_round_neither_fails_nor_saves_a_version():
    assert not compared("sort", BASE, [*BASE[:4], 9.0]).is_slower
    assert compared("sort", BASE, [*(1.3 * one for one in BASE[:4]), 0.1]).is_slower


def test_a_load_that_drifts_is_in_both_versions_of_a_round():
    drift = [1.0, 1.5, 2.0, 2.5, 3.0]
    assert compared("sort", drift, [1.2 * one for one in drift]).is_slower
    assert not compared("sort", drift, drift).is_slower


def test_measures_of_one_version_alone_are_left_out_and_too_few_rounds_are_none():
    one = {"sort": 1.0, "new": 1.0}
    found = {"now": [one] * 5, "base": [{"sort": 1.0, "gone": 2.0}] * 5}
    assert [told.measure for told in gate.verdicts(found)] == ["sort"]
    with pytest.raises(ClickException, match=r"4 rounds .* needs 5"):
        gate.verdicts({"now": [one] * 4, "base": [one] * 4})


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two commits on `main`, and what runs git in them."""

    def git(*words):
        names = "-c", "user.name=a", "-c", "user.email=a@b.c"
        command = ["git", "-C", str(tmp_path), *names, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    for text in ("one", "two"):
        (tmp_path / "file").write_text(text)
        git("add", "file")
        git("commit", "--quiet", "--message", text)
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    monkeypatch.setattr(gate, "commit", lambda root=tmp_path: keeping.commit(root))
    return git


def test_the_base_is_where_the_branch_left_main(repository):
    first, second = repository("rev-list", "--reverse", "main").splitlines()
    assert gate._git("rev-parse", gate.base_of()) == first, "on main: the commit before"
    repository("checkout", "--quiet", "-b", "work")
    repository("commit", "--quiet", "--allow-empty", "--message", "three")
    assert gate.base_of() == second
    repository("branch", "--move", "main", "trunk")
    with pytest.raises(ClickException, match="BASE=rev"):
        gate.base_of()


def test_versions_take_turns_and_a_slower_one_fails(repository, tmp_path, monkeypatch):
    asked = []

    def seconds(tree):
        text = (tree / "file").read_text()
        asked.append(text)
        return {"sort": {"one": 1.0, "two": 1.3}[text], "probe": 1.0}

    monkeypatch.setattr(gate, "_seconds", seconds)
    out = tmp_path / "out"
    arguments = ["--out", str(out), "--rounds", "5"]
    told = CliRunner().invoke(gate.main, arguments)
    assert asked == ["one", "two", "two", "one"] * 2 + ["one", "two"]
    assert told.exit_code == 1
    assert told.output.splitlines()[-1].endswith("and the noise: sort")
    here = keeping.folder(out, keeping.commit(tmp_path))
    rounds = [line for line in keeping.lines(here / "gate.jsonl") if "round" in line]
    turns = ["base", "now", "now", "base"] * 2 + ["base", "now"]
    assert [line["version"] for line in rounds] == turns
    assert "SLOWER" in (here / "gate.txt").read_text()
    assert repository("worktree", "list").count("\n") == 0, "the base's tree is gone"
    monkeypatch.setattr(gate, "_seconds", lambda _: {"sort": 1.0})
    assert CliRunner().invoke(gate.main, [*arguments, "--base", "main"]).exit_code == 0


def test_lines_outlive_a_run_that_is_cut_off(tmp_path):
    path = tmp_path / "lines"
    assert keeping.lines(path) == []
    keeping.append(path, {"cell": 1})
    keeping.append(path, {"cell": 2})
    path.write_text(path.read_text() + json.dumps({"cell": 3})[:4])
    assert keeping.lines(path) == [{"cell": 1}, {"cell": 2}]


def test_each_change_of_a_tree_has_a_name(repository, tmp_path):
    """All changed trees of a commit shared a folder, and what was done was not done again."""
    clean, names = keeping.commit(tmp_path), list[str]()
    for text in ("three", "four", "three"):
        (tmp_path / "file").write_text(text)
        names.append(keeping.commit(tmp_path))
    assert names[0].startswith(f"{clean}-changed-")
    assert names[0] == names[2] != names[1]


def test_a_commit_goes_on_in_the_folder_that_it_has(tmp_path):
    (tmp_path / "2020-01-02-abc").mkdir()
    assert keeping.folder(tmp_path, "abc").name == "2020-01-02-abc"
    assert keeping.folder(tmp_path, "abd").name.endswith("-abd")
