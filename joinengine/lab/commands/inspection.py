"""The content of a checkpoint, for people and scripts. It is only read: running queries go on."""

from __future__ import annotations

import base64
import csv
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinengine.kernels.hashing import hash_columns, key_hash, make_words
from joinengine.kernels.probing import Needles, find, live_rows
from joinengine.model.errors import CheckpointMismatch, InvalidRequest
from joinengine.model.keys import U_ONE, Side
from joinengine.model.texts import counted
from joinengine.operators.base import Operator
from joinengine.routing import table as routing_table
from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint, read_account
from joinengine.state.manifest import Manifest
from joinengine.state.operator_state import OperatorState
from joinengine.state.run import OpenRun, RunStore

#: The end of an instant that has a time zone.
_ZONE = re.compile(r"(Z|[+-]\d{2}(:?\d{2})?)$")


def inspect(location: Path | str) -> dict[str, Any]:
    """The newest manifest of a checkpoint in figures.

    Raises CheckpointMismatch if there is no manifest, DamagedState if it cannot be trusted.
    """
    about, manifest = _open(location)
    joins = [
        _join(number, state, described)
        for number, (state, described) in enumerate(
            zip(manifest.operators, about["query"]["joins"], strict=True)
        )
    ]
    return {
        "checkpoint": str(location),
        "format": about["format"],
        "query": manifest.query,
        "batch": manifest.batch,
        "full_batch": manifest.chain.full.batch if manifest.chain else manifest.batch,
        "generation": manifest.generation,
        "joins": joins,
    }


def inspect_key(location: Path | str, text: str, join: int | None) -> dict[str, Any]:
    """Where the key written as `text` lives, and how many tuples of it each instance holds.

    `join`: the number of an operator; None: the last one. Raises InvalidRequest if the text is not
    a key of that operator.
    """
    about, manifest = _open(location)
    number = len(manifest.operators) - 1 if join is None else join
    if not 0 <= number < len(manifest.operators):
        raise InvalidRequest(
            f"join: operator {number} does not exist; the operators are 0 to "
            f"{len(manifest.operators) - 1}"
        )
    state, described = manifest.operators[number], about["query"]["joins"][number]
    hash_ = _hash_of(text, described)
    placement = state.layouts.newest.layout.place(hash_)
    return {
        "join": number,
        "key": text,
        "key_hash": hash_,
        "mode": placement.mode.value if placement else "any",
        "split_side": placement.split_side.name.lower() if placement else "none",
        "homes": [
            [f.instance, f.u_lower / U_ONE, f.u_upper / U_ONE]
            for f in (placement.fragments if placement else ())
        ],
        "rows": _rows_held(Checkpoint.below(location), state, hash_),
    }


def key_held(
    location: Path | str, number: int, hash_: int, operator: Operator
) -> tuple[object, ...] | None:
    """The values of a key whose hash is `hash_`, as some tuple in the state has them.

    `operator`: the operator of this number. None: the operator has no single key, or its state
    holds no tuple of the key.
    """
    checkpoint = Checkpoint.below(location)
    manifest = manifests.newest(checkpoint.manifests)
    keying = operator.admission(Side.LEFT).keying
    if manifest is None or keying.distance is not None:
        return None
    for opened, lower, rows in _held(checkpoint, manifest.operators[number], hash_):
        names = keying.keys[opened.run.side]
        if rows and names and set(names) <= set(opened.columns.schema.names):
            ranks = np.array([lower])
            row = int((ranks if opened.gone is None else live_rows(opened.gone, ranks))[0])
            return tuple(opened.columns.column(name)[row].as_py() for name in names)
    return None


def state_lines(report: dict[str, Any]) -> list[str]:
    """The report in words."""
    lines = [
        f"checkpoint {report['checkpoint']}: format {report['format']}, query {report['query']}, "
        f"batch {report['batch']} by driver generation {report['generation']}, read from the "
        f"manifests since batch {report['full_batch']}"
    ]
    for join in report["joins"]:
        lines.append(f"operator {join['join']}: {join['on']}")
        lines.append(
            f"  layout {join['layout']} on {join['instances']} instances, "
            f"{counted(join['routing_entries'], 'key')} in the "
            f"routing table, {join['split_keys']} split"
        )
        lines += [
            f"  version {older['version']} ({older['layout']}) still has "
            f"{counted(older['rows'], 'row')}"
            for older in join["older_versions"]
        ]
        lines.append(
            f"  {counted(join['rows'], 'row')} in {counted(join['runs'], 'run')} and "
            f"{counted(join['files'], 'file')}, "
            f"{join['bytes']:,} bytes; rows per instance {join['rows_per_instance']}"
        )
        if join["pending_bytes"]:
            lines.append(
                f"  {join['pending_bytes']:,} bytes of rows that wait for a match, and of marks"
            )
    if "key" in report:
        key = report["key"]
        shares = [f"{i} [{low:.4f}, {high:.4f})" for i, low, high in key["homes"]]
        homes = ", ".join(shares) or "instances that its layout does not choose by key"
        lines.append(f"key {key['key']} of operator {key['join']}: {key['mode']} at {homes}")
        for side, rows in key["rows"].items():
            held = ", ".join(f"{n} at {i}" for i, n in sorted(rows.items()))
            lines.append(f"  {side} rows: {held or 'none'}")
    return lines


def _open(location: Path | str) -> tuple[dict[str, Any], Manifest]:
    checkpoint = Checkpoint.below(location)
    manifest, account = manifests.newest(checkpoint.manifests), read_account(checkpoint)
    if manifest is None or account is None:
        raise CheckpointMismatch(
            f"{location} is not a checkpoint of joinengine, or has no batch yet; give the folder "
            "of checkpointLocation or stateLocation"
        )
    return account, manifest


def _join(number: int, state: OperatorState, described: dict[str, Any]) -> dict[str, Any]:
    layouts, shelves = state.layouts, state.shelves
    layout, watermark = layouts.newest.layout, state.clock.watermark
    held, versions = Counter[int](), Counter[int]()
    for run in shelves.state.values():
        held[run.instance] += run.live
        versions[run.version] += run.live
    return {
        "join": number,
        "on": described["on"],
        "layout": layouts.newest.choice.label,
        "version": layouts.version,
        "older_versions": [
            {"version": version, "layout": older.choice.label, "rows": versions[version]}
            for version, older in sorted(layouts.older.items())
        ],
        "instances": layout.instances,
        "runs": len(shelves.state),
        "files": len(shelves.files),
        "rows": shelves.rows,
        "bytes": shelves.size_bytes,
        "pending_bytes": shelves.pending_bytes,
        "rows_per_instance": [held[i] for i in range(max([layout.instances - 1, *held]) + 1)],
        "routing_entries": len(layout.table.placements),
        "split_keys": layout.table.split_keys,
        "routing_table": routing_table.to_json(layout.table),
        "watermark": None if np.isinf(watermark) else watermark,
    }


def _hash_of(text: str, described: dict[str, Any]) -> int:
    kinds = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(described["key_schema"])))
    if not len(kinds) or "<=" in described["on"]:
        raise InvalidRequest(
            f"key: the operator on {described['on']} has no single key; leave the key out, or "
            "choose an operator on equal columns"
        )
    parts = next(csv.reader([" ".join(text.splitlines())]), []) if len(kinds) > 1 else [text]
    if len(parts) != len(kinds):
        raise InvalidRequest(
            f"key: {text!r} has {len(parts)} parts, but the key has {len(kinds)}; give one part "
            "for each column"
        )
    try:
        columns = [_parsed(part, field.type) for part, field in zip(parts, kinds, strict=True)]
    except pa.ArrowInvalid as error:
        types = ", ".join(str(field.type) for field in kinds)
        raise InvalidRequest(f"key: {text!r} is not a key of type {types}: {error}") from None
    words = make_words(hash_columns(columns), np.zeros(1, np.uint64))
    return int(key_hash(words)[0])


def _parsed(text: str, kind: pa.DataType) -> pa.Array:
    """(1,) a value as it is written; an instant without a zone is in UTC."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and not _ZONE.search(text):
        clock = pc.cast(pa.array([text]), pa.timestamp(kind.unit))
        return pc.assume_timezone(clock, "UTC").cast(kind)
    return pc.cast(pa.array([text]), kind)


def _rows_held(
    checkpoint: Checkpoint, state: OperatorState, hash_: int
) -> dict[str, dict[int, int]]:
    held = {side.name.lower(): Counter[int]() for side in [*Side][: len(state.clock.sides)]}
    for opened, _, rows in _held(checkpoint, state, hash_):
        if rows:
            held[opened.run.side.name.lower()][opened.run.instance] += rows
    return {side: dict(counts) for side, counts in held.items()}


def _held(
    checkpoint: Checkpoint, state: OperatorState, hash_: int
) -> Iterator[tuple[OpenRun, int, int]]:
    """Per run of the state: its first live rank of the key, and how many live rows the key has."""
    store = RunStore(checkpoint.runs)
    needles = Needles(np.array([hash_], np.uint64), np.array([0, 1]))
    for run in state.shelves.state.values():
        opened = store.open(run, state.shelves.files[run.file])
        hits = find(opened.words, needles, opened.gone)
        yield opened, int(hits.lower.sum()), int(hits.counts.sum())
