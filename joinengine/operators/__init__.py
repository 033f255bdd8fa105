"""All operators that the package brings, in one table; what tasks do with tuples. No Spark.

A query may bring operators of its own: its plan carries them (docs/operators.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from joinengine.operators.aggregation.operator import Aggregation
from joinengine.operators.base import Operator
from joinengine.operators.join.operator import Join

#: To add an operator: a folder, and a line here. The laws run over this table.
OPERATORS: Mapping[str, type[Operator]] = {"join": Join, "aggregation": Aggregation}

__all__ = ["OPERATORS", "Aggregation", "Join", "Operator"]
