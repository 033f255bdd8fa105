"""The steps behind an operator, from a result to the row that leaves: filters, columns, names.

Law: a row that leaves depends on only one result, so the rows stay the same multiset, however the
results are cut into batches and tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from joinengine.model.conditions import Computed, Predicate
from joinengine.sources.transforms import Step, named, stepped


@dataclass(frozen=True, slots=True)
class Selected:
    """A step that selects columns: (new name, old name) of each, in order."""

    columns: tuple[tuple[str, str], ...]

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the selected columns only."""
        arrays = [rows.column(column) for _, column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema(rows.schema))

    def schema(self, before: pa.Schema) -> pa.Schema:
        """The schema after the step; `before`: the schema before it."""
        return pa.schema([before.field(column).with_name(name) for name, column in self.columns])


@dataclass(frozen=True, slots=True)
class Finish:
    """All steps from a result, as its operator makes it, to the row that leaves."""

    steps: tuple[Step | Selected, ...]

    def schema(self, made: pa.Schema) -> pa.Schema:
        """The schema of rows that leave; `made`: that of the operator's results."""
        for step in self.steps:
            made = step.schema(made) if isinstance(step, Selected) else named(made, [step])
        return made

    def rows(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """(n results) -> the at most n rows that leave."""
        for step in self.steps:
            if isinstance(step, Selected):
                results = step.of(results)
            else:
                results = stepped(results, [step], results.schema)
        return results

    def origins(self, columns: Sequence[str]) -> list[str]:
        """The names that the operator gives to `columns` of rows that leave.

        Computed columns are left out.
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
        """The steps in words, for people and for accounts of queries."""
        return [_in_words(step) for step in self.steps]


def _in_words(step: Step | Selected) -> str:
    match step:
        case Predicate():
            return f"where {step.text}"
        case Computed():
            return f"with {step.name} = {step.text}"
    names = (name if name == column else f"{column} as {name}" for name, column in step.columns)
    return f"select {', '.join(names)}"
