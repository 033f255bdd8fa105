"""What docs/metrics.md says of figures is what their table says."""

from __future__ import annotations

import os
import re

from joinengine.driver.figures import FIGURES, OF_BATCH, SUMS
from joinengine.reporting import prometheus
from joinengine.reporting.progress import CUSTOM
from tests.unit.metrics import PAGE


def rows_of_batch():
    for name in OF_BATCH:
        one = FIGURES[name]
        yield f"| `{name}` | {one.unit} | {one.meaning}{one.more} |"


def rows_of_operators():
    counters = {f"joinengine_{name}_total": FIGURES[name] for name in SUMS}
    counters["joinengine_operator_output_rows_total"] = counters["joinengine_output_rows_total"]
    for figure in prometheus._OPERATOR:
        if figure.name in counters:
            one = counters[figure.name]
            yield f"| `{figure.name}` | {one.unit} | {one.meaning} |"


def placed(text, heading, after, rows, is_ours):
    """The text with `rows` behind the row `after` below a heading; other rows of ours go."""
    head, section = text.split(heading, 1)
    lines = [line for line in section.split("\n") if not is_ours(line)]
    at = next(n for n, line in enumerate(lines) if line.startswith(after)) + 1
    return head + heading + "\n".join([*lines[:at], *rows, *lines[at:]])


def page(text):
    """The page, with the rows that the table makes."""
    ours = [re.escape(name) for name in OF_BATCH]
    batch = re.compile(rf"\| `({'|'.join(ours)})`(, `\w+`)* \|.*\|.*\|$")
    head, rest = text.split("\n## Report\n", 1)
    title = "## Metrics of a batch"
    head = placed(head, title, "| `recovery_s`", rows_of_batch(), batch.match)
    text = head + "\n## Report\n" + rest
    rows = list(rows_of_operators())
    names = {row.split("|")[1].strip() for row in rows}

    def is_counter(line):
        return line.count("|") == 4 and line.split("|")[1].strip() in names

    operators = "| figure of each operator | unit | meaning |"
    text = placed(text, operators, "|---|---|---|", rows, is_counter)
    sums = ", ".join(f"`{name}`" for name in SUMS if name != "replans")
    over = "| as in a batch, over the run |"
    text = re.sub(
        rf"\| (`input_rows`, )?`output_rows`, .*{re.escape(over)}", rf"| \1{sums} | {over}", text
    )
    custom = ", ".join(f"`{name}`" for name in CUSTOM)
    return re.sub(r"\| `customMetrics` \|.*", f"| `customMetrics` | | {custom} |", text)


def test_the_page_of_metrics_has_the_table_of_figures():
    text = page(PAGE.read_text())
    if os.environ.get("JOINENGINE_WRITE_GOLDEN") == "1":
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "make golden writes it anew"
    assert page(text.replace("| `late_rows` | rows |", "| `late_rows` | files |", 1)) == text
