"""Run files: write and read the runs that a task has sealed in a batch, as pages of one file.

Why: fewer files are faster, and in an object store each file is a request. So a task writes all
runs that it seals, of both sides, into one file, and runs that are sealed together onto one page. A
page is a separate Arrow stream. So pages of several schemas fit into one file, and each is mapped
where it lies.

On disk (format 4): a head that names the format; pages, each an Arrow stream of one record batch,
whose metadata says where its runs begin; the directory. For each page, the directory has its begin,
its end and its CRC-32; then come the number of pages, and the CRC-32 of all this, as 64-bit
integers. The first column of a page, `__word`, is the sort order of a run: key hash above u
(`joinengine.model.keys`). The other columns are those of the side.

Some pages can be read without the others, by ranges: first the end of the file, for the directory,
and then the pages. Each page is checked by its own CRC, since the CRC of the file needs all of it.

Law: what is read equals what was added; reading copies nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from joinengine.kernels.hashing import Words
from joinengine.kernels.probing import Ints
from joinengine.world.local import writing
from joinengine.world.storage import Storage, StoredFile

WORD = "__word"
RUN_FORMAT = b"joinengine run 4"
#: Key in the metadata of a page: (runs + 1,) 64-bit integers, the first row of each run, and the
#: end.
_BOUNDS_KEY = b"joinengine.bounds"
#: The number of a part is the number of its page times this, plus its place on the page.
_PARTS = 1 << 20
#: Pages begin at multiples of this, so that Arrow's buffers are aligned.
_ALIGN = 64
#: In place of the CRC of a page that is never read by itself.
_UNCHECKED = -1
#: Bytes that are read from the end of a file to find its directory; enough for some 2,700 pages.
_TAIL_BYTES = 1 << 16


class Page(NamedTuple):
    """(m,) words and columns of adjacent runs, each sorted by word."""

    words: Words
    columns: pa.RecordBatch


@dataclass(slots=True)
class Allowance:
    """How many bytes of run files a task may still inline in its report instead of writing them."""

    left: int = 0


class RunWriter:
    """Writes the runs of one task and batch into one file, or inlines a small file.

    The file is held in memory as long as it fits into the `allowance`.
    """

    def __init__(self, storage: Storage, name: str, allowance: Allowance | None = None) -> None:
        self._storage = storage
        self._name = name
        self._path = f"{storage.folder}/{name}"
        self._allowance = allowance or Allowance()
        self._file: Any = None
        with writing(self._path):
            self._sink: Any = pa.BufferOutputStream() if self._allowance.left else self._output()
            self._sink.write(RUN_FORMAT)
        #: Files in a folder are never read by page, so pages there need no CRC.
        self._is_far = storage.fetched is not None
        self._pages = list[tuple[int, int, int]]()

    def _output(self) -> Any:
        """A stream that writes to the storage."""
        self._file = self._storage.output(self._name)
        is_native = isinstance(self._file, pa.NativeFile)
        return self._file if is_native else pa.PythonFile(self._file, "w")

    def _hold(self, more: int) -> bool:
        """Whether the file stays in memory with `more` bytes; if they do not fit, write it out."""
        if self._file is None and self._sink.tell() + more > self._allowance.left:
            held = self._sink.getvalue()
            self._sink = self._output()
            self._sink.write(held)
        return self._file is None

    def add(self, page: Page, bounds: Ints, schema: pa.Schema) -> list[tuple[int, int]]:
        """Append runs, each sorted by word: run i has the rows bounds[i]:bounds[i + 1] of `page`.

        Returns the part number of each run, and its size in bytes, by its share of the rows.
        `schema`: of the columns.
        """
        schema = pa.schema([pa.field(WORD, pa.uint64(), nullable=False), *schema])
        arrays = [pa.array(page.words), *page.columns.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        metadata = {_BOUNDS_KEY: bounds.astype(np.int64).tobytes()} if len(bounds) > 2 else None
        with writing(self._path):
            size = batch.nbytes  # only of these rows, even if columns are slices
            self._hold(size)
            start = self._aligned()
            sink = pa.BufferOutputStream() if self._is_far else self._sink
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_batch(batch, custom_metadata=metadata)
            crc32 = _UNCHECKED
            if self._is_far:
                content = sink.getvalue()
                crc32 = zlib.crc32(content)
                self._sink.write(content)
            self._pages.append((start, self._sink.tell(), crc32))
        sizes = (np.diff(bounds) * size // len(page.words)).tolist()
        first = (len(self._pages) - 1) * _PARTS
        return list(zip(range(first, first + len(sizes)), sizes, strict=True))

    def close(self) -> StoredFile:
        """Write the directory, and seal or inline the file."""
        with writing(self._path):
            self._aligned()
            numbers = [*(number for page in self._pages for number in page), len(self._pages)]
            directory = np.array(numbers, np.int64).tobytes()
            directory += np.int64(zlib.crc32(directory)).tobytes()
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
        """Pad the file; returns where the next page begins."""
        place: int = self._sink.tell()
        self._sink.write(bytes(-place % _ALIGN))
        return place + -place % _ALIGN


class RunFile:
    """The content of a run file; pages are opened on demand."""

    def __init__(self, format_read: bytes, written: Mapping[int, pa.Buffer] | None) -> None:
        """`written`: page number -> its stream; None: the format `format_read` is unknown."""
        self.format, self._written = format_read, written
        self._pages: dict[int, tuple[Page, list[int]]] = {}

    @classmethod
    def of(cls, content: pa.Buffer) -> RunFile:
        """A whole file."""
        head = content.slice(0, min(content.size, len(RUN_FORMAT))).to_pybytes()
        return cls(head, _pages_of(content) if head == RUN_FORMAT else None)

    @classmethod
    def fetch(
        cls, storage: Storage, stored: StoredFile, parts: Collection[int], least: int
    ) -> RunFile | None:
        """Only the pages of `parts`, read by ranges.

        None: this saves less than `least` bytes, or the bytes read are not what was written. In
        that case the caller reads the whole file, and its CRC reveals the damage.
        """
        size = stored.size_bytes
        if size < least:
            return None
        (tail,) = storage.get_ranges(stored.name, [(max(0, size - _TAIL_BYTES), size)])
        directory = _directory_of(tail)
        numbers = sorted({part // _PARTS for part in parts})
        if directory is None or numbers[-1] >= len(directory):
            return None
        ranges = [directory[number] for number in numbers]
        if size - sum(end - start for start, end, _ in ranges) < least:
            return None
        pages = storage.get_ranges(stored.name, [(start, end) for start, end, _ in ranges])
        if [zlib.crc32(page) for page in pages] != [crc32 for _, _, crc32 in ranges]:
            return None
        return cls(RUN_FORMAT, dict(zip(numbers, pages, strict=True)))

    def has(self, part: int) -> bool:
        """Whether the page of a part was read; always true of a whole file."""
        return self._written is not None and part // _PARTS in self._written

    @property
    def is_known(self) -> bool:
        """Whether this version reads the format."""
        return self._written is not None

    def page(self, part: int, wanted: pa.Schema | None) -> tuple[Page, int]:
        """The page of a part, and the part's first row there; `wanted`: as in `RunStore.open`."""
        number, place = divmod(part, _PARTS)
        if number not in self._pages:
            assert self._written is not None
            with pa.ipc.open_stream(self._written[number]) as reader:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            schema = pa.schema(list(batch.schema)[1:])
            columns = pa.RecordBatch.from_arrays(batch.columns[1:], schema=schema)
            columns = columns if wanted is None else _as_wanted(columns, wanted)
            page = Page(batch.column(0).to_numpy(zero_copy_only=True), columns)
            bounds = None if metadata is None else metadata.get(_BOUNDS_KEY)
            starts = np.frombuffer(bounds or bytes(8), np.int64).tolist()
            self._pages[number] = page, starts
        page, starts = self._pages[number]
        return page, starts[place]


def _directory_of(tail: pa.Buffer) -> list[tuple[int, int, int]] | None:
    """Start, end and CRC of each page, from the `tail` of a file of format 4.

    None: the directory is damaged, or begins before `tail`.
    """
    numbers = _int64s(tail)
    n_pages = int(numbers[-2])
    if not 0 <= n_pages <= (len(numbers) - 2) // 3:
        return None
    directory = numbers[-2 - 3 * n_pages :]
    if zlib.crc32(directory[:-1].tobytes()) != directory[-1]:
        return None
    return [(start, end, crc32) for start, end, crc32 in directory[:-2].reshape(-1, 3).tolist()]


def _pages_of(content: pa.Buffer) -> dict[int, pa.Buffer]:
    """Page number -> its stream, for a whole file that has been checked by its CRC."""
    numbers = _int64s(content)
    places = numbers[-2 - 3 * int(numbers[-2]) : -2].reshape(-1, 3)[:, :2].tolist()
    return {n: content.slice(start, end - start) for n, (start, end) in enumerate(places)}


def _int64s(content: pa.Buffer) -> Ints:
    """The 64-bit integers at the end of some bytes, as many as are complete."""
    return np.frombuffer(content, np.int64, offset=content.size % 8)


def _as_wanted(columns: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The columns of an older run in the present schema; columns that fit are not copied."""
    if columns.schema.equals(wanted):
        return columns
    cast = [
        columns.column(field.name).cast(field.type)
        if field.name in columns.schema.names
        else pa.nulls(columns.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(cast, schema=wanted)
