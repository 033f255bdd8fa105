"""The tasks of an operator, run again if instances are found to have lost their state.

Spark's own retry would meet the same files. So a task reports what it cannot read, and the driver
runs the operator's tasks again, on the state without it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from joinengine.driver.jobs import Jobs
from joinengine.driver.losses import losses_in, recovered
from joinengine.driver.records import BatchRecord
from joinengine.exchange.reports import OperatorReport
from joinengine.operators.base import Operator, OperatorTask
from joinengine.state.operator_state import OperatorState
from joinengine.world.world import World

_log = logging.getLogger("joinengine")
#: With so many batches before it a batch is compared whose instances were lost.
_USUAL_BATCHES = 10


class Attempts:
    """Runs operators, and knows how much longer a batch took because of losses."""

    def __init__(self, jobs: Jobs, world: World) -> None:
        self._jobs = jobs
        self._world = world
        #: when the running batch has found that instances are lost; None: it has not
        self._lost_at: float | None = None
        #: seconds that the last batches took from the begin of their joins to the commit
        self._usual = deque[float](maxlen=_USUAL_BATCHES)

    def run(
        self,
        operator: Operator,
        state: OperatorState,
        order: Callable[[OperatorState], Sequence[OperatorTask]],
    ) -> tuple[OperatorState, Sequence[OperatorTask], list[OperatorReport]]:
        """Run the tasks of an operator; the state that they have begun with, they, their reports.

        `order`: the tasks on a state. Raises DamagedState if what is lost has no copy.
        """
        while True:
            tasks = order(state)
            reports = self._jobs.run(operator, tasks) if tasks else []
            found = losses_in(reports)
            if not found:
                return state, tasks, reports
            for instance, why in sorted(found.items()):
                _log.warning(
                    "joinengine: join %d: instance %d has lost its state (%s); its keys go on at "
                    "their backups",
                    *(operator.index, instance, why),
                )
            if self._lost_at is None:
                self._lost_at = self._world.timer_s()
            state = recovered(operator.index, state, found)

    def recovery_s(self, record: BatchRecord) -> float:
        """Seconds from the first loss of a batch to now, its commit, less what batches take.

        That is from the begin of their joins to their commit. 0 if nothing was lost.
        """
        taken = sum(record.seconds[step] for step in ("join_s", "plan_s", "commit_s"))
        if self._lost_at is None:
            self._usual.append(taken)
            return 0.0
        since, self._lost_at = self._world.timer_s() - self._lost_at, None
        return max(0.0, since - (median(self._usual) if self._usual else 0.0))
