"""Small files of a checkpoint: each altered bit is refused by name, and so is a file mixed up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from joinengine.model.errors import DamagedState
from joinengine.results import kafka_target, outputs, showings, table_sinks
from joinengine.results.file_lists import content_of, listed
from joinengine.results.offered import Offered
from joinengine.results.showings import Showing
from joinengine.state.checkpoint import Checkpoint, read_note, write_note
from joinengine.world.memory import MemoryWorld
from joinengine.world.storage import Storage, StoredFile

FILES = [StoredFile("g1-a.parquet", 120, 77), StoredFile("g1-b.parquet", 121, 78)]
ROWS = [["g1-a.parquet", 120, 77], ["g1-b.parquet", 121, 78]]


@dataclass(frozen=True)
class Kind:
    """A kind of small file: where it is, how it is written and read, what older versions wrote."""

    place: Callable[[Checkpoint], Storage]
    names: tuple[str, str]
    write: Callable[[Checkpoint, int], Any]
    read: Callable[[Checkpoint, int], Any]
    old: Any


def note(name, **values):
    """The note of a sink."""
    return Kind(
        lambda c: c.storage,
        (name, name),
        lambda c, n: write_note(c, name, values),
        lambda c, n: read_note(c, name, "which names the place", *values),
        values,
    )


def merged(number):
    return f"merged-00000003-0000000{number}.json"


KINDS = {
    "table": note(table_sinks.NOTE, table="t", id="1f"),
    "kafka": note(kafka_target.NOTE, cluster="c", topic="t", producers=1),
    "output": note(outputs.NOTE, folder="/out"),
    "showing": Kind(
        lambda c: c.showings,
        ("00000003", "00000004"),
        lambda c, n: showings.create(c, n, n, ["a", "b"]),
        showings.find,
        {"through": 3, "files": ["a", "b"]},
    ),
    "offered": Kind(
        lambda c: c.results,
        ("00000003.json", "00000004.json"),
        lambda c, n: Offered(c.results).offer(n, FILES),
        lambda c, n: Offered(c.results).files(n - 1, n),
        [
            dict(zip(("name", "size_bytes", "crc32", "content"), (*row, None), strict=True))
            for row in ROWS
        ],
    ),
    "list": Kind(
        lambda c: c.storage,
        (merged(3), merged(4)),
        lambda c, n: c.storage.put(merged(n), content_of(merged(n), FILES)),
        lambda c, n: listed(c.storage, merged(n)),
        ROWS,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def checkpoint():
    return Checkpoint.below("/c", world=MemoryWorld())


def test_every_bit_counts(kind, checkpoint):
    kind.write(checkpoint, 3)
    place, name = kind.place(checkpoint), kind.names[0]
    whole, want = place.get(name), kind.read(checkpoint, 3)
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        place.put(name, bytes(altered))
        try:
            assert kind.read(checkpoint, 3) == want  # a blank, or how a letter is written
        except DamagedState as error:
            assert name in str(error) and "\n" not in str(error)
    for content in (b"", whole[: len(whole) // 2], b"[" * 200_000, b"{}", b'"x"', b"[1]", b"[[1]]"):
        place.put(name, content)
        with pytest.raises(DamagedState, match=name):
            kind.read(checkpoint, 3)


def test_what_an_older_version_wrote_is_read(kind, checkpoint):
    kind.write(checkpoint, 3)
    want = kind.read(checkpoint, 3)
    kind.place(checkpoint).put(kind.names[0], json.dumps(kind.old).encode())
    assert kind.read(checkpoint, 3) == want


def test_files_that_are_mixed_up_are_refused(kind, checkpoint):
    if len(set(kind.names)) == 1:
        return
    place = kind.place(checkpoint)
    for number in (3, 4):
        kind.write(checkpoint, number)
    first, second = map(place.get, kind.names)
    place.put(kind.names[0], second)
    place.put(kind.names[1], first)
    for number, name in zip((3, 4), kind.names, strict=True):
        with pytest.raises(DamagedState, match=name):
            kind.read(checkpoint, number)


def test_showings_that_are_mixed_up_do_not_hang_a_start(checkpoint):
    for first, through in ((3, 5), (6, 8)):
        showings.create(checkpoint, first, through, [])
    checkpoint.showings.put("00000006", checkpoint.showings.get("00000003"))
    with pytest.raises(DamagedState, match="00000006"):
        showings.still_held(checkpoint, ((6, ()), (7, ())))
    assert showings.find(checkpoint, 3) == Showing(5, ())
