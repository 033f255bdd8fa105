"""Runs the tasks of an operator, and runs them again if instances have lost their state.

Spark's own retry would meet the same unreadable files. So a task reports which state it cannot
read, and the driver runs the operator's tasks again: on the state without these instances, if their
keys have copies, or on the same state, read again from the store.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from joinengine.driver.jobs import Jobs
from joinengine.driver.recovery.demands import domains_of, has_copies
from joinengine.driver.recovery.losses import losses_in, recovered, way_of
from joinengine.driver.settings import Settings
from joinengine.layouts.layout import Layout
from joinengine.model.errors import DamagedState
from joinengine.model.recovery import Durability, Recovery
from joinengine.model.texts import size_text
from joinengine.operators.base import Attempt, Operator, OperatorTask
from joinengine.state.checkpoint import Checkpoint
from joinengine.state.operator_state import OperatorState
from joinengine.state.store import Store
from joinengine.wire.reports import OperatorReport
from joinengine.world.world import World

_log = logging.getLogger("joinengine")
#: How often an operator's tasks run on the state of a batch, if only executors hold that state.
_MOST_TRIES = 4
#: How many earlier batches a batch with lost instances is compared with.
_USUAL_BATCHES = 10


def store_of(checkpoint: Checkpoint, query: str, settings: Settings) -> Store | None:
    """The store of the query whose id is `query`; None: the query keeps no store."""
    if not settings.keeps_store:
        return None
    where, copies = settings.store_location, checkpoint.store
    if where is not None:  # several queries may share the place
        copies = checkpoint.world.storage(where, fsync=settings.fsync).at(query)
    return settings.trial.store(checkpoint, copies)


class Attempts:
    """Runs operators, and measures how much longer a batch took because of losses."""

    def __init__(self, jobs: Jobs, world: World, settings: Settings, store: Store | None) -> None:
        self._settings = settings
        self._store = store
        self._jobs = jobs
        self._world = world
        #: batches before which an executor was killed
        self._killed = set[int]()
        #: when the running batch found lost instances; None: it has found none
        self._lost_at: float | None = None
        #: operator -> its layout, and whether each key has copies in two failure domains
        self._apart: dict[int, tuple[Layout, bool]] = {}
        #: seconds that the last batches took from the start of their operators to the commit
        self._usual = deque[float](maxlen=_USUAL_BATCHES)

    def run(
        self,
        operator: Operator,
        state: OperatorState,
        order: Callable[[Attempt], Sequence[OperatorTask]],
    ) -> tuple[Attempt, Sequence[OperatorTask], list[OperatorReport]]:
        """Run the tasks of an operator; the attempt that succeeded, its tasks, their reports.

        `order`: gives the tasks of an attempt. Raises DamagedState if lost state has no copy.
        """
        attempt = begin = self._after_deaths(operator, Attempt(state))
        tries = 1
        while True:
            tasks = order(attempt)
            reports = self._jobs.run(operator, tasks) if tasks else []
            losses = losses_in(reports)
            if not losses:
                return attempt, tasks, reports
            if self._lost_at is None:
                self._lost_at = self._world.timer_s()
            try:
                attempt = self._recovered(operator, attempt, losses)
            except DamagedState as error:
                if self._settings.durability is not Durability.REPLICAS:
                    raise
                if tries == _MOST_TRIES:
                    raise DamagedState(_gone_with_executors(operator, losses)) from error
                # A task that ran on another executor found no state there. The next try may run
                # where the state is.
                attempt, tries = begin, tries + 1

    def kill(self, batch: int) -> None:
        """Kill an executor before a batch, once, to see what follows."""
        if batch in self._killed:
            return
        self._killed.add(batch)
        self._lost_at = self._world.timer_s()
        _log.warning("joinengine: killed %s before batch %s", self._jobs.kill(), batch)

    def is_copied(self, operators: Sequence[Operator], states: Sequence[OperatorState]) -> bool:
        """Whether each tuple of a batch is on two executors; `states`: after its tasks."""
        return all(map(self._is_spread, operators, states))

    def _is_spread(self, operator: Operator, state: OperatorState) -> bool:
        domains, layout = domains_of(operator, state), state.layouts.newest.layout
        if domains is None:
            return False
        known = self._apart.get(operator.index)
        if known is None or known[0] is not layout:
            assert layout.copied is not None
            known = self._apart[operator.index] = layout, layout.copied.is_apart(domains)
        return known[1] and self._jobs.is_apart(operator, layout.instances, domains)

    def _after_deaths(self, operator: Operator, attempt: Attempt) -> Attempt:
        """The attempt in which copies replace the instances whose executors are gone.

        Nothing is read for that. If some keys have no copy, the attempt stays as it is: the store
        may have all the state of these executors.
        """
        state = attempt.state
        if self._settings.recovery is Recovery.STORE or not has_copies(operator, state):
            return attempt
        gone = self._jobs.gone(operator, state.layouts.newest.layout.instances)
        if not gone:
            return attempt
        try:
            after = _without(operator, attempt, dict.fromkeys(gone, "its executor is gone"))
        except DamagedState:
            return attempt
        if self._lost_at is None:
            self._lost_at = self._world.timer_s()
        _tell(operator, dict.fromkeys(gone, "its executor is gone"), _heirs(after, gone))
        return after

    def _recovered(self, operator: Operator, attempt: Attempt, lost: Mapping[int, str]) -> Attempt:
        """The attempt that follows one whose tasks have lost state; `lost`: instance -> the reason.

        Copies of keys are tried first, unless the query recovers from the store. The store is tried
        if some keys have no copy left, or if the operator does not copy all its state. Raises
        DamagedState if there is no store, or if it has been tried or lacks files.
        """
        instead, state = "", attempt.state
        if self._settings.recovery is not Recovery.STORE and has_copies(operator, state):
            try:
                after = _without(operator, attempt, lost)
            except DamagedState:
                if self._store is None:
                    raise
                instead = ", because some keys have no other copy"
            else:
                _tell(operator, lost, _heirs(after, lost))
                return after
        if self._store is None or lost.keys() & attempt.fetched.keys():
            raise DamagedState("; ".join(lost[instance] for instance in sorted(lost)))
        try:
            fetched = self._store.fetch(state, lost.keys())
        except DamagedState as error:
            raise DamagedState(f"join {operator.index}: {error}") from None
        ways = {
            instance: f"it was read again from the store{instead}: {size_text(size)} in "
            f"{fetched.seconds[instance]:.3g} s{self._store.note}"
            for instance, size in fetched.sizes.items()
        }
        _tell(operator, lost, ways)
        return replace(attempt, fetched={**attempt.fetched, **fetched.rows})

    def recovery_s(self, seconds: Mapping[str, float]) -> float:
        """Seconds from a batch's first loss to now, its commit, minus the usual time of a batch.

        The usual time is the median of earlier batches from the start of their operators to their
        commit. Returns 0 if nothing was lost. `seconds`: the time of the batch, by step.
        """
        taken = sum(seconds[step] for step in ("join_s", "plan_s", "commit_s"))
        if self._lost_at is None:
            self._usual.append(taken)
            return 0.0
        since, self._lost_at = self._world.timer_s() - self._lost_at, None
        return max(0.0, since - (median(self._usual) if self._usual else 0.0))


def _without(operator: Operator, attempt: Attempt, lost: Mapping[int, str]) -> Attempt:
    """The attempt in which copies of keys replace lost instances; raises as `recovered`."""
    state = recovered(operator.index, attempt.state, lost)
    return replace(attempt, state=state, lost=tuple(sorted({*attempt.lost, *lost})))


def _heirs(after: Attempt, lost: Iterable[int]) -> dict[int, str]:
    """Lost instance -> where its keys go on, in words."""
    standby = way_of(after.state.layouts) is Recovery.TASKB
    heirs = "its standby" if standby else "their backups"
    return dict.fromkeys(lost, f"its keys go on at {heirs}")


def _gone_with_executors(operator: Operator, lost: Mapping[int, str]) -> str:
    named = ", ".join(map(str, sorted(lost)))
    why = lost[min(lost)].partition("; ")[0]  # without the advice for a damaged file
    return (
        f"join {operator.index}: the state of instances {named} was on executors that are gone or "
        f"out of reach ({why}), and no executor has a copy of some of their keys; start the query "
        "again, which computes the batches that the store lacks again from their sources"
    )


def _tell(operator: Operator, lost: Mapping[int, str], ways: Mapping[int, str]) -> None:
    for instance, why in sorted(lost.items()):
        _log.warning(
            "joinengine: join %d: instance %d lost its state (%s); %s",
            *(operator.index, instance, why, ways[instance]),
        )
