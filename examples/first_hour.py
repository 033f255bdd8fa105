"""A new user's first hour on odd data: what each step should bring, and what it brought.

python examples/first_hour.py

Writes small folders below a temporary one, joins them, makes the usual mistakes, and prints a
table. Exit code 1: a step brought something else.
"""

import datetime as dt
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from joinengine import (
    StreamAggregate,
    StreamJoin,
    band,
    equi,
    parquet_stream,
    session,
    theta,
    windows,
    within,
)
from joinengine.model.errors import JoinEngineError

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
#: A script that presses Ctrl-C itself while it waits.
ENDLESS = """
import os, signal, threading
from joinengine import StreamJoin, equi, parquet_stream, session
spark = session()
sides = [parquet_stream(spark, "{0}/clicks"), parquet_stream(spark, "{0}/purchases")]
joined = StreamJoin(*sides, on=equi("user_id", "buyer_id"), instances=2)
query = joined.writeStream.format("noop").option("checkpointLocation", "{0}/endless").start()
query.processAllAvailable()
threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
query.awaitTermination()
"""
LINE = "{:2} {:40} {:36} {}"


class Hour:
    """The folders and queries of one hour; `run` counts the results of a join."""

    def __init__(self, root: Path) -> None:
        self.root, self.queries = root, 0
        self.spark = session(spark__sql__shuffle__partitions="2")
        self.write("clicks", user_id=list(range(20)), clicked_at=minutes(20))
        self.write("purchases", buyer_id=list(range(0, 20, 2)), bought_at=minutes(10))

    def write(self, name, number=0, **columns):
        """A Parquet file of a folder; a list becomes an array."""
        path = self.root / name / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        return path

    def stream(self, name, **options):
        return parquet_stream(self.spark, self.root / name, **options)

    def join(self, left="clicks", right="purchases", on=None, **settings):
        """Two streams, joined within the hour after a click unless it is said otherwise."""
        sides = [self.stream(side) if isinstance(side, str) else side for side in (left, right)]
        settings.setdefault("within", hour())
        return StreamJoin(*sides, on=on or equi("user_id", "buyer_id"), instances=2, **settings)

    def start(self, joined, name=None, path=None, **options):
        """Write what is there to a folder; each call has a checkpoint and an output of its own."""
        self.queries += 1
        name = name or f"query-{self.queries}"
        writer = joined.writeStream.format("parquet").trigger(availableNow=True)
        for key, value in options.items():
            writer = writer.option(key, value)
        writer = writer.option("checkpointLocation", str(self.root / f"{name}-checkpoint"))
        query = writer.start(str(self.root / (path or name)))
        query.awaitTermination()
        return query

    def run(self, joined, **options):
        batches = self.start(joined, **options).metrics().to_pylist()
        return f"{sum(batch['output_rows'] for batch in batches)} rows"


def minutes(count):
    return pa.array([NOON + dt.timedelta(minutes=n) for n in range(count)], UTC)


def hour(**settings):
    settings = {"lower": "-1 hour", "upper": "1 hour", "delay": "5 minutes"} | settings
    return within("clicked_at", "bought_at", **settings)


# Odd data


def unsigned(here):
    here.write("unsigned", user_id=pa.array(range(20), pa.uint32()), clicked_at=minutes(20))
    return here.run(here.join("unsigned"))


def hive(here):
    for day in (1, 2):
        here.write(f"hive/day=2026-03-0{day}", user_id=[2, 4], clicked_at=minutes(2))
    joined = here.join("hive")
    return f"{here.run(joined)}, day: {joined.schema['day'].dataType.simpleString()}"


def nanoseconds(here):
    times = minutes(20).cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).to_pylist()
    odd = pa.array([time + 1 for time in times]).cast(pa.timestamp("ns", "UTC"))
    here.write("nanoseconds", user_id=list(range(20)), clicked_at=odd)
    return here.run(here.join("nanoseconds"))


def names(here):
    here.write("names", **{"__word": [2, 4], "p0": [1, 2], 'a "b"': [1, 2], "": [1, 2]})
    joined = here.join("names", on=equi("__word", "buyer_id"), within=None)
    return f"{here.run(joined)}, {', '.join(joined.schema.names[:4])}"


def odd_groups(here):
    here.write("groups", **{"__pane": [1, 1, 2], "ts": minutes(3)})
    window = windows("ts", size="1 hour", delay="0 s")
    counted = StreamAggregate(
        here.stream("groups"), by="__pane", aggregates={"p0": "count(*)"}, window=window
    )
    return ", ".join(counted.schema.names)


def case(here):
    return here.run(here.join(on=equi("USER_ID", "Buyer_Id")))


def computed_key(here):
    here.write("shifted", key=list(range(100, 120)), clicked_at=minutes(20))
    left = here.stream("shifted").withColumn("user_id", "key - 100")
    return here.run(here.join(left))


def nested(here):
    places = [{"lat": n / 2, "name": "x"} for n in range(20)]
    here.write("places", user_id=list(range(20)), clicked_at=minutes(20), geo=places)
    return here.run(here.join("places", left_where="geo.lat >= 5 and geo.name rlike '^x'"))


def decimals(here):
    for name, key, digits in (("fine", "user_id", 2), ("coarse", "buyer_id", 1)):
        keys = pa.array([Decimal(n) for n in range(5)], pa.decimal128(10, digits))
        time = "clicked_at" if key == "user_id" else "bought_at"
        here.write(name, **{key: keys, time: minutes(5)})
    return here.run(here.join("fine", "coarse"))


def floats(here):
    for name, key, zero in (("left", "user_id", -0.0), ("right", "buyer_id", 0.0)):
        time = "clicked_at" if key == "user_id" else "bought_at"
        here.write(f"float-{name}", **{key: [zero, float("nan"), 1.0], time: minutes(3)})
    return here.run(
        here.join("float-left", "float-right", equi("user_id", "buyer_id", floats="normalised"))
    )


def null_times(here):
    times = pa.array([NOON, None], UTC)
    here.write("timeless", user_id=[0, 2], clicked_at=times)
    return here.run(here.join("timeless", how="left"))


def url(here):
    return here.run(here.join(parquet_stream(here.spark, (here.root / "clicks").as_uri())))


def bucket(here):
    return here.run(here.join(parquet_stream(here.spark, "s3a://bucket/clicks")))


# A bad file, and the way on


def bad_file(here):
    here.write("mixed", user_id=list(range(20)), clicked_at=minutes(20))
    here.start(here.join("mixed"), "mixed-out")
    here.write("mixed", 1, renamed=[2, 4], clicked_at=minutes(2))
    (here.root / "mixed" / "2.parquet").write_bytes(b"half a file")
    here.write("mixed", 3, user_id=[6, 8], clicked_at=minutes(12)[10:])
    return here.start(here.join("mixed"), "mixed-out")


def bad_file_skipped(here):
    left = here.stream("mixed", on_bad_file="skip", settle="0 s")
    batches = here.start(here.join(left), "mixed-out").metrics().to_pylist()
    skipped = [text for batch in batches for text in batch["skipped_files"] or ()]
    return f"{sum(b['output_rows'] for b in batches)} rows, {len(skipped)} files skipped"


# Mistakes


def unknown_column(here):
    return here.stream("clicks").where("usr = 3")


def float_key(here):
    return here.join("float-left", "float-right")


def no_window(here):
    return here.join(how="full", within=None)


def wrong_layout(here):
    return here.join(layout="mnrtt")


def layout_that_cannot(here):
    return here.join(on=theta("user_id < buyer_id"), within=None, layout="hash")


def option_typo(here):
    return here.start(here.join(), sideOuput="refused")


def unknown_format(here):
    writer = here.join().writeStream.format("parqet")
    return writer.option("checkpointLocation", str(here.root / "typo")).start(str(here.root / "t"))


def one_folder_for_both(here):
    return here.start(here.join(), "same-checkpoint", "same-checkpoint-checkpoint")


def other_output(here):
    here.start(here.join(), "first")
    return here.start(here.join(), "first", "second")


def checkpoint_deleted(here):
    shutil.rmtree(here.root / "first-checkpoint")
    return here.start(here.join(), "first")


# Running it


def port_of_spark(here):
    def frame(name):
        path = str(here.root / name)
        return here.spark.readStream.schema(here.spark.read.parquet(path).schema).parquet(path)

    clicks = frame("clicks").withWatermark("clicked_at", "5 minutes")
    purchases = frame("purchases").withWatermark("bought_at", "5 minutes")
    return here.run(here.join(clicks, purchases, within=hour(delay=None)))


def one_sided(here):
    window = within("clicked_at", "bought_at", upper="0 s", delay="5 minutes")
    return here.run(here.join(within=window))


def bands(here):
    return here.run(here.join(on=band("user_id", "buyer_id", lower=0, upper=1)))


def another_layout(here):
    query = here.start(here.join(layout="hash"), "relaid")
    here.write("clicks", 9, user_id=[4], clicked_at=minutes(1))
    again = here.start(here.join(layout="w-choices"), "relaid")
    (here.root / "clicks" / "9.parquet").unlink()
    layouts = [
        line for q in (query, again) for line in q.explain().splitlines() if "layout" in line
    ]
    return f"{layouts[0].split()[1]}, then {layouts[1].split()[1]}"


def counts(here):
    query = here.start(here.join())
    return (
        f"{query.lastProgress['numInputRows']} rows in; {len(query.progress().splitlines())} lines"
    )


def hive_results(here):
    query = here.join("hive").writeStream.format("parquet").partitionBy("day")
    query = query.option("checkpointLocation", str(here.root / "by-day-checkpoint"))
    query.trigger(availableNow=True).start(str(here.root / "by-day")).awaitTermination()
    return ", ".join(sorted(path.name for path in (here.root / "by-day").glob("day=*")))


def interrupted(here):
    script = here.root / "endless.py"
    script.write_text(ENDLESS.format(here.root))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if "stopped on Ctrl-C" in line]
    trace = "a trace" if "KeyboardInterrupt" in done.stderr else "no trace"
    return f"exit code {done.returncode}, {len(said)} line, {trace}"


def command_line(here):
    command = [Path(sys.executable).parent / "joinengine", "run", "eq6"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"exit code {done.returncode}: {done.stderr.strip()}"


def own_keys(here):
    command = [Path(sys.executable).parent / "joinengine", "simulate", "hash", "mnrt", "--stream"]
    done = subprocess.run(
        [*command, here.root / "clicks", "--key", "user_id", "--instances", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"exit code {done.returncode}"


#: A step, what is expected to be among what it brings, and what brings it.
STEPS: list[tuple[str, str, Callable[[Hour], object]]] = [
    ("an inner join", "10 rows", lambda here: here.run(here.join())),
    ("Spark's own streams as sides", "10 rows", port_of_spark),
    ("unsigned integers as keys", "10 rows", unsigned),
    ("Hive folders", "4 rows, day: date", hive),
    ("times with nanoseconds", "10 rows", nanoseconds),
    ("columns __word, p0, quotes, no name", '2 rows, __word, p0, a "b"', names),
    ("groups __pane, an aggregate p0", "__pane, p0", odd_groups),
    ("column names in another case", "10 rows", case),
    ("a key that is computed", "10 rows", computed_key),
    ("fields of a struct, a regular expression", "5 rows", nested),
    ("decimals of two scales", "5 rows", decimals),
    ("float keys, normalised", "3 rows", floats),
    ("a NULL event time in a left join", "2 rows", null_times),
    ("file:// for a source", "10 rows", url),
    ("s3a:// for a source", "refused", bucket),
    ("bad files, on_bad_file='fail'", "1.parquet", bad_file),
    ("the same checkpoint, on_bad_file='skip'", "2 rows, 2 files skipped", bad_file_skipped),
    ("an unknown column in Stream.where", "column 'usr' does not exist", unknown_column),
    ("float keys", "floating-point keys are refused", float_key),
    ("a full outer join without a window", "needs a window", no_window),
    ("a layout that does not exist", "layout: expected one of", wrong_layout),
    ("a layout that cannot do it", "use auto, dynamic, bi or shuffle", layout_that_cannot),
    ("an option with a typing error", "Did you mean 'sideOutput'", option_typo),
    ("a format with a typing error", "refused", unknown_format),
    ("one folder for checkpoint and output", "refused", one_folder_for_both),
    ("another output for the checkpoint", "refused", other_output),
    ("the checkpoint deleted, the output kept", "refused", checkpoint_deleted),
    ("an interval open on one side", "10 rows", one_sided),
    ("a band", "19 rows", bands),
    ("a restart under another layout", "hash, then w-choices", another_layout),
    ("counts where Spark has them", "30 rows in; 2 lines", counts),
    ("results in Hive folders", "day=2026-03-01, day=2026-03-02", hive_results),
    ("Ctrl-C in a script", "exit code 130, 1 line, no trace", interrupted),
    (
        "a typing error on the command line",
        "exit code 2: joinengine: query: expected",
        command_line,
    ),
    ("my keys under two layouts", "exit code 0", own_keys),
]


def outcome(step, here):
    """What a step brings: its text, or how it was refused."""
    try:
        return str(step(here))
    except JoinEngineError as refused:
        return f"refused: {refused}"
    except Exception as failed:  # a step must not end the hour
        return f"RAW {type(failed).__name__}: {str(failed).splitlines()[0]}"


def main():
    """Run all steps, print a line for each, and return the exit code."""
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        here = Hour(Path(root))
        print(LINE.format("", "step", "expected", "came"), "-" * 150, sep="\n")
        for name, expected, step in STEPS:
            came = outcome(step, here).replace(root, "..")
            right = expected in came and not came.startswith("RAW")
            wrong += not right
            line = LINE.format("" if right else "NO", name, expected, came)
            print(*textwrap.wrap(line, 150, subsequent_indent=" " * 81), sep="\n", flush=True)
        here.spark.stop()
    print(f"{len(STEPS) - wrong} of {len(STEPS)} steps came as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
