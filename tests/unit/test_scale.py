"""The benchmark of the driver, tiny: its tasks report what makes a driver go on."""

from __future__ import annotations

import json

from click.testing import CliRunner

from benchmarks.scale import __main__ as scale
from joinengine.lab.simulation.driven import WINDOW, driver_of
from joinengine.lab.simulation.simulated_tasks import BATCH_US, ROWS, SimulatedJobs
from joinengine.layouts import Mnrt


def test_a_case_is_measured_and_written(tmp_path):
    told = CliRunner().invoke(
        scale.main,
        ["--cases", "6:3:40", "--warm", "6", "--batches", "3", "--out", str(tmp_path)],
        catch_exceptions=False,
    )
    assert told.exit_code == 0, told.output
    (row,) = json.loads((tmp_path / "scale.json").read_text())["batches"]
    assert (row["instances"], row["tasks"], row["keys"]) == (6, 3, 40)
    assert row["replans"] > 0
    assert 0 < row["manifest_bytes"] < row["full_bytes"]
    assert "6 instances, 3 tasks" in told.output


def test_simulated_tasks_seal_merge_and_forget():
    """Runs leave with the window, and are merged before."""
    with driver_of(SimulatedJobs(3, 6), Mnrt(imbalance=0.2)) as driver:
        driver.with_table(40)
        for number in range(WINDOW + 12):
            driver.batch(number)
        (state,) = driver.runner.manifest.operators
    sizes = {run.rows for run in state.shelves.state.values()}
    assert {ROWS, 4 * ROWS} <= sizes
    oldest = min(run.max_time for run in state.shelves.state.values())
    assert oldest >= (number - 2 * WINDOW) * BATCH_US
    assert len(state.layouts.newest.layout.table.placements) > 0
    assert state.shelves.rows < 2 * 6 * 2 * WINDOW * ROWS
