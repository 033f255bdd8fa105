"""Runs a query that concludes from its results, perhaps in several rounds.

A streaming decision tree is one run for each of its levels. Each run has places of its own below
those of the query, and DuckDB compares each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.runs import NOBODY, Followers, Places, run
from joinengine.model.errors import InvalidRequest


def run_rounds(
    spark: SparkSession,
    query: Query,
    options: Options,
    places: Places,
    *,
    validate: bool = False,
    followers: Followers = NOBODY,
) -> dict[str, Any]:
    """Run `query`, and what follows from its results; returns the JSON report.

    Arguments and errors: as in `runs.run`; a checkpoint needs a folder of results. The report is
    that of the last run, with what it concludes, and `earlier`: the reports of the runs before,
    without their pages.
    """
    if not query.concludes:
        return run(spark, query, options, places, validate=validate, followers=followers)
    if places.checkpoint is not None and places.out is None:
        raise InvalidRequest(
            f"checkpoint: {query.name} concludes from the results of all its runs, found no folder "
            f"for them; give --out too"
        )
    earlier = list[dict[str, Any]]()
    following: Query | None = query
    while following is not None:
        query = following
        with _places_of(query, places) as round_places:
            report = run(
                spark, query, options, round_places, validate=validate, followers=followers
            )
            assert round_places.out is not None
            conclusion = query.conclude(pq.read_table(round_places.out), report, options)
        for sentence in conclusion.said:
            followers.say(sentence)
        report |= conclusion.entries
        following = conclusion.following
        earlier.append({name: value for name, value in report.items() if name != "story"})
    verdicts = [report_before["valid"] for report_before in earlier]
    valid = all(verdicts) if None not in verdicts or False in verdicts else None
    return report | {"valid": valid, "earlier": earlier[:-1]}


@contextmanager
def _places_of(query: Query, places: Places) -> Iterator[Places]:
    """The places of one run; results that the user did not ask for are removed."""
    part = query.part
    if part:
        places = replace(
            places,
            out=None if places.out is None else places.out / part,
            checkpoint=None if places.checkpoint is None else places.checkpoint / part,
            state=None if places.state is None else f"{places.state}/{part}",
            reach=places.reach or places.state,
        )
    if places.out is not None:
        yield places
        return
    with tempfile.TemporaryDirectory(prefix="joinengine-") as passing:
        yield replace(places, out=Path(passing) / "results")
