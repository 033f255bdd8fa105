"""What a join's layout will be in the next batch: as the user wishes, as it must, or as it pays.

Why: three may want another layout after a batch: the user (a switch, a resize, a restart with other
settings), an instance that is full, and the planner. They are asked in this order, and the first
has its way; what then happens to the state is the same for all.

Law: the next state is a function of the last one, of the counts and of the wishes. No Spark, no
files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from joinengine.balancing.statistics import Interval
from joinengine.layouts import Chosen
from joinengine.layouts.base import Layout, LayoutChoice, Plan, Router, check_aggregates
from joinengine.layouts.changing import change, plan_between
from joinengine.layouts.versions import MOST_VERSIONS, VersionedRouter
from joinengine.model.aggregates import AggregateSpec, Stage
from joinengine.model.query import JoinSpec, Operator, QuerySpec
from joinengine.operators.rehoming import Rehoming
from joinengine.routing.moves import Moves
from joinengine.routing.routes import MAX_INSTANCES
from joinengine.state.manifest import JoinState


@dataclass(frozen=True, slots=True)
class Relayout:
    """A wish of the user: another layout, another number of instances, or both; None: as it is."""

    choice: LayoutChoice | None = None
    instances: int | None = None


@dataclass
class PlannedJoin:
    """One join as the driver holds it between batches; `history` is what its planner sees.

    `lazy`: state does not follow a new layout, it is found by the rules it was stored by.
    """

    spec: Operator
    chosen: Chosen
    lazy: bool = False
    history: list[Interval] = field(default_factory=list)
    _routers: dict[int, Router] = field(default_factory=dict)

    @property
    def choice(self) -> LayoutChoice:
        """Who plans."""
        return self.chosen.choice

    @property
    def layout(self) -> Layout:
        """The layout of the next batch."""
        return self.chosen.layout

    def router(self, state: JoinState) -> VersionedRouter:
        """Where the tuples of the next batch go, `state` being that before it."""
        newest = self.layout.router()
        older = self._older(state)
        return VersionedRouter((newest, *(older[version] for version in state.live_versions[1:])))

    def rehoming(self, state: JoinState) -> Rehoming | None:
        """How all state changes its homes in the next batch, None: it does not."""
        if not state.rehomes:
            return None
        assert state.before is not None
        before = Chosen.from_json(state.before).layout.router()
        old = {**self._older(state), state.version: before}
        return Rehoming(old, self.layout.router(), state.version)

    def _older(self, state: JoinState) -> dict[int, Router]:
        """The routers of the older versions; each is made once."""
        for version in state.older.keys() - self._routers.keys():
            self._routers[version] = Chosen.from_json(state.older[version]).layout.router()
        self._routers = {version: self._routers[version] for version in state.older}
        return self._routers

    def check(self, wish: Relayout) -> None:
        """Raise InvalidRequest for a layout that cannot serve this join."""
        if self.is_fixed:
            return
        choice = wish.choice or self.choice
        instances = self.chosen.wanted if wish.instances is None else wish.instances
        choice.check(self.spec.condition, instances)
        if not isinstance(self.spec, JoinSpec):
            check_aggregates(choice)

    @property
    def is_fixed(self) -> bool:
        """Whether the layout is not for the user, or a planner, to change."""
        return isinstance(self.spec, AggregateSpec) and self.spec.stage is not Stage.PARTIAL

    def see(self, interval: Interval) -> None:
        """Take the counts of one batch."""
        self.history = [*self.history, interval][-self.choice.history_intervals :]

    def next_state(
        self, state: JoinState, wishes: Sequence[Relayout], capacity: int | None, brought: bool
    ) -> tuple[JoinState, bool]:
        """The state with the layout of the next batch, and whether it was changed for balance.

        `brought`: whether the batch brought tuples, so that the history has grown.
        """
        if self.is_fixed:
            return state, False
        if wishes:
            return self._take(state, *self._wished(wishes)), False
        grown = self._grown(state, capacity)
        if grown is not None:
            return self._take(state, *grown), False
        plan = self.choice.plan(self.layout, self.history) if brought and self.history else None
        if plan is None:
            return state, False
        return self._take(state, self.chosen._replace(layout=plan.layout), plan), plan.is_replan

    def as_asked(self, state: JoinState, choice: LayoutChoice) -> JoinState:
        """The state of a checkpoint as this start of the query wants it.

        Whoever asks for what was asked for at the last start gets what has become of it since.
        """
        instances = self.spec.instances
        now = Chosen(choice, choice.start(instances), instances)
        assert state.requested is not None
        then = Chosen.from_json(state.requested)
        asked = replace(state, requested=now.to_json())
        if now.starts_like(then) or self.is_fixed:
            if choice.name == self.choice.name:  # perhaps with other settings for its planner
                self.chosen = self.chosen._replace(choice=choice)
            return asked
        # Moves that were planned and not yet made are forgotten: the state stands where it stood.
        if state.before is not None:
            self.chosen = Chosen.from_json(state.before)
        plan = change(*self.chosen, choice, instances)
        # The files of the history are still named by the manifest on disk.
        return replace(
            self._take(asked, Chosen(choice, plan.layout, instances), plan), history=state.history
        )

    def _wished(self, wishes: Sequence[Relayout]) -> tuple[Chosen, Plan]:
        """The last wish of each kind."""
        choices = [wish.choice for wish in wishes if wish.choice is not None]
        sizes = [wish.instances for wish in wishes if wish.instances is not None]
        choice = choices[-1] if choices else self.choice
        instances = sizes[-1] if sizes else self.chosen.wanted
        plan = change(*self.chosen, choice, instances)
        return Chosen(choice, plan.layout, instances), plan

    def _grown(self, state: JoinState, capacity: int | None) -> tuple[Chosen, Plan] | None:
        """More instances, where one holds more than its capacity."""
        if isinstance(self.spec, AggregateSpec):  # what it holds is parts, which soon pass on
            return None
        held = state.held_per_instance(self.layout.instances)
        if capacity is None or max(held) <= capacity:
            return None
        grown = self.choice.grow(self.layout, held)
        if grown.instances > MAX_INSTANCES:
            return None
        return Chosen(self.choice, grown, grown.instances), plan_between(self.layout, grown)

    def _take(self, state: JoinState, chosen: Chosen, plan: Plan) -> JoinState:
        """The state with `chosen` for the next batch, and what must move before it."""
        before = self.chosen
        self.chosen = chosen
        if (chosen.choice.name, chosen.layout.instances) != (
            before.choice.name,
            before.layout.instances,
        ):
            self.history, state = [], replace(state, history=())
        after = replace(state, layout=chosen.to_json(), moves=Moves(), before=None)
        # Whoever has added a tuple up: its part is good where it is.
        stays = isinstance(self.spec, AggregateSpec)
        if stays or not (plan.rehome or plan.moves):
            return after
        lazy = self.lazy and isinstance(self.spec, JoinSpec)  # the others do not look elsewhere
        if lazy and len(state.live_versions) < MOST_VERSIONS:
            older = dict(state.older)
            if any(run.version == state.version for run in state.runs.values()):
                older[state.version] = before.to_json()
            version = state.version + 1
            resized = chosen.layout.instances != before.layout.instances
            sized_at = version if resized else state.sized_at
            return replace(after, version=version, older=older, sized_at=sized_at)
        # What older versions hold can only follow tuple by tuple.
        moves = Moves() if state.older else plan.moves
        return replace(after, moves=moves, before=before.to_json())


def first_states(query: QuerySpec, choices: Sequence[LayoutChoice]) -> tuple[JoinState, ...]:
    """The states of a query's operators before its first batch."""
    states = list[JoinState]()
    for spec, choice in zip(query.joins, choices, strict=True):
        chosen = Chosen(choice, choice.start(spec.instances), spec.instances).to_json()
        watched = isinstance(spec, JoinSpec) and spec.watched
        watchers = spec.instances if watched else 0
        states.append(JoinState(chosen, requested=chosen, watchers=watchers))
    return tuple(states)
