"""The aggregate `histogram`: SQL gathers values and bins in lists, and the kernel bins them.

A partial result and a result have the same form: bins, ascending, each from `lower` to below
`upper` with its number `n` of values. NULL, NaN, and numbers from 2e307 on are in no bin; a
group without any other value has NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from joinengine.kernels.binning import BOUND, LEAST_BINS, Bins, bins_of, merged
from joinengine.kernels.hashing import fixed_width
from joinengine.model.aggregation import AggregateFunction, Grouping
from joinengine.model.errors import InvalidRequest

#: The most bins of a histogram, whose partial results are sent and stored.
MOST_BINS = 1 << 16
BINS_TYPE = pa.list_(
    pa.struct([("lower", pa.float64()), ("upper", pa.float64()), ("n", pa.int64())])
)


def asked_bins(arguments: Sequence[dict[str, Any]], what: str) -> int:
    """The number of bins in `histogram(expression, bins)`."""
    literal = arguments[-1].get("literal", {}) if len(arguments) == len(("x", "bins")) else {}
    number = str(literal["text"]) if literal.get("kind") == "INTEGER" else ""
    if not (number.isdigit() and LEAST_BINS <= int(number) <= MOST_BINS):
        raise InvalidRequest(
            f"{what} needs an expression and a number of bins from {LEAST_BINS} to {MOST_BINS}, "
            f"such as histogram(x, 64)"
        )
    return int(number)


def gathered(value: str) -> str:
    """SQL for a list of the values of an expression that have a bin."""
    number = f"cast({value} as double)"  # NaN is greater than any number
    return f"list({number}) filter (where abs({number}) < {BOUND})"


def with_bins(grouping: Grouping, table: pa.Table, prefix: str) -> pa.Table:
    """The table with the values or bins of histograms (columns `prefix` + number) as bins."""
    for number, aggregate in enumerate(grouping.aggregates):
        if aggregate.function is AggregateFunction.HISTOGRAM:
            at = table.schema.get_field_index(f"{prefix}{number}")
            column = pa.chunked_array([_binned(table.column(at).combine_chunks(), aggregate.bins)])
            table = table.set_column(at, pa.field(f"{prefix}{number}", BINS_TYPE), column)
    return table


def _binned(lists: pa.ListArray, most: int) -> pa.ListArray:
    """Lists of values, or of bins, as lists of at most `most` bins each; NULL stays NULL."""
    sizes = lists.value_lengths().fill_null(0).to_numpy()
    histograms, held = np.repeat(np.arange(len(lists)), sizes), lists.flatten()
    if pa.types.is_struct(held.type):
        lowers, uppers, counts = (
            fixed_width(field, np.dtype(kind))
            for field, kind in zip(held.flatten(), ("f8", "f8", "i8"), strict=True)
        )
        bins = merged(Bins(histograms, lowers, uppers, counts), most)
    else:
        bins = bins_of(histograms, fixed_width(held, np.dtype("f8")), most)
    ends = np.cumsum(np.bincount(bins.histograms, minlength=len(lists)))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    rows = pa.StructArray.from_arrays(
        [pa.array(bin_column) for bin_column in (bins.lowers, bins.uppers, bins.counts)],
        fields=list(BINS_TYPE.value_type),
    )
    return pa.ListArray.from_arrays(offsets, rows, BINS_TYPE, mask=lists.is_null())
