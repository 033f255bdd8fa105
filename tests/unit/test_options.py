"""Options of a writer: their names in any case, their values, and which sink takes which."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from click.testing import CliRunner

from joinengine import JoinWriter
from joinengine.api import options as given
from joinengine.api.option_table import OPTIONS
from joinengine.api.values import size
from joinengine.driver.settings import Settings, Tasks
from joinengine.exchange.exchange import ExchangeKind
from joinengine.lab.cli import cli
from joinengine.lab.commands import sessions
from joinengine.lab.commands.headings import Heading
from joinengine.lab.commands.shell_words import at_a_shell
from joinengine.model.errors import InvalidRequest, JoinEngineError


def test_case_does_not_matter_in_names():
    options = given.merged({}, given.named("FSYNC", True))
    options = given.merged(options, given.named("Header", True))
    options = given.merged(options, given.named("fsync", "false"))
    assert given.merged(options, given.named("HEADER", 1)) == {"fsync": "false", "HEADER": "1"}


@pytest.mark.parametrize("value", [None, ["a"], ("a",), {"a": 1}])
def test_a_value_is_one_value(value):
    with pytest.raises(
        InvalidRequest, match=r"option fsync: expected text, a number or a bool, found"
    ):
        given.named("fsync", value)
    with pytest.raises(InvalidRequest, match="expected a name as text, found 5"):
        given.named(5, "x")


@pytest.mark.parametrize(
    ("sink", "name", "message"),
    [
        ("parquet", "sideOuput", "Did you mean 'sideOutput'"),
        ("parquet", "partitonBy", "Did you mean 'partitionBy'"),
        ("noop", "capcity", "Did you mean 'capacity'"),
        ("console", "numrow", "Did you mean 'numRows'"),
        ("memory", "xyz", "memory: option 'xyz' is unknown. The options are checkpointLocation"),
        ("foreachBatch", "path", "'path' is unknown"),
        ("noop", "overwrite", "noop: option 'overwrite' is only valid with format 'parquet'"),
        ("csv", "compactEvery", "csv: option 'compactEvery' is only valid with format 'parquet'"),
    ],
)
def test_unknown_options_are_refused_by_name(sink, name, message):
    with pytest.raises(InvalidRequest, match=message):
        given.check_names(sink, [name])


def test_formats_of_spark_judge_their_own_options():
    given.check_names("csv", ["header", "path", "capacity"])
    given.check_names("parquet", ["compression", "shared", "path", "sideOutput"])
    passed = given.for_spark({"header": "1", "path": "p", "capacity": "3", "compression": "gzip"})
    assert passed == {"header": "1", "path": "p", "compression": "gzip"}


@pytest.mark.parametrize("word", ["yes", "1", ""])
def test_a_boolean_is_true_or_false(word):
    with pytest.raises(InvalidRequest, match="expected true or false, found"):
        given.value_of({"fsync": word}, "fsync")


def test_booleans():
    assert given.value_of({"fsync": "TRUE"}, "fsync")
    assert not given.value_of({"truncate": "false"}, "truncate")
    assert given.value_of({}, "truncate")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "¹"])
def test_a_number_is_whole_and_positive(text):
    with pytest.raises(InvalidRequest, match="capacity: expected a whole number of rows above 0"):
        given.value_of({"capacity": text}, "capacity")
    for much in ("1000001", "9" * 20, "9" * 5000):
        with pytest.raises(InvalidRequest, match="expected at most 1,000,000 batches, found"):
            given.value_of({"compactEvery": much}, "compactEvery")
    assert given.value_of({"capacity": "12"}, "capacity") == 12
    assert given.value_of({}, "capacity") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [("7", 7), ("1 kB", 1024), ("1.5MB", 3 << 19), ("2 GiB", 2 << 30), ("64m", 64 << 20)],
)
def test_sizes(text, found):
    assert size().read(text, "targetFileSize") == found


@pytest.mark.parametrize("text", ["", "MB", "1 XB", "-1", "1,000"])
def test_what_is_no_size(text):
    with pytest.raises(InvalidRequest, match="expected a number of bytes or a size"):
        given.value_of({"targetFileSize": text}, "targetFileSize")
    with pytest.raises(InvalidRequest, match="expected at least 65,536 bytes, found"):
        given.value_of({"targetFileSize": "7"}, "targetFileSize")
    for many in ("9" * 400, "9" * 25, "1048577 TB"):
        with pytest.raises(InvalidRequest, match=r"expected at most [0-9,]+ bytes, found"):
            given.value_of({"targetFileSize": many}, "targetFileSize")


def test_how_often_new_files_are_looked_for():
    assert given.value_of({"lookEvery": "1 minute"}, "lookEvery") == 60.0
    assert given.value_of({}, "lookEvery") is None
    for text in ("0 s", "-1 s"):
        with pytest.raises(InvalidRequest, match=f"lookEvery: expected .*, found '{text}'"):
            given.value_of({"lookEvery": text}, "lookEvery")
    with pytest.raises(InvalidRequest, match="lookEvery 'often' is not a duration"):
        given.value_of({"lookEvery": "often"}, "lookEvery")


def test_codecs_have_sparks_names():
    assert given.value_of({}, "compression") == "snappy"
    assert given.value_of({"compression": "LZ4_RAW"}, "compression") == "lz4"
    with pytest.raises(InvalidRequest, match=r"compression: expected one of none, .*, found 'lzo'"):
        given.value_of({"compression": "lzo"}, "compression")


def test_defaults_are_those_of_a_query():
    """What the table says of a default is what a query has to which nothing is said."""
    assert given.settings_of({}) == Settings()
    fields = {one.name for one in dataclasses.fields(Settings)}
    told = {one.setting for one in OPTIONS.values()} - {None}
    assert told < fields
    elsewhere = {
        "checksum",
        "finite",
        "schedule",
        "trial",
        "kills",
        "naming",
        "exchange",
        "executors",
    }
    assert fields - told == elsewhere


def test_options_fill_the_settings():
    options = {"moves": "lazy", "showKeys": "hash", "tasks": "jobs"}
    found = given.settings_of(options | {"stateLocation": "s3://b/q", "capacity": "7"}, finite=True)
    assert (found.lazy, found.show_keys, found.capacity) == (True, False, 7)
    assert (found.tasks, found.exchange, found.finite) == (Tasks.JOBS, ExchangeKind.SHUFFLE, True)
    for name, text in {"moves": "now", "load": "luck", "tasks": "0", "logPlans": ""}.items():
        with pytest.raises(InvalidRequest, match=f"{name}: '{text}' is unknown; choose one of"):
            given.value_of({name: text}, name)


def test_help_lists_all_options():
    told = JoinWriter.option.__doc__
    assert all(f"`{one.name}` ({one.value.words}): {one.help}" in told for one in OPTIONS.values())


@pytest.mark.parametrize("command", ["run", "compare"])
def test_flags_of_the_table_are_those_of_the_commands(command):
    flags = {flag for one in cli.get_command(None, command).params for flag in one.opts}
    known = {f"--{one.flag}" for one in OPTIONS.values() if one.flag}
    assert known - flags == ({"--takeover"} if command == "compare" else set())


def test_the_help_of_a_flag_is_that_of_the_table():
    told = " ".join(CliRunner().invoke(cli, ["run", "--help"]).output.split())
    for head in ("--capacity ROWS", "--work-per-tuple DURATION", "--store RATE,LATENCY"):
        assert head in told
    for option in OPTIONS.values():
        assert option.flag is None or option.help.replace("`", "") in told, option.name


def test_a_flag_is_refused_in_the_words_of_the_writer():
    for flag, text, words in (
        ("--capacity", "0", "capacity: expected a whole number of rows above 0, found '0'"),
        (
            "--work-per-tuple",
            "-1 s",
            "work-per-tuple: expected a duration of 0 or more, found -1 s",
        ),
        ("--store", "slow", "store: 'slow' is not a speed of a store"),
        ("--store", "1 MB/s, 2 minutes", "store: 120 s per request is too long; use at most 60 s"),
        ("--moves", "now", "'now' is not one of 'eager', 'lazy'"),
    ):
        done = CliRunner().invoke(cli, ["run", "eq5", flag, text])
        assert done.exit_code == 2 and words in done.output, done.output


@pytest.mark.parametrize("command", ["run", "compare", "explain", "sql"])
def test_help_has_each_option_once_and_under_a_heading(command):
    told = CliRunner().invoke(cli, [command, "--help"], terminal_width=200).output
    heads = [line[:-1] for line in told.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads == [one for one in Heading if one in heads] and len(heads) > 4
    others = told.partition("Other options:\n")[2].partition("\n\n")[0]
    # Click keeps the names of a command's help as they were when it was first asked for.
    assert re.fullmatch(r"\s*(-h, )?--help\s+Show this message and exit\.\s*", others)
    for option in cli.get_command(None, command).params:
        flag = option.opts[-1]
        assert len(re.findall(rf"^  {flag}(?![\w-])", told, re.MULTILINE)) == flag.startswith("--")


FULL = "--how: 'full' needs a window; give --within, --tumbling or --sliding"


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        ("start with .option('takeover', 'take')", "start with --takeover take"),
        (
            "or .option('shared', True) to write",
            "or --sink parquet:FOLDER --sink-option shared=true to write",
        ),
        ("give .option('producers', 1)", "give --sink-option producers=1"),
        ("give .option('nobody.knows', 1)", "give --sink-option nobody.knows=1"),
        (
            "start with a new checkpointLocation and stateLocation",
            "start with a new --checkpoint and --state",
        ),
        ("names, write equi('a', 'b'), or a=b at a shell", "names, write a=b"),
        ("or write equi('a', 'b', floats='x') or --floats x to", "or write --floats x to"),
        ("give sql(.., delay='5 s'), or --delay '5 s' at a shell", "give --delay '5 s'"),
        ("path: /a lies in the folder /a", "/a lies in the folder /a"),
        (
            "servers: no. Set ssl.ca.location in options",
            "--servers: no. Set ssl.ca.location in --servers-config",
        ),
        (
            "options: a setting in options, give schema",
            "--servers-config: a setting in --servers-config, give schema",
        ),
        ("how: 'full' needs a window; give within=", FULL),
        ("Give within(.., upper=..), or both in keep=..", "Give the upper bound in --within"),
        ("give suffixes=('_l', '_r') (--suffixes _l,_r)", "give --suffixes _l,_r"),
        ("workPerTuple: no", "--work-per-tuple: no"),
        ("left_where: 'v >' is no predicate", "--left-where: 'v >' is no predicate"),
        ("on: column 'on: x' does not exist", "--on: column 'on: x' does not exist"),
        *[(same, same) for same in ("/a/checkpointLocation/b: the capacity", "storeRate2")],
        (
            "within: day is date; write .withColumn('day', 'cast(`day` as timestamp)')",
            "--within: day is date; no flag casts: join in Python, with "
            ".withColumn('day', 'cast(`day` as timestamp)')",
        ),
    ],
)
def test_a_shell_hears_of_flags(sentence, told):
    assert at_a_shell(sentence) == told


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:no"])
def test_a_master_that_nobody_is_at_is_told_at_once(master):
    told = pytest.raises(JoinEngineError, match=r"no master of Spark answers at .* \(127.0.0.1:1: ")
    with told, sessions.started(master):
        raise AssertionError("Spark has started")


@pytest.mark.parametrize("master", ["lcoal", "local[0]", "local[]", "spark:host:7077", ""])
def test_what_is_no_master_is_refused_before_spark_starts(master):
    with pytest.raises(InvalidRequest, match="is no master of Spark"), sessions.started(master):
        raise AssertionError("Spark has started")


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[*]", "local[2]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://a:7077,b:7077", "k8s://https://host:443"),
    ],
)
def test_masters_of_spark(master, monkeypatch):
    def asked(master):
        raise InvalidRequest(f"asked for {master}")

    monkeypatch.setattr("joinengine.session", asked)
    monkeypatch.setattr(sessions.socket, "create_connection", lambda *place: io.BytesIO())
    with pytest.raises(InvalidRequest, match="asked for"), sessions.started(master):
        pass


def test_triggers():
    assert given.trigger_of({"availableNow": True}) == {"availableNow": True}
    assert given.trigger_of({"processingTime": "5 s", "once": None}) == {
        "processingTime": "5000 milliseconds"
    }
    for wrong in ({}, {"availableNow": False}, {"once": True, "processingTime": "1 s"}):
        with pytest.raises(InvalidRequest, match="trigger: "):
            given.trigger_of(wrong)
    with pytest.raises(
        InvalidRequest, match="expected a processingTime of 0 or more, found '-1 s'"
    ):
        given.trigger_of({"processingTime": "-1 s"})
    with pytest.raises(InvalidRequest, match=r"trigger: expected .*, found continuous"):
        given.trigger_of({"continuous": "1 second"})


def test_columns_of_folders():
    assert given.columns("partitionBy", ("a", "b, c")) == ("a", "b, c")
    assert given.columns("partitionBy", ("a, b",)) == ("a", "b")
    for wrong in ((5,), ([None],), ("a,,b",)):
        with pytest.raises(
            InvalidRequest, match=r"partitionBy: expected the name of a column, found"
        ):
            given.columns("partitionBy", wrong)
    for sink in ("parquet", "toTable", "csv"):
        given.check_folders(sink, ["a"])
    for sink in ("noop", "console", "memory", "foreachBatch"):
        given.check_folders(sink, [])
        with pytest.raises(InvalidRequest, match=f"partitionBy: {sink} writes no folders"):
            given.check_folders(sink, ["a"])


@pytest.mark.parametrize(
    "name",
    [
        *("Catalog.uri", "KAFKA.sasl.password", "kafka.schema.registry.url", "password", "url"),
        *("liveToken", "dbPassword"),
    ],
)
def test_secrets_are_not_shown_however_their_names_are_written(name):
    (written,) = given.named(name, "hunter2")
    assert given.is_secret(written)


def test_the_beginning_of_what_is_handed_on_has_one_case():
    assert given.named("Catalog.Uri", "x") == {"catalog.Uri": "x"}
    assert given.named("KAFKA.acks", 1) == {"kafka.acks": "1"}
