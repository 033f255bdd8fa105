"""Results for an outside system that commits atomically: a token in each commit says how far it is.

Why: files can be renamed twice without harm, and a message or a row of a table cannot be written
twice. So the transaction that delivers results also writes a *token*: the number of the newest
batch in it. Whoever delivers reads the token first, so a delivery can be repeated, and is done
once.

Steps of a delivery: (1) look whether a newer driver was started; (2) open the target, after which
older writers can commit nothing; (3) look again, since a driver that woke up late has now shut out
the newer one, and must go no further; (4) read the token; (5) commit the batches above it, and the
token with them. If the outcome of (5) is unknown, or another writer has opened the target since,
all steps are done again.

Law: each result of a committed batch is delivered once, whichever driver sleeps or is killed at
any step. It rests on (2), (4) and the transaction of (5); step (3) keeps a late driver from
shutting out the newer one again and again.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from typing_extensions import override

from joinengine.model.errors import DamagedState, JoinEngineError
from joinengine.results import showings
from joinengine.results.showings import Held, still_held
from joinengine.results.sinks import Sink
from joinengine.results.staging import PLAIN, Cutting
from joinengine.results.targets import SinkTarget, ToParquet
from joinengine.state import fence
from joinengine.state.checkpoint import Checkpoint
from joinengine.world.storage import Storage, StoredFile

_log = logging.getLogger("joinengine")
#: The token of a target to which nothing was delivered.
NOTHING = -1
#: How often a delivery is begun before its error ends the query. A driver that woke up late can
#: shut a newer one out once.
_ATTEMPTS = 4
#: Batches that are gathered at most: each manifest names the files of all of them.
MOST_GATHERED = 1000
_Answer = TypeVar("_Answer")


class OutcomeUnknown(JoinEngineError):
    """The target has not said whether a commit has happened."""


class ShutOut(JoinEngineError):
    """Another writer has opened the target since, so it takes no commit from this one."""


class Target(Protocol):
    """An outside system with an atomic commit that carries a token, for one query."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The target, as users name it."""

    @abstractmethod
    def may_hold(self) -> bool:
        """Whether anything of the query may be there; it is asked before the target is opened."""

    @abstractmethod
    def open(self, generation: int) -> None:
        """Shut out all who have opened the target before, and settle what they have begun.

        When it returns, no commit of theirs can happen any more: what they have committed is in
        `token`, and the rest never happens. A target that cannot shut writers out has to refuse a
        commit that another one has preceded since `token` was read, with `ShutOut`.
        """

    @abstractmethod
    def token(self) -> int:
        """The newest batch that is delivered; `NOTHING` if none is.

        May be answered from memory while nobody else can have opened the target.
        """

    def furthest(self) -> int:
        """The newest batch of which a part is delivered: that of `token`, if there are no parts."""
        return self.token()

    @abstractmethod
    def commit(self, batches: Held) -> None:
        """Deliver the staged files of `batches`, and the number of the last one as the token.

        One transaction for all. `batches` are in order, all above `token()`, and some have files.
        Whoever needs several transactions must tell for each batch whether one holds it already.
        Raises OutcomeUnknown if it cannot say whether it has happened, ShutOut if another writer
        has opened the target; any other error means that nothing has happened.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what `open` has taken, also if that has failed; `open` may follow.

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
        self._since_s = self.checkpoint.world.now_s()  # when results were committed last

    @property
    @override
    def every(self) -> int:
        """How many batches are committed together at most."""
        return MOST_GATHERED if self.every_s else 1

    @property
    @override
    def due_s(self) -> float:
        """When results that are held back are committed, in seconds since the epoch."""
        return self._since_s + self.every_s

    @property
    @override
    def staging(self) -> Storage:
        return self.checkpoint.results

    @override
    def target(self, generation: int) -> SinkTarget:
        return ToParquet(self.checkpoint.results.folder, generation, self.cutting)

    @override
    def deliver(self, batch: int, files: Sequence[StoredFile], generation: int) -> None:
        if files:
            self._deliver(((batch, tuple(files)),), generation)

    @override
    def check_held(self, held: Held, checkpoint: Checkpoint) -> None:
        """Refuse if what is held back is not staged where this sink stages."""
        staged = self.checkpoint.results
        files = (file for _, files in still_held(checkpoint, held) for file in files)
        if not all(staged.exists(file.name) for file in files):
            super().check_held(held, checkpoint)

    @override
    def deliver_held(
        self, held: Held, checkpoint: Checkpoint, generation: int, *, whole: bool
    ) -> Held:
        """Commit what is held back, if the time has come, there is much of it, or `whole`.

        A showing without files tells other sinks that these batches are delivered.
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
        """Close the target if it is open; an error of that is logged, since it harms no result."""
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
        """Deliver batches of which some have results; those that are delivered already stay."""
        self._tried(lambda: self._deliver_once(batches, generation))

    def _tried(self, step: Callable[[], _Answer]) -> _Answer:
        """What a step answers, which is done again if nobody knows whether it has happened."""
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
        """The target, as a driver reads its token that goes on behind `batch`."""
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
        """Raise TakenOver if a newer driver was started, or has gone on beyond a batch."""
        fence.check_generation(self.checkpoint.generations, generation)
        if batch >= 0:  # else there is none yet
            fence.check_boundary(self.checkpoint, batch)
