"""Conditions as text, for `explain` and for the accounts of checkpoints."""

from __future__ import annotations

from joinengine.model.conditions import Band, Condition, Equi


def condition_text(condition: Condition) -> str:
    """The condition as SQL.

    >>> condition_text(Equi(("a",), ("b",)))
    'a = b'
    """
    if isinstance(condition, Equi):
        pairs = zip(condition.left, condition.right, strict=True)
        return " and ".join(f"{left} = {right}" for left, right in pairs)
    if isinstance(condition, Band):
        low = "" if condition.lower is None else f"{condition.lower} <= "
        high = "" if condition.upper is None else f" <= {condition.upper}"
        text = f"{low}{condition.right} - {condition.left}{high}"
        return text if condition.equal is None else f"{condition_text(condition.equal)} and {text}"
    return condition.predicate
