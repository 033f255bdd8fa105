"""The HTML of notebooks: the picture of the load, and tables of others that stay as they were."""

from __future__ import annotations

import gc
import re
from types import SimpleNamespace

import pyarrow as pa
import pytest

from joinengine.driver.records import BatchRecord, OperatorRecord, StateRecord, Worked
from joinengine.reporting import notebook
from joinengine.reporting.run_report import STEPS, batch_rows

TITLE = re.compile(r"<title>(.*?)</title>")


def bars(svg):
    """Heights of all bars, the greatest one last."""
    return [float(h) for path in re.findall(r' d="(M.*?z)"', svg) for h in heights(path)]


def heights(path):
    return re.findall(r"v-([\d.]+)h", path)


def test_a_bar_for_each_instance():
    svg = notebook.load_picture([10, 30, 20, 0])
    words = "rows received by 4 instances: mean 15; maximum 30, at instance 1: 2.00 times the mean"
    assert TITLE.findall(svg) == [words]
    assert svg.endswith(f"<div>{words}</div>")
    low, middle, none, high = bars(svg)
    assert none == 0
    assert [high / low, high / middle] == pytest.approx([3, 1.5])


def test_a_thousand_instances_share_bars():
    loads = [100] * 1000
    loads[707] = 900
    svg = notebook.load_picture(loads)
    found = bars(svg)
    assert len(found) == 143  # of 7 instances each
    assert found[-1] == max(found)
    assert sum(h == found[-1] for h in found) == 1
    assert "maximum 900, at instance 707: 8.93 times the mean" in svg
    assert "a bar is the maximum of 7 instances" in svg
    assert len(svg) < 10_000


@pytest.mark.parametrize("loads", [[], [0, 0]])
def test_no_load_is_no_picture(loads):
    assert notebook.load_picture(loads) == "<div>no rows received yet</div>"


def test_titles_and_lines_are_text():
    html = notebook.page_part("<b>", notebook.line("<i> & \"'"))
    assert "&lt;b&gt;" in html
    assert "&lt;i&gt; &amp; &quot;&#x27;" in html


def record(number, rows):
    seconds = dict.fromkeys(("elapsed_s", *STEPS), 1.0)
    work = Worked([rows, 0], busy_s=[0.1, 0.2])
    operator = OperatorRecord(2, work=work, state=StateRecord(held=[rows, 0]))
    return BatchRecord(number, 0.0, seconds, joins=[operator], input_rows=rows)


def test_metrics_show_the_newest_batches():
    records = [record(number, 1000 + number) for number in range(40)]
    rows = [batch_rows(one) for one in records]
    records[39].input_rows = 7  # told later: what is shown is what the table holds
    html = notebook.metrics_html(rows, records, "<i>about</i>")
    assert "metrics of the latest 12 of 40 batches" in html
    assert html.count("<tr>") == 13
    assert ">1,039</td>" in html
    assert ">1,027</td>" not in html
    assert "<details><summary>the query</summary><i>about</i></details>" in html
    # The picture is of the whole run.
    assert f"maximum {sum(range(1000, 1040)):,}, at instance 0: 2.00 times" in html


def test_metrics_of_no_batch():
    assert "metrics of 0 batches" in notebook.metrics_html([], [], "")


class Formatter:
    """As IPython's: `for_type` gives what was registered, and registers."""

    def __init__(self, before=None):
        self.found = before

    def for_type(self, kind, function=None):
        assert kind is pa.Table
        before = self.found
        if function is not None:
            self.found = function
        return before


@pytest.fixture
def formatter(monkeypatch):
    made = Formatter()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": made}))
    module = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(notebook.sys.modules, "IPython", module)
    return made


def test_only_our_tables_are_shown_our_way(formatter):
    formatter.found = lambda table: f"theirs, {table.num_rows} rows"
    ours, others = pa.table({"a": [1]}), pa.table({"a": [1]})
    notebook.show_in_notebook(ours, lambda: "ours")
    assert formatter.found(ours) == "ours"
    assert formatter.found(others) == formatter.found(ours.slice(0)) == "theirs, 1 rows"
    # A second table does not put a formatter before the formatter.
    before = formatter.found
    notebook.show_in_notebook(others, lambda: "ours too")
    assert formatter.found is before
    assert before(others) == "ours too"
    del others
    gc.collect()
    assert list(notebook._SHOWN) == [id(ours)]
    del ours
    assert not notebook._SHOWN


def test_without_a_formatter_before_other_tables_have_no_html(formatter):
    ours = pa.table({"a": [1]})
    notebook.show_in_notebook(ours, lambda: "ours")
    assert formatter.found(pa.table({"a": [1]})) is None


@pytest.mark.parametrize("module", [None, SimpleNamespace(get_ipython=lambda: None)])
def test_without_a_shell_nothing_is_kept(monkeypatch, module):
    if module is None:
        monkeypatch.delitem(notebook.sys.modules, "IPython", raising=False)
    else:
        monkeypatch.setitem(notebook.sys.modules, "IPython", module)
    notebook.show_in_notebook(pa.table({"a": [1]}), lambda: "ours")
    assert not notebook._SHOWN
