"""The account of a query in its checkpoint: it decides which query may continue the checkpoint."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from joinengine.model.errors import CheckpointMismatch
from joinengine.model.keys import Side
from joinengine.operators.accounts import in_words
from joinengine.operators.base import QuerySpec
from joinengine.state.checkpoint import Checkpoint, create_account, read_account, write_account
from joinengine.state.fence import check_markers
from joinengine.state.manifests import FORMAT, READ

_log = logging.getLogger("joinengine")
#: Marks an account whose lengths of time are exact. Older accounts round them to six digits.
_EXACT = "exact"
#: Parts of an account that follow from others, which say more of what has changed.
_FOLLOWING = ("output", "key_schema")
_SECONDS = re.compile(r"(-?\d+\.?\d*) s\b")


class Claim(NamedTuple):
    """A query that may use a checkpoint.

    `content`: the account to write; None: it is there. `is_new`: no query had the checkpoint.
    """

    query: str
    content: dict[str, Any] | None
    is_new: bool = False

    def take(self, checkpoint: Checkpoint) -> str:
        """Make the checkpoint that of the query; the query's id.

        Raises CheckpointMismatch if another one has made the new checkpoint its own meanwhile.
        """
        if self.content is not None or checkpoint.mode is not None:
            checkpoint.create()
        else:
            checkpoint.mend()
        if self.content is not None and not self.is_new:
            write_account(checkpoint, self.content)
        elif self.content is not None and not create_account(checkpoint, self.content):
            raise CheckpointMismatch(
                f"checkpoint {checkpoint.location} was new, and another start has begun it at the "
                "same moment; nothing is lost: leave this driver stopped, or give it a "
                "checkpointLocation of its own"
            )
        return self.query


def claim(
    checkpoint: Checkpoint,
    wanted: dict[str, Any],
    streams: Mapping[int, str] | None = None,
    before: dict[str, Any] | None = None,
    zone: str | None = None,
) -> Claim:
    """The claim of the `wanted` query to the checkpoint, under the id that the query has there.

    Writes nothing.

    `streams`: source -> the columns of its files, as text; the checkpoint keeps them. `before`: the
    account of the query over the kept columns, if the query continues with more columns; None: the
    columns stay. `zone`: the session's time zone; the checkpoint keeps it, and a different one
    gives a warning.

    Raises CheckpointMismatch if the checkpoint belongs to another query or has another format, and
    DamagedState if its account is damaged.
    """
    kept = {str(number): columns for number, columns in (streams or {}).items()}
    location, account = checkpoint.location, read_account(checkpoint)
    if account is not None:
        checkpoint.check_folders()
        check_markers(checkpoint)
        if account["format"] not in READ:
            raise CheckpointMismatch(
                f"checkpoint {location} has format {account['format']}, but this version writes "
                f"format {FORMAT}; use the version that wrote the checkpoint, or start with a new "
                "one"
            )
        _check_chain(location, account["query"], wanted)
        asked_for = before or wanted
        if not account.get(_EXACT):
            asked_for = _rounded(asked_for, account["query"])
        for name, was, asked in _differences(account["query"], asked_for):
            raise CheckpointMismatch(
                f"checkpoint {location} belongs to another query: its {name} is {was}, and this "
                f"query has {asked}; use another checkpointLocation"
            )
        if zone is not None and account.get("zone", zone) != zone:
            _log.warning(
                "joinengine: checkpoint %s was begun in time zone %s, and this session has %s: "
                "dates and hours of instants, in predicates, computed columns and partitionBy, are "
                "others from here on; set spark.sql.session.timeZone to %s to go on as before",
                *(location, account["zone"], zone, account["zone"]),
            )
        changed = None if before is None else account | {"query": wanted, "streams": kept}
        return Claim(str(account["id"]), changed)
    logs = checkpoint.world.storage(checkpoint.spark)
    if any(logs.exists(name) for name in ("offsets", "commits")):
        raise CheckpointMismatch(_not_ours(checkpoint))
    query_id = checkpoint.world.nonce()
    about = {"format": FORMAT, "id": query_id, _EXACT: True}
    about |= {} if zone is None else {"zone": zone}
    content = about | {"query": wanted, "streams": kept}
    return Claim(query_id, content, is_new=True)


def _not_ours(checkpoint: Checkpoint) -> str:
    """The message if Spark has logs of a query, but the engine holds no state of it."""
    logs, location = checkpoint.spark, checkpoint.location
    if logs == location:
        return (
            f"{location} is the checkpoint of a query that joinengine did not start; use another "
            "checkpointLocation"
        )
    return (
        f"checkpointLocation {logs} belongs to a query whose state is not at stateLocation "
        f"{location}; give the stateLocation of that query, or a new checkpointLocation"
    )


def kept_columns(checkpoint: Checkpoint, sources: Sequence[str]) -> dict[int, str]:
    """Source -> the columns of its files, as text, at the first start of the query.

    Empty if the checkpoint is new, or belongs to a query of other `sources`.
    """
    account = read_account(checkpoint)
    if account is None or account["format"] not in READ:
        return {}
    if account["query"]["sources"] != list(sources):
        return {}
    return {int(number): columns for number, columns in account.get("streams", {}).items()}


def operators_kept(checkpoint: Checkpoint) -> int | None:
    """How many operators the query of a checkpoint has; None: there is no query yet."""
    account = read_account(checkpoint)
    return (
        None if account is None or account["format"] not in READ else len(account["query"]["joins"])
    )


def check_types(before: QuerySpec, after: QuerySpec) -> None:
    """Raise CheckpointMismatch if a key, a band or an event time has another type in `after`.

    State is found by hashes of keys and left by event time, so both would be lost.
    """
    for was, now in zip(before.operators, after.operators, strict=True):
        for side, schema in zip(Side, was.schemas, strict=False):
            admission = was.admission(side)
            distance = admission.keying.distance
            names = {*admission.keying.keys[side], *admission.times}
            names |= set() if distance is None else {distance.column(side)}
            for name in sorted(names):
                old, new = schema.field(name).type, now.schemas[side].field(name).type
                if old != new:
                    raise CheckpointMismatch(
                        f"schema_changes: {name!r} is {old} in the checkpoint and {new} in the "
                        "files, and the type of a key or an event time cannot change; write "
                        f"files with {old}, or use another checkpointLocation"
                    )


def _check_chain(location: str, before: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise CheckpointMismatch if joins that are one operator in the checkpoint are several now."""
    kept, asked = before["joins"], wanted["joins"]
    if len(asked) > len(kept) and any("others" in account for account in kept):
        raise CheckpointMismatch(
            f"checkpoint {location} keeps several joins on one key as one operator, which needs "
            "one layout and number of instances for all of them, a layout that keeps keys whole, "
            "and no steps between them; write these joins so, or use another checkpointLocation"
        )


def _differences(
    account: dict[str, Any], wanted: dict[str, Any]
) -> Iterator[tuple[str, object, object]]:
    """(name, found, wanted) of each value that differs between two accounts of a query."""
    if len(account["joins"]) != len(wanted["joins"]):
        yield "number of operators", len(account["joins"]), len(wanted["joins"])
    for number, (was, asked) in enumerate(zip(account["joins"], wanted["joins"], strict=False)):
        for key in sorted(asked, key=_FOLLOWING.__contains__):
            if was.get(key) != asked[key] and not (key == "steps" and _was_selected(was, asked)):
                before, after = (in_words(key, value) for value in (was.get(key), asked[key]))
                yield f"{key} of operator {number}", before, after
    if account["sources"] != wanted["sources"]:
        yield "sources", account["sources"], wanted["sources"]


def _rounded(asked: Any, was: Any) -> Any:
    """`asked`, but a length of time that equals that of `was` to six digits is as in `was`."""
    if isinstance(asked, str) and isinstance(was, str):
        rounded = _SECONDS.sub(lambda match: f"{float(match[1]):g} s", asked)
        return was if rounded == was else asked
    if isinstance(asked, dict) and isinstance(was, dict):
        return {key: _rounded(value, was.get(key)) for key, value in asked.items()}
    if isinstance(asked, list | tuple) and isinstance(was, list | tuple):
        if len(asked) == len(was):
            return type(asked)(_rounded(*pair) for pair in zip(asked, was, strict=True))
    return asked


def _was_selected(was: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether `was` holds the same steps in the form of an earlier version (`select`)."""
    if "steps" in was or asked["steps"] is None:
        return "steps" not in was
    pairs = [text.partition(" as ") for text in was.get("select") or ()]
    names = (name if name == column else f"{column} as {name}" for column, _, name in pairs)
    return bool(asked["steps"] == [f"select {', '.join(names)}"])


def account_of(query: QuerySpec) -> dict[str, Any]:
    """The account of a query: plain values that must agree if a checkpoint is to be continued."""
    operators = [
        {**operator.account(), "steps": None if operator.finish is None else operator.finish.lines}
        for operator in query.operators
    ]
    return {"joins": operators, "sources": list(query.sources)}
