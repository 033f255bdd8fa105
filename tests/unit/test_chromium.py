"""Which Chromium the tests of pages use: tools/ensure-chromium --find."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.browser import TOOL

BASH = shutil.which("bash")


@pytest.fixture
def programs(tmp_path):
    """A PATH with two programs: a stub that cannot say its version, and a browser."""
    for name, code in (("chromium-browser", 1), ("google-chrome", 0)):
        program = tmp_path / name
        program.write_text(f"#!{BASH}\nexit {code}\n")
        program.chmod(0o755)
    return tmp_path


def find(programs, **variables):
    done = subprocess.run(
        [BASH, TOOL, "--find"],
        env={"PATH": str(programs), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_a_program_that_does_not_run_is_passed_over(programs):
    assert find(programs) == (0, str(programs / "google-chrome"), "")


def test_what_chromium_names_comes_first(programs):
    (programs / "chromium").symlink_to(programs / "google-chrome")
    named = str(programs / "google-chrome")
    assert find(programs, CHROMIUM=named) == (0, named, "")


def test_what_chromium_names_must_run(programs):
    named = str(programs / "chromium-browser")
    code, out, said = find(programs, CHROMIUM=named)
    assert (code, out) == (1, "")
    assert f"CHROMIUM={named} is no program that runs" in said


def test_without_one_nothing_is_said(tmp_path):
    assert find(tmp_path) == (1, "", "")
