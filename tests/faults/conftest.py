"""Drivers of these tests that run as programs and write down what they have seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """What a driver beside the tests has seen: `reported("resident.py")`."""

    def run(driver):
        folder = tmp_path_factory.mktemp(Path(driver).stem)
        root, report = folder / "root", folder / "seen.json"
        root.mkdir()
        environment = os.environ | {"JOINENGINE_HOME": str(folder / "home")}
        command = [sys.executable, Path(__file__).with_name(driver), root, report]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert report.exists(), done.stderr[-3000:]
        seen = json.loads(report.read_text())
        assert "error" not in seen, seen["error"]
        return seen

    return run
