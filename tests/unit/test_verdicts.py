"""What a run comes to in seconds and in words, on reports that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from joinengine.balancing.reasons import Balance, Cause, KeyChange, Reason
from joinengine.driver.hot_keys import Heat, HotKey
from joinengine.driver.records import BatchRecord, OperatorRecord
from joinengine.lab.comparison import verdicts
from joinengine.lab.comparison.tables import summary_legend, summary_table
from joinengine.lab.comparison.verdicts import hot_key, slowest_instance_s, verdict
from joinengine.model.keys import U_ONE, Fragment, Mode, Placement


def report(layout, batches, *, work_us=1_000_000, zipf=1.0, key=None, uneven=1.0):
    received = np.array(batches)
    skew = {"run": 1.0, "last_half": uneven}
    one = {
        "layout": layout,
        "zipf": zipf,
        "work_per_tuple_us": work_us,
        "joins": [
            # The busiest operator is not the first one.
            {
                "received_per_instance": [1, 0],
                "received_by_batch": [[1, 0]],
                "busy_s_by_batch": [[0.5, 0.0]],
            },
            {
                "received_per_instance": received.sum(axis=0).tolist(),
                "received_by_batch": batches,
                "busy_s_by_batch": batches,
            },
        ],
        "received_per_instance": received.sum(axis=0).tolist(),
        "stored_per_instance": [1, 2],
        "load_skew": {"received": skew, "busy": skew},
        "hot_key": key,
        "elapsed_s": 9.0,
        "rows_per_s": 10.0,
        "replans": 1,
        "moved_rows": 7,
        "output_rows": 5,
        "late_rows": 0,
        "valid": True,
    }
    return one | {"slowest_instance_s": slowest_instance_s(one)}


def printed(table):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_a_batch_waits_for_its_slowest_instance():
    """Not for the instance with most tuples of the whole run, which may be another one."""
    assert report("hash", [[3, 1], [1, 4]])["slowest_instance_s"] == 7.0
    assert report("hash", [[3, 1], [1, 4]], work_us=0)["slowest_instance_s"] is None


def test_the_verdict_names_the_key_and_compares_with_the_first_layout():
    key = {"key": "7", "on": "a = b", "share": 0.25, "done": "divided it over 2 instances"}
    first = report("hash", [[8, 0]])
    told = verdict([first, report("pkg", [[6, 2]]), report("mnrt", [[4, 4]], key=key)])
    assert told == [
        "zipf 1: key 7 (a = b) carried 25% of the load, and mnrt divided it over 2 instances",
        "zipf 1: batches waited 8.0 s for their slowest instance under hash and 4.0 s under mnrt "
        "(50% less). The runs took 9.0 s and 9.0 s",
    ]
    (sentence,) = verdict([first, report("pkg", [[9, 2]])])
    same = {**key, "on": "b = b"}
    assert verdict([first, report("mnrt", [[4, 4]], key=same)])[0].startswith(
        "zipf 1: key 7 of b carried 25% of the load, and mnrt"
    )
    assert sentence.endswith(
        "under no other layout did batches wait less for their slowest instance than under hash"
    )
    assert verdict([first]) == []


def test_a_layout_with_wrong_results_is_not_praised():
    first, wrong = report("hash", [[8, 0]]), report("mnrt", [[4, 4]]) | {"valid": False}
    left_out = "zipf 1: mnrt is not compared, because its results differ from DuckDB's"
    assert verdict([first, wrong]) == [left_out]
    told = verdict([first, wrong, report("pkg", [[6, 2]])])
    assert told[0] == left_out
    assert "under hash and 6.0 s under pkg" in told[1]


def test_without_emulation_the_verdict_goes_by_measured_seconds():
    def plain(layout, batches):
        return report(layout, batches, work_us=0)

    first = plain("hash", [[8, 0], [6, 1]])
    (sentence,) = verdict([first, plain("mnrt", [[4, 4], [3, 4]])])
    assert "waited 14.0 s for their slowest instance under hash and 8.0 s under mnrt" in sentence
    (sentence,) = verdict([first, plain("pkg", [[8, 0], [5.9, 1]])])
    assert "under no other layout did batches wait much less" in sentence, (
        "so small a difference is noise"
    )
    unmeasured = plain("hash", [[8, 0]])
    for join in unmeasured["joins"]:
        del join["busy_s_by_batch"]
    (sentence,) = verdict([unmeasured, first])
    assert sentence.endswith("; the reports tell no seconds")
    assert printed(summary_table([unmeasured]))[1].split()[2] == "-"


def test_where_seconds_are_noise_the_verdict_goes_by_the_load():
    key = {"key": "7", "on": "a = b", "share": 0.25, "done": "divided it over 2 instances"}
    brief = {"work_us": 0, "zipf": None}
    first = report("hash", [[0.6, 0]], uneven=1.9, **brief)
    even = report("mnrt", [[0.5, 0.2]], key=key, uneven=1.02, **brief)
    assert verdict([first, even]) == [
        "key 7 (a = b) carried 25% of the load, and mnrt divided it over 2 instances",
        "the busiest instance received 1.02 times the mean under mnrt, 1.90 times under hash; "
        "batches waited 0.6 s in all, too little to compare seconds",
    ]
    (sentence,) = verdict([first, report("pkg", [[0.6, 0]], uneven=1.85, **brief)])
    assert sentence.startswith("no layout had a more even load than hash; batches waited 0.6 s")


def test_layouts_are_compared_with_hash_wherever_it_stands():
    even, first = report("auto", [[4, 4]]), report("hash", [[8, 0]])
    assert verdict([even, first]) == verdict([first, even])
    assert "8.0 s for their slowest instance under hash" in verdict([even, first])[-1]
    assert (
        "under no other layout did batches wait less for their slowest instance than under auto"
        in verdict([even, report("pkg", [[6, 2]])])[0]
    )


def test_seconds_are_emulated_or_measured():
    plain = [report("hash", [[8, 0], [6, 1]], work_us=0)]
    titles, line = printed(summary_table(plain))
    assert "busiest s busy" in titles and "slowest s" not in titles
    assert line.split()[2:4] == ["14.0", "1.00"]
    assert len(titles.rstrip()) <= 80, "as wide as a terminal"
    assert summary_legend(plain)[0].startswith("busiest s")
    emulated = [report("hash", [[8, 0]])]
    assert "slowest s run s" in printed(summary_table(emulated))[0]
    assert "1,000,000 us" in summary_legend(emulated)[0]


class Named:
    def account(self):
        return {"on": "a = b"}


def replanned(number, *changes):
    """A batch of two operators; `number` places keys anew: (hash, before, after, load)."""
    keys = tuple(KeyChange(h, Cause.HEAVY_KEY, old, new, n, None) for h, old, new, n in changes)
    joins = [OperatorRecord(instances=4), OperatorRecord(instances=4)]
    joins[number].reason = Reason(Cause.HEAVY_KEY, Balance(50.0, 25.0), keys=keys)
    return BatchRecord(0, 0.0, joins=joins)


def test_the_hot_key_is_the_one_with_most_tuples_and_is_told_as_it_lies_in_the_end(
    monkeypatch, tmp_path
):
    whole = Placement.whole(0)
    cuts = (Fragment(0, 0, 9), Fragment(1, 9, 99), Fragment(2, 99, U_ONE))
    split = Placement(Mode.SPLIT, cuts)
    asked = []
    monkeypatch.setattr(
        verdicts, "key_held", lambda place, number, hash_, _: asked.append((number, hash_)) or (7,)
    )
    records = [
        replanned(0, (5, whole, Placement.whole(1), 30.0)),
        replanned(1, (6, whole, Placement.whole(1), 45.0), (5, whole, split, 1.0)),
        replanned(1, (6, Placement.whole(1), split, None)),
        replanned(1, (6, Placement.whole(1), split, 20.0)),
    ]
    found = hot_key(records, [Named(), Named()], tmp_path)
    assert asked == [(1, 6)]
    assert (found["key"], found["join"], found["share"]) == ("7", 1, 0.45)
    assert found["homes"] == [1, 3]
    assert found["done"] == "divided it over 3 instances"
    assert hot_key([], [Named()], tmp_path) is None


def test_the_value_of_the_hot_key_is_that_of_the_records_before_that_of_the_state(
    monkeypatch, tmp_path
):
    """The state of a run with a window is empty at its end."""
    held = []
    monkeypatch.setattr(verdicts, "key_held", lambda *_: held.append(1))

    def told(text):
        record = replanned(0, (5, Placement.whole(0), Placement.whole(1), 30.0))
        record.joins[0].heat = Heat((HotKey(5, text, 9.0, 0.5, None, False, None),))
        return record

    records = [told("7"), told("8"), told(None)]
    assert hot_key(records, [Named()], tmp_path)["key"] == "8"
    assert not held
    assert hot_key(records[2:], [Named()], tmp_path)["key"] is None
    assert held
    monkeypatch.setattr(verdicts, "key_held", lambda *_: (7,))
    assert hot_key(records, [Named()], tmp_path, by_value=False)["key"] is None


@pytest.mark.parametrize("cause", [Cause.SWITCH, Cause.RESIZE])
def test_a_wish_is_no_re_plan(cause, tmp_path):
    record = replanned(0, (5, Placement.whole(0), Placement.whole(1), 30.0))
    keys = record.joins[0].reason.keys
    record.joins[0].reason = Reason(cause, Balance(50.0, 25.0), keys=keys)
    assert hot_key([record], [Named(), Named()], tmp_path) is None
