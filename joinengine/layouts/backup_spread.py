"""The setting `spread` of `ftlb`: over how many instances the backups of one home lie.

Why: if they all lie at the next instance, that instance does the work of two once the home is lost,
and it is full of backups when roles should change for balance. If they are spread over several
instances, each takes a part. The price: more pairs of instances hold all copies of some key between
them.

Law: however they are spread, the state survives the loss of as many instances as keys have backups.
"""

from __future__ import annotations

from joinengine.model.errors import InvalidRequest
from joinengine.routing.base_functions import widest_spread

#: A number, ALL other instances, or None: DEFAULT_SPREAD, or fewer if there are fewer others.
Spread = int | str | None

ALL = "all"
DEFAULT_SPREAD = 1
#: A limit, because a manifest holds `instances` * `spread` rows of roles.
MOST_SPREAD = 64
SPREAD_MEANING = (
    "over how many other instances the backups of one home lie, or all; with more of them a loss "
    f"costs less time, and fewer losses of two at once are survived; none: {DEFAULT_SPREAD}"
)


def check_spread(spread: Spread, *, standby: bool) -> None:
    """Raise InvalidRequest for a number out of range, and for a spread together with standbys."""
    if isinstance(spread, int) and not 1 <= spread <= MOST_SPREAD:
        raise InvalidRequest(
            f"ftlb: spread must be from 1 to {MOST_SPREAD} instances, or {ALL!r}, found {spread}"
        )
    if standby and spread not in (None, 1):
        raise InvalidRequest(
            f"ftlb: spread={spread} places backups of keys, but standby (recovery taskb) copies "
            f"whole instances; give only one of the two"
        )


def check_others(spread: Spread, instances: int) -> None:
    """Raise InvalidRequest if there are too few instances for the spread."""
    if isinstance(spread, int) and spread >= instances:
        raise InvalidRequest(
            f"ftlb: spread={spread} needs at least {spread + 1} instances, a home and {spread} "
            f"with its backups, found {instances}; give a lower spread, or spread={ALL}"
        )


def spread_over(spread: Spread, instances: int, domains: int | None) -> int:
    """Over how many instances the first backups of one home's keys lie."""
    most = min(widest_spread(instances, domains or instances), MOST_SPREAD)
    if isinstance(spread, int):
        return min(spread, most)
    return most if spread == ALL else min(DEFAULT_SPREAD, most)


def losses_in_words(backups: int, spread: int) -> str:
    """In words, which losses a query survives if each key has at least `backups` backups."""
    some = "any instance" if backups == 1 else f"any {backups} instances at once"
    others = "another" if spread == 1 else f"{spread} others"
    return (
        f"inner joins survive the loss of {some}, whose keys go on at {others}, and of "
        f"{backups + 1} at once if no key has all its copies there"
    )
