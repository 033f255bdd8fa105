"""Which layouts `compare` takes where none are named."""

from __future__ import annotations

from joinengine.lab.commands.running import _serving, compare
from joinengine.lab.queries import QUERIES
from joinengine.layouts import LAYOUTS


def test_those_whose_plans_take_minutes_must_be_named():
    found = _serving(QUERIES["eq5"], compare.make_context("compare", ["eq5"]).params)
    assert set(LAYOUTS) - set(found) == {"mixed-bf", "readj"}
