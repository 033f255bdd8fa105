"""Names of columns, keys and files that would turn or colour the text around them, or end it."""

from __future__ import annotations

import io
import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rich.console import Console

from joinengine import StreamJoin, equi, within
from joinengine.lab.cli import cli
from joinengine.lab.commands import console
from joinengine.model.errors import InvalidRequest
from joinengine.reporting.explain import explain
from joinengine.reporting.heads import head_of
from joinengine.reporting.page import page
from joinengine.reporting.story import Story
from joinengine.sources.readings import Reading
from joinengine.spark.sources.inputs import Stream

#: Turns the direction of what follows; colours it.
TURN, COLOUR = "\u202e", "\x1b[31m"
LEFT = pa.schema([(f"k{TURN}", pa.int64()), ("lt", pa.timestamp("us", "UTC"))])
RIGHT = pa.schema([(f"k{COLOUR}", pa.int64()), (f"t{TURN}", pa.timestamp("us", "UTC"))])


def stream(path, schema):
    return Stream(None, {"kind": "folder", "path": path}, Reading(schema))


@pytest.fixture
def joined():
    window = within("lt", f"t{TURN}", lower="0 s", upper="1 s", delay="1 s")
    sides = stream("/l", LEFT), stream("/r", RIGHT)
    return StreamJoin(*sides, on=equi(LEFT.names[0], RIGHT.names[0]), within=window, instances=2)


def is_plain(text):
    return all(one.isprintable() or one == "\n" for one in text)


def test_what_a_query_says_of_itself_is_plain(joined):
    head = head_of(joined.query(), [joined._choice], name=f"q{TURN}")
    plan = explain(joined.query(), [joined._choice])
    texts = [repr(joined), repr(stream("/l", LEFT)), plan, joined._repr_html_()]
    texts += [head["query"], *head["operators"][0]["leaves"], head["operators"][0]["on"]]
    texts += [head["operators"][0]["within"]]
    for text in texts:
        assert is_plain(text), ascii(text)
    assert head["operators"][0]["on"] == r"k\u202e = k\x1b[31m"
    assert r"until the watermark passes t\u202e" in plan
    told = page({"mode": "run", "story": Story(head, joined.query()).whole()})
    assert TURN not in told
    assert COLOUR not in told


def test_an_error_is_plain_and_keeps_its_lines():
    with pytest.raises(InvalidRequest) as told:
        stream("/r", RIGHT).select("x")
    assert str(told.value).endswith(r"the columns are k\x1b[31m, t\u202e")
    assert str(InvalidRequest("a\nb\tc", 5)) == "('a\\nb\\tc', 5)"
    assert str(InvalidRequest("a\nb")) == "a\nb"


def test_a_line_of_the_log_is_plain(caplog):
    logging.getLogger("joinengine").warning("joinengine: skipped %s, %d", f"a{TURN}{COLOUR}", 5)
    assert caplog.messages == [r"joinengine: skipped a\u202e\x1b[31m, 5"]


def test_a_command_says_what_is_plain(monkeypatch):
    written = io.StringIO()
    for name in ("out", "err"):
        monkeypatch.setattr(console, name, Console(file=written, soft_wrap=True))
    for say in (console.tell, console.say, console.fail):
        say(f"a{TURN}\nb{COLOUR}")
    assert is_plain(written.getvalue())
    assert written.getvalue().count("\\u202e\nb\\x1b[31m\n") == 3


def test_a_hot_key_of_a_simulated_stream_is_plain(tmp_path):
    keys = pa.table({f"key{TURN}": [f"hot{TURN}"] * 90 + [str(n) for n in range(60)]})
    pq.write_table(keys, tmp_path / "keys.parquet")
    asked = ["simulate", "hash", "mnrt", "--stream", str(tmp_path / "keys.parquet"), "--json"]
    done = CliRunner().invoke(cli, [*asked, str(tmp_path / "r.json")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert r"hot\u202e" in done.output
    assert TURN not in done.output
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["hot_keys"][0]["key"] == r"hot\u202e"
