"""A notebook, run as Jupyter runs it: what joins, queries and metrics show there."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from tempfile import TemporaryDirectory

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

pytestmark = pytest.mark.spark

SCRIPT = "<script>alert(1)</script>"
COLUMN = f"key {SCRIPT}"
IMAGE = '<img src="x" onerror="alert(1)">'

START = """
import json
from pathlib import Path
import pyarrow as pa
from joinengine import StreamJoin, equi, parquet_stream, session, within

root = Path({root!r})
spark = session(master="local[1]")
left = parquet_stream(spark, root / "left", rows_per_interval=30)
right = parquet_stream(spark, root / "right", rows_per_interval=30)
"""
JOINED = """
joined = StreamJoin(
    left, right, on=equi({column!r}, "other"), layout="mnrt", instances=3,
    within=within("l_time", "r_time", lower="0 s", upper="1 hour", delay="1 minute"),
    where="left.word <> right.word", suffixes=("_l", "_r"),
)
joined
"""
QUERY = """
writer = joined.writeStream.format("noop").trigger(availableNow=True)
# By tuples: seconds of so few would let noise decide.
writer = writer.option("load", "tuples")
query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
query.awaitTermination()
query
"""
FIGURES = """
from joinengine.reporting.run_report import run_report
print(json.dumps({
    "type": type(metrics) is pa.Table,
    "rows": metrics.to_pylist(),
    "received": run_report(query.batches())["received_per_instance"],
    "plans": [plan["words"] for plan in query.story()["plans"]],
}))
"""


class Seen(HTMLParser):
    """The tags, attributes and texts of some HTML; every tag that is opened is closed."""

    EMPTY = ("path", "img")

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = set(), set(), [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each cell of the notebook shows."""
    root = tmp_path_factory.mktemp("notebook")
    folder = root / f"in {IMAGE.replace('/', '')}"
    keys = [0] * 60 + list(range(60))
    for side, key, time in (("left", COLUMN, "l_time"), ("right", "other", "r_time")):
        (folder / side).mkdir(parents=True)
        columns = {
            key: pa.array([f"{IMAGE}{n}" for n in keys]),
            "word": [side] * len(keys),
            time: pa.array(range(len(keys)), pa.timestamp("s", "UTC")),
        }
        table = pa.table(columns)
        pq.write_table(table, folder / side / "0.parquet", row_group_size=30)
    with pytest.MonkeyPatch.context() as patch:
        # The kernel's files, its connection among them, lie with the test's.
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(root / name.lower()))
        return _outputs(
            START.format(root=str(folder)),
            JOINED.format(column=COLUMN),
            QUERY,
            "metrics = query.metrics()\nmetrics",
            FIGURES,
            "metrics.slice(0, 1)",
            "pa.table({'a': [1]})",
        )


def _outputs(*cells):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    # Sockets in a folder of ours: nobody else reaches the kernel. Their paths must be short.
    with TemporaryDirectory(prefix="je-", dir="/tmp") as folder:
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        NotebookClient(notebook, km=manager, timeout=300).execute()
    return [cell.outputs for cell in notebook.cells]


def html_of(outputs):
    (found,) = (one for one in outputs if one.output_type == "execute_result")
    return found.data["text/html"]


@pytest.fixture(scope="module")
def figures(shown):
    return json.loads("".join(one.text for one in shown[4] if one.output_type == "stream"))


def test_a_join_shows_what_it_joins_and_when_tuples_leave(shown):
    texts = Seen(html_of(shown[1])).texts
    assert "StreamJoin" in texts
    assert "operator 0: join" in texts
    rows = dict(pairwise(texts))
    assert rows["condition"] == f"{COLUMN} = other"
    assert rows["where"] == "left.word <> right.word"
    assert rows["window"] == "0 s <= r_time - l_time <= 60 min"
    assert rows["layout"].startswith("mnrt on 3 instances")
    assert "kept until the watermark passes l_time + 60 min" in rows["left"]
    assert "kept until the watermark passes r_time + 0 s" in rows["right"]
    assert "left out: the newest left row - 60 s or the newest right row - 60 s" in rows["late"]
    assert "load" not in rows


def test_a_query_shows_its_load(shown, figures):
    seen = Seen(html_of(shown[2]))
    batches = len(figures["rows"])
    read = sum(row["input_rows"] for row in figures["rows"])
    assert read == 240
    assert f"JoinQuery ended: {batches:,} batches and {read} rows in this run" in seen.texts[0]
    assert any(f"joinengine: {batches} batches, {read} rows read" in text for text in seen.texts)
    greatest, mean = max(figures["received"]), sum(figures["received"]) / 3
    at = figures["received"].index(greatest)
    words = (
        f"rows received by 3 instances: mean {mean:,.0f}; maximum {greatest:,}, at instance "
        f"{at}: {greatest / mean:.2f} times the mean"
    )
    assert seen.texts.count(words) == 2  # for eyes, and as the title of the picture
    assert "svg" in seen.tags
    assert len(figures["received"]) == 3


def test_a_query_tells_what_was_done_with_a_hot_key(shown, figures):
    texts = "".join(Seen(html_of(shown[2])).texts)
    assert figures["plans"]
    assert all(words in texts for words in figures["plans"][-5:])
    assert f"key {IMAGE}0 carried" in figures["plans"][0]


def test_metrics_stay_a_table_and_show_the_batches(shown, figures):
    assert figures["type"] is True
    seen = Seen(html_of(shown[3]))
    rows = figures["rows"]
    assert f"metrics of {len(rows)} batches" in seen.texts
    start = seen.texts.index("batch")
    names = seen.texts[start : seen.texts.index("pending_rows") + 1]
    cells = seen.texts[start + len(names) :]
    for number, row in enumerate(rows):
        shown_row = cells[number * len(names) : (number + 1) * len(names)]
        for name, text in zip(names, shown_row, strict=True):
            assert float(text.replace(",", "")) == pytest.approx(row[name], abs=0.0051)
    assert "operator 0: join" in seen.texts


def test_other_tables_are_shown_as_before(shown):
    for outputs in shown[5:]:
        (found,) = outputs
        assert set(found.data) == {"text/plain"}
        assert found.data["text/plain"].startswith("pyarrow.Table")


def test_texts_of_the_user_are_escaped_and_nothing_is_loaded(shown):
    for outputs in shown[1:4]:
        html = html_of(outputs)
        seen = Seen(html)
        tables = {"table", "caption", "thead", "tbody", "tr", "th", "td", "ul", "li"}
        assert seen.tags <= tables | {"div", "strong", "svg", "title", "path", "details", "summary"}
        assert not {name for name in seen.attributes if name.startswith("on")}
        assert not {"src", "href", "id", "class"} & seen.attributes
        assert "//" not in re.sub(r"&lt;.*?&gt;", "", html).replace("in // ", "")
        # They are there, as text: else there was nothing to escape.
        assert SCRIPT in "".join(seen.texts)
        assert IMAGE.replace("/", "") in "".join(seen.texts)
