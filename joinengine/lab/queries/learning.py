"""Shared by the queries that learn: one model of the whole stream, from partial counts.

The instances keep their partial results until the stream ends, or for `--merge-every` batches. Then
the aggregators receive one for each key and each instance that met it. So the number received is
the number of counters (or of histograms) that the instances kept.
Source: Nasir et al., ICDE 2015, sections 3.1 and 4 (extended text).
"""

from __future__ import annotations

from typing import Any

from joinengine import windows
from joinengine.lab.queries.named_query import Options
from joinengine.lab.tpch.stream import EPOCH_US
from joinengine.model.errors import InvalidRequest

#: The window [0, SIZE_US) holds every generated stream.
SIZE_US = 2 * EPOCH_US
#: SQL for its edges.
EDGES = f"make_timestamptz(0) as window_start, make_timestamptz({SIZE_US}) as window_end"
#: More batches than any run has.
AT_THE_END = 1_000_000


def check_whole(name: str, options: Options) -> None:
    """Raise InvalidRequest for a window, which a query that learns does not have."""
    if options.window_us is not None:
        raise InvalidRequest(
            f"window: {name} learns from the whole stream, so it has none; leave out --window"
        )


def settings(time: str, options: Options) -> dict[str, Any]:
    """The settings of the aggregation: one window, and partial results that are kept."""
    return {
        "window": windows(time, f"{SIZE_US} us", delay=options.delay),
        **options.placing,
        "aggregators": options.aggregators,
        "merge_every": AT_THE_END if options.merge_every is None else options.merge_every,
    }


def partial_results(report: dict[str, Any]) -> int:
    """How many partial results the aggregators have received; 0 if the run had nothing to read."""
    return sum(sum(merging["received_per_instance"]) for merging in report["joins"][1:])
