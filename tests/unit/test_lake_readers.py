"""Spark's own readers find in tables of Delta and Iceberg what was delivered.

The connectors are a version or two behind our Spark, so they read with a Spark of theirs.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.transforms import BucketTransform, TruncateTransform

from tests.lakes import LAKES, IceLake, table_of

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "ReadTables.java"
#: What Spark opens of Java, when it is started without its scripts.
OPENED = (
    *("java.io", "java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch"),
    *("sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)


def jars(name):
    """The folder of jars, without which the test is skipped."""
    found = subprocess.run(
        [ROOT / "tools" / "ensure-jars", "--find", name],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"needs the jars of Spark and its connectors: tools/ensure-jars {name}")
    return found.stdout.strip()


class Buckets(IceLake):
    """In buckets and by first letters: a filter on either passes over files."""

    spec = (("a", BucketTransform(4), "bucket"), ("s", TruncateTransform(1), "letter"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "divided"),
    [*((kind, divided) for kind in LAKES for divided in (False, True)), (Buckets, False)],
    ids=lambda told: getattr(told, "__name__", str(told)),
)
def test_sparks_own_reader_finds_each_result_once(kind, divided, tmp_path):
    there = ":".join(f"{jars(name)}/*" for name in ("spark", f"spark-{kind.kind}"))
    lake = kind(tmp_path)
    if divided:
        lake.partition()
    where = "a in (7, 22, 31)" if kind is Buckets else "s = 's1'"
    sink, generation = lake.sink(60.0, 1 << 20)
    held = lake.held(sink, generation, range(10), range(10, 30))
    sink.deliver_held(held, lake.checkpoint, generation, whole=True)
    sink.deliver(2, lake.stage(sink, generation, range(30, 40)), generation)
    place = lake.place if kind.kind == "delta" else lake.opened().metadata_location
    opens = [f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in OPENED]
    done = subprocess.run(
        ["java", *opens, "-cp", there, PROGRAM, kind.kind, place, where],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *rows, filtered = done.stdout.splitlines()
    found = [json.loads(row) for row in rows]
    expected = table_of(range(40)).to_pylist()
    assert Counter((row["a"], row.get("s"), row["at"][:10]) for row in found) == Counter(
        (row["a"], row["s"], row["at"].date().isoformat()) for row in expected
    )
    wanted = sum(
        row["a"] in (7, 22, 31) if kind is Buckets else row["s"] == "s1" for row in expected
    )
    assert int(filtered) == wanted > 0
