"""Offers results to another engine: a folder of files, and a list of its files for each batch.

The driver shows the files of a batch, and then writes its list. The other engine remembers the
number of a batch. Once it has committed the results up to a batch, their files are removed, and so
are the lists, except the newest one, which is then empty.

Law: the lists are those of consecutive batches. A batch below the first list was fetched, so a
driver that delivers it again does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from joinengine.model.errors import DataLost
from joinengine.results.file_lists import content_of, listed
from joinengine.results.sinks import ParquetSink
from joinengine.results.staging import visible_name
from joinengine.world.storage import Storage, StoredFile, numbers

#: The number before that of the first batch.
NOTHING = -1
_LIST = ".json"
#: The list of a batch that was fetched.
_FETCHED = b"null"


@dataclass(frozen=True)
class Offered:
    """The results that are offered in a folder."""

    storage: Storage

    @property
    def batches(self) -> list[int]:
        """The numbers of the batches that have a list, in order."""
        return numbers(self.storage, _LIST)

    def offer(self, batch: int, files: Sequence[StoredFile]) -> None:
        """Write the list of a batch."""
        self.storage.put(_list(batch), content_of(_list(batch), files))

    def files(self, after: int, through: int) -> list[StoredFile]:
        """The files of the batches after `after`, up to `through`.

        Raises DataLost if another reader has fetched some of them.
        """
        lists = [self._files(batch) for batch in range(after + 1, through + 1)]
        if None in lists:
            first = min(self.batches, default=through)
            raise DataLost(
                f"to_df: results up to batch {first} were fetched by another query and are no "
                f"longer in {self.storage.folder}. Start that query again, or give to_df and the "
                "query that reads it new checkpoints"
            )
        return [file for files in lists for file in files or ()]

    def forget(self, through: int) -> None:
        """Remove the files of batches up to `through`, and the lists of earlier batches."""
        for batch in self.batches:
            if batch <= through:
                self.storage.delete(*(file.name for file in self._files(batch) or ()))
        if through in self.batches:
            self.storage.put(_list(through), _FETCHED)
        self.storage.delete(*(_list(batch) for batch in self.batches if batch < through))

    def _files(self, batch: int) -> list[StoredFile] | None:
        """The files of a batch; None: they were fetched."""
        try:
            is_fetched = self.storage.get(_list(batch)) == _FETCHED
            return None if is_fetched else listed(self.storage, _list(batch))
        except FileNotFoundError:
            return None


class OfferedSink(ParquetSink):
    """Shows results in a folder from which another engine fetches them."""

    @override
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        offered = Offered(self.storage)
        there = offered.batches
        if there and (batch in there or batch < there[0]):
            return
        super().deliver(batch, files, generation)
        shown = [
            StoredFile(visible_name(batch, self.query, f.name), f.size_bytes, f.crc32)
            for f in files
        ]
        offered.offer(batch, shown)


def _list(batch: int) -> str:
    return f"{batch:08d}{_LIST}"
