"""FTLB: keys with backups; a key may change places with one of its backups, and no state moves.

Why: copies of keys that survive the loss of an instance can balance loads, too. An instance that is
too full hands a key over to one of the key's backups, and becomes a backup of the key itself.
How: an instance above UL = (1 + imbalance) * mean hands keys over to backups that have room, those
of least M(k) first. If it is still above UL, keys leave it, in the same order. The heaviest key
without a home goes to the least loaded of its backups that stays under UL with it. If there is
none, the key goes to the least loaded instance where it fits, if need be in exchange for lighter
keys there, those of least M(k).
M(k) = S(k) / c(k)^beta * dn(k)^gamma, for S tuples of state, the load c and dn copies: a key goes
early if its state is small, its load great, and if it has few copies.
Law: no two copies of a key are at instances that fail together, and none is made or lost. The
greatest load is under UL, or less than before, or nothing changes. It ends, since each exchange
replaces a key by lighter ones.
Cost: the keys of an instance are sorted once; an exchange costs a pass over those of one instance.
Source: Fang et al., World Wide Web 2019, algorithm 3. Ours: roles are switched before any key is
taken (the paper prefers this in its words, not in its algorithm); backups have a load too; as many
lighter keys make room as are needed (in the paper only one, and loads
end further from the tolerance); a key that fits nowhere goes back where it was, unless another
instance is better by more than the tolerance; an instance below LL = (1 - underload) * mean takes
keys from the fullest (the paper has the bound theta_min, and no step that keeps it).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from joinengine.balancing.llfd import ROUNDING
from joinengine.balancing.loads import Loads
from joinengine.balancing.statistics import Bools, Floats, Ints

#: Key number -> the instances of its copies, its home first, for the keys that a plan changes.
NewHolders = dict[int, tuple[int, ...]]


def plan_ftlb(
    loads: Loads,
    imbalance: float,
    beta: float,
    gamma: float,
    underload: float = 1.0,
    domains: int | None = None,
) -> NewHolders:
    """The keys whose copies change roles or places.

    All keys are whole. `beta`, `gamma` and `underload` are 0 or more. `underload`: by what part of
    the mean an instance may be below the mean. `domains`: instances whose numbers are equal modulo
    it fail together; None: each fails alone.
    """
    first = _Plan(loads, imbalance, beta, gamma, domains)
    first.switch_roles()
    first.unload()
    first.place()
    first.fill((1 - underload) * first.mean)
    if first.level.max() <= first.limit:
        return first.changes()
    # With few heavy keys, backups that the first try filled up may be in the way of other keys.
    second = _Plan(loads, imbalance, beta, gamma, domains)
    second.unload()
    second.place()
    best = min(first, second, key=lambda plan: float(plan.level.max()))
    if best.level.max() < loads.per_instance().max():
        return best.changes()
    third = _Plan(loads, imbalance, beta, gamma, domains)
    third.fill((1 - underload) * third.mean)
    return third.changes()


class _Plan:
    """The homes as they stand while the plan is made."""

    def __init__(
        self, loads: Loads, imbalance: float, beta: float, gamma: float, domains: int | None
    ) -> None:
        n, keys = loads.n_instances, len(loads.hashes)
        self.domains = domains or n
        self.cost = loads.spread + loads.fixed
        self.copy = loads.backups.load if len(loads.backups.load) else np.zeros(keys)
        self.level = loads.per_instance()
        self.mean = float(self.level.mean())
        self.limit = (1 + imbalance) * self.mean * (1 + ROUNDING)
        self.origin = np.empty(keys, np.int64)
        self.origin[loads.keys] = loads.instances
        self.home = self.origin.copy()
        by_key = np.argsort(loads.backups.keys, kind="stable")
        self.backups = loads.backups.instances[by_key]
        self.first = np.searchsorted(loads.backups.keys[by_key], np.arange(keys + 1))
        copies = 1 + np.bincount(loads.backups.keys, minlength=keys)
        index = migration_index(self.cost, loads.held, copies, beta, gamma)
        order = np.argsort(index, kind="stable")
        order = order[self.cost[order] > 0]
        order = order[np.argsort(self.origin[order], kind="stable")]
        bounds = np.searchsorted(self.origin[order], np.arange(n + 1))
        self.index = index
        self.native = [order[bounds[i] : bounds[i + 1]] for i in range(n)]
        self.guests: list[set[int]] = [set() for _ in range(n)]
        self.pool: list[tuple[float, int]] = []

    def backups_of(self, key: int) -> list[int]:
        """The backups of a key as they were."""
        backups: list[int] = self.backups[self.first[key] : self.first[key + 1]].tolist()
        return backups

    def is_shut(self, key: int, instance: int) -> bool:
        """Whether an instance would fail together with a backup of a key, or is that backup."""
        domain = instance % self.domains
        return any(backup % self.domains == domain for backup in self.backups_of(key))

    def switch_roles(self) -> None:
        """Let backups take over from the fullest instances, as far as they have room."""
        for instance in np.argsort(-self.level, kind="stable").tolist():
            if self.level[instance] <= self.limit:
                return
            room = self.limit - float(self.level.min())
            keys = self.native[instance]
            for key in keys[(self.cost - self.copy)[keys] <= room].tolist():
                if self.level[instance] <= self.limit:
                    break
                self._hand_over(key)

    def unload(self) -> None:
        """Take keys from each instance until it is not above the limit.

        Its heaviest key stays if it fits nowhere: it would only come back.
        """
        for instance in np.flatnonzero(self.level > self.limit).tolist():
            keys = self.native[instance]
            keys = keys[self.home[keys] == instance]
            if len(keys) and self.cost[keys].max() > self.limit:
                keys = np.delete(keys, int(np.argmax(self.cost[keys])))
            enough = np.searchsorted(np.cumsum(self.cost[keys]), self.level[instance] - self.limit)
            for key in keys[: enough + 1].tolist():
                self.take(key)

    def place(self) -> None:
        """Give every key of the pool a home, heaviest first."""
        while self.pool:
            key = heapq.heappop(self.pool)[1]
            if not (self._switched(key) or self._placed(key)):
                self.put(key, self._least_bad(key))

    def fill(self, least: float) -> None:
        """Let instances with less load than `least` take keys over from the fullest.

        Keys of which they are backups go first, since no state moves for these.
        """
        keys = np.repeat(np.arange(len(self.cost)), np.diff(self.first))
        for instance in np.flatnonzero(self.level < least).tolist():
            full = np.argsort(-self.level, kind="stable").tolist()
            every = np.ones(len(self.cost), bool)
            backed = ~every
            backed[keys[self.backups == instance]] = True
            for key in chain(
                *(self._fitting(some, full, instance, least) for some in (backed, every))
            ):
                if self.level[instance] >= least:
                    break
                self._give(key, instance, least)

    def _fitting(
        self, among: Bools, homes: Sequence[int], instance: int, least: float
    ) -> Iterator[int]:
        """The keys `among` (K,) all that have stayed at their homes and may fit at an instance.

        In the order of `homes` and of M(k).
        """
        slack = ROUNDING * self.mean
        for home in homes:
            keys = self.native[home]
            moved = (self.cost - self.copy)[keys]  # a lower bound: a backup may stay behind
            fits = among[keys] & (self.home[keys] == home)
            fits &= self.level[instance] + moved <= self.limit + slack
            fits &= self.level[home] - moved >= least - slack
            yield from keys[fits].tolist()

    def _give(self, key: int, instance: int, least: float) -> None:
        """Let an instance take a key over, if it stays below UL and the home above `least`."""
        home = int(self.home[key])
        if self.is_shut(key, instance) and instance not in self.backups_of(key):
            return
        self._weigh(key, home, -1)
        self._weigh(key, instance, 1)
        if self.level[instance] <= self.limit and self.level[home] >= least and instance != home:
            self.home[key] = instance
            self.guests[instance].add(key)
        else:
            self._weigh(key, instance, -1)
            self._weigh(key, home, 1)

    def changes(self) -> NewHolders:
        """The copies of the keys that have another home."""
        moved = np.flatnonzero(self.home != self.origin).tolist()
        return {key: (int(self.home[key]), *self._backups_at(key)) for key in moved}

    def _hand_over(self, key: int) -> None:
        """Let the least loaded backup of a key become its home, if it has room."""
        backup = min(
            self.backups_of(key), key=lambda instance: float(self.level[instance]), default=None
        )
        gained = float(self.cost[key] - self.copy[key])
        if backup is not None and self.level[backup] + gained <= self.limit:
            home = int(self.home[key])
            self._weigh(key, home, -1)
            self._weigh(key, backup, 1)
            self.home[key] = backup
            self.guests[backup].add(key)

    def take(self, key: int) -> None:
        """Leave a key without a home; its backups are those of its origin."""
        home = int(self.home[key])
        self._weigh(key, home, -1)
        self.guests[home].discard(key)
        self.home[key] = -1
        heapq.heappush(self.pool, (-float(self.cost[key]), key))

    def put(self, key: int, instance: int) -> None:
        """Give a key of the pool a home."""
        self._weigh(key, instance, 1)
        self.home[key] = instance
        if instance != self.origin[key]:
            self.guests[instance].add(key)

    def _weigh(self, key: int, instance: int, sign: int) -> None:
        """Add (`sign` 1) or remove (-1) the load of a key with its home at `instance`."""
        cost, copy = sign * self.cost[key], sign * self.copy[key]
        if instance in self.backups_of(key):
            self.level[instance] += cost - copy
            self.level[self.origin[key]] += copy
        else:
            self.level[instance] += cost

    def _switched(self, key: int) -> bool:
        """Whether a backup and the home of a key could change roles."""
        cost, origin = self.cost[key], self.origin[key]
        copy = self.copy[key]
        if self.level[origin] + copy > self.limit:
            return False
        fits = [
            backup
            for backup in self.backups_of(key)
            if self.level[backup] + cost - copy <= self.limit
        ]
        if fits:
            self.put(key, min(fits, key=lambda backup: float(self.level[backup])))
        return bool(fits)

    def _placed(self, key: int) -> bool:
        """Place a key at an instance, if need be in exchange for lighter ones; whether it fits."""
        cost = self.cost[key]
        for instance in np.argsort(self.level, kind="stable").tolist():
            if self.is_shut(key, instance):
                continue
            excess = self.level[instance] + cost - self.limit
            if excess <= 0:
                self.put(key, instance)
                return True
            lighter = self._lighter(instance, cost, excess)
            if lighter is not None:
                for lighter_key in lighter:
                    self.take(lighter_key)
                self.put(key, instance)
                return True
        return False

    def _lighter(self, instance: int, below: float, enough: float) -> list[int] | None:
        """The keys of least M(k) at an instance that are lighter than `below`.

        As many as weigh `enough` together; None if all of them weigh less.
        """
        native = self.native[instance]
        native = native[(self.home[native] == instance) & (self.cost[native] < below)]
        guests = np.array(sorted(self.guests[instance]), np.int64)
        keys = np.concatenate([native, guests[self.cost[guests] < below]])
        keys = keys[np.argsort(self.index[keys], kind="stable")]
        sums = np.cumsum(self.cost[keys])
        last = int(np.searchsorted(sums, enough))
        taken: list[int] = keys[: last + 1].tolist()
        return taken if last < len(sums) else None

    def _least_bad(self, key: int) -> int:
        """The instance for a key that fits nowhere."""
        origin = int(self.origin[key])
        for best in np.argsort(self.level, kind="stable").tolist():
            if self.level[origin] <= self.level[best] + self.limit - self.mean:
                break
            if not self.is_shut(key, best):
                return int(best)
        return origin

    def _backups_at(self, key: int) -> list[int]:
        """The backups of a key; one that is its home now has changed places with its origin."""
        home, origin = int(self.home[key]), int(self.origin[key])
        return [origin if backup == home else backup for backup in self.backups_of(key)]


def migration_index(cost: Floats, state: Floats, copies: Ints, beta: float, gamma: float) -> Floats:
    """M(k) of (K,) keys: keys with the least leave an instance first; inf for keys without load."""
    index = np.full(len(cost), np.inf)
    loaded = cost > 0
    index[loaded] = state[loaded] / cost[loaded] ** beta * copies[loaded].astype(float) ** gamma
    return index
