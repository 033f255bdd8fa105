"""Delivers results to an outside system with an atomic commit, each commit with a token.

Why: renaming a file twice does no harm, but a message or a row of a table must not be written
twice. So the transaction that delivers results also writes a *token*: the number of its newest
batch. A delivery reads the token first, so it can be repeated, and takes effect once.

Steps of a delivery: (1) check whether a newer driver was started; (2) open the target, after which
older writers can commit nothing; (3) check again, since a driver that woke up late has now shut out
the newer one, and must not continue; (4) read the token; (5) commit the batches above it, together
with the new token. If the outcome of (5) is unknown, or another writer has opened the target in the
meantime, all steps are repeated.

Law: each result of a committed batch is delivered once, whichever driver sleeps or is killed at
any step. This follows from (2), (4) and the transaction of (5). Step (3) keeps a late driver from
shutting out the newer one again and again.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from typing_extensions import override

from joinengine.model.errors import CheckpointMismatch, DamagedState, JoinEngineError
from joinengine.results import showings
from joinengine.results.showings import Held, still_held
from joinengine.results.sinks import Sink, check_unless_handed_over
from joinengine.results.staging import PLAIN, Cutting
from joinengine.results.targets import SinkTarget, ToParquet
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.storage import Storage, StoredFile

_log = logging.getLogger("joinengine")
#: The token of a target without deliveries.
NOTHING = -1
#: How often a delivery is tried before its error ends the query. A driver that woke up late can
#: shut out a newer one once.
_ATTEMPTS = 4
#: The most batches that are gathered: each manifest names the files of all of them.
MOST_GATHERED = 1000
_Answer = TypeVar("_Answer")


class OutcomeUnknown(JoinEngineError):
    """It is unknown whether a commit has happened."""


class ShutOut(JoinEngineError):
    """Another writer has opened the target in the meantime, so it refuses commits of this one."""


class Target(Protocol):
    """An outside system with an atomic commit that carries a token, for one query."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The target in the user's words."""

    @abstractmethod
    def may_hold(self) -> bool:
        """Whether the target may hold results of the query; called before it is opened."""

    @abstractmethod
    def open(self, generation: int) -> None:
        """Shut out all earlier writers, and settle their transactions.

        On return, they cannot commit any more: `token` includes their commits, and anything else of
        theirs never happens. A target that cannot shut writers out must refuse, with `ShutOut`, a
        commit if another one has happened since `token` was read.
        """

    @abstractmethod
    def token(self) -> int:
        """The newest delivered batch; `NOTHING` if there is none.

        It may come from memory as long as no other writer can have opened the target.
        """

    def furthest(self) -> int:
        """The newest batch of which any part is delivered; by default, `token`."""
        return self.token()

    @abstractmethod
    def commit(self, batches: Held) -> None:
        """Deliver the staged files of `batches`, and the number of the last one as the token.

        All in one transaction. `batches` are in order, all above `token()`, and some have files. A
        target that needs several transactions must know, for each batch, which of them already hold
        it. Raises OutcomeUnknown if the outcome is unknown, and ShutOut if another writer has
        opened the target. Any other error means that nothing has happened.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the resources of `open`, even if `open` has failed.

        Called once for each `open`: before the next one, or when the query ends.
        """


@dataclass
class TokenSink(Sink):
    """Delivers to a `Target`, each batch by itself or, with `every_s` above 0, several together.

    `every_s`: seconds from one commit to the next. Results wait in the checkpoint, as Parquet cut
    by `cutting`; a batch without results makes no commit.
    """

    checkpoint: Checkpoint
    to: Target
    every_s: float = 0.0
    cutting: Cutting = PLAIN

    def __post_init__(self) -> None:
        self._opened: int | None = None  # the generation for which the target is open
        self._since_s = self.checkpoint.world.now_s()  # the time of the last commit of results

    @property
    @override
    def every(self) -> int:
        """The most batches that are committed together."""
        return MOST_GATHERED if self.every_s else 1

    @property
    @override
    def due_s(self) -> float:
        """When held-back results are committed, in seconds since the epoch."""
        return self._since_s + self.every_s

    @property
    @override
    def staging(self) -> Storage:
        return self.checkpoint.results

    @override
    def target(self, generation: int) -> SinkTarget:
        return ToParquet(self.checkpoint.results.folder, generation, self.cutting)

    @override
    def check_last(self, batch: int, files: Sequence[StoredFile]) -> None:
        """As in Sink. A target that may hold results of the query says later which they are."""
        try:
            check_unless_handed_over(self.checkpoint.results, batch, files)
        except CheckpointMismatch:
            if not self.to.may_hold():
                raise

    @override
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        if files:
            self._deliver(((batch, tuple(files)),), generation)

    @override
    def check_held(self, held: Held, checkpoint: Checkpoint) -> None:
        """Refuse held-back results that are not staged where this sink stages."""
        staged = self.checkpoint.results
        files = (file for _, files in still_held(checkpoint, held) for file in files)
        if not all(staged.exists(file.name) for file in files):
            super().check_held(held, checkpoint)

    @override
    def deliver_held(
        self, held: Held, checkpoint: Checkpoint, generation: int, *, whole: bool
    ) -> Held:
        """Commit held-back results if they are due, if there are many batches, or if `whole`.

        A showing without files records that these batches are delivered, for other sinks.
        """
        held = still_held(checkpoint, held)
        if not held:
            return ()
        nothing = not any(files for _, files in held)
        now_s = self.checkpoint.world.now_s()
        self._since_s = min(self._since_s, now_s)  # the clock may have been set back
        is_due = whole or now_s >= self.due_s
        if len(held) < self.every and (nothing or not is_due):
            return held
        if not nothing:
            self._deliver(held, generation)
        self._since_s = self.checkpoint.world.now_s()
        showings.create(checkpoint, held[0][0], held[-1][0], ())
        return ()

    @override
    def close(self) -> None:
        """Close the target if it is open. Only logs an error, since it harms no result."""
        if self._opened is None:
            return
        self._opened = None
        try:
            self.to.close()
        except Exception:
            _log.warning("joinengine: the target of the results was not closed", exc_info=True)

    @override
    def begin(self, batch: int, generation: int) -> None:
        if not self.to.may_hold():
            return
        delivered = self._tried(lambda: self._opened_for(batch, generation).furthest())
        if delivered > batch:
            self._check_alone(batch, generation)
            raise DamagedState(
                f"{self.to.name} holds results of this query up to batch {delivered}, and the "
                f"newest manifest of checkpoint {self.checkpoint.location} is of batch {batch}, so "
                "the checkpoint is an older copy or has lost its newest manifests, and new results "
                "would be taken for those that are there; restore the newest copy of the "
                "checkpoint, or start with a new checkpointLocation and another target"
            )

    def _deliver(self, batches: Held, generation: int) -> None:
        """Deliver batches, some of which have results; skips those that are already delivered."""
        self._tried(lambda: self._deliver_once(batches, generation))

    def _tried(self, step: Callable[[], _Answer]) -> _Answer:
        """The result of a step; repeats the step if its outcome is unknown or it was shut out."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return step()
            except (OutcomeUnknown, ShutOut):
                self.close()
        try:
            return step()
        except (OutcomeUnknown, ShutOut):
            self.close()
            raise

    def _deliver_once(self, batches: Held, generation: int) -> None:
        delivered = self._opened_for(batches[-1][0], generation).token()  # 4
        left = tuple((batch, files) for batch, files in batches if batch > delivered)
        if any(files for _, files in left):
            self._commit(left, generation)  # 5

    def _opened_for(self, batch: int, generation: int) -> Target:
        """The target, opened for a driver whose last batch is `batch`."""
        self._check_alone(batch, generation)  # 1
        if self._opened != generation:
            self._open(generation)  # 2
            self._check_alone(batch, generation)  # 3
        return self.to

    def _commit(self, batches: Held, generation: int) -> None:
        """Deliver batches above the token that was just read."""
        self.to.commit(batches)

    def _open(self, generation: int) -> None:
        self.close()
        self._opened = generation
        try:
            self.to.open(generation)
        except Exception:
            self.close()
            raise

    def _check_alone(self, batch: int, generation: int) -> None:
        """Raise TakenOver if a newer driver was started, or if `batch` is closed."""
        fence.check_generation(self.checkpoint.generations, generation)
        if batch >= 0:  # otherwise, there is no batch yet
            fence.check_boundary(self.checkpoint, batch)
