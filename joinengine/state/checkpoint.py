"""The folders of one query's state, below Spark's checkpoint location."""

from __future__ import annotations

from dataclasses import dataclass

from joinengine.world.storage import Storage, tagged
from joinengine.world.world import MACHINE, World

_FOLDERS = (
    *("manifest", "runs", "exchange", "results", "sources"),
    *("generations", "boundary", "deliveries", "ticks"),
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where one query's state lies, and the world in which its driver runs."""

    world: World
    storage: Storage

    @classmethod
    def below(cls, location: object, *, fsync: bool = False, world: World = MACHINE) -> Checkpoint:
        """The checkpoint of the query whose checkpoint location is `location`."""
        return cls(world, world.storage(f"{location}/joinengine", fsync=fsync))

    @property
    def location(self) -> str:
        """The checkpoint location, which users know; Spark's own files lie there too."""
        return self.storage.folder.rpartition("/")[0]

    @property
    def manifests(self) -> Storage:
        """One manifest per batch; the newest counts."""
        return self.storage.at("manifest")

    @property
    def runs(self) -> Storage:
        """Run files and statistics of all operators."""
        return self.storage.at("runs")

    @property
    def exchange(self) -> Storage:
        """Blocks on their way to operators; empty between batches."""
        return self.storage.at("exchange")

    @property
    def results(self) -> Storage:
        """Results on their way to a sink that takes DataFrames."""
        return self.storage.at("results")

    @property
    def sources(self) -> Storage:
        """The source logs: which files and row groups each offset means."""
        return self.storage.at("sources")

    @property
    def generations(self) -> Storage:
        """A marker for each driver that was started; the greatest counts."""
        return self.storage.at("generations")

    @property
    def boundary(self) -> Storage:
        """A marker for the batch up to which nothing can be committed any more."""
        return self.storage.at("boundary")

    @property
    def deliveries(self) -> Storage:
        """Markers: which attempt to deliver a batch counts, if attempts differ in their files."""
        return self.storage.at("deliveries")

    @property
    def ticks(self) -> Storage:
        """The drivers' requests for a batch without data."""
        return self.storage.at("ticks")

    def create(self) -> None:
        """Make the folders that are missing."""
        for name in _FOLDERS:
            self.storage.at(name).make()


#: The account of the query that owns the checkpoint.
ACCOUNT = "query.json"


def tick_name(generation: int) -> str:
    """The requests of one driver; an older driver that wakes up must not overwrite them."""
    return tagged(generation, "next.json")
