"""Queries and metrics as HTML, for notebooks: `_repr_html_` of joins and running queries.

Why: a notebook shows the value of a cell's last line. A join should show its sides, condition,
window, layout, and when a tuple leaves the state; a running query also its load.
Law: texts of the user (columns, predicates, folders, keys) are escaped, nothing is a script,
and nothing is loaded. Colours are those of the notebook, which may be light or dark.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from joinengine.driver.records import BatchRecord
from joinengine.layouts.layout import LayoutChoice
from joinengine.model.keys import Side
from joinengine.model.spelling import printed_lines
from joinengine.model.texts import counted
from joinengine.operators.base import Operator, QuerySpec
from joinengine.operators.timing import Flow
from joinengine.reporting.explain import described
from joinengine.reporting.run_report import run_report

#: How many of the newest batches the HTML of metrics shows, and their columns.
_NEWEST = 12
#: How many plans the HTML of a query shows.
_PLANS = 5
_COLUMNS = (
    *("batch", "input_rows", "output_rows", "elapsed_s", "state_rows", "state_bytes"),
    *("moved_rows", "late_rows", "pending_rows"),
)
#: The most bars of a picture; with more instances, a bar stands for several.
_MOST_BARS = 160
_WIDTH, _HEIGHT = 320, 56
#: Of middle brightness: visible on white and on black.
_GREATEST = "#d97706"
_CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0"
_NUMBER = "text-align:right;padding:1px 12px 1px 0;font-variant-numeric:tabular-nums"


def operators_html(
    query: QuerySpec,
    choices: Sequence[LayoutChoice],
    rates: Mapping[tuple[int, Side], Flow] | None = None,
    instances: Sequence[int] | None = None,
    loads: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The operators of a query, each as a small table; the arguments are those of `explain`.

    `loads`: the figures of each operator in the report; none: the query has not run.
    """
    parts = list[str]()
    operators = described(query, choices, rates, instances)
    for choice, (operator, lines) in zip(choices, operators, strict=True):
        rows = [*_facts(operator, choice), *_sides(lines)]
        if loads:
            rows.append(("load", load_picture(loads[operator.index]["received_per_instance"])))
        parts.append(_table(f"operator {operator.index}: {operator.kind}", rows))
    return "".join(parts)


def page_part(title: str, *parts: str) -> str:
    """Parts of HTML under a title, which is plain text."""
    return f"<div><div><strong>{escape(title)}</strong></div>{''.join(parts)}</div>"


def line(text: str) -> str:
    """A line of plain text."""
    return f"<div>{escape(text)}</div>"


def plans_html(plans: Sequence[Mapping[str, Any]]) -> str:
    """The newest plans of a story, in words."""
    entries = "".join(
        f"<li>batch {plan['batch']}, operator {plan['join']}: {escape(plan['words'])}</li>"
        for plan in plans[: -_PLANS - 1 : -1]
    )
    return f"<div>the latest layout changes</div><ul>{entries}</ul>" if entries else ""


def metrics_html(
    metrics: Sequence[Mapping[str, Any]], records: Sequence[BatchRecord], about: str
) -> str:
    """The newest batches, the load of the operator that received most, and `about` folded away.

    `metrics`: the rows of the table. They are not computed again from `records`, because Spark
    reports the time of a batch late, and the HTML must show the same as the table.
    """
    rows = metrics[-_NEWEST:]
    head = "".join(f'<th scope="col" style="{_NUMBER}">{name}</th>' for name in _COLUMNS)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{_NUMBER}">{_figure(row[name])}</td>' for name in _COLUMNS)
        + "</tr>"
        for row in rows
    )
    shown = f"the latest {len(rows)} of " if len(rows) < len(metrics) else ""
    parts = [
        '<div style="overflow-x:auto"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>",
        line("a pyarrow.Table with more columns: .to_pandas() shows them all"),
        f"<details><summary>the query</summary>{about}</details>",
    ]
    if records:
        parts.insert(0, load_picture(run_report(records)["received_per_instance"]))
    return page_part(f"metrics of {shown}{counted(len(metrics), 'batch')}", *parts)


def load_picture(loads: Sequence[float]) -> str:
    """A bar for the rows that each instance received, the mean as a dashed line, both in words."""
    received = np.asarray(loads, float)
    if not len(received) or not received.sum():
        return line("no rows received yet")
    mean, greatest, at = float(received.mean()), float(received.max()), int(received.argmax())
    words = (
        f"rows received by {len(received):,} instances: mean {mean:,.0f}; maximum "
        f"{greatest:,.0f}, at instance {at}: {greatest / mean:.2f} times the mean"
    )
    each = -(-len(received) // _MOST_BARS)
    tops = np.array([received[n : n + each].max() for n in range(0, len(received), each)])
    if each > 1:
        words += f" (a bar is the maximum of {each} instances)"
    wide, high = _WIDTH / len(tops), (_HEIGHT - 2) * tops / greatest
    bars = [
        f"M{n * wide:.2f} {_HEIGHT}v{-h:.2f}h{max(wide - 1, wide / 2):.2f}v{h:.2f}z"
        for n, h in enumerate(high.tolist())
    ]
    most = bars.pop(at // each)
    level = _HEIGHT - (_HEIGHT - 2) * mean / greatest
    return (
        f'<svg role="img" aria-label="{escape(words)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="display:block;max-width:100%">'
        f"<title>{escape(words)}</title>"
        f'<path d="{"".join(bars)}" fill="currentColor" fill-opacity="0.45"/>'
        f'<path d="{most}" fill="{_GREATEST}"/>'
        f'<path d="M0 {level:.2f}h{_WIDTH}" stroke="currentColor" stroke-dasharray="4 3" '
        f'fill="none"/></svg>' + line(words)
    )


def _facts(operator: Operator, choice: LayoutChoice) -> list[tuple[str, str]]:
    """The condition, the window and the layout: (name, HTML)."""
    account = operator.account()
    facts = [("type", account.get("how")), ("condition", account.get("on"))]
    if account.get("where"):
        facts.append(("where", account["where"]))
    if "within" in account:
        facts.append(("window", account["within"] or "none"))
    instances = getattr(operator, "instances", None)
    size = "" if instances is None else f" on {instances:,} instances"
    facts.append(("layout", f"{choice.label}{size}: {choice.summary}"))
    return [(name, escape(printed_lines(str(text)))) for name, text in facts if text]


def _sides(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The lines of `explain` about the inputs: when their tuples leave, and which are late."""
    for text in islice(lines, 1, None):
        if text.lstrip().startswith("layout "):  # said already
            continue
        word, _, rest = text.strip().partition(" ")
        named = word in ("late", *(side.name.lower() for side in Side))
        yield (word, escape(rest.strip())) if named else ("", escape(text.strip()))


def _table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row" style="{_CELL}">{name}</th><td style="{_CELL}">{value}</td></tr>'
        for name, value in rows
    )
    return (
        f'<table style="margin:4px 0"><caption style="text-align:left">{escape(caption)}</caption>'
        f"<tbody>{body}</tbody></table>"
    )


def _figure(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


#: id of a table of metrics -> its HTML; an entry goes with its table.
_SHOWN = dict[int, Callable[[], str]]()


def show_in_notebook(table: pa.Table, html: Callable[[], str]) -> None:
    """Have notebooks show `table` as `html` says; elsewhere this does nothing.

    A `pyarrow.Table` cannot be subclassed (its constructors return the base class, whichever class
    they are called on) and takes no attributes, and code that wants a table refuses a wrapper. So
    the table stays as it is, and IPython's registry gets a formatter for tables; for other tables,
    the formatter does what IPython did before. It knows our tables by identity: a mark in the
    schema would be copied to selections and files, which have other columns and rows.
    """
    formatter = _html_formatter()
    if formatter is None:
        return
    before = formatter.for_type(pa.Table)
    if not getattr(before, "of_joinengine", False):
        formatter.for_type(pa.Table, _formatter(before))
    _SHOWN[id(table)] = html
    weakref.finalize(table, _SHOWN.pop, id(table), None).atexit = False


def _html_formatter() -> Any:
    """IPython's formatter of HTML in this process; None: there is no IPython shell."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return None if shell is None else shell.display_formatter.formatters.get("text/html")


def _formatter(before: Callable[[Any], str | None] | None) -> Callable[[Any], str | None]:
    def table_html(table: Any) -> str | None:
        ours = _SHOWN.get(id(table))
        if ours is not None:
            return ours()
        if before is not None:
            return before(table)
        # This formatter takes precedence over `_repr_html_`, should pyarrow's tables ever have it.
        method = getattr(table, "_repr_html_", None)
        return None if method is None else method()

    table_html.of_joinengine = True  # type: ignore[attr-defined]
    return table_html
