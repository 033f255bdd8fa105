"""Every key of a stream once, by an operator of one's own.

    python examples/distinct_keys.py FOLDER COLUMN OUT

State is the keys that were seen; it follows its layout as that of a join does. A layout that
divides a key among instances would show it once at each: use one that keeps keys whole.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinengine import parquet_stream, session
from joinengine.api.operators import StreamOperator
from joinengine.exchange.blocks import Tuples
from joinengine.exchange.keying import Keying
from joinengine.exchange.roles import Admission
from joinengine.kernels.probing import sort_order
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.conditions import Equi
from joinengine.model.keys import Side
from joinengine.operators.accounts import common_account
from joinengine.operators.base import OneInput, OperatorTask, Order
from joinengine.operators.desk import Desk
from joinengine.operators.spines import Spines
from joinengine.state.upkeep import Shelf


@dataclass(frozen=True)
class SeenShelf(Shelf):
    """The runs of the state: one row a key, needed for ever."""

    columns: pa.Schema
    label: str = "seen"
    span_us: None = None

    def schema(self, side):
        return self.columns

    def times(self, side, columns):
        return None

    def last_needed(self, side, times):
        return times


@dataclass(frozen=True)
class Distinct(OneInput):
    """The operator: the driver asks for all but `carry_out`, which workers call."""

    index: int
    key: str
    inputs: tuple
    schemas: tuple[pa.Schema, ...]
    instances: int
    window: None = None

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([self.schemas[0].field(self.key)])

    @property
    def condition(self) -> Equi:
        return Equi((self.key,), (self.key,))

    def admission(self, side: Side) -> Admission:
        keys = (self.key,)
        return Admission(Keying((keys, keys)), (), self.output_schema, stays_put=True)

    def tasks(self, order: Order) -> Sequence[OperatorTask]:
        layouts = order.state.layouts
        if not order.brings and layouts.pending is None:
            return []
        return order.tasks(layouts.router.instances)

    def carry_out(self, task: OperatorTask, desk: Desk) -> None:
        """What one task does in one batch, at the instances that its header names."""
        shelf, reader = SeenShelf(self.output_schema), desk.reader(task.blocks[Side.LEFT])
        keeper = desk.keeper(shelf, version=task.stored.versions[0], merge_rows=1 << 18)
        spines = Spines(task.stored, keeper, task.header.hosted, task.memory_bytes // 4, None)
        for instance in task.header.hosted:
            with desk.at(instance) as here:
                spine = spines.at(instance, Side.LEFT)
                slices = reader.slices(instance)
                if slices:
                    arrived = Tuples.of(slices)
                    here.received[Side.LEFT] = here.stored[Side.LEFT] = len(arrived.words)
                    self._show_new(desk, keeper, instance, spine, arrived)
                keeper.merge(spine)

    def _show_new(self, desk, keeper, instance, spine, arrived) -> None:
        """The keys that are in no run are results, and a run of their own."""
        keys = arrived.columns.column(self.key)
        new = np.ones(len(keys), bool)
        for one in spine:
            new &= ~pc.is_in(keys, one.columns.column(self.key)).to_numpy(zero_copy_only=False)
        _, firsts = np.unique(pc.rank(keys, tiebreaker="dense").to_numpy(), return_index=True)
        chosen = firsts[new[firsts]]
        if len(chosen):
            order = chosen[sort_order(arrived.words[chosen])]
            columns = pa.RecordBatch.from_arrays([keys.take(pa.array(order))], names=[self.key])
            keeper.seal(instance, Side.LEFT, arrived.words[order], columns)
            desk.results.add(columns.columns)

    def account(self) -> Mapping[str, Any]:
        return {"on": self.key, **common_account(self, (self.key,)), "how": "distinct"}

    def lines(self, inputs, choice: LayoutChoice, rates) -> list[str]:
        return [f"distinct {self.key} of {inputs[0]}, under {choice.label}"]


def distinct(source, key: str, *, layout="dlb-h", instances: int | None = None) -> StreamOperator:
    """Every value of `key` once; NULL is none. For layouts that keep keys whole."""

    def make(index, given, schema, instances):
        return Distinct(index, key, (given,), (schema,), instances)

    return StreamOperator(source, make, layout=layout, instances=instances)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    _, folder, column, out = sys.argv
    spark = session()
    writer = distinct(parquet_stream(spark, folder), column).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{out}-checkpoint").trigger(availableNow=True)
    query = writer.start(out)
    query.awaitTermination()
    print(sum(query.metrics().column("output_rows").to_pylist()), "keys")
    spark.stop()
