"""The image of tools/Containerfile, as far as it can be checked where no image can be built."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "tools" / "Containerfile").read_text()


def test_what_is_copied_from_the_repository_is_there():
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY (?!--from).*$", TEXT, re.M)]
    names = [name for sources in copied for name in sources]
    assert "joinengine" in names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_distribution_of_spark_has_the_version_of_pyspark():
    (distribution,) = re.findall(r"^ARG SPARK=\S+:([\d.]+)$", TEXT, re.M)
    (package,) = re.findall(r"^pyspark==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert distribution == package


def test_the_python_of_the_image_serves():
    (minor,) = re.findall(r"^ARG PYTHON=\S+/python:3\.(\d+)", TEXT, re.M)
    (least,) = re.findall(
        r'^requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert int(minor) >= int(least)
