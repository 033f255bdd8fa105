"""Applies the steps of a stream as its tuples are read: filters and computed columns, in order.

Law: steps are applied in the order in which the user wrote them; a step sees the columns as the
previous steps have left them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from joinengine.model.conditions import Computed, Predicate
from joinengine.model.keys import Side
from joinengine.predicates.computed_columns import computed
from joinengine.predicates.theta import passes
from joinengine.sources.schemas import as_text, cast, from_text

Step = Predicate | Computed


def named(columns: pa.Schema, steps: Sequence[Step]) -> pa.Schema:
    """The columns after `steps`; `columns`: those of the files."""
    fields = {field.name: field for field in columns}
    for step in steps:
        if isinstance(step, Computed):
            fields[step.name] = pa.field(step.name, step.kind)
    return pa.schema(list(fields.values()))


def needed(columns: pa.Schema, steps: Sequence[Step], shown: pa.Schema) -> list[pa.Field]:
    """The columns of the files from which `steps` and the columns `shown` are computed."""
    names = set(shown.names)
    for step in reversed(steps):
        if isinstance(step, Computed):
            names.discard(step.name)
        names |= {name for _, name in step.columns}
    return [field for field in columns if field.name in names]


def stepped(batch: pa.RecordBatch, steps: Sequence[Step], columns: pa.Schema) -> pa.RecordBatch:
    """The tuples that pass all filters, with the computed columns."""
    kinds = {field.name: field.type for field in columns}
    for step in steps:
        asked = [cast(batch.column(name), kinds[name]) for _, name in step.columns]
        names = [name for _, name in step.columns]
        given = pa.RecordBatch.from_arrays(asked, names=names) if asked else batch
        if isinstance(step, Predicate):
            batch = batch.filter(pa.array(passes(step, given)))
            continue
        values = computed(step, given)
        others = {n: c for n, c in zip(batch.schema.names, batch.columns, strict=True)}
        batch = pa.RecordBatch.from_pydict({**others, step.name: values})
        kinds[step.name] = step.kind
    return batch


def steps_to_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Steps as plain values."""
    return [
        {
            "text": step.text,
            "sql": step.sql,
            "columns": [name for _, name in step.columns],
            "zone": step.zone,
            "makes": as_text(pa.schema([(step.name, step.kind)]))
            if isinstance(step, Computed)
            else None,
        }
        for step in steps
    ]


def steps_from_json(content: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    """The inverse of `steps_to_json`."""
    steps = list[Step]()
    for step in content:
        columns = tuple((Side.LEFT, name) for name in step["columns"])
        if step["makes"] is None:
            steps.append(Predicate(step["text"], step["sql"], columns, step["zone"]))
        else:
            (field,) = from_text(step["makes"])
            made = field.name, step["text"], step["sql"], columns, field.type
            steps.append(Computed(*made, step["zone"]))
    return tuple(steps)
