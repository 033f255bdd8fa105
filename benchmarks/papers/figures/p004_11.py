"""Fang et al., World Wide Web 2019, figure 11: recovery from copies of keys and of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.papers.figure import Figure, Made, Panel
from benchmarks.papers.finding import Finding, spread_of, spreads_of
from benchmarks.papers.losses import (
    BACKUP_PART,
    BATCH_MINUTES,
    INSTANCES,
    RATE,
    TIMEOUT_BATCHES,
    WORK_S,
    Ran,
    Setting,
    run,
    uniform,
)
from joinengine import within
from joinengine.layouts import Ftlb, Hash
from joinengine.model.recovery import Recovery
from joinengine.model.windows import Window

MINUTES = (0.5, 5.0, 15.0, 60.0)
#: The state is as large as it gets, and enough batches were without a loss to compare with.
LOST_BEFORE = 21
#: FTLB with replicas at the next task, or spread; TaskB with a machine for each standby, or on as
#: many machines in all; and Storm, which has no copies.
FTLB = {"FTLB": 1, "FTLB, spread 2": 2, "FTLB, spread 4": 4, "FTLB, spread": "all"}
TASKB, SAME, STORM = "TaskB, 16 machines", "TaskB, 8 machines", "Storm"
_TIMEOUT_S = TIMEOUT_BATCHES * 2 * RATE * 60 * BATCH_MINUTES / INSTANCES * WORK_S
_OVER_TIME = ("b-rate", "tuples a second"), ("a-latency", "latency of a batch (s)")
Runs = Mapping[str, Mapping[float, Ran]]


def make(say: Callable[[str], None]) -> Made:
    """Lose an instance of each state, under each way."""
    frames = list(uniform(1))
    found = dict[str, dict[float, Ran]]()
    for held in MINUTES:
        say(f"{held:g} minutes of state")
        for name, setting in _settings(held).items():
            found.setdefault(name, {})[held] = run(frames, setting)
        assert len({by_state[held].results for by_state in found.values()}) == 1
    return Made(_panels(found), _findings(found))


def _settings(held: float) -> dict[str, Setting]:
    window, lost = _reach(held), {LOST_BEFORE: (1,)}
    found = {
        name: Setting(Ftlb(backup_work=BACKUP_PART, spread=spread), window, lost)
        for name, spread in FTLB.items()
    }
    for name, instances in ((TASKB, INSTANCES), (SAME, INSTANCES // 2)):
        choice = Ftlb(backup_work=BACKUP_PART, standby=True)
        setting = Setting(choice, window, lost, Recovery.TASKB, instances=instances)
        found[name] = setting
    found[STORM] = Setting(Hash(), window, lost, Recovery.STORE, _TIMEOUT_S, resends=True)
    return found


def _reach(minutes: float) -> Window:
    reach = f"{minutes * 60:g} s"
    return within("lt", "rt", lower=f"-{reach}", upper=reach, delay="0 s")


def _panels(found: Runs) -> list[Panel]:
    over = {name: by_state[MINUTES[-1]].over_time() for name, by_state in found.items()}
    figures = (("a", "recovery latency (s)", _latency), ("b", "tuples a second", _rate))
    return [
        *(
            Panel.over(
                letter,
                "state (minutes)",
                what,
                MINUTES,
                {
                    name: [figure(ran) for ran in by_state.values()]
                    for name, by_state in found.items()
                },
                "x",
            )
            for letter, what, figure in figures
        ),
        *(
            Panel(
                letter,
                "seconds, an hour of state",
                what,
                {name: points[number] for name, points in over.items()},
            )
            for number, (letter, what) in enumerate(_OVER_TIME)
        ),
    ]


def _findings(found: Runs) -> list[Finding]:
    rows = list[Finding]()
    readings = {
        ("FTLB", TASKB): "the keys of a lost task go on at the next one, which has its own keys; a "
        "standby had nothing to do before",
        ("FTLB", SAME): "half of these machines are standbys, so each active task has twice the "
        "keys",
        ("FTLB, spread", TASKB): "a replica costs half of a tuple at a machine with its own keys",
        ("FTLB, spread", SAME): "half of these machines are standbys",
    }
    for (ours, theirs), reading in readings.items():
        rows.append(
            Finding(
                "figure 11a",
                f"{ours} recovers sooner than {theirs}, whatever the state; rule: for each state",
                f"{_listed(found, (ours, theirs), _latency)} s",
                _each(found, _latency, ours, theirs),
                reading,
            )
        )
        rows.append(
            Finding(
                "figure 11b",
                f"{ours} has a higher throughput than {theirs}, whatever the state; rule: for each "
                "state",
                f"{_listed(found, (ours, theirs), _rate, ',.0f')} tuples/s",
                _each(found, _rate, theirs, ours),
                reading,
            )
        )
    names = (*FTLB, TASKB, SAME, STORM)
    rows.append(
        Finding(
            "figure 11a",
            "recovery over the spread of replicas, beside TaskB and a time-out",
            f"{_listed(found, names, _latency)} s",
            None,
            "the paper's copies replay a buffer as long as the state; here copies have stored what "
            "came, so that the state hardly matters",
        )
    )
    return rows


def _latency(ran: Ran) -> float:
    """How much longer the batch of a loss takes than the one before, whose loads are alike."""
    return ran.seconds[LOST_BEFORE] - ran.seconds[LOST_BEFORE - 1]


def _rate(ran: Ran) -> float:
    return ran.rows_per_s


def _each(found: Runs, figure: Callable[[Ran], float], less: str, more: str) -> bool:
    """Whether a figure is less one way than another, for each state."""
    return all(figure(found[less][held]) < figure(found[more][held]) for held in MINUTES)


def _listed(
    found: Runs, names: tuple[str, ...], figure: Callable[[Ran], float], form: str = ".2f"
) -> str:
    """A figure of each way, from the least state to the greatest."""
    each = {name: [figure(found[name][held]) for held in MINUTES] for name in names}
    return f"{spreads_of(each, form)} for {spread_of(MINUTES, 'g')} minutes, in"


FIGURE = Figure(
    "004-11",
    "Recovery and throughput over the state that is held",
    f"A join instead of TopK: {RATE} tuples a second of event time and side, keys that are all "
    f"alike, {INSTANCES} tasks, state of 0.5 minutes to an hour. Emulated: {1e6 * WORK_S:g} us a "
    f"tuple, {BACKUP_PART:g} of it for storing a replica. One task fails; latency is how much "
    f"longer its batch takes than the one before. Storm: waits for {TIMEOUT_BATCHES} batches, and "
    "sends again what the lost task held",
    1.5,
    make,
)
