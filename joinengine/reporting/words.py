"""Keys, placements and plans in words, for pages and logs.

Why: a reason holds hashes and numbers. People want to read which key it is, how many tuples it
brought, and what was done with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from joinengine.balancing.reasons import Cause, KeyChange, Reason
from joinengine.driver.records import OperatorRecord
from joinengine.model.keys import HASH_BITS, Mode, Placement
from joinengine.model.recovery import Recovery
from joinengine.model.texts import counted

#: The homes of a key are listed in at most this many ranges; if there are more, only counted.
_MOST_RANGES = 12
#: How many consecutive numbers make a range.
_RANGE = 3

#: The manner of a placement: its mode, sides and homes, without the shares of the homes.
Manner = tuple[object, ...]

_CAUSES = {
    Cause.OVERLOAD: "the loads differed too much",
    Cause.HEAVY_KEY: "a key was too heavy for one instance",
    Cause.COOLED_KEY: "a key fits one instance again",
    Cause.SHAPE: "the shape no longer suited the streams",
    Cause.HEAD: "the set of heavy keys changed",
    Cause.LOADS: "new loads were measured",
    Cause.DECLINED: "a plan would have cost more than it saves",
    Cause.SWITCH: "another layout was requested",
    Cause.RESIZE: "another number of instances was requested",
    Cause.RESTART: "the restart requested another layout",
    Cause.CAPACITY: "an instance was full",
    Cause.LOSS: "instances lost their state",
    Cause.REFILLED: "instances have their state again",
    Cause.LEVELS: "keys needed other backups",
}


class Shares(NamedTuple):
    """A key's part of the rows of a batch, and of the state after it; None: nobody counted it."""

    batch: float
    state: float | None


def hash_text(hash_: int) -> str:
    """A key hash as hexadecimal digits, always as many.

    >>> hash_text(255)
    '00000000ff'
    """
    return f"{hash_:0{HASH_BITS // 4}x}"


def key_words(hash_: int, names: Mapping[int, str]) -> str:
    """A key by its value, or by its hash if the value is unknown or must not be shown."""
    return f"key {names[hash_]}" if hash_ in names else f"key #{hash_text(hash_)}"


def homes_words(homes: Sequence[int]) -> str:
    """Instances in words.

    >>> homes_words([3]), homes_words([9, 3, 7]), homes_words(range(0, 80, 2))
    ('instance 3', 'instances 3, 7, 9', '40 instances')
    >>> homes_words(range(8)), homes_words([6, 2, 1, 0])
    ('instances 0 to 7', 'instances 0 to 2, 6')
    """
    if len(homes) == 1:
        return f"instance {homes[0]}"
    ranges = list[list[int]]()
    for home in sorted(homes):
        if ranges and home == ranges[-1][-1] + 1:
            ranges[-1].append(home)
        else:
            ranges.append([home])
    parts = list[str]()
    for run in ranges:
        parts += [f"{run[0]} to {run[-1]}"] if len(run) >= _RANGE else map(str, run)
    if len(parts) > _MOST_RANGES:
        return f"{len(homes)} instances"
    return f"instances {', '.join(parts)}"


def placement_words(
    placement: Placement | None, *, listed: bool = True, sided: bool = True
) -> tuple[str, str]:
    """What was done with a key: (one word, the whole in words).

    `listed`: whether the routing table has the key, so that it is not simply at its base home.
    `sided`: whether the operator has two sides.

    >>> placement_words(Placement.whole(3), listed=False)
    ('kept', 'kept at instance 3')
    >>> placement_words(Placement.whole(3, (4,)))
    ('moved', 'moved to instance 3, backup at instance 4')
    """
    if placement is None:
        return "any", "not placed by key under this layout"
    homes = placement.homes
    match placement.mode:
        case Mode.WHOLE if listed:
            return "moved", f"moved to instance {homes[0]}{_backups(placement)}"
        case Mode.WHOLE:
            return "kept", f"kept at instance {homes[0]}{_backups(placement)}"
        case Mode.SPLIT | Mode.COPIED if placement.mode is Mode.SPLIT or not sided:
            return "split", f"split over {homes_words(homes)}"
        case Mode.COPIED:
            split, copied = placement.split_side, placement.split_side.other
            return "copied", (
                f"{split.name.lower()} rows split over {homes_words(homes)}, "
                f"{copied.name.lower()} rows copied to each"
            )
        case Mode.GRID:
            rows, columns = placement.rows, placement.columns
            return "grid", f"spread over a grid of {rows} x {columns} instances"


def plan_words(
    reason: Reason,
    names: Mapping[int, str],
    instances: int,
    *,
    shares: Mapping[int, Shares] = MappingProxyType({}),
    moved: tuple[int, float] | None = None,
    sizes: tuple[int, int] | None = None,
    sided: bool = True,
) -> str:
    """Why a layout changed and what that cost, in one line.

    `instances`: how many loads the reason is about. `shares`: those of keys in one batch, which may
    differ from their parts of the loads, since these cover several batches. `moved`: (tuples,
    seconds) of the moves; None: they have not happened yet. `sizes`: the numbers of instances
    before and after, if they differ. `sided`: whether the operator has two sides.
    """
    parts = [_loss_words(way, lost) for way, lost in reason.ways]
    if reason.cause is not Cause.LOSS:
        parts.append(_first(reason, names, instances, shares, sided=sided))
    if sizes is not None:
        parts.append(f"the number of instances changed from {sizes[0]} to {sizes[1]}")
    others = len(reason.keys) + reason.more_keys - 1
    if others > 0:
        parts.append(
            f"{counted(others, 'more key')} {'was' if others == 1 else 'were'} moved or divided"
        )
    if moved is not None and moved[0]:
        parts.append(f"{counted(moved[0], 'row')} moved in {moved[1] * 1e3:,.0f} ms")
    elif moved is None and reason.cost is not None and reason.cost.rows:
        parts.append(f"about {counted(round(reason.cost.rows), 'row')} to move")
    return "; ".join(parts)


def shares_of(record: OperatorRecord) -> dict[int, Shares]:
    """Key hash -> its shares, for the hottest keys of a batch."""
    return {key.hash_: Shares(key.share, key.state_share) for key in record.heat.keys}


def key_change_words(change: KeyChange, *, sided: bool = True) -> str:
    """What was done with one key of a plan."""
    before, after = change.before, change.after
    if after.mode is Mode.WHOLE and before.mode is not Mode.WHOLE:
        return f"merged at instance {after.homes[0]}"
    if after.backups and set(before.holders) == set(after.holders):
        return f"a backup became the home: instance {after.homes[0]}{_backups(after)}"
    if before.homes == after.homes and len(before.backups) != len(after.backups):
        came = len(after.backups) > len(before.backups)
        what = "now has more backups" if came else "now has fewer backups"
        return f"{what}; home at instance {after.homes[0]}{_backups(after)}"
    words = placement_words(after, sided=sided)[1]
    return words if is_elsewhere(before, after) else f"its shares changed; {words}"


def is_elsewhere(before: Placement, after: Placement) -> bool:
    """Whether a key has other homes or another mode, not only other shares."""
    return manner(before) != manner(after)


def manner(placement: Placement | None) -> Manner:
    """The manner of a placement: how the key lies, without its shares."""
    if placement is None:
        return ()
    homes, backups = frozenset(placement.homes), frozenset(placement.backups)
    return placement.mode, placement.split_side, placement.columns, homes, backups


def _backups(placement: Placement) -> str:
    if not placement.backups:
        return ""
    noun = "backup" if len(placement.backups) == 1 else "backups"
    return f", {noun} at {homes_words(placement.backups)}"


def _loss_words(way: Recovery, instances: Sequence[int]) -> str:
    """How instances that had lost their state go on."""
    its = "its" if len(instances) == 1 else "their"
    match way:
        case Recovery.REPLICAS:
            after = f"the backups of {its} keys have taken over"
        case Recovery.TASKB:
            who = "standby has" if its == "its" else "standbys have"
            after = f"{its} {who} taken over {its} keys"
        case Recovery.STORE:
            after = "it was read again from the store"
    return f"{homes_words(instances)} lost {its} state; {after}"


def _shapes_words(before: str, after: str) -> str:
    """How a shape changed; a grid that stays a grid is named once.

    >>> _shapes_words("a grid of 2 x 4 instances", "a grid of 8 x 1 instances")
    'the grid changed from 2 x 4 to 8 x 1 instances'
    """
    grid, noun = "a grid of ", " instances"
    if before.startswith(grid) and after.startswith(grid):
        was = before.removeprefix(grid).removesuffix(noun)
        return f"the grid changed from {was} to {after.removeprefix(grid)}"
    return f"the shape changed from {before} to {after}"


def _shares_words(load: float, shares: Shares | None) -> str:
    """A key's share of the load, and its other shares as far as they are known.

    >>> _shares_words(0.5, Shares(0.4, 0.3))
    "50% of the load, 40% of this batch's rows and 30% of the state"
    """
    words = [f"{load:.0%} of the load"]
    if shares is not None:
        words.append(f"{shares.batch:.0%} of this batch's rows")
        words += [] if shares.state is None else [f"{shares.state:.0%} of the state"]
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _first(
    reason: Reason,
    names: Mapping[int, str],
    instances: int,
    shares: Mapping[int, Shares],
    *,
    sided: bool,
) -> str:
    """The cause, by the example of the heaviest key that has moved, if any has."""
    skew = f"load skew {reason.before.skew:.2f}"
    if reason.after is not None:
        skew += f", {reason.after.skew:.2f} expected"
    if reason.shapes is not None and reason.after is not None:
        before, after = reason.shapes
        fullest = counted(round(reason.before.greatest), "row")
        return (
            f"{_shapes_words(before, after)}; the fullest instance held {fullest}, and should now "
            f"hold {reason.after.greatest:,.0f}"
        )
    if reason.cause is Cause.DECLINED and reason.cost is not None:
        return (
            f"{_CAUSES[reason.cause]}: {counted(round(reason.cost.rows), 'row')} to move ({skew})"
        )
    if not reason.keys:
        return f"{_CAUSES[reason.cause]} ({skew})"
    placed = (key for key in reason.keys if is_elsewhere(key.before, key.after))
    first = next(placed, reason.keys[0])
    name, total = key_words(first.hash_, names), reason.before.total(instances)
    brought = ""
    if first.load is not None and total:
        at = homes_words(first.before.homes)
        parts = _shares_words(first.load / total, shares.get(first.hash_))
        brought = f" carried {parts}, at {at}"
    return f"{name}{brought}; {key_change_words(first, sided=sided)} ({skew})"
