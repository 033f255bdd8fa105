"""Any SQL predicate over candidate pairs, evaluated by DuckDB a chunk at a time.

Why DuckDB: a predicate is SQL, and DuckDB, which is a dependency anyway, evaluates SQL in vectors.

Cost: about 17 ns a pair for a comparison, in chunks of 2^18 pairs; where NumPy does it
(joinengine.predicates.plain), 1 to 3 ns.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from joinengine.kernels.probing import Rows
from joinengine.model.conditions import Predicate
from joinengine.predicates import plain
from joinengine.predicates.dialect import evaluated_type
from joinengine.predicates.engine import engine


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


def _evaluated(predicate: Predicate, arrays: list[pa.Array]) -> NDArray[np.bool_]:
    arrays = [array.cast(evaluated_type(array.type)) for array in arrays]
    found = plain.evaluated(predicate, arrays)
    if found is not None:
        return found
    here = engine(predicate.zone)
    here.register("pairs", pa.table(arrays, names=[f"c{i}" for i in range(len(arrays))]))
    # A relation, as `sql` makes one, is bound twice.
    (answer,) = here.execute(predicate.sql).fetchnumpy().values()
    here.unregister("pairs")
    return np.asarray(np.ma.filled(answer, False), bool)
