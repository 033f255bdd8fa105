"""The head of a story: the query itself, with its operators in words and by short names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from joinengine.layouts.layout import LayoutChoice
from joinengine.model.keys import Side
from joinengine.model.query import FromOperator, Input
from joinengine.model.spelling import printed_lines
from joinengine.operators.base import QuerySpec
from joinengine.reporting.explain import input_name
from joinengine.reporting.thinning import Entry

#: The version of a story's format.
FORMAT = 1
#: The steps on a source's rows, in words, which follow its path.
_STEPS = r"(?! where | with [^/]+ = )"
#: The folders above the last part of a path, which follows the kind of a source.
_FOLDERS = re.compile(rf"^(\w+ )(?:{_STEPS}.)*/{_STEPS}(?=[^/])", re.DOTALL)


def head_of(
    query: QuerySpec,
    choices: Sequence[LayoutChoice],
    *,
    name: str | None = None,
    ids: tuple[str, str] | None = None,
    show_keys: bool = True,
) -> Entry:
    """The head of a story. `ids`: the ids of the query and of the run."""
    return {
        "format": FORMAT,
        "query": printed_lines(name or "joinengine query"),
        "id": None if ids is None else ids[0],
        "run_id": None if ids is None else ids[1],
        "started": None,
        "show_keys": show_keys,
        "operators": [_operator(query, number, choice) for number, choice in enumerate(choices)],
    }


def short_name(source: str) -> str:
    """A source by the last part of its path: a page may go to people who should not see the rest.

    >>> short_name("parquet /data/eu/clicks where clicked_at > 0")
    'parquet clicks where clicked_at > 0'
    >>> short_name("folder /data/my files/old clicks/ with ratio = a / b where path != '/x'")
    "folder old clicks/ with ratio = a / b where path != '/x'"
    """
    return _FOLDERS.sub(r"\1", source)


def _operator(query: QuerySpec, number: int, choice: LayoutChoice) -> Entry:
    operator = query.operators[number]
    account = operator.account()
    inputs = [printed_lines(_input(query, source)) for source in operator.inputs]
    _, _, *leaves = map(printed_lines, operator.lines(inputs, choice, {}))
    return {
        "number": number,
        "kind": operator.kind,
        "on": printed_lines(str(account.get("on", ""))),
        "how": str(account.get("how", "")),
        "within": None if account.get("within") is None else printed_lines(str(account["within"])),
        "timed": operator.window is not None,
        "keyed": bool(operator.admission(Side.LEFT).keying.needed(Side.LEFT)),
        "inputs": inputs,
        "leaves": [line.strip() for line in leaves],
    }


def _input(query: QuerySpec, source: Input) -> str:
    """An input as the page calls it: a source, or an earlier operator."""
    if isinstance(source, FromOperator):
        return f"{query.operators[source.operator].kind} {source.operator}"
    return short_name(input_name(query, source))
