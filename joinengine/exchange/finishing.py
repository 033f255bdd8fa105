"""What becomes of the results of a query before they leave: filters, computed columns, names.

Law: a row that leaves depends on one result alone, so the results stay the same multiset however
they are cut into batches and tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from joinengine.model.conditions import Computed, Predicate
from joinengine.sources.transforms import Step, named, stepped


@dataclass(frozen=True, slots=True)
class Selected:
    """The columns that are left, in their order: (name, which column it was)."""

    columns: tuple[tuple[str, str], ...]

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of some rows."""
        arrays = [rows.column(column) for _, column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema(rows.schema))

    def schema(self, before: pa.Schema) -> pa.Schema:
        """The columns of rows that had those of `before`."""
        return pa.schema([before.field(column).with_name(name) for name, column in self.columns])


@dataclass(frozen=True, slots=True)
class Finish:
    """The steps from a result as its operator makes it to the row that leaves."""

    steps: tuple[Step | Selected, ...]

    def schema(self, made: pa.Schema) -> pa.Schema:
        """The columns that leave; `made`: those that the operator makes."""
        for step in self.steps:
            made = step.schema(made) if isinstance(step, Selected) else named(made, [step])
        return made

    def rows(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that leave, of some results."""
        for step in self.steps:
            if isinstance(step, Selected):
                results = step.of(results)
            else:
                results = stepped(results, [step], results.schema)
        return results

    def origins(self, columns: Sequence[str]) -> list[str]:
        """What `columns`, as they leave, are called as the operator makes them.

        Computed ones are left out.
        """
        for step in reversed(self.steps):
            if isinstance(step, Selected):
                before = dict(step.columns)
                columns = [before[name] for name in columns if name in before]
            elif isinstance(step, Computed):
                columns = [name for name in columns if name != step.name]
        return list(columns)

    @property
    def lines(self) -> list[str]:
        """The steps as people, and accounts of queries, have them."""
        return [_in_words(step) for step in self.steps]


def _in_words(step: Step | Selected) -> str:
    match step:
        case Predicate():
            return f"where {step.text}"
        case Computed():
            return f"with {step.name} = {step.text}"
    names = (name if name == column else f"{column} as {name}" for name, column in step.columns)
    return f"select {', '.join(names)}"
