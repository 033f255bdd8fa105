"""What a checkpoint is a checkpoint of, and whether a query may continue it."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from joinengine.model.aggregates import AggregateSpec
from joinengine.model.durations import describe as describe_us
from joinengine.model.errors import CheckpointMismatch
from joinengine.model.keys import Side
from joinengine.model.query import JoinSpec, Operator, QuerySpec
from joinengine.model.texts import condition_text, grouping_text
from joinengine.model.windows import Sliding
from joinengine.state.manifest import FORMAT
from joinengine.state.storage import Checkpoint, put


def claim(checkpoint: Checkpoint, wanted: dict[str, Any], *, fsync: bool) -> str:
    """The id of the query that owns the checkpoint: this one, or one with the same account.

    Raises CheckpointMismatch where the checkpoint is another query's, or has another format.
    """
    if checkpoint.query.exists():
        found = json.loads(checkpoint.query.read_text())
        if found["format"] != FORMAT:
            raise CheckpointMismatch(
                f"checkpoint {checkpoint.root} has format {found['format']}, this version writes "
                f"format {FORMAT}: use the version that wrote it, or start with a new checkpoint"
            )
        for name, was, asked in _differences(found["query"], wanted):
            raise CheckpointMismatch(
                f"checkpoint {checkpoint.root} is of another query: its {name} is {was}, asked for "
                f"is {asked}; use another checkpointLocation"
            )
        return str(found["id"])
    if any((checkpoint.root.parent / name).exists() for name in ("offsets", "commits")):
        raise CheckpointMismatch(
            f"{checkpoint.root.parent} is the checkpoint of a query that is not a joinengine join; "
            f"use another checkpointLocation"
        )
    checkpoint.create()
    query_id = uuid.uuid4().hex[:12]
    content = {"format": FORMAT, "id": query_id, "query": wanted}
    put(checkpoint.query, json.dumps(content, indent=1).encode(), fsync=fsync)
    return query_id


def _differences(
    found: dict[str, Any], wanted: dict[str, Any]
) -> Iterator[tuple[str, object, object]]:
    """(name, found, wanted) of what differs between two accounts of a query."""
    if len(found["joins"]) != len(wanted["joins"]):
        yield "number of joins", len(found["joins"]), len(wanted["joins"])
    for number, (was, asked) in enumerate(zip(found["joins"], wanted["joins"], strict=False)):
        for key, value in asked.items():
            if was.get(key) != value:
                yield f"{key} of join {number}", was.get(key), value
    if found["sources"] != wanted["sources"]:
        yield "sources", found["sources"], wanted["sources"]


def account_of(query: QuerySpec) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued, as plain values."""
    joins = [_operator_account(one) for one in query.joins]
    return {"joins": joins, "sources": list(query.sources)}


def _operator_account(one: Operator) -> dict[str, Any]:
    rest: dict[str, Any] = {
        "key_schema": _key_schema(one),
        "how": one.how,
        "left": one.schemas[0].to_string(),
        "inputs": repr(one.inputs),
        "output": one.output_schema.names,
    }
    if isinstance(one, AggregateSpec):
        computed = [[a.name, a.function, a.sql] for a in one.grouping.aggregates]
        on: dict[str, Any] = {"on": grouping_text(one), "aggregates": computed}
        return on | rest | {"top": repr(one.grouping.top)}
    on = {"on": condition_text(one.condition)}
    if not isinstance(one, JoinSpec):
        return on | rest
    own: dict[str, Any] = {
        "where": None if one.predicate is None else one.predicate.text,
        "filters": [None if text is None else text.text for text in one.filters],
        "within": _bounds(one),
        "right": one.schemas[1].to_string(),
    }
    return on | rest | own


def _key_schema(one: Operator) -> str:
    """The types of the key columns, for whoever looks a key up later."""
    fields = [one.schemas[0].field(name) for name in one.keys(Side.LEFT)]
    return base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode()


def _bounds(join: JoinSpec) -> str | None:
    window = join.window
    if window is None:
        return None
    left, right = (" or ".join(times) for times in window.times)
    if isinstance(window, Sliding):
        lengths = describe_us(window.size_us), describe_us(window.slide_us)
        return f"{left} and {right} in a window of {lengths[0]} every {lengths[1]}"
    bounds = describe_us(window.lower_us), describe_us(window.upper_us)
    return f"{bounds[0]} <= {right} - {left} <= {bounds[1]}"
