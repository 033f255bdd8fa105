"""What users see of a batch: its results, the tuples that it refused, and what is held back."""

from __future__ import annotations

from joinengine.results import showings
from joinengine.results.showings import Held
from joinengine.results.sinks import SideOutput, Sink
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.manifest import Manifest


class Delivery:
    """Makes visible what manifests name, and can do so again.

    `held`: the results that are held back, once something was delivered.
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
        """When results that are held back are shown although nothing is new; None: never."""
        return self.sink.due_s if self.is_holding else None

    @property
    def before_next(self) -> Held | None:
        """What the next manifest says of results that are held back; None: the sink holds none."""
        return self.held if self.sink.every > 1 else None

    def deliver(self, last: Manifest, generation: int, *, whole: bool = False) -> None:
        """Make the results and the refused tuples that the newest manifest names visible.

        If results are held back until there are those of several batches, `whole` shows them now.
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
