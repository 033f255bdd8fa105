"""The planners' decisions on readable cases, as files: a change of a plan shows as a diff.

`make golden` writes the plans anew; read the diff before it is committed. Keys are numbers whose
base home is key modulo instances; loads are tuples per interval and side; a plan says which
instance then has how much, and every key that the routing table holds.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from joinengine.balancing.shares import reshare
from joinengine.balancing.statistics import Interval
from joinengine.layouts import LAYOUTS
from joinengine.layouts.key_based import Planned
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement
from joinengine.routing.base_functions import Backed
from joinengine.routing.table import RoutingTable

CASES = sorted((Path(__file__).parent / "plans").glob("*.json"))
PLANNERS = {name: choice for name, choice in LAYOUTS.items() if issubclass(choice, Planned)}


def placement(mode, shares, base):
    """Where keys have backups they are whole: at their greatest share, the backup next to it."""
    if isinstance(base, Backed):
        home = max(shares, key=shares.get)
        return Placement.whole(home, ((home + 1) % base.instances,))
    whole = (Fragment(next(iter(shares)), 0, U_ONE),)
    return Placement(Mode[mode.upper()], reshare(whole, shares))


def planner(choice, imbalance):
    """The layout's planner at this tolerance; dlb and lptf count in per cent."""
    if "imbalance" in choice.__dataclass_fields__:
        return choice(imbalance=imbalance)
    return choice(threshold=100 * imbalance)


def plan(case, choice):
    """Loads and routing table after one plan for the case, in the form of the files."""
    keys = {int(key): counts for key, counts in case["keys"].items()}
    hashes = np.array(sorted(keys), np.uint64)
    arrived = np.array([[keys[int(h)][side] for h in hashes] for side in ("left", "right")], float)
    held = np.array([keys[int(h)]["held"] for h in hashes], float).T
    interval = Interval(hashes, arrived, held, np.zeros(case["instances"]))
    made = planner(choice, case["imbalance"])
    base = made.start(case["instances"]).base
    table = RoutingTable(
        {
            int(key): placement(mode, {int(i): share for i, share in shares.items()}, base)
            for key, (mode, shares) in case["table"].items()
        }
    )
    new = made.planned(base, table, made.gather(base, table, [interval]))
    after = made.gather(base, new, [interval]).per_instance()
    return {"loads": after.round(1).tolist(), "table": {str(k): words(p) for k, p in rows(new)}}


def rows(table):
    return sorted(table.placements.items())


def words(placement):
    parts = [f"{f.instance}: {(f.u_upper - f.u_lower) / U_ONE:.4f}" for f in placement.fragments]
    parts += [f"backup {instance}" for instance in placement.backups]
    return f"{placement.mode.name.lower()} {', '.join(parts)}"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_plans_are_as_filed(path):
    case = json.loads(path.read_text())
    plans = {name: plan(case, choice) for name, choice in PLANNERS.items()}
    if os.environ.get("JOINENGINE_WRITE_GOLDEN"):
        path.write_text(written(case | {"plans": plans}))
    assert json.loads(path.read_text())["plans"] == plans


def written(case):
    """JSON with a line for each key and placement."""
    text = json.dumps(case, indent=1)
    for counts in case["keys"].values():
        text = text.replace(json.dumps(counts, indent=1).replace("\n", "\n  "), json.dumps(counts))
    for found in case["plans"].values():
        loads = found["loads"]
        text = text.replace(json.dumps(loads, indent=1).replace("\n", "\n   "), json.dumps(loads))
    return text + "\n"


def test_there_are_cases():
    assert len(CASES) >= 6
