"""Streams of the folders, queries over them, and the same in SQL; commands in this process."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager, redirect_stderr
from typing import NamedTuple

import pytest
from rich.console import Console

from joinengine import parquet_stream
from joinengine.lab.cli import main
from joinengine.lab.commands import console, sessions


def streams(spark, folders, rows=(40, 120)):
    return (
        parquet_stream(spark, folders.orders, rows_per_interval=rows[0]),
        parquet_stream(spark, folders.items, rows_per_interval=rows[1]),
    )


def run(joined, tmp_path, name="out"):
    query = (
        joined.writeStream.format("parquet")
        .option("path", tmp_path / name)
        .option("checkpointLocation", tmp_path / f"{name}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def pairs(folders, condition):
    orders, items = f"'{folders.orders}/*.parquet'", f"'{folders.items}/*.parquet'"
    return f"select * from {orders} join {items} on {condition}"


def file_stream(spark, folder, limit=1):
    reader = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    return reader.option("maxFilesPerTrigger", limit).parquet(str(folder))


def tables(folders):
    return f"'{folders.orders}/*.parquet'", f"'{folders.items}/*.parquet'"


def windowed_sql(folders, how, size_us, slide_us):
    """Each row once for each window that holds it; rows of one window meet."""
    sides = [
        f"(select *, unnest(generate_series((epoch_us({time}) - {size_us}) // {slide_us} + 1, "
        f"epoch_us({time}) // {slide_us})) as k from {table})"
        for time, table in zip(("o_ts", "i_ts"), tables(folders), strict=True)
    ]
    columns = "l.* exclude k" + ("" if "semi" in how or "anti" in how else ", r.* exclude k")
    k = "l.k" if "semi" in how or "anti" in how else "coalesce(l.k, r.k)"
    kind = how.removeprefix("left_") if how.startswith("left_") else how
    return (
        f"select {columns}, make_timestamptz({k} * {slide_us}) as window_start, "
        f"make_timestamptz({k} * {slide_us} + {size_us}) as window_end "
        f"from {sides[0]} l {kind} join {sides[1]} r on id = order_id and l.k = r.k"
    )


class Done(NamedTuple):
    stdout: str
    stderr: str


def called(home, session, *arguments, code=0):
    """The same in this process; `session(master)` gives the session that the command runs in."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOINENGINE_HOME", str(home))
        patch.setattr(console, "out", Console(file=out, soft_wrap=True, width=500))
        patch.setattr(console, "err", Console(file=err, soft_wrap=True, width=500))
        patch.setattr(sessions, "started", session)
        patch.setattr(sys, "argv", ["joinengine", *map(str, arguments)])
        # Click writes its own errors to wherever Python's are going.
        with redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    assert (ended.value.code or 0) == code, out.getvalue() + err.getvalue()
    return Done(out.getvalue(), err.getvalue())


@contextmanager
def no_session(master):
    pytest.fail("the command starts Spark")
    yield
