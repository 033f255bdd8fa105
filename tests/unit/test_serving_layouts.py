"""Which layouts `compare` takes where none are named, and `--imbalance` of those that are."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from joinengine.lab.commands import sessions
from joinengine.lab.commands.running import _serving, compare, run
from joinengine.lab.queries import QUERIES
from joinengine.layouts import LAYOUTS
from joinengine.model.errors import InvalidRequest


def test_those_whose_plans_take_minutes_must_be_named():
    found = _serving(QUERIES["eq5"], compare.make_context("compare", ["eq5"]).params)
    assert set(LAYOUTS) - set(found) == {"mixed-bf", "readj"}


@pytest.fixture
def layouts(monkeypatch):
    """The labels of the layouts that a command would run; no session starts."""

    class Enough(Exception):
        """The layouts are known."""

    def labels(command, *arguments):
        asked = list[str]()

        def told(spark, query, options, *others, **more):
            asked.extend(layout.label for layout in options.layouts)
            if command is run:
                raise Enough
            return {"elapsed_s": 0.0}

        @contextmanager
        def started(master):
            yield None
            raise Enough

        for name, instead in (("started", started), ("run", told), ("warm_up", lambda *_: None)):
            monkeypatch.setattr(sessions, name, instead)
        done = CliRunner().invoke(command, ["eq5", *arguments])
        if isinstance(done.exception, InvalidRequest):
            raise done.exception
        assert isinstance(done.exception, Enough), done.output
        return asked

    return labels


def test_imbalance_is_a_setting_of_each_layout_that_has_it(layouts):
    named = ["--layouts", "hash,mnrt,mixed:beta=1.2,qmmp:imbalance=0.3", "--imbalance", "0.02"]
    assert layouts(compare, *named) == [
        "hash",
        "mnrt:imbalance=0.02",
        "mixed:imbalance=0.02,beta=1.2",
        "qmmp:imbalance=0.3",
    ]
    assert layouts(run, "--imbalance", "0.02") == ["auto:imbalance=0.02"]
    switched = ["--layout", "hash", "--switch", "3:mnrt", "--imbalance", "0.02"]
    assert layouts(run, *switched) == ["hash", "mnrt:imbalance=0.02"]
    everything = layouts(compare, "--imbalance", "0.02")
    assert {"hash", "dynamic", "auto:imbalance=0.02", "minmig:imbalance=0.02"} <= set(everything)


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (run, ["--layout", "hash"], "such as auto or mnrt, found hash"),
        (run, ["--layout", "hash", "--switch", "3:dlb-h"], "found hash, dlb-h"),
        (run, ["--checkpoint", "there"], "found no --layout"),
        (compare, ["--layouts", "hash,pkg"], "found hash, pkg"),
    ],
)
def test_imbalance_is_refused_where_no_layout_has_it(layouts, command, arguments, said):
    with pytest.raises(
        InvalidRequest, match=r"imbalance: 0\.02 needs a layout that has this"
    ) as no:
        layouts(command, *arguments, "--imbalance", "0.02")
    assert str(no.value).endswith(said)
    with pytest.raises(InvalidRequest, match="mnrt: imbalance must be 0 or more, found -1"):
        layouts(run, "--layout", "mnrt", "--imbalance", "-1")
