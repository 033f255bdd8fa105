"""`run`, `compare` and `explain` on two folders of the user's, against DuckDB on the same files."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import shutil
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stream.cases import called, no_session
from tests.stream.conftest import EPOCH, found_in

pytestmark = pytest.mark.spark

CLICKS = pa.schema(
    [
        ("id", pa.int64()),
        ("user_id", pa.string()),
        ("page.url", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("clicked_at", pa.timestamp("us", "UTC")),
    ]
)
PURCHASES = pa.schema(
    [
        ("id", pa.int32()),
        ("buyer_id", pa.string()),
        ("weight", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("bought_at", pa.timestamp("us", "UTC")),
    ]
)
KEYS = ("--on", "user_id=buyer_id")
INTERVAL = ("--within", "clicked_at,bought_at,0 s,500 ms", "--delay", "20 s")
ASOF = ("--asof", "clicked_at,bought_at", "--delay", "20 s")

BAD = ("--within", "clicked_at,bought_at,0 s", "--delay", "1 s")


def at(rng, second):
    """A time within ten seconds; a few are NULL."""
    micros = second * 1_000_000 + rng.randrange(10_000_000)
    return None if rng.random() < 0.02 else EPOCH + dt.timedelta(microseconds=micros)


def write(folder, schema, n, files=3):
    """Files whose times follow one another, unordered inside; user 0 is hot, some are NULL."""
    rng = random.Random(f"{folder.name}")
    folder.mkdir()
    for number in range(files):
        rows = []
        for row in range(n):
            user = None if rng.random() < 0.03 else f"user {max(0, rng.randrange(-20, 40))}"
            third = rng.choice(["/a", "/b%", None])
            if schema is PURCHASES:
                third = rng.choice([float("nan"), -0.0, 1.5, None])
            price = Decimal(rng.randrange(60)) / 4
            rows.append((number * n + row, user, third, price, at(rng, 10 * number)))
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), schema, strict=True)
        ]
        table = pa.table(arrays, schema=schema)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=n // 2)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write(folder / "clicks", CLICKS, 300)
    write(folder / "purchases", PURCHASES, 120)
    return folder


@pytest.fixture
def run(joinengine, own, tmp_path):
    """A validated run of a join of both folders: what it said, and its report."""

    def run(*arguments, code=0, folder=own):
        done = joinengine(
            *("run", "--left", folder / "clicks", "--right", folder / "purchases"),
            *("--suffixes", "_c,_p", "--instances", 4, "--interval-rows", 500, "--validate"),
            *("--json", tmp_path / "report.json"),
            *arguments,
            code=code,
        )
        return done, json.loads((tmp_path / "report.json").read_text())

    return run


def test_an_as_of_join_whose_right_rows_tie_has_no_verdict(run, own, tmp_path):
    shutil.copytree(own, tmp_path / "tied")
    table = pq.read_table(own / "purchases" / "0.parquet")
    twice = table.set_column(0, "id", pa.array(range(1000, 1000 + len(table)), pa.int32()))
    pq.write_table(twice, tmp_path / "tied" / "purchases" / "3.parquet")
    done, report = run(*KEYS, *ASOF, "--delay", "1 minute", folder=tmp_path / "tied")
    assert report["valid"] is None
    assert "not compared with DuckDB: right rows of one key have the same time" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (*KEYS, *INTERVAL),
        (*KEYS, *INTERVAL, "--how", "full", "--where", "left.price <> right.price"),
        ("--on", "id", *INTERVAL, "--how", "right", "--right-where", "weight > 1"),
        (*KEYS, "--tumbling", "clicked_at,bought_at,700 ms", "--delay", "20 s", "--how", "full"),
        (
            *(*KEYS, "--sliding", "clicked_at,bought_at,300 ms,200 ms", "--delay", "20 s,20 s"),
            *("--how", "left_semi", "--left-where", "`page.url` like '%\\%'"),
        ),
        (*KEYS, "--band", "price,price,-0.25,1.5", *INTERVAL, "--how", "left_anti"),
        ("--band", "clicked_at,bought_at,-20 ms,30 ms"),
        (*KEYS, "--within", "clicked_at,bought_at,0 s,", "--delay", "20 s"),
        (
            *("--theta", "left.id < right.id and left.price >= right.price"),
            *INTERVAL,
        ),
        (*KEYS, *ASOF, "--how", "left"),
        (*ASOF, "--direction", "nearest", "--tolerance", "20 ms", "--strict"),
    ],
    ids=[
        *("inner", "full", "using", "tumbling", "semi", "anti band", "time band", "open", "theta"),
        *("as of", "nearest"),
    ],
)
def test_a_join_of_ones_own(run, arguments):
    done, report = run(*arguments)
    assert report["valid"] is True
    assert "zipf" not in done.stdout
    assert "results: counted only; use --out FOLDER or --sink to keep them" in done.stdout
    assert report["output_rows"] > 20
    assert report["input_rows"] == 3 * (300 + 120)
    assert len(report["batches"]) >= 3
    assert (report["query"], report["zipf"], report["late_rows"]) == (
        "clicks join purchases",
        None,
        0,
    )


def test_a_wrong_result_is_seen(run, monkeypatch):
    """The oracle has the window of the join, not that of the run."""
    monkeypatch.setattr("joinengine.lab.queries.oracle.time_of", lambda join, side: "0")
    done, report = run(*KEYS, *INTERVAL, code=1)
    assert report["valid"] is False
    assert re.search(rf"DuckDB has [\d,]+ rows, and the run {report['output_rows']:,}", done.stderr)


def test_late_tuples_leave_no_verdict(run):
    done, report = run(*KEYS, *INTERVAL[:2], "--delay", "0 s", "--interval-rows", 200, code=3)
    assert report["late_rows"] > 0
    assert report["valid"] is None
    assert "late rows are missing from the results" in done.stderr
    assert "longer --delay, or --file-order time" in done.stderr
    assert "not checked" in done.stdout


def test_tuples_of_the_future_leave_no_verdict(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "clicks", CLICKS, 60)
    write(folder / "purchases", PURCHASES, 60)
    path = folder / "clicks" / "1.parquet"
    table = pq.read_table(path)
    later = pa.compute.add(table.column(4), pa.scalar(dt.timedelta(days=40_000)))
    pq.write_table(table.set_column(4, CLICKS.field(4), later), path)
    bounded = (*KEYS, *INTERVAL, "--max-ahead", "1 day")
    done, report = run(*bounded, "--interval-rows", 30, folder=folder, code=3)
    keyed = sum(None not in row[1::3] for row in zip(*table.to_pydict().values(), strict=True))
    told = sum(entry["ahead_rows"] for entry in report["story"]["batches"])
    assert report["ahead_rows"] == told == keyed > 50
    assert report["late_rows"] == 0
    assert report["valid"] is None
    assert "rows ahead of the clock are missing" in done.stderr
    assert "longer --max-ahead" in done.stderr


def test_a_checkpoint_leaves_the_streams_open(run, tmp_path):
    """Unmatched tuples wait for files that may follow; a second run goes on with them."""
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "clicks", CLICKS, 60)
    write(folder / "purchases", PURCHASES, 60)
    kept = ("--checkpoint", tmp_path / "kept", "--out", tmp_path / "out")
    arguments = (*KEYS, *INTERVAL, "--how", "left", *kept)
    done, report = run(*arguments, folder=folder)
    assert report["valid"] is None
    assert "wait for the watermark" in done.stderr
    before = found_in(tmp_path / "out").total()
    for side, schema in (("clicks", CLICKS), ("purchases", PURCHASES)):
        write(folder / f"more {side}", schema, 60)
        for number in range(3):
            table = pq.read_table(folder / f"more {side}" / f"{number}.parquet")
            time = table.schema.names[-1]
            later = pa.compute.add(table.column(time), pa.scalar(dt.timedelta(seconds=90)))
            pq.write_table(
                table.set_column(4, time, later), folder / side / f"later-{number}.parquet"
            )
    _, report = run(*arguments, folder=folder)
    assert report["late_rows"] == 0
    assert found_in(tmp_path / "out").total() > before


def test_what_earlier_runs_left_out_is_missing_in_a_later_one(run, tmp_path):
    """Results in --out are those of all runs, so rows that were late before count, too."""
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "clicks", CLICKS, 60)
    write(folder / "purchases", PURCHASES, 60)
    kept = ("--checkpoint", tmp_path / "kept", "--out", tmp_path / "out")
    arguments = (*KEYS, *INTERVAL, "--delay", "1 s", "--interval-rows", 60, *kept)
    _, report = run(*arguments, folder=folder, code=3)
    late = report["late_rows"]
    assert late > 0
    done, report = run(*arguments, folder=folder)
    assert report["late_rows"] == 0
    assert report["valid"] is None
    assert f"{late:,} late rows are missing from the results" in done.stderr


def test_results_in_a_folder_and_nested_columns(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "clicks", CLICKS, 60)
    write(folder / "purchases", PURCHASES, 60)
    for file in (folder / "clicks").glob("*.parquet"):
        table = pq.read_table(file)
        tags = pa.array([["a"]] * table.num_rows, pa.list_(pa.string()))
        pq.write_table(table.append_column("tags", tags), file)
    done, report = run(*KEYS, *INTERVAL, folder=folder)
    assert report["valid"] is None
    assert "nested columns have no checksum; give --out FOLDER" in done.stderr
    _, report = run(*KEYS, *INTERVAL, "--out", tmp_path / "out", folder=folder)
    assert report["valid"] is True


def test_compare_ones_own(joinengine, own, tmp_path):
    done = joinengine(
        *("compare", "--left", own / "clicks", "--right", own / "purchases", *KEYS, *INTERVAL),
        *(
            "--suffixes",
            "_c,_p",
            "--instances",
            4,
            "--layouts",
            "hash,mnrt",
            "--interval-rows",
            900,
        ),
        *("--json", tmp_path / "compare.json"),
    )
    runs = json.loads((tmp_path / "compare.json").read_text())["runs"]
    assert [run["layout"] for run in runs] == ["hash", "mnrt"]
    assert all(run["valid"] for run in runs)
    assert len({run["result_checksum"] for run in runs}) == 1
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    assert "picture:" in done.stdout


def test_explain_ones_own_reads_no_more_than_footers(home, own):
    done = called(
        *(home, no_session, "explain", "--left", own / "clicks", "--right", own / "purchases"),
        *(*KEYS, *INTERVAL, "--suffixes", "_c,_p"),
    )
    assert "a row is kept until the watermark passes clicked_at + 0.5 s" in done.stdout
    assert f"folder {own / 'clicks'}" in done.stdout


@pytest.mark.parametrize(
    ("condition", "keyless"),
    [
        (KEYS, False),
        (("--band", "price,price,-1,1"), False),
        (("--band", "price,price,-1,"), True),
        ((*KEYS, "--band", "price,price,-1,"), False),
        (("--theta", "left.price < right.price"), True),
    ],
)
def test_the_layout_follows_the_condition_where_none_is_given(own, tmp_path, condition, keyless):
    sides = "--left", own / "clicks", "--right", own / "purchases", "--suffixes", "_c,_p"
    done = called(tmp_path / "home", no_session, "explain", *sides, *condition)
    assert "  layout auto on 8 instances" in done.stdout
    assert ("a matrix (dynamic) or a biclique (bi)" in done.stdout) == keyless


def test_explain_keeps_nothing(tmp_path):
    done = called(tmp_path / "home", no_session, "explain", "q5")
    assert not (tmp_path / "home").exists()
    assert "left  lineitem, generated: rows are matched with the table and not kept" in done.stdout
    assert "table customer, generated" in done.stdout
    assert "/joinengine-" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a QUERY"),
        (("eq5", "--left", "CLICKS"), "--left applies to your own folders"),
        (("--left", "CLICKS"), "--left and --right"),
        (("--left", "CLICKS", "--right", "none", *KEYS), "none does not exist"),
        (("--left", "CLICKS", "--right", "CSV", *KEYS), "found rows.csv"),
        (("--left", "CLICKS", "--right", "EMPTY", *KEYS), "contains no Parquet file"),
        (("BOTH",), "give --on A=B"),
        (("BOTH", "--on", "user_id=nobody"), "nobody"),
        (("BOTH", "--on", "user_id="), "on: expected key columns such as"),
        (("BOTH", "--on", "user_id==buyer_id"), "found 'user_id==buyer_id'"),
        (("BOTH", *KEYS, "--floats", "any"), "floats: 'any' is unknown; choose one of refused"),
        (
            ("BOTH", "--theta", "true", "--floats", "normalised"),
            "--floats applies to the keys of --on",
        ),
        (
            ("--left", "CLICKS/*.parquet", "--right", "CLICKS", *KEYS),
            "expected a folder, found the glob",
        ),
        (
            ("BOTH", *KEYS, "--delay", "1 s", "--within", "lt,rt,0 s"),
            "To leave UPPER open, write 'lt,rt,0 s,'",
        ),
        (("BOTH", *KEYS, "--zipf", "1"), "--zipf applies to the generated streams"),
        (("BOTH", *KEYS, "--window", "1 s"), "--window applies to the generated streams"),
        (("BOTH", *KEYS, *INTERVAL[:2]), "--within needs --delay"),
        (("BOTH", *KEYS, "--max-ahead", "1 s"), "--max-ahead applies to windows"),
        (("BOTH", *KEYS, "--delay", "1 s"), "--delay applies to windows"),
        (("BOTH", *KEYS, *BAD), "within: expected the form LT,RT,LOWER,UPPER, found"),
        (("BOTH", *KEYS, *INTERVAL), "give --suffixes"),
        (("BOTH", *KEYS, "--suffixes", "_c,_p", "--how", "left"), "needs a window"),
        (("BOTH", *KEYS, "--theta", "true"), "--theta is the whole condition"),
        (("BOTH", *KEYS, "--strict"), "--strict applies to --asof; give --asof LT,RT too"),
        (("BOTH", *KEYS, "--asof", "clicked_at,bought_at"), "--asof needs --delay"),
        (("BOTH", *ASOF, "--theta", "true"), "--asof and --theta are both conditions"),
        (("BOTH", *ASOF, *INTERVAL[:2]), "leave out --within, and bound the distance with --toler"),
        (("BOTH", *ASOF, "--max-ahead", "1 s"), "--max-ahead applies to windows; leave it out"),
        (("BOTH", *ASOF, "--direction", "up"), "asof: direction"),
        (("BOTH", *ASOF, "--suffixes", "_c,_p", "--how", "full"), "use 'inner' or 'left'"),
        (("BOTH", *ASOF, "--suffixes", "_c,_p", "--where", "weight = 1"), "where: asof looks"),
        (("BOTH", *KEYS, "--suffixes", "_c,_p", "--where", "nope = 1"), "column 'nope'"),
        (("BOTH", *KEYS, "--suffixes", "_c,_p", "--out", "/proc/x"), "--out: /proc/x cannot be"),
        (
            ("BOTH", *KEYS, "--suffixes", "_c,_p", "--json", "/proc/x/y"),
            "--json: /proc/x cannot be",
        ),
    ],
)
def test_refused_before_spark(home, own, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "rows.csv").write_text("a,b\n1,2\n")
    names = {"CLICKS": own / "clicks", "CSV": tmp_path / "csv", "EMPTY": tmp_path / "empty"}
    typed = []
    for word in arguments:
        if word == "BOTH":
            typed += ["--left", own / "clicks", "--right", own / "purchases"]
        else:
            typed.append(names.get(word, word))
    done = called(home, no_session, "run", *typed, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
