"""`simulate --nodes`: the engine's own driver over simulated tasks, and the model around it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from joinengine.balancing.statistics import skew
from joinengine.exchange.exchange import ExchangeKind
from joinengine.lab.cli import cli
from joinengine.lab.simulation.driven import driver_of
from joinengine.lab.simulation.loaded import LoadedJobs
from joinengine.lab.simulation.planning import Other
from joinengine.lab.simulation.scaling import MOST_NODES, Machines, measure, modelled
from joinengine.lab.simulation.workload import Workload
from joinengine.layouts import Hash, Mnrt
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Mode
from joinengine.model.speeds import Speed
from joinengine.routing.base_functions import Modulo

KEYS, ROWS = 3_000, 20_000


def stream(nodes, zipf=0.85):
    return Workload(keys=KEYS, zipf=zipf, rows=nodes * ROWS)


def measured(choice, nodes, zipf=0.85):
    return measure(
        choice,
        lambda number: stream(number, zipf),
        nodes,
        window=3,
        batches=3,
        other=Other.EVEN,
    )


@pytest.fixture(scope="module")
def found():
    """Figures by layout and nodes, under the default cluster."""
    return {
        (choice.name, nodes): one | modelled(Machines(rows_per_node=ROWS), one)
        for nodes in (2, 8, 32)
        for choice in (Hash(), Mnrt(imbalance=0.05))
        for one in [measured(choice, nodes)]
    }


@pytest.mark.parametrize("layout", ["hash", "mnrt"])
def test_more_nodes_never_lower_the_rate_while_the_driver_is_not_the_limit(found, layout):
    rates = [one["rows_per_s_without_driver"] for (name, _), one in found.items() if name == layout]
    assert len(rates) == 3
    assert rates == sorted(rates)


def test_the_balance_is_that_of_the_layout(found):
    for nodes in (2, 8, 32):
        hashes, counts = next(stream(nodes).intervals(Modulo(nodes)))
        even = np.full(len(counts), counts.mean())
        loads = np.bincount(Modulo(nodes).homes(hashes), counts + even, nodes)
        hashed = found["hash", nodes]
        assert hashed["skew"] == pytest.approx(skew(loads), abs=0.01)
        assert hashed["deliveries"] == pytest.approx(nodes * ROWS, rel=0.001)
        assert (hashed["replans"], hashed["routing_entries"]) == (0, 0)


def test_the_planner_levels_what_its_own_plans_have_made(found):
    planned = found["mnrt", 32]
    assert planned["first_skew"] > 1.5
    assert planned["skew"] < 1.06
    assert planned["replans"] > 0
    assert planned["split_keys"] > 0
    rate = "rows_per_s_without_driver"  # the driver's time is measured
    assert planned[rate] > found["hash", 32][rate]


@pytest.mark.parametrize(("zipf", "mode"), [(0.6, Mode.SPLIT), (1.0, Mode.COPIED)])
def test_simulated_tasks_report_what_the_layout_gives_them(zipf, mode):
    """The driver's records have the deliveries: each tuple's, and the copies of divided keys."""
    jobs = LoadedJobs(8, 8, window=3)
    jobs.stream = Workload(keys=40, zipf=zipf, rows=8 * ROWS).intervals(Modulo(8))
    with driver_of(jobs, Mnrt(imbalance=0.05), 3, ExchangeKind.SHUFFLE) as driver:
        for number in range(6):
            layout = driver.layout
            jobs.begin(layout)
            told = driver.batch(number)
            (state,) = driver.runner.manifest.operators
            received = jobs.received
            assert told["received"] == received.tolist()
    arrived, hashes = jobs.interval.arrived, jobs.interval.hashes
    more = dict.fromkeys(Mode, 0.0)
    for hash_, one in layout.table.placements.items():
        # A divided key's tuples go to all its homes, but for those of the side whose other is
        # copied there.
        both = slice(None) if one.mode is Mode.SPLIT else one.split_side.other
        more[one.mode] += (len(one.homes) - 1) * arrived[both, hashes == hash_].sum()
    assert more[mode] > 1000
    assert received.sum() == pytest.approx(arrived.sum() + sum(more.values()), rel=0.001)
    assert state.shelves.rows > 0


def test_the_parts_of_a_batch_are_the_stated_ones():
    machines = Machines(
        rows_per_node=1000,
        row_bytes=100,
        work_s=1e-3,
        network=Speed(1e6, 0.5),
        store=Speed(1e6, 0.1),
        tail=4.0,
        start_s=0.25,
        task_s=2.0,
    )
    figures = {
        **{"nodes": 4, "driver_s": 3.0, "busiest": 2000, "stored": 1500},
        **{"instructions_bytes": 200_000, "reports_bytes": 300_000, "manifest_bytes": 50_000},
    }
    told = modelled(machines, figures)
    assert told["modelled"] is True
    assert told["seconds"] == pytest.approx(
        {
            "driver": 3.0,
            "start": 2 * (4 * 0.25 + 2.0),
            "network": 2 * 0.5 + (0.5e6 + 2000 * 100 * 3 / 4) / 1e6,
            "work": 2.0,
            "store": 2 * machines.slowest_write_s(4) + 3 * 0.1 + (150_000 + 50_000) / 1e6,
        }
    )
    assert told["rows_per_s"] == pytest.approx(4000 / sum(told["seconds"].values()))


def test_the_slowest_of_many_writes_follows_the_tail():
    machines = Machines(store=Speed(1e6, 0.1), tail=4.0)
    assert machines.slowest_write_s(1) == pytest.approx(0.1)
    assert machines.slowest_write_s(99) == pytest.approx(0.4)
    assert machines.slowest_write_s(10_000) > 0.4
    assert Machines(store=Speed(1e6, 0.1), tail=1.0).slowest_write_s(99) == pytest.approx(0.1)


def test_the_command_says_that_it_models(tmp_path):
    told = CliRunner().invoke(
        cli,
        [
            *("simulate", "mnrt", "--nodes", "2,5", "--keys", "500", "--intervals", "2"),
            *("--rows-per-node", "5000", "--window", "2", "--json", str(tmp_path / "n.json")),
        ],
        catch_exceptions=False,
    )
    assert told.exit_code == 0
    assert "modelled: a batch by nodes" in told.output
    assert "All times and rates are modelled" in told.output
    report = json.loads((tmp_path / "n.json").read_text())
    assert [(one["nodes"], one["layout"]) for one in report["nodes"]] == [(2, "mnrt"), (5, "mnrt")]
    assert all(one["modelled"] is True for one in report["nodes"])
    assert all(one["driver_s"] > 0 for one in report["nodes"])
    assert report["settings"]["store"] == "60 MB/s, 30 ms"
    assert report["settings"]["keys"] == 500
    assert not (tmp_path / "n.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "nodes: expected at least 1, found 0"),
        (["--nodes", "10,-3"], "nodes: expected at least 1, found -3"),
        (["--nodes", "many"], "nodes: expected whole numbers such as 10,100,1000, found 'many'"),
        (["--nodes", "1.5"], "nodes: expected whole numbers such as 10,100,1000, found '1.5'"),
        (["--nodes", ""], "nodes: expected whole numbers such as 10,100,1000, found ''"),
        (["--nodes", f"10,{MOST_NODES + 1}"], "nodes: expected at most"),
        (["--nodes", "4", "--instances", "3"], "instances: 3 is not valid with --nodes"),
        (["--nodes", "4", "--rows-per-node", "0"], "rows-per-node: expected at least 1, found 0"),
        (["--nodes", "4", "--row-bytes", "-1"], "row-bytes: expected at least 1, found -1"),
        (["--nodes", "4", "--network", "fast"], "network: 'fast' is not a speed"),
        (["--nodes", "4", "--store", "0 MB/s"], "store: '0 MB/s' is not a speed"),
        (["--nodes", "4", "--tail", "0.5"], "tail: expected a factor of 1 or more"),
        (
            ["--nodes", "4", "--task-start", "-1 s"],
            "task-start: expected a duration of 0 or more, found -1 s",
        ),
        (["--nodes", "4", "--intervals", "0"], "intervals: expected at least 1, found 0"),
        (["pkg", "--nodes", "4"], "planner: --nodes needs layouts with a planner"),
        (["mnrt", "--tail", "4"], "tail: 4.0 applies to a modelled cluster; give --nodes"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(arguments, message):
    done = CliRunner().invoke(cli, ["simulate", *arguments])
    assert isinstance(done.exception, InvalidRequest)
    assert message in str(done.exception)
