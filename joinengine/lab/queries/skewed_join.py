"""Skewed join: one side with each key once, the other half of zeros, over the full history.

    SELECT * FROM skewed_table S JOIN uniform_table U ON S.f1 = U.f1

The uniform side has the keys 0 .. n - 1, n a power of ten, 10^s. The skewed side has n zeros, and
then for each of the powers 1, 10, .. 10^(s-1) the numbers 1, 2, .. n/s modulo this power: more than
half of its rows are zeros, and the other small keys have ever smaller shares. Rows of both sides
arrive mixed. If n is no power of ten, s is rounded down.

The published query only checks whether there is a result; here every pair is a result.
Source: the scenario SkewedJoin of Materialize's feature benchmark (misc/python/materialize/
feature_benchmark/scenarios/skew.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from joinengine import StreamJoin, equi
from joinengine.lab.queries.named_query import Options, Query
from joinengine.lab.queries.synthetic import Rows, SyntheticSpec
from joinengine.lab.queries.table_streams import table_stream
from joinengine.lab.tpch.skew import shuffled
from joinengine.lab.tpch.stream import RecordedStream, time_array
from joinengine.model.durations import describe
from joinengine.model.errors import InvalidRequest

#: Keys of the uniform side at scale 1.
KEYS = 1_000_000
COLUMNS = ("row", "side", "f1")
_SKEWED, _UNIFORM = "side = 'skewed'", "side = 'uniform'"


class SkewedJoin(Query):
    """The two tables as one stream, whose rows enter on the side that they name."""

    name = "skewed-join"
    summary = "a table of which half is one key, joined with a table that has each key once"
    source = "SkewedJoin, of Materialize's feature benchmark; generated"
    zipf = None

    @override
    def stream(self, options: Options) -> SyntheticSpec:
        """Both tables. Raises InvalidRequest for options that would change the keys."""
        if options.zipf is not None:
            raise InvalidRequest(
                f"zipf: the keys of {self.name} are fixed, found {options.zipf:g}; leave --zipf out"
            )
        if options.window_us is not None:
            raise InvalidRequest(
                f"window: {self.name} joins the full history, found "
                f"{describe(options.window_us)}; leave --window out"
            )
        keys = max(1, round(KEYS * options.scale))
        rows = keys + len(skewed_keys(keys))
        even = replace(options, zipf=0.0)
        return even.synthetic("sides", rows, _rows, exact=True, keys=keys)

    @override
    def build(self, spark: Any, recorded: RecordedStream, options: Options) -> StreamJoin:
        """A self-join: the same stream on both sides."""
        rows = table_stream(spark, recorded, "sides")
        rows = rows.select(list(COLUMNS))
        return StreamJoin(
            rows,
            rows,
            on=equi("f1", "f1"),
            left_where=_SKEWED,
            right_where=_UNIFORM,
            suffixes=("_skewed", "_uniform"),
            **options.placing,
        )

    @override
    def oracle(self, recorded: RecordedStream, options: Options) -> str:
        rows = recorded.files("sides")
        columns = ", ".join(f"{side}.{name}" for side in "su" for name in COLUMNS)
        return (
            f"select {columns} from (from '{rows}' where {_SKEWED}) s "
            f"join (from '{rows}' where {_UNIFORM}) u on s.f1 = u.f1"
        )


def skewed_keys(keys: int) -> Rows:
    """(n,) the keys of the skewed side; `keys`: how many the uniform side has."""
    powers = max(1, len(str(keys)) - 1)  # of ten, below `keys`
    numbers = 1 + np.arange(keys // powers)
    zeros = np.zeros(keys, np.int64)
    return np.concatenate([zeros, *(numbers % 10**power for power in range(powers))])


def _rows(spec: SyntheticSpec, rows: Rows, times: Rows) -> pa.Table:
    skewed, keys, order = _mixed(spec.seed, int(dict(spec.settings)["keys"]))
    places = order[rows]
    return pa.table(
        {
            "row": pa.array(rows),
            "side": pa.array(np.where(places < skewed, "skewed", "uniform")),
            "f1": pa.array(keys[places]),
            "s_ts": time_array(times),
        }
    )


@lru_cache(maxsize=1)
def _mixed(seed: int, keys: int) -> tuple[int, Rows, Rows]:
    """The number of skewed rows, the keys of all rows, skewed ones first, and their order."""
    skewed = skewed_keys(keys)
    both = np.concatenate([skewed, np.arange(keys)])
    return len(skewed), both, shuffled(seed, "sides: order", len(both))
