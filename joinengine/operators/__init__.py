"""The operators of a query and their tasks; OPERATORS lists those of the package. No Spark.

A query may also define its own operators and carry them with it (docs/operators.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from joinengine.operators.aggregation.aggregate_operator import Aggregation
from joinengine.operators.aggregation.running_operator import Running
from joinengine.operators.asof.asof_operator import AsOfJoin
from joinengine.operators.base import Operator
from joinengine.operators.join.join_operator import Join
from joinengine.operators.multiway.multiway_operator import MultiwayJoin

#: To add an operator: a folder, and a line here. The laws run over this table.
OPERATORS: Mapping[str, type[Operator]] = {
    "join": Join,
    "as-of join": AsOfJoin,
    "multiway join": MultiwayJoin,
    "aggregation": Aggregation,
    "running": Running,
}

__all__ = ["OPERATORS", "Aggregation", "AsOfJoin", "Join", "MultiwayJoin", "Operator", "Running"]
