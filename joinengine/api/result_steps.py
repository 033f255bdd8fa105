"""Steps that a user writes behind a query: `where`, `withColumn` and `select` on its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from joinengine.api.column_checks import named_columns
from joinengine.exchange.finishing import Finish, Selected
from joinengine.model.arguments import check_text
from joinengine.model.columns import refuse_doubles, require_column
from joinengine.model.errors import InvalidRequest
from joinengine.model.query import CHANGE
from joinengine.predicates.dialect import compile_predicate
from joinengine.sources.transforms import Step
from joinengine.spark.session import session
from joinengine.spark.sources.own_streams import column_step, names_of

#: (method, its arguments), as a user wrote them.
Written = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ResultSteps:
    """The steps so far. `made`: the columns that the operator makes. `finish`: None without steps.

    `spark`: the session, by which steps are read.
    `is_changelog`: the last column says how many of a row come, or go; no step may touch it.
    """

    spark: SparkSession
    made: pa.Schema
    finish: Finish | None
    is_changelog: bool

    @property
    def schema(self) -> pa.Schema:
        """The columns that leave."""
        return self.made if self.finish is None else self.finish.schema(self.made)

    @property
    def _there(self) -> pa.Schema:
        """The columns that a step may name."""
        schema = self.schema
        return schema.remove(len(schema) - 1) if self.is_changelog else schema

    def origins(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Names of columns as they leave -> their names as the operator makes them.

        Raises InvalidRequest for a computed column, which cannot be event time.
        """
        for name in columns:
            if name in self.schema.names and not self.handed_on([name]):
                raise InvalidRequest(
                    f"within: {name} is computed of results, and no event time follows from it; "
                    "name a column that the join hands on as it is"
                )
        return tuple(self.handed_on(columns))

    def handed_on(self, columns: Sequence[str]) -> Sequence[str]:
        """As `origins`, without those that are computed."""
        return columns if self.finish is None else self.finish.origins(columns)

    def where(self, predicate: str) -> Finish:
        """The steps, and a filter."""
        check_text(predicate, "where", "'a > 3'")
        exact, zone = session.case_sensitive(self.spark), session.zone(self.spark)
        return self._with(compile_predicate(predicate, (self._there,), "where", zone, exact=exact))

    def with_column(self, name: str, expression: str) -> Finish:
        """The steps, and a column, which replaces the one of its name."""
        exact, there = session.case_sensitive(self.spark), self._there
        step = column_step(name, expression, there, session.zone(self.spark), exact=exact)
        if self.is_changelog and name.lower() == CHANGE:
            raise InvalidRequest(
                f"withColumn: {CHANGE} says how many of a row come or go; give another name"
            )
        if not self.is_changelog or step.name in there.names:
            return self._with(step)
        names = [*there.names, step.name, CHANGE]
        return self._with(step, Selected(tuple(zip(names, names, strict=True))))

    def select(self, columns: tuple[Any, ...]) -> Finish:
        """The steps, and the columns that are left: names, lists of them, or a mapping."""
        is_mapping = len(columns) == 1 and isinstance(columns[0], Mapping)
        exact, there = session.case_sensitive(self.spark), self._there
        asked = named_columns(columns[0] if is_mapping else names_of(columns))
        fields = [require_column(there, column, "select", exact=exact) for column in asked.values()]
        pairs = [(name, field.name) for name, field in zip(asked, fields, strict=True)]
        pairs += [(CHANGE, CHANGE)] if self.is_changelog else []
        if "" in asked:
            raise InvalidRequest("select: the name of a column is empty; give one")
        refuse_doubles([name for name, _ in pairs], "select")
        return self._with(Selected(tuple(pairs)))

    def _with(self, *steps: Step | Selected) -> Finish:
        return Finish((*(() if self.finish is None else self.finish.steps), *steps))
