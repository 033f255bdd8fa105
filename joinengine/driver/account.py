"""Which query a checkpoint belongs to, and whether a query may continue it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joinengine.model.errors import CheckpointMismatch
from joinengine.operators.base import QuerySpec
from joinengine.state.checkpoint import Checkpoint, read_account, write_account
from joinengine.state.manifest import FORMAT


def claim(checkpoint: Checkpoint, wanted: dict[str, Any]) -> str:
    """The id of the query that owns the checkpoint: this one, or one with the same account.

    Raises CheckpointMismatch if the checkpoint is another query's, or has another format,
    DamagedState if its account of the query is damaged.
    """
    location, found = checkpoint.location, read_account(checkpoint)
    if found is not None:
        if found["format"] != FORMAT:
            raise CheckpointMismatch(
                f"checkpoint {location} has format {found['format']}, this version writes "
                f"format {FORMAT}: use the version that wrote it, or start with a new checkpoint"
            )
        for name, was, asked in _differences(found["query"], wanted):
            raise CheckpointMismatch(
                f"checkpoint {location} is of another query: its {name} is {was}, asked for "
                f"is {asked}; use another checkpointLocation"
            )
        return str(found["id"])
    if any(checkpoint.world.storage(location).exists(name) for name in ("offsets", "commits")):
        raise CheckpointMismatch(
            f"{location} is the checkpoint of a query that joinengine did not start; "
            f"use another checkpointLocation"
        )
    checkpoint.create()
    query_id = checkpoint.world.nonce()
    write_account(checkpoint, {"format": FORMAT, "id": query_id, "query": wanted})
    return query_id


def _differences(
    found: dict[str, Any], wanted: dict[str, Any]
) -> Iterator[tuple[str, object, object]]:
    """(name, found, wanted) of each value that differs between two accounts of a query."""
    if len(found["joins"]) != len(wanted["joins"]):
        yield "number of operators", len(found["joins"]), len(wanted["joins"])
    for number, (was, asked) in enumerate(zip(found["joins"], wanted["joins"], strict=False)):
        for key, value in asked.items():
            if was.get(key) != value:
                yield f"{key} of operator {number}", was.get(key), value
    if found["sources"] != wanted["sources"]:
        yield "sources", found["sources"], wanted["sources"]


def account_of(query: QuerySpec) -> dict[str, Any]:
    """The account of a query: plain values that must agree if a checkpoint is to be continued."""
    operators = [dict(one.account()) for one in query.operators]
    return {"joins": operators, "sources": list(query.sources)}
