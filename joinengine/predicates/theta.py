"""Any SQL predicate over candidate pairs, evaluated by DuckDB a chunk at a time.

Why DuckDB: a predicate is SQL, and DuckDB, which is a dependency anyway, evaluates SQL in vectors.

Cost: about 17 ns a pair for a comparison, in chunks of 2^18 pairs; where NumPy does it
(joinengine.predicates.plain), 1 to 3 ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.probing import Ints, Rows
from joinengine.model.conditions import Predicate
from joinengine.model.keys import Side
from joinengine.predicates import plain
from joinengine.predicates.dialect import evaluated_type
from joinengine.predicates.engine import over_pairs


def holds(
    predicate: Predicate,
    batches: tuple[pa.RecordBatch, pa.RecordBatch],
    rows: tuple[Rows, Rows],
) -> NDArray[np.bool_]:
    """(n,) whether a predicate is true of left row rows[0][i] and right row rows[1][i]."""
    taken = (pa.array(rows[0]), pa.array(rows[1]))
    arrays = [batches[side].column(name).take(taken[side]) for side, name in predicate.columns]
    return _evaluated(predicate, arrays or [pa.nulls(len(rows[0]), pa.int8())])


def passes(predicate: Predicate, batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """(n,) whether a predicate over one side is true of the rows of `batch`."""
    arrays = [batch.column(name) for _, name in predicate.columns]
    return _evaluated(predicate, arrays or [pa.nulls(batch.num_rows, pa.int8())])


#: The columns of one side, by their place among the predicate's.
Sided = Mapping[int, plain.Column]


@dataclass(frozen=True)
class Grid:
    """A plain predicate over a grid: rows of one side down, and rows of the other side along.

    `columns`: per column of the predicate, whether it lies along, and its values.
    """

    test: plain.Test
    columns: Sequence[tuple[bool, NDArray[Any]]]

    @classmethod
    def of(cls, predicate: Predicate, down: Sided | None, along: Sided | None) -> Grid | None:
        """The grid of the columns of both sides; None: each pair must be evaluated by itself."""
        if down is None or along is None:
            return None
        columns = [(along if at in along else down)[at] for at in range(len(predicate.columns))]
        test = plain.test_of(predicate, columns)
        if test is None:
            return None
        return cls(test, [(at in along, column.values) for at, column in enumerate(columns)])

    def where(self, down: slice, along: slice) -> Ints:
        """(n,) the pairs for which the predicate is true, numbered row by row."""
        is_true = self.test(
            [
                values[None, along] if is_along else values[down, None]
                for is_along, values in self.columns
            ]
        )
        shape = down.stop - down.start, along.stop - along.start
        if is_true.shape != shape:  # no column of one side
            is_true = np.broadcast_to(is_true, shape)
        return is_true.ravel().nonzero()[0]


def columns_of(predicate: Predicate, side: Side, batch: pa.RecordBatch, rows: Rows) -> Sided | None:
    """(rows,) the columns of a side that a predicate reads; None: not all of them are plain."""
    if not plain.is_plain(predicate):
        return None
    places = [at for at, (its, _) in enumerate(predicate.columns) if its is side]
    taken = pa.array(rows)
    arrays = [batch.column(predicate.columns[at][1]).take(taken) for at in places]
    plain_columns = plain.columns_of([array.cast(evaluated_type(array.type)) for array in arrays])
    return None if plain_columns is None else dict(zip(places, plain_columns, strict=True))


def _evaluated(predicate: Predicate, arrays: list[pa.Array]) -> NDArray[np.bool_]:
    arrays = [array.cast(evaluated_type(array.type)) for array in arrays]
    is_true = plain.evaluated(predicate, arrays)
    if is_true is not None:
        return is_true
    pairs = pa.table(arrays, names=[f"c{i}" for i in range(len(arrays))])
    with over_pairs(pairs, predicate.text, predicate.zone) as database:
        # `execute`, because a relation, as `sql` makes one, is bound twice.
        (answer,) = database.execute(predicate.sql).fetchnumpy().values()
    return np.asarray(np.ma.filled(answer, False), bool)
