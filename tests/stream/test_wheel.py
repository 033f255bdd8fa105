"""The package as users install it: a wheel in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, folder):
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # The programs of the dependencies (tpchgen-cli) lie beside this interpreter.
    plain["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), plain.get("PATH", "")])
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy of the sources: building leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    names = ["pyproject.toml", "README.md", "LICENSE", "joinengine"]
    run("cp", "-r", *(ROOT / name for name in names), folder, folder=ROOT)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", "dist", ".", folder=folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def test_the_wheel_brings_one_name(wheel):
    with zipfile.ZipFile(wheel) as content:
        tops = {name.split("/")[0] for name in content.namelist()}
        assert "joinengine/lab/queries/eq5.py" in content.namelist()
        assert "joinengine/py.typed" in content.namelist()
        assert "joinengine/spark/session/log4j2.properties" in content.namelist()
        assert "joinengine/reporting/page/page.html" in content.namelist()
        assert "joinengine/lab/starter/join.py.txt" in content.namelist()
    assert {top for top in tops if not top.endswith(".dist-info")} == {"joinengine"}


def test_the_wheel_says_on_which_terms_it_may_be_used(wheel):
    with zipfile.ZipFile(wheel) as content:
        (about,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        (terms,) = (name for name in content.namelist() if name.endswith("/licenses/LICENSE"))
        assert "\nLicense-Expression: Apache-2.0\n" in content.read(about).decode()
        assert content.read(terms) == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_an_installed_wheel_runs_a_query(wheel, tmp_path):
    """In a fresh environment that sees the dependencies of this one, and not its joinengine."""
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    (site,) = (environment / "lib").glob("python*/site-packages")
    # A path file inside the folder that this one names is not read: nothing editable comes along.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    install = ["-m", "pip", "--python", python, "install", "--no-deps", "--quiet", wheel]
    run(sys.executable, *install, folder=tmp_path)
    where = run(
        python, "-c", "import joinengine.lab.queries as q; print(q.__file__)", folder=tmp_path
    )
    assert Path(where.strip()).is_relative_to(environment)
    joinengine = environment / "bin" / "joinengine"
    asked = ["run", "eq5", "--scale", "0.01", "--validate", "--json", "report.json"]
    run(joinengine, *asked, folder=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["valid"] is True
    assert report["output_rows"] > 0
