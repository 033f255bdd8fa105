"""Delivers a batch: makes its results and its refused tuples visible to users."""

from __future__ import annotations

from joinengine.model.errors import DamagedState, JoinEngineError
from joinengine.results import showings
from joinengine.results.showings import Held
from joinengine.results.sinks import SideOutput, Sink
from joinengine.state import manifests
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest
from joinengine.world.buckets import is_url
from joinengine.world.storage import Storage, verify


class Delivery:
    """Makes visible the files that manifests name; repeating it changes nothing.

    `held`: the results that are held back, since the last delivery.
    """

    def __init__(self, checkpoint: Checkpoint, sink: Sink, aside: SideOutput | None = None) -> None:
        self._checkpoint = checkpoint
        self.sink = sink
        self.aside = aside
        self.held: Held = ()

    @property
    def is_holding(self) -> bool:
        """Whether some results are held back."""
        return any(files for _, files in self.held)

    @property
    def due_s(self) -> float | None:
        """When results that are held back are shown without new ones; None: never."""
        return self.sink.due_s if self.is_holding else None

    @property
    def before_next(self) -> Held | None:
        """The results held back, for the next manifest; None: the sink never holds any back."""
        return self.held if self.sink.every > 1 else None

    def check_sink(self, last: Manifest) -> None:
        """Raise CheckpointMismatch if the sink cannot show the results that `last` names.

        `last`: the newest manifest, perhaps of a driver that still runs. If that driver has
        committed another batch in the meantime, the results of `last` are delivered.
        """
        try:
            self.sink.check_held(showings.staged(last), self._checkpoint)
            if last.held is None:
                self.sink.check_last(last.batch, last.results)
        except JoinEngineError:
            newest = manifests.newest(self._checkpoint.manifests)
            if newest is None or newest.batch == last.batch:
                raise

    def check(self, last: Manifest) -> None:
        """Raise DamagedState, with its name, for a staged file that is not what a task has sealed.

        A driver checks this when it starts, since power may have been lost. Files in an object
        store are always complete.
        """
        held = [stored for _, files in showings.staged(last) for stored in files]
        named = dict.fromkeys((*last.results, *last.refused), "result file")
        named |= dict.fromkeys(held, "result file that is held back")
        for stored, what in named.items():
            for place in self._places():
                if place.exists(stored.name):
                    try:
                        verify(place, stored, what)
                    except DamagedState:
                        if place.exists(stored.name):  # otherwise, an older driver delivered it
                            raise

    def _places(self) -> list[Storage]:
        """The folders in which results and refused tuples wait, each once."""
        aside = None if self.aside is None else self.aside.staging
        places = self._checkpoint.results, self.sink.staging, aside
        by_name = {place.folder: place for place in places if place is not None}
        return [place for folder, place in by_name.items() if not is_url(folder)]

    def deliver(self, last: Manifest, generation: int, *, whole: bool = False) -> None:
        """Make visible the results and refused tuples that the newest manifest names.

        `whole`: also show results that are held back to become visible with later ones.
        """
        if last.results or self.is_holding:
            self.sink.check_place()
        if last.held is None:
            self.sink.deliver(last.batch, last.results, generation)
            self.held = ()
        else:
            staged = showings.staged(last)
            self.held = self.sink.deliver_held(staged, self._checkpoint, generation, whole=whole)
        if self.aside is not None:
            self.aside.deliver(last.batch, last.refused)
