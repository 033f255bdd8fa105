"""The table of options: what each is called and takes, who may set it, and what it does.

The writer, the command line, `Settings`, the page docs/options.md and the error for unknown names
are made from it (joinengine.api.options). To add an option, add a line here, and use its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinengine.api.values import BOOLEAN, CODEC, MODE, REST, TEXT, WORK, Value, choice, count, size
from joinengine.balancing.costs import Load
from joinengine.driver.settings import ShowKeys, Tasks
from joinengine.exchange.exchange import ExchangeKind
from joinengine.layouts.versions import Moving
from joinengine.model.recovery import Durability, Recovery
from joinengine.model.speeds import Speed
from joinengine.reporting.plan_log import PlanLog
from joinengine.reporting.server import check_host, check_port, check_token
from joinengine.results.kafka_messages import Value as MessageValue
from joinengine.results.kafka_target import Guarantee
from joinengine.spark.query.heartbeat import Takeover
from joinengine.spark.sources.locations import place

#: A task with less memory, or a cache that holds no run file, is worth nothing.
_LEAST_MEMORY = 1 << 20
#: Files below this cost a reader more to open than to read.
_LEAST_FILE = 1 << 16
#: Batches whose results are held back at most: a query that holds back more shows nothing.
_MOST_HELD = 1_000_000
#: Each producer has threads, and a transaction in every batch.
_MOST_PRODUCERS = 64

#: Our own table sinks. A format of Spark takes the options of a query, and those of Spark's writer.
TABLES = ("delta", "iceberg")
FORMATS = ("parquet", *TABLES, "kafka", "noop", "console", "memory")
SINKS = (*FORMATS, "foreachBatch", "foreach_batch_arrow", "toTable", "to_df")


@dataclass(frozen=True, slots=True)
class Option:
    """A line of the table.

    `sinks`: our own sinks that take it. `default`: as a user would write it; None: it has none.
    `setting`: the field of `Settings` that has its value. `flag`: its name on the command line.
    `variable`: the environment variable that counts if the option is not given.
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
_KAFKA = ("kafka",)
_ICEBERG = ("iceberg",)
_SPEED = Value("a rate and a latency: `100 MB/s, 50 ms`", Speed.of, metavar="RATE,LATENCY")
_MERGE_KEYS = "Columns, separated by commas, by whose values changes are applied to the table."
# long: one table, which grows by a line with each option
_LINES = (
    Option("checkpointLocation", TEXT, "The folder for the query's state and progress. Required."),
    Option(
        "stateLocation",
        TEXT,
        "The place for the engine's part of the checkpoint, if it is not `checkpointLocation`: a "
        "folder, or a URL of an object store, such as `s3://bucket/query`.",
    ),
    Option(
        "cacheSize",
        size(_LEAST_MEMORY),
        "The disk space that each executor uses to cache files of an object store.",
        "10 GB",
        "cache_bytes",
    ),
    Option(
        "memoryPerTask",
        size(_LEAST_MEMORY),
        "The memory that each operator task uses for the rows that it has received. More than 4 GB "
        "counts as 4 GB.",
        "512 MB",
        "memory_per_task",
    ),
    Option(
        "fsync",
        BOOLEAN,
        "Whether files are synced to disk, so that they survive a power failure.",
        "false",
        "fsync",
    ),
    Option(
        "capacity",
        count("rows"),
        "The number of rows that an instance may hold before its layout grows. It does not grow "
        "while instances hold less than half of that on average, or while a plan relieves the "
        "fullest one. If not given, the layout keeps its size.",
        setting="capacity",
        flag="capacity",
    ),
    Option(
        "moves",
        choice(Moving, lambda moving: moving is Moving.LAZY),
        "Whether state moves when the layout changes (`eager`), or stays in place until it "
        "expires (`lazy`). New rows also probe the state that has stayed.",
        "eager",
        "lazy",
        "moves",
    ),
    Option(
        "load",
        choice(Load),
        "The load that planners balance: the expected seconds of work for each key (`work`), or "
        "the number of rows (`tuples`). The papers count rows, and so do lazy moves.",
        "work",
        "load",
        "load",
        since="0.2",
    ),
    Option(
        "workPerTuple",
        WORK,
        "The emulated work for each row that an instance receives.",
        "0 s",
        flag="work-per-tuple",
    ),
    Option(
        "workPerResult",
        WORK,
        "The emulated work for each row that an instance emits.",
        "0 s",
        flag="work-per-result",
    ),
    Option(
        "sideOutput",
        TEXT,
        "The folder for late rows and rows with a NULL key. They are written there as Parquet, "
        "with a column `reason`.",
    ),
    Option(
        "showKeys",
        choice(ShowKeys, lambda shown: shown is ShowKeys.VALUE),
        "How reports, pages and logs show hot keys: by value, or by hash.",
        "value",
        "show_keys",
        "show-keys",
    ),
    Option(
        "logPlans",
        choice(PlanLog),
        "How plans are logged: as a sentence (`words`), or as JSON.",
        "words",
    ),
    Option(
        "recovery",
        choice(Recovery),
        "What replaces the state of an instance that has lost it: copies of its keys "
        "(`replicas`), a standby instance (`taskb`), or files from a store (`store`).",
        "replicas",
        "recovery",
        "recovery",
    ),
    Option(
        "storeRate",
        _SPEED,
        "The emulated speed of the state store. If not given and `recovery` is `store`: "
        "`100 MB/s, 50 ms`.",
        flag="store",
    ),
    Option(
        "storeLocation",
        Value("a folder or a URL", place),
        "The place for second copies of run files, from which lost state is restored. If not given "
        "and `recovery` is `store`: a folder below the checkpoint, with an emulated speed.",
        setting="store_location",
        since="0.2",
    ),
    Option(
        "exchange",
        choice(ExchangeKind),
        "How routed rows reach their instances: through files that all executors see, or through "
        "Spark's shuffle. If not given: `shuffle` if the state is in an object store, else "
        "`files`.",
        flag="exchange",
    ),
    Option(
        "durability",
        choice(Durability),
        "Where the state of a batch must be before the batch is committed: in the store (`batch`), "
        "or on the disks of two executors (`replicas`).",
        "batch",
        "durability",
        "durability",
    ),
    Option(
        "tasks",
        choice(Tasks),
        "Whether tasks stay from batch to batch (`resident`), or each step is a Spark job "
        "(`jobs`). With `auto`, tasks stay wherever they can.",
        "auto",
        "tasks",
        since="0.2",
    ),
    Option(
        "takeover",
        choice(Takeover),
        "What happens if another driver is running on the checkpoint: the start fails (`wait`), or "
        "ends that driver (`take`). A dead driver never blocks a start.",
        "wait",
        flag="takeover",
        since="0.2",
    ),
    Option(
        "lookEvery",
        REST,
        "How long an idle query waits before it looks for new files. If not given: 10 ms, or 1 s "
        "in an object store.",
        setting="look_every_s",
        since="0.2",
    ),
    Option(
        "livePort",
        Value("a port", check_port),
        "The port of the query's live page, which opens when the query starts. 0 takes any free "
        "port.",
        variable="JOINENGINE_LIVE_PORT",
    ),
    Option(
        "liveHost",
        Value("a host", check_host),
        "The address on which the live page listens.",
        "127.0.0.1",
        variable="JOINENGINE_LIVE_HOST",
    ),
    Option(
        "liveToken",
        Value("16 to 200 letters, digits, `-`, `.`, `_` or `~`", check_token),
        "The secret that gives access to the live page. Without it and the variable, it is random.",
        variable="JOINENGINE_LIVE_TOKEN",
    ),
    Option(
        "fileMode",
        MODE,
        "The mode of the files in a new checkpoint, for owner, group and others. If not given, "
        "only the owner has access.",
    ),
    Option("path", TEXT, "The folder for the results.", sinks=(*_PARQUET, "delta")),
    Option(
        "table",
        TEXT,
        "The table for the results, with its namespace: `shop.sales`.",
        sinks=_ICEBERG,
        since="0.2",
    ),
    Option(
        "catalog",
        TEXT,
        "The name of the catalogue, as the configuration of PyIceberg has it. Options "
        "`catalog.uri`, `catalog.warehouse` and the like set its properties.",
        "default",
        sinks=_ICEBERG,
        since="0.2",
    ),
    Option(
        "commitEvery",
        REST,
        "How long results are gathered until one commit delivers them. If not given, each batch "
        "is a commit.",
        sinks=(*TABLES, *_KAFKA),
        since="0.2",
    ),
    Option("mergeKeys", TEXT, _MERGE_KEYS, sinks=TABLES, since="0.2"),
    Option(
        "compression", CODEC, "The codec of result files.", "snappy", sinks=(*_PARQUET, *TABLES)
    ),
    Option(
        "shared",
        BOOLEAN,
        "Whether the folder may also hold the results of other queries.",
        "false",
        sinks=_PARQUET,
    ),
    Option(
        "overwrite",
        BOOLEAN,
        "Whether a query with a new checkpoint removes the results of other queries from the "
        "folder.",
        "false",
        sinks=_PARQUET,
    ),
    Option(
        "partitionBy",
        TEXT,
        "Columns, separated by commas. Results are written to Hive folders, `column=value`.",
        sinks=("parquet", "delta", "toTable"),
    ),
    Option(
        "targetFileSize",
        size(_LEAST_FILE),
        "The approximate size of result files. Files of small batches are smaller, unless "
        "`compactEvery` or `commitEvery` merges them.",
        sinks=(*_PARQUET, *TABLES),
    ),
    Option(
        "compactEvery",
        count("batches", _MOST_HELD),
        "The number of batches whose results are merged into a few files and become visible "
        "together.",
        "1",
        sinks=_PARQUET,
    ),
    Option(
        "numRows",
        count("rows"),
        "The number of rows printed for each batch.",
        "20",
        sinks=("console",),
    ),
    Option(
        "kafka.bootstrap.servers",
        TEXT,
        "The brokers, as `host:port`, separated by commas. Every other `kafka.` option goes to "
        "librdkafka without this prefix, such as `kafka.security.protocol`.",
        sinks=_KAFKA,
        since="0.2",
    ),
    Option(
        "topic",
        TEXT,
        "The topic for the results. If not given, the column `topic` names the topic of each row.",
        sinks=_KAFKA,
        since="0.2",
    ),
    Option(
        "value",
        choice(MessageValue),
        "The value of a message: the whole row as a JSON object (`json`) or as a record of Avro "
        "(`avro`), or the column `value` (`columns`). If not given: `columns` if the results have "
        "only columns of a message, else `json`.",
        sinks=_KAFKA,
        since="0.2",
    ),
    Option(
        "key",
        TEXT,
        "The column whose text is the key of a message, if the value is the whole row. If not "
        "given, messages have no key.",
        sinks=_KAFKA,
        since="0.2",
    ),
    Option(
        "includeHeaders",
        BOOLEAN,
        "Whether the column `headers` becomes the headers of a message.",
        "true",
        sinks=_KAFKA,
        since="0.2",
    ),
    Option(
        "delivery",
        choice(Guarantee),
        "Whether results are delivered by transactions (`exactly_once`), or without them and "
        "perhaps again after a restart (`at_least_once`).",
        "exactly_once",
        sinks=_KAFKA,
        since="0.2",
    ),
    Option(
        "producers",
        count("producers", _MOST_PRODUCERS),
        "The number of producers, each with transactions of its own. With more than one, a reader "
        "may see a part of a batch before the rest. If not given: as the checkpoint has it, or 1.",
        sinks=_KAFKA,
        since="0.2",
    ),
    Option("truncate", BOOLEAN, "Whether long values are cut.", "true", sinks=("console",)),
)
#: Name -> option, in the order of the page.
OPTIONS: Mapping[str, Option] = {one.name: one for one in _LINES}
