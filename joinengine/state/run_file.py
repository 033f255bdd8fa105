"""Run files: the runs that a task has sealed in a batch, as pages of one file.

Why: few files are fast files, and in an object store each is a request. So a task writes what it
seals into one file, both sides of an operator alike, and runs that were sealed together onto one
page. A page is an Arrow stream of its own, so pages of several schemas lie in one file, and each is
mapped where it lies.

What is on disk (format 3): a head that names the format; pages, each an Arrow stream of one record
batch, whose metadata says where its runs begin; the directory: for each page where it begins and
ends, then how many there are, in 64-bit integers. The first column of a page, `__word`, is the sort
order of a run: key hash above u (joinengine.model.keys); the others are the columns of the side.
Files of formats 1 and 2 are still read. They are Arrow files, each of one side; in format 2 each
record batch is a page, in format 1 it is one run.

Law: what is read equals what was added; nothing is copied when it is read.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.world.storage import Storage, StoredFile

WORD = "__word"
RUN_FORMAT = b"joinengine run 3"
#: An Arrow file of one side.
ONE_SIDE_A_FILE = b"joinengine run 2"
#: In this format a record batch is one run, and the number of a part is that of its record batch.
ONE_RUN_A_PAGE = b"joinengine run 1"
_METADATA_KEY = b"joinengine.format"
#: In the metadata of a page: (runs + 1,) 64-bit integers, where each run begins, and the end.
_BOUNDS_KEY = b"joinengine.bounds"
#: The number of a part is that of its page, times this, plus its place in the page.
_PARTS = 1 << 20
#: Head and pages begin at multiples of this, since Arrow's buffers are to be aligned.
_ALIGN = 64
_ARROW_FILE = b"ARROW1"


class Page(NamedTuple):
    """(m,) words and columns of runs that lie side by side, each sorted by word."""

    words: Words
    columns: pa.RecordBatch


@dataclass(slots=True)
class Allowance:
    """How many bytes of run files a task may hand over with its report, and so need not write."""

    left: int = 0


class RunWriter:
    """Writes the runs of one task and batch into one file; if it is small, inlines it.

    As long as the file is within the `allowance`, it is held in memory.
    """

    def __init__(self, storage: Storage, name: str, allowance: Allowance | None = None) -> None:
        self._storage = storage
        self._name = name
        self._allowance = allowance or Allowance()
        self._file: Any = None
        self._sink: Any = pa.BufferOutputStream() if self._allowance.left else self._output()
        self._sink.write(RUN_FORMAT)
        self._pages = list[tuple[int, int]]()

    def _output(self) -> Any:
        """What writes to the storage."""
        self._file = self._storage.output(self._name)
        is_native = isinstance(self._file, pa.NativeFile)
        return self._file if is_native else pa.PythonFile(self._file, "w")

    def _hold(self, more: int) -> bool:
        """Whether the file is still held, with so many bytes more; it is not if they do not fit."""
        if self._file is None and self._sink.tell() + more > self._allowance.left:
            held = self._sink.getvalue()
            self._sink = self._output()
            self._sink.write(held)
        return self._file is None

    def add(self, page: Page, bounds: Ints, schema: pa.Schema) -> list[tuple[int, int]]:
        """Append runs, each sorted by word; run i in the rows bounds[i]:bounds[i + 1] of `page`.

        Returns the part number of each, and its size in bytes, by its share of the rows. `schema`:
        of the columns.
        """
        schema = pa.schema([pa.field(WORD, pa.uint64(), nullable=False), *schema])
        arrays = [pa.array(page.words), *page.columns.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        told = {_BOUNDS_KEY: bounds.astype(np.int64).tobytes()} if len(bounds) > 2 else None
        self._hold(batch.nbytes)
        start = self._aligned()
        with pa.ipc.new_stream(self._sink, schema) as writer:
            writer.write_batch(batch, custom_metadata=told)
        self._pages.append((start, self._sink.tell()))
        size = page.words.nbytes + page.columns.get_total_buffer_size()
        sizes = (np.diff(bounds) * size // len(page.words)).tolist()
        first = (len(self._pages) - 1) * _PARTS
        return list(zip(range(first, first + len(sizes)), sizes, strict=True))

    def close(self) -> StoredFile:
        """Seal the file."""
        self._aligned()
        numbers = [*(place for page in self._pages for place in page), len(self._pages)]
        directory = np.array(numbers, np.int64).tobytes()
        is_held = self._hold(len(directory))
        self._sink.write(directory)
        if is_held:
            content = self._sink.getvalue().to_pybytes()
            self._allowance.left -= len(content)
            return StoredFile(self._name, len(content), zlib.crc32(content), content)
        self._sink.flush()
        self._file.close()
        return self._storage.seal(self._name)

    def _aligned(self) -> int:
        """Where the next page begins."""
        here: int = self._sink.tell()
        self._sink.write(bytes(-here % _ALIGN))
        return here + -here % _ALIGN


class RunFile:
    """The content of a run file; pages are opened when they are asked for."""

    def __init__(self, content: pa.Buffer) -> None:
        self.format, self._reader = _reader_of(content)
        self._parts = 1 if self.format == ONE_RUN_A_PAGE else _PARTS
        self._pages: dict[int, tuple[Page, list[int]]] = {}

    @property
    def is_known(self) -> bool:
        """Whether this version reads the format."""
        return self._reader is not None

    def page(self, part: int, wanted: pa.Schema | None) -> tuple[Page, int]:
        """The page of a part, and its first row there; `wanted`: as in `RunStore.open`."""
        number, place = divmod(part, self._parts)
        if number not in self._pages:
            batch, told = self._reader.get_batch_with_custom_metadata(number)
            schema = pa.schema(list(batch.schema)[1:])
            columns = pa.RecordBatch.from_arrays(batch.columns[1:], schema=schema)
            columns = columns if wanted is None else _as_wanted(columns, wanted)
            page = Page(batch.column(0).to_numpy(zero_copy_only=True), columns)
            found = None if told is None else told.get(_BOUNDS_KEY)
            starts = np.frombuffer(found or bytes(8), np.int64).tolist()
            self._pages[number] = page, starts
        page, starts = self._pages[number]
        return page, starts[place]


class _Pages:
    """The record batches of a file of format 3, as an Arrow file gives its own."""

    def __init__(self, content: pa.Buffer) -> None:
        self._content = content
        numbers = memoryview(content).cast("B")
        n_pages = int(np.frombuffer(numbers[-8:], np.int64)[0])
        self._places = np.frombuffer(numbers[-8 - 16 * n_pages : -8], np.int64).tolist()

    def get_batch_with_custom_metadata(self, number: int) -> Any:
        """The record batch of a page, and its metadata."""
        start, stop = self._places[2 * number : 2 * number + 2]
        with pa.ipc.open_stream(self._content.slice(start, stop - start)) as reader:
            return reader.read_next_batch_with_custom_metadata()


def _reader_of(content: pa.Buffer) -> tuple[bytes, Any]:
    """The format of a run file, and what gives its record batches."""
    head = content.slice(0, min(content.size, len(RUN_FORMAT))).to_pybytes()
    if head == RUN_FORMAT:
        return head, _Pages(content)
    if not head.startswith(_ARROW_FILE):
        return head, None
    reader = pa.ipc.open_file(content)
    found = (reader.schema.metadata or {}).get(_METADATA_KEY, b"")
    return found, reader if found in (ONE_SIDE_A_FILE, ONE_RUN_A_PAGE) else None


def _as_wanted(columns: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of an older run as the query has them now; right ones are not copied."""
    if columns.schema.equals(wanted):
        return columns
    found = [
        columns.column(field.name).cast(field.type)
        if field.name in columns.schema.names
        else pa.nulls(columns.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(found, schema=wanted)
