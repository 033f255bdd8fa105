"""Arguments that no user gives on purpose: a sentence each, which does not repeat all of them."""

from __future__ import annotations

import math
import subprocess
import sys

import pyarrow as pa
import pytest

from joinengine.lab.queries.named_query import Options
from joinengine.layouts import (
    Bi,
    BiK,
    DChoices,
    Dynamic,
    Ftlb,
    MinMig,
    Mixed,
    Pkg,
    WChoices,
)
from joinengine.model.columns import require_of
from joinengine.model.conditions import equi
from joinengine.model.errors import InvalidRequest
from joinengine.model.keys import Side
from joinengine.predicates.computed_columns import compile_column
from joinengine.predicates.dialect import compile_predicate
from joinengine.predicates.theta import passes
from joinengine.spark.query.query_folders import check_apart
from joinengine.spark.sources.locations import place
from joinengine.state.checkpoint import Checkpoint

COLUMNS = pa.schema([("n", pa.int64()), ("s", pa.string())]), pa.schema([])


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/in\0side", "is not a valid path"),
        ("/in/" + "x" * 256, "names have at most 255 bytes"),
        ("/in" + "/ab" * 2000, "paths at most 3800"),
        ("s3://bucket/a/../b", r"'\.\.' cannot be part of a name in an object store"),
        ("s3://bucket/./c", r"'\.' cannot be part"),
        ("s3://bucket/new\nline", "cannot be part"),
        ("s3://bucket/nul\0", "cannot be part"),
        ("s3:///folder", "names no bucket"),
    ],
)
def test_places_that_cannot_be(location, message):
    with pytest.raises(InvalidRequest, match=message) as raised:
        place(location, "stateLocation")
    assert str(raised.value).startswith("stateLocation: ")
    assert len(str(raised.value)) < 400


def test_a_password_in_a_url_is_not_repeated():
    with pytest.raises(InvalidRequest, match="may not contain a user or password") as raised:
        place("s3://user:secret@bucket/x", "stateLocation")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["abfss://user:secret@account.dfs.core.windows.net/x", "abfs://c@a/x"]
)
def test_an_account_of_azure_is_told_from_a_user(url):
    with pytest.raises(InvalidRequest, match=r"user or password; give abfss?://container@acc"):
        place(url, "stateLocation")
    with pytest.raises(InvalidRequest, match="user or password; give az://bucket/folder"):
        place("az://data@account.dfs.core.windows.net/x", "stateLocation")


@pytest.mark.parametrize("bucket", ["buc ket", "a|b", "[bad", "b\u00fcro"])
def test_an_odd_bucket_is_named(bucket):
    with pytest.raises(InvalidRequest, match=r"stateLocation: .* is not a name of a bucket"):
        place(f"s3://{bucket}/x", "stateLocation")


@pytest.mark.parametrize("odd", ["+".join(["n"] * 400) + " = 1", "c" * 20_000 + " = 1"])
def test_deep_and_long_predicates_are_refused_in_brief(odd):
    with pytest.raises(
        InvalidRequest, match=r"^where: .*(nested too deeply|does not exist)"
    ) as told:
        compile_predicate(odd, COLUMNS, "where")
    assert len(str(told.value)) < 700


@pytest.mark.parametrize(
    "odd",
    [
        "(" * 9_000 + "n = 1",  # for which DuckDB's parser takes minutes
        "(" * 600 + "n = 1" + ")" * 600,
        "abs(" * 990 + "n" + ")" * 990 + " = 1",  # beyond what DuckDB serves
        "n / " * 250 + "n = 1",  # only once macros are expanded
        "n + " * 325 + "n = 1",
        "replace(" * 12 + "s" + ", 'a', 'b')" * 12 + " = 'c'",  # 3^12 copies of s
        "repeat(" * 4 + "s" + ", 2)" * 4 + " = 'c'",
    ],
    ids=lambda text: text[:8],
)
def test_what_is_nested_too_deeply_is_refused_at_once_and_in_our_words(odd):
    told = []
    for compiling in (
        lambda: compile_predicate(odd, COLUMNS, "where"),
        lambda: compile_column("made", odd, COLUMNS[0]),
    ):
        with pytest.raises(InvalidRequest, match="nested too deeply; compute parts") as refusal:
            compiling()
        told.append(str(refusal.value))
    assert [one.partition(": ")[0] for one in told] == ["where", "withColumn"]
    assert not any("max_expression_depth" in one for one in told)


@pytest.mark.parametrize(
    "served",
    [
        "s = '" + "(" * 9_000 + "'",
        "(" * 400 + "n = 1" + ")" * 400,
        "replace(" * 5 + "s" + ", 'a', 'b')" * 5 + " = 'c'",
        " and ".join(["n = 1"] * 900),
    ],
    ids=lambda text: text[:8],
)
def test_what_is_long_or_nested_less_deeply_is_served(served):
    assert compile_predicate(served, COLUMNS, "where").columns


def test_two_slashes_are_one():
    assert place("s3://bucket//a//b/", "stateLocation") == "s3://bucket/a/b"


def test_a_checkpoint_below_a_file_holds_nothing(tmp_path):
    (tmp_path / "file").touch()
    below = Checkpoint.below(tmp_path / "file")
    assert below.manifests.names() == [] == below.manifests.entries()


@pytest.mark.parametrize("rows", ["path", "sideOutput"])
def test_results_in_the_checkpoint_are_refused(rows, tmp_path):
    written = {"checkpointLocation": str(tmp_path / "c"), rows: str(tmp_path / "c" / "rows")}
    with pytest.raises(InvalidRequest, match=f"and {rows} .* one folder lies in the other"):
        check_apart(written, [])


@pytest.mark.parametrize(
    "odd", ["not " * 3000 + "n < 3", "(" * 3000 + "n < 3", "s = '" + "x" * 9000]
)
def test_long_predicates_are_not_repeated_whole(odd):
    with pytest.raises(InvalidRequest, match=r"^where: ") as raised:
        compile_predicate(odd, COLUMNS, "where")
    assert len(str(raised.value)) < 700
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "greedy",
    [
        "length(repeat('a', 2000000000)) = n",
        "repeat(repeat('a', 1000000), 1000000) = s",
        "replace(repeat('a', 2000), 'a', repeat('b', 1000000)) = s",
    ],
)
def test_a_constant_of_gigabytes_is_refused(greedy):
    with pytest.raises(InvalidRequest, match=r"makes a text of more than \d+ characters"):
        compile_predicate(greedy, COLUMNS, "where")


GREEDY = """
import resource, sys, pyarrow as pa
from joinengine.model.errors import InvalidRequest
from joinengine.predicates.dialect import compile_predicate
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
columns = (pa.schema([("s", pa.string())]), pa.schema([]))
try:
    compile_predicate(sys.argv[1], columns, "where")
except InvalidRequest as refusal:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print("characters" in str(refusal), grown < 400_000)
"""


@pytest.mark.parametrize("name", ["replace", "regexp_replace"])
def test_what_is_refused_is_not_made_first(name):
    """Constants are folded, whatever branch they are in. 5 kB would make 5 GB."""
    greedy = f"{name}(repeat('a', 1000000), 'a', '{'b' * 5000}') = s"
    done = subprocess.run(
        [sys.executable, "-c", GREEDY, greedy], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_texts_are_repeated_as_spark_does():
    short = compile_predicate("repeat(s, n) = 'abab' or repeat(s, -1) <> ''", COLUMNS, "where")
    nothing = compile_predicate("repeat(s, n) is null", COLUMNS, "where")
    batch = pa.table({"n": [2, 3, None, 0], "s": ["ab", "ab", "ab", None]})
    named = {name: batch.column(name).combine_chunks() for _, name in short.columns}
    assert passes(short, pa.RecordBatch.from_pydict(named)).tolist() == [True, False, False, False]
    rows = pa.RecordBatch.from_pydict(
        {name: batch.column(name).combine_chunks() for _, name in nothing.columns}
    )
    assert passes(nothing, rows).tolist() == [False, False, True, True]
    greedy = compile_predicate("repeat(s, 1000000000) = s", COLUMNS, "where")
    with pytest.raises(Exception, match="repeat makes a text of more than 1000000 characters"):
        passes(greedy, pa.RecordBatch.from_pydict({"s": batch.column("s").combine_chunks()}))


@pytest.mark.parametrize(
    ("layout", "settings"),
    [
        *((Ftlb, {"domains": domains}) for domains in (-1, 0, 10**18)),
        (Ftlb, {"backups": 10**6}),
        *((Ftlb, {"spread": spread}) for spread in (-1, 0, 65, 10**18)),
        *((layout, {"choices": n}) for layout in (Pkg, DChoices, WChoices) for n in (0, 10**18)),
        *((BiK, {"subgroup_count": n}) for n in (0, 32_769, 10**18)),
        *(
            (layout, {"tolerance": tolerance})
            for layout in (Bi, BiK, Dynamic)
            for tolerance in (0.99, -1.0, math.nan)
        ),
        *((Ftlb, {name: math.inf}) for name in ("beta", "gamma", "backup_work", "underload")),
        (Ftlb, {"backup_work": 3.0}),
        *((layout, {"beta": beta}) for layout in (MinMig, Mixed) for beta in (-1.0, math.inf)),
    ],
)
def test_settings_that_no_layout_can_have(layout, settings):
    (name,) = settings
    with pytest.raises(InvalidRequest, match=f"^{layout.name}: {name} "):
        layout(**settings)


@pytest.mark.parametrize("layout", [Pkg, DChoices, WChoices])
def test_a_key_has_no_more_candidates_than_there_are_instances(layout):
    on = equi("a", "b")
    for choices, instances in ((65_536, 4), (5, 4), (3, 1)):
        with pytest.raises(InvalidRequest) as told:
            layout(choices=choices).check(on, instances)
        assert str(told.value) == (
            f"{layout.name}: choices must be at most the number of instances, {instances}, found "
            f"{choices}"
        )
    layout(choices=4).check(on, 4)
    layout().check(on, 1)
    with pytest.raises(InvalidRequest, match="choices must be at most"):
        Options(layout=layout(choices=9), instances=8)  # of `run` and `compare`


def test_columns_in_the_wrong_order_are_said_to_be():
    left, right = pa.schema([("clicked_at", pa.int64())]), pa.schema([("bought_at", pa.int64())])
    with pytest.raises(InvalidRequest, match=r"has 'bought_at'\. Name the column of"):
        require_of((left, right), Side.LEFT, "bought_at", "within", exact=False)
    with pytest.raises(InvalidRequest, match=r"columns of the left side are clicked_at$"):
        require_of((left, right), Side.LEFT, "sold_at", "within", exact=False)
