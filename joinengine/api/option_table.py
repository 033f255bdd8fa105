"""The table of options: what each is called and takes, who may set it, and what it does.

The writer, the command line, `Settings`, the page docs/options.md and the refusal of unknown names
are made of it (joinengine.api.options). To add an option: a line here, and where its value is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinengine.api.values import (
    BOOLEAN,
    CODEC,
    MODE,
    REST,
    TEXT,
    WORK,
    Value,
    choice,
    count,
    size,
)
from joinengine.balancing.costs import Load
from joinengine.driver.settings import ShowKeys, Tasks
from joinengine.exchange.exchange import ExchangeKind
from joinengine.layouts.versions import Moving
from joinengine.model.recovery import Durability, Recovery
from joinengine.reporting.plan_log import PlanLog
from joinengine.reporting.server import check_host, check_port, check_token
from joinengine.spark.query.heartbeat import Takeover
from joinengine.spark.sources.locations import place
from joinengine.state.store import StoreSpeed

#: A task with less memory, or a cache that holds no run file, is worth nothing.
_LEAST_MEMORY = 1 << 20
#: Files below this cost a reader more to open than to read.
_LEAST_FILE = 1 << 16
#: Batches whose results are held back at most: a query that holds back more shows nothing.
_MOST_HELD = 1_000_000

#: Sinks of ours. A format of Spark takes the options of a query, and whatever Spark's writer takes.
SINKS = ("parquet", "noop", "console", "memory", "foreachBatch", "toTable")


@dataclass(frozen=True, slots=True)
class Option:
    """A line of the table.

    `sinks`: those of ours that take it. `default`: as a user would write it; None: not given.
    `setting`: the field of `Settings` that has its value. `flag`: its name on the command line;
    `variable`: that of the environment that holds where it is not given.
    """

    name: str
    value: Value
    help: str
    default: str | None = None
    setting: str | None = None
    flag: str | None = None
    variable: str | None = None
    sinks: tuple[str, ...] = SINKS
    since: str = "0.1"


_PARQUET = ("parquet",)
_SPEED = Value("a rate and a time, as `100 MB/s, 50 ms`", StoreSpeed.of, metavar="RATE,LATENCY")
_LINES = (
    Option("checkpointLocation", TEXT, "The folder of the query's state; needed."),
    Option(
        "stateLocation",
        TEXT,
        "Where the engine's part of the checkpoint lies instead: a folder, or a place in an object "
        "store, as `s3://bucket/query`.",
    ),
    Option(
        "cacheSize",
        size(_LEAST_MEMORY),
        "How much of an object store's files an executor keeps on its disk.",
        "10 GB",
        "cache_bytes",
    ),
    Option(
        "memoryPerTask",
        size(_LEAST_MEMORY),
        "How many bytes of arrived tuples an operator task holds at a time.",
        "512 MB",
        "memory_per_task",
    ),
    Option("fsync", BOOLEAN, "Files survive power loss.", "false", "fsync"),
    Option(
        "capacity",
        count("tuples"),
        "Tuples that an instance may hold before its layout grows.",
        setting="capacity",
        flag="capacity",
    ),
    Option(
        "moves",
        choice(Moving, lambda moving: moving is Moving.LAZY),
        "Whether state follows a new layout at once, or stays until it expires, and tuples probe "
        "it there.",
        "eager",
        "lazy",
        "moves",
    ),
    Option(
        "load",
        choice(Load),
        "What planners balance: the seconds that keys are expected to cost, or tuples, as in the "
        "papers and under lazy moves.",
        "work",
        "load",
        "load",
        since="0.2",
    ),
    Option(
        "workPerTuple",
        WORK,
        "Emulated work for each tuple that an instance receives.",
        "0 s",
        "work_s",
        "work-per-tuple",
    ),
    Option(
        "workPerResult",
        WORK,
        "Emulated work for each row that an instance emits.",
        "0 s",
        "result_work_s",
        "work-per-result",
    ),
    Option(
        "sideOutput",
        TEXT,
        "A folder: late and NULL-key tuples are written there as Parquet, with a column `reason`.",
    ),
    Option(
        "showKeys",
        choice(ShowKeys, lambda shown: shown is ShowKeys.VALUE),
        "How reports, pages and logs tell hot keys.",
        "value",
        "show_keys",
        "show-keys",
    ),
    Option(
        "logPlans", choice(PlanLog), "How plans are logged: as a sentence, or as JSON.", "words"
    ),
    Option(
        "recovery",
        choice(Recovery),
        "What takes the place of state that an instance has lost: copies of keys, of instances, or "
        "of files.",
        "replicas",
        "recovery",
        "recovery",
    ),
    Option(
        "storeRate",
        _SPEED,
        "The emulated speed of a store of state; `100 MB/s, 50 ms` where recovery is `store`.",
        setting="store",
        flag="store",
    ),
    Option(
        "storeLocation",
        Value("a folder or a URL", place),
        "Where second copies of run files lie, for state that is lost. If it is not given, and "
        "recovery is `store`: below the checkpoint, at an emulated speed.",
        setting="store_location",
        since="0.2",
    ),
    Option(
        "exchange",
        choice(ExchangeKind),
        "What carries routed tuples: files that all executors see, or Spark's shuffle. If it is "
        "not given: `shuffle` if the state is in an object store, else `files`.",
        flag="exchange",
    ),
    Option(
        "durability",
        choice(Durability),
        "What a batch waits for: its state in the store, or on the disks of two executors.",
        "batch",
        "durability",
        "durability",
    ),
    Option(
        "tasks",
        choice(Tasks),
        "Whether tasks stay from batch to batch, or each step is a job of Spark; `auto`: they stay "
        "where they can.",
        "auto",
        "tasks",
        since="0.2",
    ),
    Option(
        "takeover",
        choice(Takeover),
        "What a start does while another driver runs on the checkpoint: it is refused (`wait`), or "
        "ends the other one (`take`). A driver that has died is never in the way.",
        "wait",
        flag="takeover",
        since="0.2",
    ),
    Option(
        "lookEvery",
        REST,
        "How long a query with nothing to do rests before it looks for new files. If it is not "
        "given: 10 ms, and 1 s in an object store.",
        setting="look_every_s",
        since="0.2",
    ),
    Option(
        "livePort",
        Value("a port", check_port),
        "The page of the running query comes with it, at this port; 0: any that is free.",
        variable="JOINENGINE_LIVE_PORT",
    ),
    Option(
        "liveHost",
        Value("a host", check_host),
        "The address at which the page may be opened.",
        "127.0.0.1",
        variable="JOINENGINE_LIVE_HOST",
    ),
    Option(
        "liveToken",
        Value("16 to 200 letters and digits", check_token),
        "Who has it may read the page. If it is not given, it is random.",
        variable="JOINENGINE_LIVE_TOKEN",
    ),
    Option(
        "fileMode",
        MODE,
        "The mode of the files that a new checkpoint holds, for owner, group and others. If it is "
        "not given, they are their owner's alone.",
    ),
    Option("path", TEXT, "The folder of the results.", sinks=_PARQUET),
    Option("compression", CODEC, "How result files are compressed.", "snappy", sinks=_PARQUET),
    Option(
        "shared",
        BOOLEAN,
        "The folder may hold results of other queries, too.",
        "false",
        sinks=_PARQUET,
    ),
    Option(
        "overwrite",
        BOOLEAN,
        "If the checkpoint is new, results of other queries in the folder are removed.",
        "false",
        sinks=_PARQUET,
    ),
    Option(
        "partitionBy",
        TEXT,
        "Columns, with commas between: results lie in Hive folders, `column=value`.",
        sinks=("parquet", "toTable"),
    ),
    Option(
        "targetFileSize",
        size(_LEAST_FILE),
        "About how large result files become, if they are not smaller anyway.",
        sinks=_PARQUET,
    ),
    Option(
        "compactEvery",
        count("batches", _MOST_HELD),
        "The results of so many batches become visible together, merged into few files.",
        "1",
        sinks=_PARQUET,
    ),
    Option(
        "numRows", count("rows"), "Rows that are printed of each batch.", "20", sinks=("console",)
    ),
    Option("truncate", BOOLEAN, "Long values are cut.", "true", sinks=("console",)),
)
#: Name -> option, in the order of the page.
OPTIONS: Mapping[str, Option] = {one.name: one for one in _LINES}
