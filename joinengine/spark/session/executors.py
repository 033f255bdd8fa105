"""Checks that the executors of a cluster reach a query's folders and have the needed packages.

Why: a folder on the driver's own disk does not exist for tasks on other machines. Without a check,
it takes a minute until the first batch fails, with a trace of the JVM that names a file which does
exist on the driver.

A marker with a fresh name is made in each folder into which the query writes. One small job looks
for the markers, and asks the query's object stores for a file. It has a task for each core: Spark
assigns tasks in turn to executors with a free core, so each idle executor gets at least one. An
executor that registers later is not checked, and its tasks fail in a batch.
Cost: some tenths of a second if the executors' Pythons are running; in the first query of a
session, the check starts them instead of the first batch. A local master is not checked, since all
of it is this machine.
"""

from __future__ import annotations

import os
import re
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from joinengine.model.errors import InvalidRequest, JoinEngineError
from joinengine.spark.session.interpreter import NEEDED
from joinengine.spark.session.session import parallelism
from joinengine.world.buckets import is_url
from joinengine.world.world import MACHINE

_INSTALL = "install joinengine on them, or ship it (docs/cluster.md)"
_LACKING = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
_VERSIONS = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.*?),")
_INSTEAD = {
    "checkpointLocation": ", or keep the state in an object store: "
    ".option('stateLocation', 's3://bucket/folder')"
}
_STREAM = "parquet_stream"
#: Hosts that a message names.
_MOST = 3


@dataclass(frozen=True, slots=True)
class _Answer:
    """The findings of a task: what its executor lacks, and place -> why a store refuses it."""

    host: str
    lacking: tuple[str, ...]
    unseen: tuple[str, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Look:
    """A task that finds the packages and `paths` that its executor lacks, and unreadable `urls`."""

    paths: tuple[str, ...]
    urls: tuple[str, ...]

    def __call__(self, tasks: Iterable[int]) -> Iterator[_Answer]:
        lacking = tuple(name for name in NEEDED if find_spec(name) is None)
        unseen = tuple(path for path in self.paths if not os.path.lexists(path))
        refused = dict[str, str]()
        for url in self.urls:
            try:
                MACHINE.storage(url).exists("probe")
            except JoinEngineError as error:
                refused[url] = str(error)
        yield _Answer(socket.gethostname(), lacking, unseen, refused)


def check_executors(
    spark: SparkSession, written: Mapping[str, str | Path], read: Collection[str | Path]
) -> None:
    """Raise InvalidRequest if an executor lacks a package or does not reach a place of a query.

    `written`: option -> a URL, or a folder into which the query writes; it need not exist, if its
    nearest existing parent is writable. `read`: folders, files or URLs of its sources. With a
    `stateLocation`, the checkpoint location is not checked: only the driver needs it.
    """
    if (spark.sparkContext.master or "local").startswith("local"):
        return
    places = [(what, str(place)) for what, place in written.items()]
    if "stateLocation" in written:
        places = [(what, place) for what, place in places if what != "checkpointLocation"]
    with ExitStack() as markers:
        looked_for = {markers.enter_context(_marker(at)): at for _, at in places if _is_path(at)}
        places += [(_STREAM, str(place)) for place in read]
        looked_for |= {at: at for what, at in places if what == _STREAM and _is_path(at)}
        urls = tuple(at for _, at in places if is_url(at))
        answers = _answers(spark, _Look(tuple(looked_for), urls))
    _check_packages(answers)
    hosts = defaultdict[str, set[str]](set)
    for answer in answers:
        for path in answer.unseen:
            hosts[looked_for[path]].add(answer.host)
    for what, place in places:
        _check_refusals(what, place, answers)
        if place in hosts:
            raise InvalidRequest(
                f"{what}: executors on {_named(hosts[place])} do not see {place}; give a folder "
                "that the driver and all executors share under this "
                f"path{_INSTEAD.get(what, ', or a place in an object store')}"
            )


def _check_refusals(what: str, place: str, answers: Collection[_Answer]) -> None:
    refused = {answer.host: answer.refused[place] for answer in answers if place in answer.refused}
    if refused:
        why = next(iter(refused.values()))
        raise InvalidRequest(f"{what}: executors on {_named(refused)} cannot read {place}: {why}")


def _is_path(place: str | Path) -> bool:
    return "://" not in str(place)


@contextmanager
def _marker(folder: str) -> Iterator[str]:
    """The path of a marker in `folder`, or in its nearest existing parent."""
    path = Path(folder)
    there = next(above for above in (path, *path.parents) if above.is_dir())
    made = Path(mkdtemp(prefix=".joinengine-", dir=there))
    try:
        yield str(made)
    finally:
        made.rmdir()


def _answers(spark: SparkSession, look: _Look) -> list[_Answer]:
    """One answer for each core. Raises InvalidRequest if a worker's Python cannot run the check."""
    context, n_tasks = spark.sparkContext, parallelism(spark)
    try:
        return context.parallelize(range(n_tasks), n_tasks).mapPartitions(look).collect()
    except Py4JJavaError as error:
        raise _plain(error, str(error.java_exception)) from None
    except PySparkException as error:  # raised by some versions of PySpark instead
        raise _plain(error, str(error)) from None


def _plain(error: Exception, trace: str) -> Exception:
    """The error to raise for a failed job: one sentence if the workers' Python is unsuitable."""
    lacking, versions = _LACKING.search(trace), _VERSIONS.search(trace)
    if lacking is not None:
        return InvalidRequest(f"the Python of the executors lacks {lacking[1]}; {_INSTALL}")
    if versions is not None:
        return InvalidRequest(
            f"{versions[1]}; set PYSPARK_PYTHON to a Python of the driver's version, at the same "
            "path on all machines"
        )
    return error


def _check_packages(answers: Collection[_Answer]) -> None:
    lacking: Mapping[str, set[str]] = defaultdict(set)
    for answer in answers:
        for name in answer.lacking:
            lacking[name].add(answer.host)
    for name, hosts in lacking.items():
        raise InvalidRequest(
            f"the Python of the executors on {_named(hosts)} lacks {name}; {_INSTALL}"
        )


def _named(hosts: Collection[str]) -> str:
    """The first few hosts, and the number of others.

    >>> _named({"b", "a", "e", "d", "c"})
    'a, b, c and 2 more'
    """
    first = sorted(hosts)[:_MOST]
    more = len(hosts) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
