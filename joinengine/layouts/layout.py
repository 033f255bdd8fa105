"""What a layout is: how it starts, how it routes, and how it changes after an interval.

A layout comes as a triple. The *choice* is what the user writes (`Mnrt(imbalance=0.05)`); the
*layout* is its state at one batch, kept in the manifest; the *router* is what tasks use.

Law (meet once): for each pair of equal keys there is exactly one instance where the earlier tuple
is stored and the later one probes, even if the layout changed between them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from joinengine.balancing.counting import KeysAt
from joinengine.balancing.reasons import Reason
from joinengine.balancing.statistics import HEAVY_PART, Interval
from joinengine.kernels.hashing import Words, first_word
from joinengine.kernels.probing import distinct
from joinengine.layouts.copies import Copies, Copying
from joinengine.layouts.layout_settings import changed_settings, check_settings
from joinengine.model.conditions import Band, Condition, Multiway, Theta, meets_at_homes
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import PAIR, Placement, Side
from joinengine.routing.base_functions import Base
from joinengine.routing.moves import Moves
from joinengine.routing.routes import MAX_INSTANCES, Deliveries, Instances
from joinengine.routing.table import RoutingTable


class Router(Protocol):
    """The part of a layout that tasks receive: it says where tuples go."""

    __slots__ = ()

    @property
    @abstractmethod
    def instances(self) -> int:
        """How many instances there are."""

    @property
    def listed(self) -> Words:
        """The key hashes that the layout wants counted, however light; ascending."""
        return np.empty(0, np.uint64)

    @abstractmethod
    def route(self, side: Side, words: Words) -> Deliveries:
        """(n,) words of one side -> deliveries; a function of its arguments alone."""

    @abstractmethod
    def homes(self, side: Side, words: Words, holders: Instances) -> Deliveries:
        """(n,) words of tuples that `holders` (n,) store -> their homes under this layout.

        A tuple that probes for a stored tuple reaches one of these homes. If a layout stores each
        tuple once, at any of several instances, the tuple stays where it is if it can.
        """


def keys_at(router: Router, hashes: Words) -> KeysAt:
    """(n,) ascending key hashes -> the instances at which each is stored or probed."""
    reached = [router.route(side, first_word(hashes)) for side in PAIR]
    rows = np.concatenate([deliveries.rows for deliveries in reached])
    places = np.concatenate([deliveries.instances for deliveries in reached]).astype(np.int64)
    pairs = distinct(places * len(hashes) + rows)
    instances, keys = np.divmod(pairs, max(len(hashes), 1))
    return KeysAt(instances, hashes[keys])


class Layout(Protocol):
    """The state of a layout at one batch."""

    __slots__ = ()

    @property
    @abstractmethod
    def instances(self) -> int:
        """How many instances there are."""

    @property
    def table(self) -> RoutingTable:
        """The keys that are not whole at their base home; empty if the layout ignores keys."""
        return RoutingTable()

    @abstractmethod
    def router(self) -> Router:
        """The router that tasks use."""

    def place(self, hash_: int) -> Placement | None:
        """The placement of one key hash; None: the layout does not place by key."""
        return None

    def copies(self, side: Side) -> int:
        """How many instances store each tuple of a side, if the layout does not place by key."""
        return 1

    @property
    def base_function(self) -> Base | None:
        """The function that gives keys their base homes; None: the layout does not place by key."""
        return None

    def listing(self, table: RoutingTable) -> Layout:
        """The layout with another routing table; itself, if it does not place by key."""
        return self

    @property
    def wanted(self) -> int:
        """The number of instances asked for; `instances` may include standbys."""
        return self.instances

    @property
    def copied(self) -> Copies | None:
        """The copies of keys; None: the layout keeps none."""
        return None

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The state as plain values; `LayoutChoice.restore` reads it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The layout of the next batch, its reason, and what must happen to the state before it.

    `moves`: the word ranges of a few keys. `rehome`: whether all state must be re-homed.
    """

    layout: Layout
    reason: Reason
    moves: Moves = field(default_factory=Moves)
    rehome: bool = False


class LayoutChoice(Protocol):
    """A layout as a user chooses it, with its settings."""

    name: ClassVar[str]
    source: ClassVar[str]
    summary: ClassVar[str]
    #: whether any two tuples meet at some instance, whatever their keys
    serves_theta: ClassVar[bool] = False
    #: whether each tuple is stored once, at any instance: what an aggregation needs
    serves_aggregates: ClassVar[bool] = True
    #: whether all tuples of a key are at one instance
    keeps_keys_whole: ClassVar[bool] = True
    #: whether equal rows may lie apart, because loads decide where each goes
    parts_equal_rows: ClassVar[bool] = False
    #: whether it can divide left tuples alone, so that each meets all right tuples of its key
    can_divide_left: ClassVar[bool] = False
    #: whether a user has named it; if not, a checkpoint keeps the layout that it has
    is_asked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def label(self) -> str:
        """The name, and the settings that are not the defaults, as a user may write it."""
        return self.name + changed_settings(self)

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, from which the class makes the same choice."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def filed(cls, settings: Mapping[str, Any]) -> LayoutChoice:
        """The choice from the settings in a manifest, perhaps of an earlier version."""
        return cls(**settings)

    def going_on(self, before: LayoutChoice) -> LayoutChoice:
        """The choice on a checkpoint last started with `before`; open settings stay as they are."""
        return self

    def lines(self, instances: int) -> list[str]:
        """Further lines that `explain` prints for the layout on `instances` instances."""
        return []

    def serving(self, condition: Condition) -> LayoutChoice:
        """The choice, fitted to joins with a condition."""
        return self

    @property
    def counts_keys(self) -> bool:
        """Whether tasks must count keys for the planner."""
        return False

    @property
    def history_intervals(self) -> int:
        """How many intervals `plan` needs; 0: `plan` is never called."""
        return 0

    @property
    def group_size(self) -> int:
        """How many instances the layout has for each one asked for: 1, plus its standbys."""
        return 1

    @property
    def copying(self) -> Copying | None:
        """How the layout keeps copies of keys; None: it keeps none."""
        return None

    def asks(self, layout: Layout, history: Sequence[Interval]) -> bool:
        """Whether tasks report all keys of the next batch that a plan may need (whole reports).

        `history`: the last intervals, the newest last; the same as for `plan`, before the batch.
        """
        return True

    @property
    def heavy_part(self) -> int:
        """H: tasks report keys with more than 1/H of an instance's tuples, pairs or results."""
        return HEAVY_PART

    @property
    def spares_reports(self) -> bool:
        """Whether light reports omit keys by which no plan would gain (sparing reports)."""
        return False

    def keeps(self, interval: Interval) -> bool:
        """Whether an interval enters the history; if not, no plan follows it."""
        return True

    def least_instances(self, instances: int) -> int:
        """The least number of instances that the layout can have, if `instances` are asked for."""
        return 1

    def check(self, condition: Condition, instances: int) -> None:
        """Raise InvalidRequest, naming the layout, for a join that it cannot serve."""
        least, most = self.least_instances(instances), MAX_INSTANCES // self.group_size
        check_instances(self.name, instances, least, most)
        check_serves(self.name, condition, theta=self.serves_theta)
        self._check_nearest(condition)

    @property
    def meets_all(self) -> bool:
        """Whether a left tuple can meet all right tuples of its key where it is stored."""
        return (self.can_divide_left or self.keeps_keys_whole) and self.copying is None

    def _check_nearest(self, condition: Condition) -> None:
        """Raise InvalidRequest for an as-of or multiway join that the layout cannot serve.

        In these joins, a left tuple must meet all right tuples of its key where it is stored.
        """
        if meets_at_homes(condition) and not self.meets_all:
            is_multiway = isinstance(condition, Multiway)
            what, way_out = ("multiway", ", or multiway=False") if is_multiway else ("asof", "")
            raise InvalidRequest(
                f"layout {self.name} may keep right rows of one key apart, or copies of rows, and "
                f"does not support {what}; use auto, mnrt, qmmp, hash or another layout that keeps "
                f"keys whole{way_out}"
            )

    @abstractmethod
    def start(self, instances: int) -> Layout:
        """The layout of batch 0."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> Layout:
        """A layout from the manifest."""

    def plan(self, layout: Layout, history: Sequence[Interval], wanted: int = 0) -> Plan | None:
        """The plan after the last interval of `history`; None: the layout stays.

        `wanted`: the number of instances asked for, if the layout may use more than it does.
        """
        return None

    @abstractmethod
    def resized(self, layout: Layout, instances: int) -> Layout:
        """The layout on `instances` instances, by its own rule."""

    @abstractmethod
    def grow(self, layout: Layout, held: Sequence[int]) -> Layout:
        """The layout with as few more instances as its rule allows; itself, if it cannot grow.

        `held` (N,): how much each instance holds; the fullest instance is to be relieved.
        """


def without_keys(condition: Condition) -> str | None:
    """The kind of join in words, if it has no keys and any two tuples may match; else None."""
    if isinstance(condition, Theta):
        return "theta joins"
    if isinstance(condition, Band) and condition.equal is None:
        if condition.lower is None or condition.upper is None:
            return "bands with an open end"
    return None


def check_serves(name: str, condition: Condition, *, theta: bool) -> None:
    """Raise InvalidRequest, naming the layout, for a condition that it does not serve.

    `theta`: whether the layout serves any predicate. (Every layout serves all join types, since
    watchers know which tuples have matched: joinengine.operators.join.watchers.)
    """
    kind = without_keys(condition)
    if kind is not None and not theta:
        hint = ""
        if isinstance(condition, Theta) and (names := condition.equated) is not None:
            hint = (
                f". Or write the equality as equi({names[0]!r}, {names[1]!r}), with the column of "
                f"the left side first"
            )
        raise InvalidRequest(
            f"layout {name} places rows by key and does not support {kind}; use auto, dynamic, "
            f"bi or shuffle{hint}"
        )


def check_aggregates(choice: LayoutChoice) -> None:
    """Raise InvalidRequest, with the name of the layout, if it cannot serve an aggregation."""
    if not choice.serves_aggregates:
        raise InvalidRequest(
            f"layout {choice.name} does not support aggregates, because it separates sides or "
            f"copies rows. Use a layout that stores each row once, such as pkg, mnrt or hash"
        )


def check_instances(name: str, instances: int, least: int = 1, most: int = MAX_INSTANCES) -> None:
    """Raise InvalidRequest if a layout cannot have this number of instances."""
    if not least <= instances <= most:
        raise InvalidRequest(
            f"instances: layout {name} needs from {least} to {most} instances, found {instances}"
        )
